"""Collectives on this host against other libraries: each goal of the host engine, and what was found.

    python benchmarks/ratios.py [--peer gloo,openmpi,mpich,impi=/prefix,…] [--ranks 2,4,8] [-o ratios.json]

Ours (private buffers, and shared tensors), every peer in every tuning, and the memory probe run in turns in one go;
a ratio is that of two medians of the same round, and the median of the rounds counts (``blink bench --help``).
"best" is the peer and tuning with the least median at that size. Everything is float32, sum, in place.
Exit 1 if a goal is missed; a goal whose peer is not here is "not measured".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blinkccl.bench.bound import cores
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.host import spawned
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant, Runs
from blinkccl.bench.pattern import TimedCall
from blinkccl.bench.peers import registry
from blinkccl.bench.protocol import Command, Flag
from blinkccl.bench.rows import Series, paired
from blinkccl.bench.sizes import block_count, check_memory
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.units import parse_bytes

SHARED = "ours, shared"


@dataclass(frozen=True, slots=True)
class Goal:
    """``factor`` times as fast as ``against``: "best", a peer's name, or "floor" (then a part of the bound)."""

    collective: str
    ranks: tuple[int, ...]
    sizes: tuple[str, ...]
    factor: float
    against: str = "best"
    shared: bool = False


