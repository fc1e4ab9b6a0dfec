"""``blink tune``: a race that finds the fastest way, and its use for a host's table, beside what is built in.

For each collective and size, candidates are timed beside a *reference* that goes on always: what is built in between
processes, NCCL on GPUs (:mod:`~blinkccl.bench.gpu_tune`). *Successive halving* (Jamieson and Talwalkar, AISTATS 2016):
in each round every candidate that is left runs some calls, in turns, the better half goes on and runs twice as many.
The last one meets the reference in pairs. What cannot run is out.

Between processes candidates are all algorithms that serve the call on this host in several chunks, small messages with
their flags inside, and the system's copies. The simulator seeds them: on a switch with nominal links, the fastest few
go on. What is built in is first let find the fastest of its own variants. The last candidate keeps these variants where
it is one of their kind, and is taken only if it is faster by :data:`CLEARLY` in the median of the pairs and faster in
most of them. Who fills a table asks once more at the end (:meth:`HostTuner.confirmed`), as a machine that others share
is another one then. So a table that was measured is not slower than one that was not.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import isqrt, log2
from statistics import median
from typing import Generic, TypeVar

import msgspec
import numpy as np

from blinkccl.bench.candidate import RankTimes, RunningCandidate
from blinkccl.bench.interleave import Runs
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.peers.registry import own
from blinkccl.bench.protocol import Command, Kind
from blinkccl.bench.sizes import block_count
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import simulate
from blinkccl.cost.simulate.translate import Settings
from blinkccl.engines.host_plan import Area
from blinkccl.engines.native_library import load
from blinkccl.errors import InternalError, TopologyError, UnsupportedError
from blinkccl.runtime.host_table import KIB, MIB, Crossing, built_in, label, machine
from blinkccl.runtime.plans import host_plan
from blinkccl.schedule.text import to_text
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.tables import (
    BUILT_IN,
    COPIED,
    HOST,
    INLINE,
    NO_LIMIT,
    Cell,
    MeasuredTable,
    Time,
    Way,
)

#: By so much a candidate must be faster than what is built in.
CLEARLY = 1.03
#: Candidates that the simulator lets go on, beside those whose messages carry flags and those that the system copies.
SEEDS = 8
#: Messages of these sizes; up to so many bytes of S with their flags inside; from so many on by the system.
CHUNKS = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
INLINE_BYTES, CROSSED_FROM = 64 * KIB, 128 * KIB
#: Parts that the system's copies are cut into, of whole S.
CROSSED_PARTS = (1, 2, 4)
#: Calls of a candidate in the first round; at most, and pairs of the last, between processes.
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

#: A size, and the range that it stands for.
At = tuple[int, int, int]
_Candidate = TypeVar("_Candidate", bound=Hashable)


def collective_of(name: str, ranks: int) -> Collective:
    """With the first rank as root, where there is one."""
    return Collective(name, ranks, **dict.fromkeys(COLLECTIVES[name].parameters, 0))


def ranges(sizes: Sequence[int]) -> list[At]:
    """(size, least, below) of each: ranges meet halfway between sizes, as their ratio has it."""
    meets = [isqrt(a * b) for a, b in pairwise(sizes)]
    first, last = sizes[0] // 2, min(2 * sizes[-1], NO_LIMIT)
    return list(zip(sizes, [first, *meets], [*meets, last], strict=True))


# ---- the race


@dataclass
class Race(Generic[_Candidate]):
    """Candidates against ``reference``, which goes on always.

    ``timer`` has the seconds of a call over so many, None where the candidate does not run. ``settle`` prepares one for
    the pairs, and says how many seconds that took. ``times`` are the seconds of all that ran, each from its last round,
    and over how many calls.
    """

    reference: _Candidate
    timer: Callable[[_Candidate, int], float | None]
    most_calls: int
    pairs: int
    settle: Callable[[_Candidate], float] = lambda one: 0.0
    times: dict[_Candidate, tuple[float, int]] = field(default_factory=dict)

    def run(
        self, ours: Sequence[_Candidate], budget_s: float, finish: Callable[[_Candidate], _Candidate] = lambda one: one
    ) -> tuple[_Candidate, list[float]] | None:
        """The last of ours, as ``finish`` makes of it, and how many times as fast it was in each pair; None: none ran.

        It takes ``budget_s`` seconds, as far as that can be foreseen, and what it takes to start and to load.
        """
        for one in (*ours, self.reference):
            self._time(one, LEAST_CALLS)
        left = [one for one in ours if one in self.times]
        budget_s -= self.settle(self.reference)
        # A round costs as much as the first, and a call of a pair is made twice as often.
        round_s = sum(seconds for seconds, _ in self.times.values())
        reference_s, _ = self.times.get(self.reference, (0.0, 0))
        in_all_s = round_s * log2(max(2, len(left))) + 4 * self.pairs * reference_s
        first = calls = max(LEAST_CALLS, min(self.most_calls, int(budget_s / max(in_all_s, 1e-9))))
        while len(left) > 1:
            for one in (*left, self.reference):
                self._time(one, calls)
            ranked = sorted((one for one in left if one in self.times), key=lambda one: self.times[one][0])
            left, calls = ranked[: max(1, len(ranked) // 2)], min(2 * calls, self.most_calls)
        last = finish(left[0]) if left else self.reference
        ratios = self.met(last, min(2 * first, self.most_calls))
        return (last, ratios) if left else None

    def met(self, last: _Candidate, calls: int) -> list[float]:
        """How many times as fast as the reference it was in pairs of so many calls each."""
        self.settle(last)
        both = list(dict.fromkeys((last, self.reference)))
        took: dict[_Candidate, list[float]] = {one: [] for one in both}
        for number in range(self.pairs):
            for one in both if number % 2 else both[::-1]:
                self._time(one, calls)
                took[one] += [self.times[one][0]] if one in self.times else []
        for one in (one for one in both if one in self.times):
            self.times[one] = median(took[one]), calls * self.pairs
        return [b / a for a, b in zip(took[last], took[self.reference], strict=False)]

    def _time(self, one: _Candidate, calls: int) -> None:
        seconds = self.timer(one, calls)
        if seconds is None or seconds <= 0:
            self.times.pop(one, None)
        else:
            self.times[one] = seconds, calls


# ---- between processes

#: What could serve a size: a way and its variants.
Ways = tuple[Way, ...]


def command_of(ways: Ways) -> Command:
    """Tells a rank to run them."""
    text = msgspec.json.encode(ways)
    return Command(Kind.CHOICE, itemsize=1, in_blocks=1, period=len(text), count=1, fill=text, deadline_s=60)


def untuned(collective: Collective, size_bytes: int) -> Ways:
    """What is built in, with its variants."""
    return built_in(collective.world_size).choose(collective.name, size_bytes, Crossing.MEASURED)


def with_variants(ways: Ways, base: Ways) -> Ways:
    """These, and what is built in where that does the same in other chunks or by the system's copies."""
    first = ways[0]
    if len(ways) > 1 or (first.algorithm, first.inline) != (base[0].algorithm, base[0].inline):
        return ways
    return first, *(way for way in base if way.copied or way.chunk_bytes != first.chunk_bytes)


