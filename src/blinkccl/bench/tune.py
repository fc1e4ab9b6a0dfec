"""``blink tune``: a race for the fastest way, and the table of a host that it fills.

For each collective and size, candidates are timed beside a *reference* that is never eliminated: the built-in choice
between processes, NCCL on GPUs (:mod:`~blinkccl.bench.gpu_tune`). The race is *successive halving* (Jamieson and
Talwalkar, AISTATS 2016): in each round the remaining candidates run some calls in turns, and the faster half runs twice
as many in the next. The last candidate and the reference run in pairs. A candidate that cannot run is eliminated.

Between processes, the candidates are all algorithms that serve the call on this host in several chunk sizes, small
messages with inline flags, and the system's copies. The simulator selects the fastest few, on a switch with nominal
links. The built-in choice first picks its own fastest variant. The last candidate keeps these variants if it is of
their kind. It replaces the built-in choice only if it is faster by :data:`CLEARLY` in the median of the pairs, and
faster in most of them. When a table is complete, every such cell is measured once more (:meth:`HostTuner.confirmed`),
because the load of a shared machine may have changed. A tuned table is therefore not slower than the built-in choice.
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

#: Least speedup over the built-in choice.
CLEARLY = 1.03
#: Candidates that the simulator selects, beside those with inline flags and those with the system's copies.
SEEDS = 8
#: Sizes of messages; largest S for inline flags; least S for the system's copies.
CHUNKS = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
INLINE_BYTES, CROSSED_FROM = 64 * KIB, 128 * KIB
#: Numbers of parts into which the system's copies divide S.
CROSSED_PARTS = (1, 2, 4)
#: Least and most calls of a candidate in a round, and pairs of the final, between processes.
LEAST_CALLS, MOST_CALLS, PAIRS = 2, 200, 9
#: Least number of pairs in which a candidate must be faster.
MOST_PAIRS = 7
#: Most seconds, and calls per variant, in which a candidate picks its fastest variant.
SETTLE_S, SETTLE_CALLS = 1.0, 40
#: Seconds to confirm a cell.
CONFIRM_S = 0.5
#: Quantile of the calls that counts: other processes only add time.
_QUIET = 0.25
#: Bytes of an element; elements are float32 and summed.
_ITEMSIZE = 4

#: A size, and the least and the end of the range for which it counts.
At = tuple[int, int, int]
_Candidate = TypeVar("_Candidate", bound=Hashable)


def collective_of(name: str, ranks: int) -> Collective:
    """The collective, with the first rank as root if it has one."""
    return Collective(name, ranks, **dict.fromkeys(COLLECTIVES[name].parameters, 0))


def ranges(sizes: Sequence[int]) -> list[At]:
    """(size, least, below) of each size: ranges meet at the geometric mean of neighbouring sizes."""
    meets = [isqrt(a * b) for a, b in pairwise(sizes)]
    first, last = sizes[0] // 2, min(2 * sizes[-1], NO_LIMIT)
    return list(zip(sizes, [first, *meets], [*meets, last], strict=True))


# ---- the race


@dataclass
class Race(Generic[_Candidate]):
    """A race of candidates against ``reference``, which is never eliminated.

    ``timer(candidate, calls)`` returns the seconds of a call, or None if the candidate cannot run. ``settle`` prepares
    a candidate for the pairs and returns the seconds that it took. ``times`` has each candidate's seconds in its last
    round, and the number of calls.
    """

    reference: _Candidate
    timer: Callable[[_Candidate, int], float | None]
    most_calls: int
    pairs: int
    settle: Callable[[_Candidate], float] = lambda one: 0.0
    times: dict[_Candidate, tuple[float, int]] = field(default_factory=dict)

    def run(
        self,
        candidates: Sequence[_Candidate],
        budget_s: float,
        finish: Callable[[_Candidate], _Candidate] = lambda one: one,
    ) -> tuple[_Candidate, list[float]] | None:
        """The last candidate after ``finish``, and its speedup in each pair; None if no candidate ran.

        Takes about ``budget_s`` seconds, plus the time to start processes and to load data.
        """
        for one in (*candidates, self.reference):
            self._time(one, LEAST_CALLS)
        left = [one for one in candidates if one in self.times]
        budget_s -= self.settle(self.reference)
        # Every round costs as much as the first, and the pairs have twice as many calls.
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
        """The speedup of ``last`` over the reference in each pair of ``calls`` calls."""
        self.settle(last)
        both = list(dict.fromkeys((last, self.reference)))
        seconds: dict[_Candidate, list[float]] = {one: [] for one in both}
        for number in range(self.pairs):
            for one in both if number % 2 else both[::-1]:
                self._time(one, calls)
                seconds[one] += [self.times[one][0]] if one in self.times else []
        for one in (one for one in both if one in self.times):
            self.times[one] = median(seconds[one]), calls * self.pairs
        return [b / a for a, b in zip(seconds[last], seconds[self.reference], strict=False)]

    def _time(self, one: _Candidate, calls: int) -> None:
        seconds = self.timer(one, calls)
        if seconds is None or seconds <= 0:
            self.times.pop(one, None)
        else:
            self.times[one] = seconds, calls


# ---- between processes

#: A candidate between processes: a way and its variants.
Ways = tuple[Way, ...]


def command_of(ways: Ways) -> Command:
    """The command that makes a rank use ``ways``."""
    text = msgspec.json.encode(ways)
    return Command(Kind.CHOICE, itemsize=1, in_blocks=1, period=len(text), count=1, fill=text, deadline_s=60)


def untuned(collective: Collective, size_bytes: int) -> Ways:
    """The built-in choice, with its variants."""
    return built_in(collective.world_size).choose(collective.name, size_bytes, Crossing.MEASURED)


def with_variants(ways: Ways, base: Ways) -> Ways:
    """``ways``, and those of ``base`` if it runs the same program with other chunks or the system's copies."""
    first = ways[0]
    if len(ways) > 1 or (first.algorithm, first.inline) != (base[0].algorithm, base[0].inline):
        return ways
    return first, *(way for way in base if way.copied or way.chunk_bytes != first.chunk_bytes)


