"""Collectives on this host against other libraries: each goal of the host engine, and the result.

    python benchmarks/ratios.py [--peer gloo,openmpi,mpich,impi=/prefix,…] [--ranks 2,4,8] [-o ratios.json]

Blink, every peer in every tuning, and the memory probe run in turns. Blink runs with private buffers in and out of
place, and with shared tensors. A ratio is that of two medians of the same round, and the median over the rounds counts
(``blink bench --help``). "memory" is the time of the least traffic through this memory in the same round, in percent
of our time. "best" is the peer and tuning with the least median at that size and placement. Everything is float32 and
sum. The table begins with the largest shortfall. Exit 1 if a goal is missed; a goal whose peer is missing is "not
measured".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blinkccl.bench.algorithms import Job
from blinkccl.bench.bound import cores
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.host import spawned
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant, Runs
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.peers import registry
from blinkccl.bench.protocol import Command, Flag
from blinkccl.bench.rows import Series, paired
from blinkccl.bench.sizes import block_count, check_memory
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.units import parse_bytes

#: Placement of our ranks' buffers. Peers have no shared tensors and run in place then.
IN, OUT, SHARED = "in place", "out of place", "shared"


@dataclass(frozen=True, slots=True)
class Case:
    """A case, measured in one go."""

    collective: str
    ranks: int
    size: str
    buffers: str


@dataclass(frozen=True, slots=True)
class Goal:
    """``factor`` times as fast as ``against``: "best", a peer's name, or "floor" (then a part of the bound)."""

    collectives: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes: tuple[str, ...]
    factor: float
    against: str = "best"
    buffers: tuple[str, ...] = (IN, OUT)

    def judges(self, case: Case) -> bool:
        """True if the goal applies to ``case``."""
        return (
            case.collective in self.collectives
            and case.ranks in self.ranks
            and case.size in self.sizes
            and case.buffers in self.buffers
        )


LARGE = ("64M", "256M")
SIZES = ("8", "512", "4K", "16K", "64K", "256K", "1M", "4M", "16M", *LARGE)
RANKS = (2, 4, 8)
ALLREDUCE = ("allreduce",)
ONE_WAY = ("reduce_scatter", "broadcast", "reduce")
MOVES = ("allgather", "alltoall", "gather", "scatter")
#: Lowest allowed ratio anywhere.
EVEN = 0.95
#: Our calls before the first timed one, as in a job of thousands: they try variants.
SETTLING = 150


def _row(
    collectives: tuple[str, ...], ranks: tuple[int, ...], factors: str, buffers: tuple[str, ...] = (IN, OUT)
) -> Iterator[Goal]:
    """Goals at 4K, 64K, 1M, 4M, 16M and from 64M; ``-``: no goal."""
    for sizes, factor in zip((("4K",), ("64K",), ("1M",), ("4M",), ("16M",), LARGE), factors.split(), strict=True):
        if factor != "-":
            yield Goal(collectives, ranks, sizes, float(factor), "best", buffers)


