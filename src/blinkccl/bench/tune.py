"""``blink tune``: which rows of a host's table are the fastest here, found by measuring them beside what is built in.

For each collective and size, candidates are all algorithms that serve it on this host in several chunks, small messages
with their flags inside, and the system's copies. The simulator seeds them: on a switch with nominal links, the fastest
few go on. Then *successive halving* (Jamieson and Talwalkar, AISTATS 2016): in each round every candidate that is left
runs some calls, in turns, the better half goes on and runs twice as many. What is built in goes on always, and is let
find the fastest of its own variants before. The last one meets it in pairs, keeps its variants where it is one of their
kind, and is taken only if it is faster by :data:`CLEARLY` in the median of the pairs and faster in most of them. Who
fills a table asks once more at the end (:func:`confirmed`), as a machine that others share is another one then. So a
table that was measured is not slower than one that was not.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt, log2
from statistics import median

import msgspec
import numpy as np

from blinkccl.bench.interleave import Runs
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.protocol import Command, Kind
from blinkccl.bench.sizes import block_count
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.choice.host_table import KIB, MIB, NO_LIMIT, Crossing, HostChoice, built_in, label
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import simulate
from blinkccl.cost.simulate.translate import Settings
from blinkccl.engines.host_plan import Area
from blinkccl.errors import InternalError, TopologyError, UnsupportedError
from blinkccl.runtime.plans import host_plan
from blinkccl.runtime.tuned import TunedCell
from blinkccl.schedule.text import to_text
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS

#: By so much a candidate must be faster than what is built in.
CLEARLY = 1.03
#: Candidates that the simulator lets go on, beside those whose messages carry flags and those that the system copies.
SEEDS = 8
#: Messages of these sizes; up to so many bytes of S with their flags inside; from so many on by the system.
CHUNKS = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
INLINE_BYTES, CROSSED_FROM = 64 * KIB, 128 * KIB
#: Parts that the system's copies are cut into, of whole S.
CROSSED_PARTS = (1, 2, 4)
#: Calls of a candidate in the first round; pairs of the last; calls of a pair.
LEAST_CALLS, MOST_CALLS, PAIRS = 2, 200, 9
#: Of the pairs, those in which it must be faster.
MOST_PAIRS = 7
#: Seconds that a candidate with variants may take to find its fastest; calls per variant until it has.
SETTLE_S, SETTLE_CALLS = 1.0, 40
#: Seconds for asking once more.
CONFIRM_S = 0.5
#: Which part of the calls counts, as others' work only adds.
_QUIET = 0.25
#: Elements are float32 and summed.
_ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """Rows that could serve a size; ``name`` is for people."""

    name: str
    rows: tuple[HostChoice, ...]

    def command(self) -> Command:
        """Tells a rank to run it."""
        text = msgspec.json.encode(self.rows)
        return Command(Kind.CHOICE, itemsize=1, in_blocks=1, period=len(text), count=1, fill=text, deadline_s=60)


def collective_of(name: str, ranks: int) -> Collective:
    """With the first rank as root, where there is one."""
    return Collective(name, ranks, **dict.fromkeys(COLLECTIVES[name].parameters, 0))


def ranges(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(size, least, below) of each: ranges meet halfway between sizes, as their ratio has it."""
    meets = [isqrt(a * b) for a, b in pairwise(sizes)]
    first, last = sizes[0] // 2, min(2 * sizes[-1], NO_LIMIT)
    return list(zip(sizes, [first, *meets], [*meets, last], strict=True))


def untuned(collective: Collective, size_bytes: int) -> Candidate:
    """What is built in, with its variants."""
    rows = built_in(collective.world_size).choose(collective.name, size_bytes, Crossing.MEASURED)
    return Candidate("built in", rows)


def with_variants(candidate: Candidate, base: Candidate) -> Candidate:
    """It, and what is built in where that does the same in other chunks or by the system's copies."""
    first = candidate.rows[0]
    if len(candidate.rows) > 1 or (first.algorithm, first.inline) != (base.rows[0].algorithm, base.rows[0].inline):
        return candidate
    others = [replace(row, below=NO_LIMIT, variant=True) for row in base.rows]
    kept = [row for row in others if row.cross_memory or row.chunk_bytes != first.chunk_bytes]
    return Candidate(candidate.name, (first, *kept))