def candidates(collective: Collective, size_bytes: int) -> list[Ways]:
    """The candidates beside the built-in choice, in order of simulated time."""
    seeds = sorted(_simulated(collective, size_bytes), key=lambda pair: pair[0])[:SEEDS]
    ways = [way for _, way in seeds]
    if size_bytes <= INLINE_BYTES:
        inline = [Way(way.algorithm, INLINE, CHUNKS[0]) for way in ways]
        ways = [*dict.fromkeys(inline), *ways]
    # A way with the system's copies is a variant of one_hop's rings, which run the same program.
    ring = Way("one_hop", "", 256 * KIB)
    parts = CROSSED_PARTS if size_bytes >= CROSSED_FROM else ()
    return [*((way,) for way in ways), *((ring, Way("one_hop", COPIED, 8 * MIB, count)) for count in parts)]


def _simulated(collective: Collective, size_bytes: int) -> Iterator[tuple[float, Way]]:
    """The time on nominal links of every algorithm that serves the call, in every chunk size that differs."""
    topology = parse_spec(f"clique:{collective.world_size}")
    links, programs = calibration("nominal"), set()
    # The built-in algorithm is first: of equal programs the first counts, and the built-in one has variants.
    built = untuned(collective, size_bytes)[0].algorithm
    for name in (built, *(other for other in ALGORITHMS if other != built)):
        try:
            program = host_plan(collective, name, False, Area()).program
        except (UnsupportedError, TopologyError):
            continue
        text = to_text(replace(program, forest_hash=""))
        if text in programs:
            continue
        programs.add(text)
        longest = max((float(part.stop - part.start) for part in program.slices), default=0.0)
        longest *= size_bytes / collective.total_blocks()
        for shorter, chunk in zip((0, *CHUNKS), CHUNKS, strict=False):
            if shorter < max(1.0, longest):  # With larger chunks, a slice is one message too.
                budget = Settings(budget=20_000)
                run = simulate(program, topology, links, size_bytes, chunk_bytes=chunk, settings=budget)
                yield run.seconds, Way(name, "", chunk)