def candidates(collective: Collective, size_bytes: int) -> list[Ways]:
    """All that are measured beside what is built in, the most promising first."""
    seeds = sorted(_simulated(collective, size_bytes), key=lambda found: found[0])[:SEEDS]
    found = [way for _, way in seeds]
    if size_bytes <= INLINE_BYTES:
        inline = [Way(way.algorithm, INLINE, CHUNKS[0]) for way in found]
        found = [*dict.fromkeys(inline), *found]
    # The system's copies are the only variant of the rings that do the same.
    ring = Way("one_hop", "", 256 * KIB)
    parts = CROSSED_PARTS if size_bytes >= CROSSED_FROM else ()
    return [*((way,) for way in found), *((ring, Way("one_hop", COPIED, 8 * MIB, count)) for count in parts)]


def _simulated(collective: Collective, size_bytes: int) -> Iterator[tuple[float, Way]]:
    """Every algorithm that serves it, in every chunk that makes a difference, with its time on nominal links."""
    topology = parse_spec(f"clique:{collective.world_size}")
    links, seen = calibration("nominal"), set()
    # Of algorithms that make the same program here, the one that is built in: its variants are this one's too.
    built = untuned(collective, size_bytes)[0].algorithm
    for name in (built, *(other for other in ALGORITHMS if other != built)):
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
                yield run.seconds, Way(name, "", chunk)