def candidates(collective: Collective, size_bytes: int) -> list[Candidate]:
    """All that are measured beside what is built in, the most promising first."""
    seeds = sorted(_simulated(collective, size_bytes), key=lambda found: found[0])[:SEEDS]
    found = [row for _, row in seeds]
    if size_bytes <= INLINE_BYTES:
        inline = [replace(row, inline=True, chunk_bytes=CHUNKS[0]) for row in found]
        found = [*dict.fromkeys(inline), *found]
    fixed = [Candidate(label(row), (row,)) for row in found]
    return [*fixed, *_crossed(collective, size_bytes)]


def _crossed(collective: Collective, size_bytes: int) -> Iterator[Candidate]:
    """The system's copies, as the only variant of the rings that do the same."""
    if size_bytes < CROSSED_FROM:
        return
    ring = HostChoice("one_hop", False, 256 * KIB)
    for parts in CROSSED_PARTS:
        row = HostChoice("one_hop", False, 8 * MIB, variant=True, cross_memory=True, parts=parts)
        yield Candidate(f"{label(ring)} or by the system's copies of S/{parts}", (ring, row))


def _simulated(collective: Collective, size_bytes: int) -> Iterator[tuple[float, HostChoice]]:
    """Every algorithm that serves it, in every chunk that makes a difference, with its time on nominal links."""
    topology = parse_spec(f"clique:{collective.world_size}")
    links, seen = calibration("nominal"), set()
    # Of algorithms that make the same program here, the one that is built in: its variants are this one's too.
    own = untuned(collective, size_bytes).rows[0].algorithm
    for name in (own, *(other for other in ALGORITHMS if other != own)):
        try:
            program = host_plan(collective, name, False, Area()).program
        except (UnsupportedError, TopologyError):
            continue
        text = to_text(replace(program, forest_hash=""))
        if text in seen:
            continue
        seen.add(text)
        longest = max((float(part.stop - part.start) for part in program.slices), default=0.0)
        longest *= size_bytes / collective.total_blocks()
        for shorter, chunk in zip((0, *CHUNKS), CHUNKS, strict=False):
            if shorter < max(1.0, longest):  # beyond that, a slice is one message already
                budget = Settings(budget=20_000)
                run = simulate(program, topology, links, size_bytes, chunk_bytes=chunk, settings=budget)
                yield run.seconds, HostChoice(name, False, chunk)


class TimedRows:
    """One collective at one size on live ranks: what rows of a table take there."""

    def __init__(self, runs: Runs, collective: Collective, size_bytes: int) -> None:
        self._runs = runs
        count = block_count(collective, size_bytes, _ITEMSIZE)
        # As data-parallel training calls them: sums in place, shards gathered out of place.
        in_place = collective.name in ("allreduce", "broadcast", "reduce")
        self._work = TimedCall(collective, count, in_place=in_place, check=False, keep=True, deadline_s=60)
        self._told: Candidate | None = None
        self.calls = 0

    def seconds(self, candidate: Candidate, calls: int) -> float:
        """What a call of the slowest rank takes, where nothing disturbs; UnsupportedError if it cannot run."""
        self._tell(candidate)
        self.calls += calls
        found = self._runs.run(commands(replace(self._work, iterations=calls)))
        return float(np.quantile(found.seconds.max(0), _QUIET))

    def settle(self, candidate: Candidate, call_s: float) -> None:
        """Lets a candidate with variants find the fastest of them."""
        if len(candidate.rows) > 1:
            affordable = int(SETTLE_S / max(call_s, 1e-7))
            self.seconds(candidate, max(LEAST_CALLS, min(SETTLE_CALLS * len(candidate.rows), affordable)))

    def able(self, among: Sequence[Candidate]) -> list[Candidate]:
        """Those that can run at all, and whose results are right."""
        found = []
        for candidate in among:
            with suppress(UnsupportedError):
                if self._wrong(candidate):
                    raise InternalError(f"{candidate.name} gives wrong sums of {self._work.size} bytes")
                found.append(candidate)
        return found

    def _wrong(self, candidate: Candidate) -> int:
        """Elements that are wrong after a call."""
        self._tell(candidate)
        self.calls += 2  # one is timed, one is checked
        return self._runs.run(commands(replace(self._work, iterations=1, check=True))).wrong

    def _tell(self, candidate: Candidate) -> None:
        if candidate is not self._told:
            self._runs.run([candidate.command()] * self._work.collective.world_size)
            self._told = candidate