class TimedWays:
    """Timer of ways for one collective at one size, on live ranks."""

    def __init__(self, runs: Runs, collective: Collective, size_bytes: int) -> None:
        self._runs = runs
        count = block_count(collective, size_bytes, _ITEMSIZE)
        # Placement as in data-parallel training: sums in place, shards gathered out of place.
        in_place = collective.name in ("allreduce", "broadcast", "reduce")
        self._work = TimedCall(collective, count, in_place=in_place, check=False, keep=True, deadline_s=60)
        self._sent: Ways = ()
        #: True for ways that ran with correct results, False for ways that cannot run.
        self._able: dict[Ways, bool] = {}
        self.calls = 0

    def seconds(self, ways: Ways, calls: int) -> float | None:
        """Seconds of an undisturbed call on the slowest rank; None if the ways cannot run."""
        if ways not in self._able:
            self._able[ways] = False
            try:
                wrong = self._run(ways, 1, check=True).wrong
            except UnsupportedError:
                return None
            if wrong:
                raise InternalError(f"{label(ways[0])} gives {wrong} wrong elements at {self._work.size} bytes")
            self._able[ways] = True
        if not self._able[ways]:
            return None
        return float(np.quantile(self._run(ways, calls).seconds.max(0), _QUIET))

    def settle(self, ways: Ways) -> float:
        """Let ways with variants pick the fastest; return the seconds that it took."""
        if len(ways) == 1:
            return 0.0
        call_s = self.seconds(ways, LEAST_CALLS) or 0.0
        affordable = int(SETTLE_S / max(call_s, 1e-7))
        calls = max(LEAST_CALLS, min(SETTLE_CALLS * len(ways), affordable))
        self.seconds(ways, calls)
        return calls * call_s

    def _run(self, ways: Ways, calls: int, check: bool = False) -> RankTimes:
        if ways != self._sent:
            self._runs.run([command_of(ways)] * self._work.collective.world_size)
            self._sent = ways
        self.calls += calls + check  # With a check, one call is timed and one checked.
        return self._runs.run(commands(replace(self._work, iterations=calls, check=check)))


def is_faster(ratios: Sequence[float]) -> bool:
    """True if the median speedup is at least :data:`CLEARLY`, with more than 1 in :data:`MOST_PAIRS` pairs."""
    return sum(ratio > 1 for ratio in ratios) >= MOST_PAIRS and median(ratios) >= CLEARLY


class HostTuner:
    """The tuner of a host's ranks, whose processes start on first use."""

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
        """The rank processes."""
        load()  # An error is raised once here, and not by every rank.
        return self._undo.enter_context(RunningCandidate(own(len(self.ranks), 60)))

    def knows(self, cell: Cell) -> bool:
        """True: measured cells are kept, and unconfirmed ones are confirmed."""
        return True

    def cell(self, name: str, at: At, budget_s: float) -> Cell:
        """Measure the cell of one row of :func:`ranges`."""
        collective = collective_of(name, len(self.ranks))
        empty = empty_cell(collective, self.ranks, at)
        race = self._race(collective, empty.size_bytes)
        others = candidates(collective, empty.size_bytes)
        last = race.run(others, budget_s, lambda ways: with_variants(ways, race.reference))
        return _decided(empty, race, last)

    def confirmed(self, cell: Cell) -> Cell:
        """The cell after another comparison with the built-in choice; without its ways if these are not faster now."""
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
    """A cell with today's date and no times."""
    root = -1 if collective.root is None else collective.root
    return Cell(collective.name, root, ranks, *at, datetime.date.today().isoformat(), ())


def _decided(cell: Cell, race: Race[Ways], last: tuple[Ways, list[float]] | None) -> Cell:
    """The cell with the times of the winner and of the built-in choice, or of the latter alone."""
    times = [Time(BUILT_IN, "", *race.times[race.reference])]
    if last is not None and is_faster(last[1]):
        times.insert(0, Time.of(last[0], *race.times[last[0]]))
    return msgspec.structs.replace(cell, times=tuple(times), tried=len(race.times), confirmed=len(times) == 1)