class TimedWays:
    """One collective at one size on live ranks: what ways take there."""

    def __init__(self, runs: Runs, collective: Collective, size_bytes: int) -> None:
        self._runs = runs
        count = block_count(collective, size_bytes, _ITEMSIZE)
        # As data-parallel training calls them: sums in place, shards gathered out of place.
        in_place = collective.name in ("allreduce", "broadcast", "reduce")
        self._work = TimedCall(collective, count, in_place=in_place, check=False, keep=True, deadline_s=60)
        self._told: Ways = ()
        #: Whether they can run at all, and whose results were seen to be right.
        self._able: dict[Ways, bool] = {}
        self.calls = 0

    def seconds(self, ways: Ways, calls: int) -> float | None:
        """What a call of the slowest rank takes, where nothing disturbs; None if they cannot run."""
        if ways not in self._able:
            self._able[ways] = False
            try:
                wrong = self._run(ways, 1, check=True).wrong
            except UnsupportedError:
                return None
            if wrong:
                raise InternalError(f"{label(ways[0])} gives wrong sums of {self._work.size} bytes")
            self._able[ways] = True
        if not self._able[ways]:
            return None
        return float(np.quantile(self._run(ways, calls).seconds.max(0), _QUIET))

    def settle(self, ways: Ways) -> float:
        """Lets ways with variants find the fastest of them; the seconds that it took."""
        if len(ways) == 1:
            return 0.0
        call_s = self.seconds(ways, LEAST_CALLS) or 0.0
        affordable = int(SETTLE_S / max(call_s, 1e-7))
        calls = max(LEAST_CALLS, min(SETTLE_CALLS * len(ways), affordable))
        self.seconds(ways, calls)
        return calls * call_s

    def _run(self, ways: Ways, calls: int, check: bool = False) -> RankTimes:
        if ways != self._told:
            self._runs.run([command_of(ways)] * self._work.collective.world_size)
            self._told = ways
        self.calls += calls + check  # one is timed, one is checked
        return self._runs.run(commands(replace(self._work, iterations=calls, check=check)))


def is_faster(ratios: Sequence[float]) -> bool:
    """Whether by enough, and in most pairs."""
    return sum(ratio > 1 for ratio in ratios) >= MOST_PAIRS and median(ratios) >= CLEARLY


class HostTuner:
    """The ranks of a host, whose processes start when they are first wanted."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.lost = tuple(range(ranks)), list[str]()
        self.table = MeasuredTable(machine(), f"{ranks} ranks", HOST, machine())
        self._undo = ExitStack()

    def __enter__(self) -> HostTuner:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @cached_property
    def runs(self) -> Runs:
        """The processes."""
        load()  # Refused here, it is said once and not by every rank.
        return self._undo.enter_context(RunningCandidate(own(len(self.ranks), 60)))

    def knows(self, cell: Cell) -> bool:
        """Whatever was measured; what was not confirmed is confirmed."""
        return True

    def cell(self, name: str, at: At, budget_s: float) -> Cell:
        """What a table says of a row of :func:`ranges`."""
        collective = collective_of(name, len(self.ranks))
        empty = empty_cell(collective, self.ranks, at)
        race = self._race(collective, empty.size_bytes)
        others = candidates(collective, empty.size_bytes)
        last = race.run(others, budget_s, lambda ways: with_variants(ways, race.reference))
        return _decided(empty, race, last)

    def confirmed(self, cell: Cell) -> Cell:
        """A cell after its ways have met what is built in once more; without them if they were no longer faster."""
        ways = cell.times[0].ways
        race = self._race(collective_of(cell.collective, len(self.ranks)), cell.size_bytes)
        call_s = race.timer(race.reference, LEAST_CALLS) or 0.0
        race.settle(race.reference)
        calls = max(LEAST_CALLS, min(MOST_CALLS, int(CONFIRM_S / max(call_s, 1e-7) / (2 * PAIRS))))
        decided = _decided(cell, race, (ways, race.met(ways, calls)))
        return msgspec.structs.replace(decided, tried=cell.tried, confirmed=True)

    def _race(self, collective: Collective, size_bytes: int) -> Race[Ways]:
        timed = TimedWays(self.runs, collective, size_bytes)
        return Race(untuned(collective, size_bytes), timed.seconds, MOST_CALLS, PAIRS, timed.settle)


def empty_cell(collective: Collective, ranks: tuple[int, ...], at: At) -> Cell:
    """Of today, without times."""
    root = -1 if collective.root is None else collective.root
    return Cell(collective.name, root, ranks, *at, datetime.date.today().isoformat(), ())


def _decided(cell: Cell, race: Race[Ways], last: tuple[Ways, list[float]] | None) -> Cell:
    """With what won and what is built in, or with the latter alone."""
    times = [Time(BUILT_IN, "", *race.times[race.reference])]
    if last is not None and is_faster(last[1]):
        times.insert(0, Time.of(last[0], *race.times[last[0]]))
    return msgspec.structs.replace(cell, times=tuple(times), tried=len(race.times), confirmed=len(times) == 1)