SMALL, MIDDLE, LARGE = ("4K", "16K", "64K"), ("1M", "16M"), ("64M", "256M")
#: Never slower than 1.05 times the best.
EVEN = 1 / 1.05
GOALS = (
    Goal("allreduce", (2,), ("1M",), 1.3),
    Goal("allreduce", (2,), ("16M",), 1.7),
    Goal("allreduce", (2,), LARGE, 2.3),
    Goal("allreduce", (4, 8), ("1M",), 1.0),
    Goal("allreduce", (4, 8), ("16M",), 2.0),
    Goal("allreduce", (4, 8), LARGE, 2.8),
    Goal("allreduce", (2, 4, 8), SMALL, EVEN),
    Goal("allreduce", (2, 4, 8), (*SMALL, *MIDDLE, *LARGE), 5.0, "gloo"),
    Goal("allreduce", (2, 4, 8), ("64K", *MIDDLE, *LARGE), 2.5, shared=True),
    Goal("allreduce", (4, 8), ("16M", *LARGE), 8.0, shared=True),
    Goal("reduce_scatter", (2,), ("16M", "64M"), 3.0),
    Goal("broadcast", (2,), ("16M", "64M"), 1.4),
    Goal("allgather", (2,), ("16M", "64M"), 1.2),
    Goal("allgather", (2,), ("16M", "64M"), 1.5, shared=True),
    Goal("allgather", (2,), SMALL, 1.0),
    Goal("allreduce", (4, 8), ("4K",), 1.25, "impi"),
    Goal("allreduce", (2,), LARGE, 0.85, "floor"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What came out at one size: medians in seconds, by candidate; ratios of the same rounds."""

    collective: str
    ranks: int
    size: str
    medians_s: dict[str, float]
    ratios: dict[str, float]
    shared_ratios: dict[str, float]
    floor: float | None
    shared_floor: float | None
    wrong: int

    def ratio(self, goal: Goal) -> tuple[str, float] | None:
        """Whom we were compared with, and how many times as fast we were; None: it was not there."""
        ratios = self.shared_ratios if goal.shared else self.ratios
        if goal.against == "floor":
            floor = self.shared_floor if goal.shared else self.floor
            return None if floor is None else ("memory", floor)
        compared = {name: value for name, value in ratios.items() if goal.against in ("best", name.split()[0])}
        if not compared:
            return None
        name = min(compared, key=lambda peer: self.medians_s[peer])
        return name, compared[name]


class InSharedMemory:
    """Our ranks, told to use shared tensors."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def run(self, commands: Sequence[Command], /) -> RankTimes:
        return self._runs.run([replace(command, flags=command.flags | Flag.SHARED) for command in commands])


def iterations(size: int) -> int:
    """Timed runs per block."""
    return max(5, min(1000, 2**26 // max(1, size)))


def found(
    case: tuple[str, int, str],
    participants: Sequence[Participant],
    series: Sequence[Series | None],
    floors: Sequence[float] | None,
) -> Found:
    """The numbers of one case from all rounds."""
    own, shared = series[0], series[1]
    assert own is not None
    assert shared is not None
    medians, ratios, shared_ratios = {"ours": own.median_s(), SHARED: shared.median_s()}, {}, {}
    for participant, peer in zip(participants[2:], series[2:], strict=True):
        if peer is not None and len(peer.rounds) == len(own.rounds):
            medians[participant.title] = peer.median_s()
            ratios[participant.title] = paired(peer.medians_s(), own.medians_s())
            shared_ratios[participant.title] = paired(peer.medians_s(), shared.medians_s())
    wrong = sum(found.wrong or 0 for found in series if found is not None)
    bounds = [None if floors is None else paired(floors, ours.medians_s()) for ours in (own, shared)]
    return Found(*case, medians, ratios, shared_ratios, bounds[0], bounds[1], wrong)


def cases(goals: Iterable[Goal], ranks: int) -> list[tuple[str, str]]:
    """Collective and size of everything that the goals ask of ``ranks`` ranks, each once, ascending."""
    wanted = {(goal.collective, size) for goal in goals if ranks in goal.ranks for size in goal.sizes}
    return sorted(wanted, key=lambda case: (case[0], parse_bytes(case[1])))


def measured(ranks: int, peers: Sequence[tuple[str, str | None]], rounds: int, largest: int) -> Iterator[Found]:
    """Run all cases of ``ranks`` ranks."""
    settings = BenchSettings(rounds=rounds, warmup=2, block_s=0.5)
    base = Collective("allreduce", ranks)
    with spawned(base, settings, peers, note) as (interleaved, _):
        own, *others = interleaved.participants
        participants = [own, Participant(SHARED, "", InSharedMemory(own.runs)), *others]
        for name, size in cases(GOALS, ranks):
            if parse_bytes(size) > largest:
                continue
            collective = Collective(name, ranks, root=0 if name == "broadcast" else None)
            check_memory(collective, [parse_bytes(size)], settings.dtype)
            count = block_count(collective, parse_bytes(size), 4)
            runs = iterations(parse_bytes(size))
            for participant in participants:
                participant.last = None  # Another collective has other times.
            made = Interleaved(collective, replace(settings, iterations=runs), participants, interleaved.probe, note)
            series, floors = made.measure(TimedCall(collective, count, iterations=runs, warmup=2))
            yield found((name, ranks, size), participants, series, floors)


def verdicts(goals: Iterable[Goal], results: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Each goal at each of its sizes that was measured: ``reached`` is None where its peer was not there."""
    for goal in goals:
        for result in results:
            if result.collective != goal.collective or result.ranks not in goal.ranks or result.size not in goal.sizes:
                continue
            compared = result.ratio(goal)
            ours = result.medians_s[SHARED if goal.shared else "ours"]
            yield {
                "collective": goal.collective,
                "ranks": result.ranks,
                "size": result.size,
                "buffers": "shared" if goal.shared else "private",
                "against": goal.against,
                "wanted": goal.factor,
                "ours_s": ours,
                "peer": compared[0] if compared else None,
                "ratio": compared[1] if compared else None,
                "reached": compared[1] >= goal.factor if compared else None,
            }


def line(verdict: dict[str, Any]) -> str:
    """One verdict as text."""
    said = {True: "reached", False: "MISSED", None: "not measured"}[verdict["reached"]]
    ratio = "–" if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
    peer = verdict["peer"] or verdict["against"]
    return (
        f"{verdict['collective']:<14} {verdict['ranks']:>5}  {verdict['size']:>5}  {verdict['buffers']:<7} "
        f"{verdict['ours_s'] * 1e6:>10.2f}  {ratio:>7}  ≥ {verdict['wanted']:<5.3g} {said:<12} {peer}"
    )


def available(text: str | None, ranks: int) -> list[tuple[str, str | None]]:
    """The peers that were named, or all that are here."""
    if text is not None:
        return registry.parse(text)
    here: list[tuple[str, str | None]] = []
    for name in registry.PEERS:
        try:
            registry.launches(name, None, ranks, cores())
            here.append((name, None))
        except UnsupportedError as reason:
            note(f"without {name}: {reason}")
    return here


def note(text: str) -> None:
    """To the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure, judge, print, write."""
    parser = argparse.ArgumentParser(description="Goals of the host engine against other libraries.")
    parser.add_argument("--peer", help="as blink bench has it; default: all that are on PATH, and gloo")
    parser.add_argument("--ranks", default="2,4,8", help="default 2,4,8")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--largest", default="256M", help="leave larger sizes out; default 256M")
    parser.add_argument("-o", "--output", help="also write all numbers as JSON")
    options = parser.parse_args()
    results: list[Found] = []
    for ranks in map(int, options.ranks.split(",")):
        try:
            for result in measured(ranks, available(options.peer, ranks), options.rounds, parse_bytes(options.largest)):
                results.append(result)
                fastest = min(result.ratios, key=lambda name: result.medians_s[name], default=None)
                rest = f"{fastest} {result.medians_s[fastest] * 1e6:.2f} µs" if fastest else "no peer"
                note(
                    f"{result.collective} {result.size} on {ranks} ranks: ours {result.medians_s['ours'] * 1e6:.2f}, "
                    f"shared {result.medians_s[SHARED] * 1e6:.2f}, {rest}; wrong {result.wrong}"
                )
        except (CommunicationError, UnsupportedError) as error:
            note(f"{ranks} ranks: {error}")
            return 1
    judged = list(verdicts(GOALS, results))
    print(
        f"{'collective':<14} {'ranks':>5}  {'size':>5}  {'buffers':<7} {'ours (µs)':>10}  {'ratio':>7}  "
        f"{'wanted':<7} {'':<12} against"
    )
    for verdict in judged:
        print(line(verdict))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(
                {"schema_version": 1, "verdicts": judged, "results": [asdict(result) for result in results]},
                file,
                indent=1,
            )
    return int(any(verdict["reached"] is False for verdict in judged) or any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