GOALS = (
    *_row(ALLREDUCE, (2,), "1.2 1.3 1.6 1.4 2.0 2.3"),
    *_row(ALLREDUCE, (4, 8), "1.5 1.5 1.4 1.4 1.5 2.0"),
    *_row(ALLREDUCE, (2,), "- 2.5 3 3 3 3", (SHARED,)),
    *_row(ALLREDUCE, (4, 8), "- 2.5 4 5 6 6", (SHARED,)),
    *_row(ONE_WAY, RANKS, "1.0 1.0 1.2 1.2 1.4 1.4"),
    *_row(MOVES, RANKS, "0.95 1.0 1.0 1.0 1.0 1.0"),
    *_row(MOVES, RANKS, "- - - - - 1.5", (SHARED,)),
    Goal((*ALLREDUCE, *ONE_WAY, *MOVES), RANKS, SIZES, EVEN),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a case: medians in seconds, by candidate; peers' ratios of the same rounds."""

    case: Case
    ours_s: float
    medians_s: dict[str, float]
    ratios: dict[str, float]
    floor: float | None
    wrong: int

    def ratio(self, goal: Goal) -> tuple[str, float] | None:
        """The peer, and our speedup over it; None if it was not measured."""
        if goal.against == "floor":
            return None if self.floor is None else ("memory", self.floor)
        compared = [name for name in self.ratios if goal.against in ("best", name.split()[0])]
        if not compared:
            return None
        name = min(compared, key=lambda peer: self.medians_s[peer])
        return name, self.ratios[name]


class InSharedMemory:
    """Our ranks with shared tensors."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def run(self, commands: Sequence[Command], /) -> RankTimes:
        return self._runs.run([replace(command, flags=command.flags | Flag.SHARED) for command in commands])


def iterations(size: int) -> int:
    """Timed runs per block."""
    return max(10, min(1000, 2**28 // max(1, size)))


def found(
    case: Case, participants: Sequence[Participant], series: Sequence[Series | None], floors: Sequence[float] | None
) -> Found:
    """The numbers of one case from all rounds; ours are the first series."""
    own = series[0]
    assert own is not None
    medians, ratios = {}, {}
    for participant, peer in zip(participants[1:], series[1:], strict=True):
        if participant.name and peer is not None and len(peer.rounds) == len(own.rounds):
            medians[participant.title] = peer.median_s()
            ratios[participant.title] = paired(peer.medians_s(), own.medians_s())
    wrong = sum(one.wrong or 0 for one in series if one is not None)
    floor = None if floors is None else paired(floors, own.medians_s())
    return Found(case, own.median_s(), medians, ratios, floor, wrong)


def measured(
    ranks: int,
    peers: Sequence[tuple[str, str | None]],
    rounds: int,
    sizes: Sequence[str],
    collectives: Sequence[str],
    with_barrier: bool,
) -> Iterator[Found]:
    """Run all cases of ``ranks`` ranks."""
    settings = BenchSettings(rounds=rounds, warmup=2, block_s=0.25, with_barrier=with_barrier)
    base = Collective("allreduce", ranks)
    with spawned(Job(base), settings, peers, note) as (interleaved, _):
        own, *others = interleaved.participants
        participants = [own, Participant("", SHARED, InSharedMemory(own.runs)), *others]
        for name in collectives:
            collective = Collective(name, ranks, root=0 if "root" in COLLECTIVES[name].parameters else None)
            for participant in participants:
                participant.last = None  # Times of another collective do not apply.
            for size in sizes:
                count = block_count(collective, parse_bytes(size), 4)
                if count == 0:
                    continue  # Fewer elements than blocks: some rank has nothing to send.
                check_memory(collective, [parse_bytes(size)], settings.dtype)
                runs = iterations(parse_bytes(size))
                for in_place in (True, False):
                    if in_place and name == "alltoall":
                        continue
                    with_shared = in_place or name == "alltoall"
                    present = participants if with_shared else [own, *others]
                    made = Interleaved(collective, replace(settings, iterations=runs), present, interleaved.probe, note)
                    work = TimedCall(
                        collective,
                        count,
                        in_place=in_place,
                        iterations=runs,
                        warmup=2,
                        keep=True,
                        with_barrier=with_barrier,
                    )
                    for candidate in present[: 1 + with_shared]:
                        candidate.runs.run(commands(replace(work, iterations=SETTLING, check=False)))
                    series, floors = made.measure(work)
                    yield found(Case(name, ranks, size, IN if in_place else OUT), present, series, floors)
                    if with_shared:
                        ordered = ([*present[1:2], *others], [*series[1:2], *series[2:]])
                        yield found(Case(name, ranks, size, SHARED), *ordered, floors)


def verdicts(goals: Iterable[Goal], results: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Each case with its highest goal; ``reached``: None if the peer is missing."""
    goals = list(goals)
    for result in results:
        judged: dict[str, Goal] = {}
        for goal in goals:
            if goal.judges(result.case) and goal.factor > getattr(judged.get(goal.against), "factor", 0.0):
                judged[goal.against] = goal
        for goal in judged.values():
            compared = result.ratio(goal)
            yield {
                **asdict(result.case),
                "against": goal.against,
                "wanted": goal.factor,
                "ours_s": result.ours_s,
                "peer": compared[0] if compared else None,
                "ratio": compared[1] if compared else None,
                "of_memory": result.floor,
                "reached": compared[1] >= goal.factor if compared else None,
            }


def by_shortfall(verdict: dict[str, Any]) -> float:
    """Sort key: the largest shortfall first, goals without a measurement last."""
    return float("inf") if verdict["ratio"] is None else verdict["ratio"] / verdict["wanted"]


def line(verdict: dict[str, Any]) -> str:
    """One verdict as text."""
    outcome = {True: "reached", False: "MISSED", None: "not measured"}[verdict["reached"]]
    ratio = "–" if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
    peer = verdict["peer"] or verdict["against"]
    memory = "–" if verdict["of_memory"] is None else f"{verdict['of_memory']:.0%}"
    return (
        f"{verdict['collective']:<14} {verdict['ranks']:>5}  {verdict['size']:>5}  {verdict['buffers']:<12} "
        f"{verdict['ours_s'] * 1e6:>10.2f}  {memory:>6}  {ratio:>7}  ≥ {verdict['wanted']:<5.3g} {outcome:<12} {peer}"
    )


def available(text: str | None, ranks: int) -> list[tuple[str, str | None]]:
    """The peers that were named, or all that are installed."""
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
    """Print a line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure, judge, print, write."""
    parser = argparse.ArgumentParser(description="Goals of the host engine against other libraries.")
    parser.add_argument("--peer", help="peers as in blink bench; default: all on PATH, and gloo")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="default 2,4,8")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--sizes", default=",".join(SIZES), help="default 8 bytes to 256M")
    parser.add_argument("--collectives", default=",".join((*ALLREDUCE, *ONE_WAY, *MOVES)), help="default: all")
    parser.add_argument("--barrier", action="store_true", help="time the barrier too, and the mean of ranks")
    parser.add_argument("-o", "--output", help="also write all numbers as JSON")
    options = parser.parse_args()
    results: list[Found] = []
    for ranks in map(int, options.ranks.split(",")):
        try:
            peers = available(options.peer, ranks)
            for result in measured(
                ranks,
                peers,
                options.rounds,
                options.sizes.split(","),
                options.collectives.split(","),
                options.barrier,
            ):
                results.append(result)
                for verdict in verdicts(GOALS, [result]):
                    note(line(verdict) + (f"  {result.wrong} WRONG" if result.wrong else ""))
        except (CommunicationError, UnsupportedError) as error:
            note(f"{ranks} ranks: {error}")
            return 1
    judged = sorted(verdicts(GOALS, results), key=by_shortfall)
    print(
        f"{'collective':<14} {'ranks':>5}  {'size':>5}  {'buffers':<12} {'ours (µs)':>10}  {'memory':>6}  "
        f"{'ratio':>7}  {'wanted':<7} {'':<12} against"
    )
    for verdict in judged:
        print(line(verdict))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(
                {"schema_version": 2, "verdicts": judged, "results": [asdict(result) for result in results]},
                file,
                indent=1,
            )
    return int(any(verdict["reached"] is False for verdict in judged) or any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