def fastest(
    timed: TimedRows, base: Candidate, others: Sequence[Candidate], budget_s: float
) -> tuple[Candidate, float, float, int]:
    """The winner, its seconds, those of ``base`` in the same pairs, and how many were measured.

    It takes ``budget_s`` seconds, as far as that can be foreseen.
    """
    began = time.monotonic()
    able = [base, *timed.able(others)]
    pilot_s = timed.seconds(base, LEAST_CALLS)
    timed.settle(base, pilot_s)
    first = calls = _calls_of_round(len(able), pilot_s, budget_s - (time.monotonic() - began))
    left = able
    while len(left) > 2:
        taken = {one.name: timed.seconds(one, calls) for one in left}
        ranked = sorted((one for one in left if one is not base), key=lambda one: taken[one.name])
        left, calls = [base, *ranked[: max(1, (len(left) - 1) // 2)]], min(2 * calls, MOST_CALLS)
    if len(left) == 1:
        return base, pilot_s, pilot_s, len(able)
    last = with_variants(left[1], base)
    ours, theirs = _paired(timed, last, base, min(2 * first, MOST_CALLS))
    winner, seconds = (last, median(ours)) if _is_faster(ours, theirs) else (base, median(theirs))
    return winner, seconds, median(theirs), len(able)


def _is_faster(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether by enough, and in most pairs."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return median(ratios) >= CLEARLY and sum(ratio > 1 for ratio in ratios) >= MOST_PAIRS


def _calls_of_round(count: int, call_s: float, left_s: float) -> int:
    """Of the first: each round costs as much as the first, and a call of a pair twice as many calls."""
    in_all = count * max(1.0, log2(max(2, count))) + 4 * PAIRS
    return max(LEAST_CALLS, min(MOST_CALLS, int(left_s / max(call_s, 1e-7) / in_all)))


def _paired(timed: TimedRows, one: Candidate, base: Candidate, calls: int) -> tuple[list[float], list[float]]:
    """Both in turns, who begins changing."""
    timed.settle(one, timed.seconds(one, LEAST_CALLS))
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(PAIRS):
        order = [(one, ours), (base, theirs)]
        for candidate, found in order if number % 2 else order[::-1]:
            found.append(timed.seconds(candidate, calls))
    return ours, theirs


def tuned_cell(runs: Runs, collective: Collective, at: tuple[int, int, int], budget_s: float) -> TunedCell:
    """What a cell of the file says of ``at``, a row of :func:`ranges`."""
    size, least, below = at
    base = untuned(collective, size)
    timed, others = TimedRows(runs, collective, size), candidates(collective, size)
    winner, seconds, base_s, tried = fastest(timed, base, others, budget_s)
    rows = () if winner is base else winner.rows
    day = datetime.date.today().isoformat()
    return TunedCell(collective.name, size, least, below, day, seconds, base_s, tried, rows, confirmed=not rows)


def confirmed(runs: Runs, collective: Collective, cell: TunedCell) -> TunedCell:
    """A cell after it has met what is built in once more; without its rows if it was no longer the faster one."""
    timed, base = TimedRows(runs, collective, cell.size_bytes), untuned(collective, cell.size_bytes)
    pilot_s = timed.seconds(base, LEAST_CALLS)
    timed.settle(base, pilot_s)
    calls = max(LEAST_CALLS, min(MOST_CALLS, int(CONFIRM_S / max(pilot_s, 1e-7) / (2 * PAIRS))))
    ours, theirs = _paired(timed, Candidate("measured", cell.rows), base, calls)
    rows, seconds = (cell.rows, ours) if _is_faster(ours, theirs) else ((), theirs)
    times = {"seconds": median(seconds), "built_in_seconds": median(theirs)}
    return msgspec.structs.replace(cell, rows=rows, confirmed=True, **times)
