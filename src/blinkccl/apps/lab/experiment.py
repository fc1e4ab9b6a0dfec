"""Comparison of programs for one job in a laboratory, in turns on the same links.

The host engine runs all plans, so they differ only in their trees. ``ring`` is all rings that NCCL 2.4 finds,
over PCIe if fast links close none; ``one_ring`` is the first of them alone. ``gloo_links`` and ``gloo_ranks`` are
gloo's own ring in the order of such a ring, and in that of the ranks; ``openmpi`` is Open MPI. Between two ranks
without a fast link these use PCIe, and a plan of such a ring gives their expected rate. ``hybrid`` splits each size by
Eq 8, ``multi_path`` by water filling, with the times of their first calls. Results have the measured rate, the plan's
rate, and the simulated rate for these chunks, which fill a pipeline, on links without latency.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from importlib.util import find_spec
from statistics import median

from blinkccl.apps.lab.laboratory import BUFFER_BYTES, Laboratory, Run
from blinkccl.apps.lab.layout import lay_out
from blinkccl.apps.lab.site import among_sites
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.peers.registry import installation
from blinkccl.bench.sizes import block_count
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import simulate
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.trees.algorithms import hybrid, multi_path, ring
from blinkccl.trees.algorithms.hybrid import class_plan, hybrid_split, measured_gb_per_s, plan_split
from blinkccl.trees.algorithms.multi_path import PathCost, direct_path, forest_of, on_one_path, water_filling, ways
from blinkccl.trees.algorithms.path_table import PairSplits, Part, Split, fill
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import chain_down, chain_up, cyclic, forest_on, missing_pairs, transit_paths
from blinkccl.trees.forest.model import Forest, Path, Share, attained_rate, link_use

#: Sizes of the first calls of ``hybrid``, their number, and the denominator of PCIe's part of the data.
FIRST_SIZES, _FIRST_CALLS, _FINEST = (64 << 10, 4 << 20), 10, 256
#: Least gain over NVLink's time for a split.
_LEAST_GAIN = 0.01
#: Least gain over a direct copy's time, measured in a few calls, so that calls with several paths are not slower.
_SURE_GAIN = 0.05
#: Candidates of other libraries, and the meaning of ``all``.
FOREIGN = ("gloo_links", "gloo_ranks", "openmpi")
ALL = ("optimal", "blink", "ring", "one_ring")
#: Prefix of names of one path of a message.
_ONE_PATH = "path:"
#: Rate of all links together, per processor: a third of the rate at which a processor moves data through shaped links.
_BYTES_PER_S = 150e6
#: Highest rate of a link for any job: above it, packets would follow each other too closely.
_MOST_BIT_PER_S = 800e6
_ITEMSIZE = 4
#: Part of the time for filling the pipeline, if chunks can be so small.
_FILL = 0.02
#: Least and largest bytes of a chunk. A smaller chunk takes the processor more time than the link. With chunks larger
#: than a buffer, links stall while a site receives from one link and another's buffer is full. An AllReduce in one tree
#: on 5 GPUs of a DGX-1P, with buffers of 128 KiB, reached 98 % of its plan with chunks of 81 KiB and 82 % with 163 KiB.
_CHUNK_BYTES = (32 * 1024, BUFFER_BYTES)


@dataclass(frozen=True)
class LabCandidate:
    """A plan to run. With ``order`` (vertices) the library of its name runs, and the plan gives its expected rate."""

    name: str
    forest: Forest
    program: Program
    order: tuple[int, ...] = ()

    def ready(self, lab: Laboratory, slower: float, deadline_s: float) -> LabCandidate:
        """The candidate after all measurements that it needs."""
        return self

    def at(self, size_bytes: int) -> LabCandidate:
        """The candidate for a size."""
        return self

    def open(self, lab: Laboratory) -> int:
        """Open it in a laboratory and return its number."""
        if self.name == "openmpi":
            return lab.open_mpi(self.program)
        return lab.open_gloo(self.program, self.order) if self.order else lab.open(self.program)

    def chunk_bytes(self, size_bytes: int) -> int:
        """The largest chunk with which the pipeline fills quickly."""
        hops = max((role.offset for role in self.program.roles), default=0)
        part = max((float(piece.stop - piece.start) for piece in self.program.slices), default=1.0)
        block = size_bytes / self.forest.collective.total_blocks()
        least, most = _CHUNK_BYTES
        return int(min(most, max(least, part * block * _FILL / max(1, hops))))

    @property
    def gb_per_s(self) -> float:
        """Rate of all links of the machine together at the plan's rate."""
        return float(sum(link_use(self.forest.shares).values())) * self.forest.algbw_gb_per_s

    def simulated_gb_per_s(self, size_bytes: int, chunk_bytes: int) -> float:
        """Algbw on links with their rates and no latency: the plan's rate without the time to fill the pipeline."""
        # With this much data no latency of the calibration counts.
        many = 10_000
        outcome = simulate(
            self.program,
            self.forest.topology,
            calibration("nominal"),
            size_bytes * many,
            chunk_bytes=chunk_bytes * many,
        )
        return size_bytes * many / outcome.seconds / 1e9


#: Bytes and seconds; of every candidate a small and a large call.
_Timed = tuple[int, float]
_FirstCalls = tuple[tuple[_Timed, _Timed], ...]


@dataclass(frozen=True)
class BySize(LabCandidate):
    """A candidate whose plan depends on the size: ``forest`` uses all of ``classes``, each of which can run alone.

    ``first``: times of the first small and large calls of each class, and of all together.
    """

    classes: tuple[LabCandidate, ...] = field(kw_only=True)
    first: _FirstCalls = field(kw_only=True, default=())

    def ready(self, lab: Laboratory, slower: float, deadline_s: float) -> LabCandidate:
        return replace(self, first=_first_calls((*self.classes, self), lab, slower, deadline_s))


@dataclass(frozen=True)
class MeasuredMultiPath(BySize):
    """One message over all paths; ``forest`` is the plan of large ones, ``classes`` are its :func:`_paths_of`.

    The first calls of each path give its start time and rate. Those of all together give the factor and the delay of
    paths that run in parallel, which are assumed for every split. A row of a path table is computed from these.
    """

    def at(self, size_bytes: int) -> LabCandidate:
        return _lowered(self.name, forest_of(self.forest, self.row.at(size_bytes)))

    @cached_property
    def row(self) -> PairSplits:
        """The splits of messages in this laboratory."""
        routes, paths = ways(self.forest), _paths_of(self.forest)
        *alone, both = self.first
        costs = {path: _cost(calls) for path, calls in zip(paths, alone, strict=True)}

        def ends_s(split: Split, size_bytes: int) -> float:
            parts = [(costs[part.path], float(part.weight)) for part in split.parts]
            return max(cost.start_s + weight * size_bytes / cost.bytes_per_s for cost, weight in parts)

        together = Split(tuple(Part(way.path, way.weight) for way in routes))
        few, many = ((seconds, ends_s(together, size)) for size, seconds in both)
        times = max(1.0, (many[0] - few[0]) / (many[1] - few[1]))
        later_s = max(0.0, few[0] - times * few[1])

        def timer(split: Split, size_bytes: int) -> float:
            seconds = ends_s(split, size_bytes)
            return seconds if len(split.parts) == 1 else later_s + times * seconds

        def options(size_bytes: int) -> list[Split]:
            weights = zip(routes, water_filling(size_bytes, [costs[way.path] for way in routes]), strict=True)
            filled = Split(tuple(Part(way.path, weight) for way, weight in weights if weight))
            return [*map(on_one_path, paths[1:]), filled]

        return fill(paths[0][0], paths[0][-1], on_one_path(paths[0]), options, timer, _SURE_GAIN)


def _paths_of(flow: Forest) -> list[Path]:
    """The direct path of a message, and the others."""
    return list(dict.fromkeys((direct_path(flow), *(way.path for way in ways(flow)))))


def _cost(calls: tuple[_Timed, _Timed]) -> PathCost:
    """A path's start time and rate from a small and a large call."""
    (few, soon), _ = calls
    bytes_per_s = float(measured_gb_per_s(*calls)) * 1e9
    return PathCost(max(0.0, soon - few / bytes_per_s), bytes_per_s)


@dataclass(frozen=True)
class Hybrid(BySize):
    """Eq 8 (Blink, §3.4): the plan of a size sends over PCIe the data that PCIe moves while NVLink moves the rest.

    ``classes`` are NVLink and PCIe alone; ``forest`` and ``program`` use both at the rates of their links. The first
    small and large calls give their rates, and T_dpa in the laboratory: the delay of a small call that uses both
    against NVLink alone. They also decide whether both are worth it, because rates of links that one processor serves
    do not sum. So a size is split only if calls of both are faster than those of NVLink by more than medians vary. All
    ranks' plans depend only on ``first``.
    """

    request: Request = field(kw_only=True)

    def at(self, size_bytes: int) -> LabCandidate:
        nvlink, pcie, both = self.first
        if _seconds(both, size_bytes) > (1 - _LEAST_GAIN) * _seconds(nvlink, size_bytes):
            return replace(self.classes[0], name=self.name)
        wait_s = max(Fraction(0), Fraction(both[0][1]) - Fraction(nvlink[0][1]))
        split = hybrid_split(size_bytes, measured_gb_per_s(*pcie), measured_gb_per_s(*nvlink), wait_s)
        part = min(split.pcie_part, self._planned_part())
        return _lowered(self.name, plan_split(self.request, Fraction(int(part * _FINEST), _FINEST)))

    def _planned_part(self) -> Fraction:
        """PCIe's part by the rates of its links, which is its largest part.

        If PCIe has a hundredth too much, all ranks wait that hundredth longer; if it has a hundredth too little, NVLink
        is hardly slower. A measured rate varies by about a hundredth, usually NVLink's.
        """
        nvlink, pcie = (one.forest.rate * exact_unit(one.forest.topology) for one in self.classes)
        return pcie / (nvlink + pcie)


def _seconds(calls: tuple[_Timed, _Timed], size_bytes: int) -> float:
    """Time of a call of a size, interpolated from a small and a large call."""
    (few, soon), (many, late) = calls
    return soon + (size_bytes - few) * (late - soon) / (many - few)


def _first_calls(candidates: Sequence[LabCandidate], lab: Laboratory, slower: float, deadline_s: float) -> _FirstCalls:
    """Bytes and median seconds of small and of large calls of each candidate; in turns, the first of which warm up."""
    numbers = [one.open(lab) for one in candidates]
    by_size = []
    for size in FIRST_SIZES:
        row = [planned(one, size, slower) for one in candidates]
        for turn in range(_FIRST_CALLS):
            for number, calls in zip(numbers, row, strict=True):
                run = lab.run(number, calls.pattern, calls.chunk_bytes, deadline_s)
                calls.runs += [run] if turn else []
        by_size.append([(calls.pattern.size, calls.seconds) for calls in row])
    for number in numbers:
        lab.close(number)
    return tuple(zip(*by_size, strict=True))


@dataclass
class Measured:
    """A candidate's runs of one size. Rates are scaled to the machine, whose links are ``slower`` times as fast."""

    candidate: LabCandidate
    pattern: Pattern
    chunk_bytes: int
    slower: float
    runs: list[Run] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(run.seconds for run in self.runs)

    @property
    def gb_per_s(self) -> float:
        """Algbw, scaled to the machine's rates."""
        return self.pattern.size / self.seconds * self.slower / 1e9

    @property
    def part(self) -> float:
        """Part of the plan's algbw."""
        return self.gb_per_s / self.candidate.forest.algbw_gb_per_s

    @cached_property
    def simulated(self) -> float:
        """Part of the plan's algbw, by the simulator."""
        simulated_rate = self.candidate.simulated_gb_per_s(self.pattern.size, self.chunk_bytes)
        return simulated_rate / self.candidate.forest.algbw_gb_per_s

    @property
    def wrong(self) -> int:
        return sum(run.wrong for run in self.runs)

    @property
    def busy(self) -> float:
        return median(run.busy for run in self.runs)


@dataclass(frozen=True)
class Field:
    """The candidates of a job, and the absent ones with the reason.

    Links are ``slower`` times slower in the laboratory than in the machine.
    """

    request: Request
    candidates: tuple[LabCandidate, ...]
    absent: tuple[tuple[str, str], ...]
    slower: float

    @property
    def lane_gb_per_s(self) -> float:
        return lane_gb_per_s(self.request)

    @property
    def lane_mbit_per_s(self) -> float:
        return self.lane_gb_per_s * 8e3 / self.slower

    def ready(self, lab: Laboratory, deadline_s: float) -> Field:
        """The field after all measurements that its candidates need."""
        return replace(self, candidates=tuple(one.ready(lab, self.slower, deadline_s) for one in self.candidates))

    @property
    def path_row(self) -> PairSplits | None:
        """The splits of ``multi_path``, if it is a candidate and ready."""
        return next((one.row for one in self.candidates if isinstance(one, MeasuredMultiPath)), None)

    def laboratory(self) -> Laboratory:
        """A laboratory for all candidates, not yet entered."""
        return laboratory(self.candidates, self.slower)


def lane_gb_per_s(request: Request) -> float:
    """GB/s of a lane of the job's machine: the unit of its fast links, or of PCIe if these do not join its ranks."""
    try:
        return network_for(request.topology, request.ranks, "fast").unit_gb_per_s
    except TopologyError:
        return request.network.unit_gb_per_s


def laboratory(candidates: Sequence[LabCandidate], slower: float) -> Laboratory:
    """A laboratory for these plans, on the links of all of them, slowed down by ``slower``."""
    programs = [among_sites(one.program) for one in candidates]
    networks: list[Topology] = [one.forest.topology for one in candidates]
    paths = [queue.path for one in programs for queue in one.queues]
    foreign = [one.forest for one in candidates if one.order]
    ways = {pair: path for forest in foreign for pair, path in transit_paths(forest.topology, forest.ranks).items()}
    return Laboratory(lay_out(networks, paths, 8e9 / slower, ways), [v for one in programs for v in one.ranks])


def prepare(request: Request, names: Sequence[str], lane_mbit_per_s: float | None = None, slots: int = 2) -> Field:
    """Plan, lower and verify the candidates; an algorithm that refuses is absent, with its reason.

    A name may give the links of its plan: ``optimal@fast``, ``optimal@all``; others use the request's.
    ``path:0-4-1`` is one of multi_path's paths alone.
    Without ``lane_mbit_per_s`` links are as fast as this machine's processors hold for these plans.
    """
    candidates, absent = [], []
    for name in names:
        try:
            forest = foreign_ring(request, name) if name in FOREIGN else _forest(name, request)
        except (UnsupportedError, TopologyError) as error:
            absent.append((name, str(error)))
            continue
        one = _lowered(name, forest, slots)
        if name in FOREIGN:
            one = replace(one, order=tuple(share.root for share in forest.shares))
        if name.partition("@")[0] == hybrid.ALGORITHM:
            classes = tuple(_lowered(name, class_plan(request, links), slots) for links in ("fast", "staged"))
            one = Hybrid(name, forest, one.program, request=request, classes=classes)
        if name == multi_path.ALGORITHM:
            alone = tuple(_lowered(name, forest_of(forest, on_one_path(path)), slots) for path in _paths_of(forest))
            one = MeasuredMultiPath(name, forest, one.program, classes=alone)
        candidates.append(one)
    if not candidates:
        raise UnsupportedError(f"no algorithm can run: {'; '.join(reason for _, reason in absent)}")
    lane = lane_mbit_per_s or held_mbit_per_s(request, candidates)
    return Field(request, tuple(candidates), tuple(absent), lane_gb_per_s(request) * 8e3 / lane)


def _lowered(name: str, forest: Forest, slots: int = 2) -> LabCandidate:
    program = lower(forest, slots)
    verify(program, forest.topology)
    return LabCandidate(name, forest, program)


def foreign_ring(request: Request, name: str) -> Forest:
    """The ring of a library's AllReduce in its ranks' order: the job's, or in ``gloo_links`` that of links.

    UnsupportedError for another collective, if links close no ring, if the library is missing, or if no path joins
    some ranks: libraries connect all pairs.
    """
    if request.collective.name != "allreduce":
        raise UnsupportedError(f"{name} supports only allreduce here, got {request.collective.name}")
    if name == "openmpi":
        installation(name, None)
    elif find_spec("torch") is None:
        raise UnsupportedError(f"{name} needs PyTorch: pip install 'blink-ccl[torch]'")
    order = request.ranks
    if name == "gloo_links":
        rings = ring.fast_rings(request)[1]
        if not rings:
            raise UnsupportedError("gloo_links: fast links close no ring")
        order = rings[0].order
    network = network_for(request.topology, request.ranks, "all", stored=False)
    paths = transit_paths(network, request.ranks)
    missing = missing_pairs(paths, request.ranks)
    if missing:
        a, b = missing[0]
        raise UnsupportedError(f"{name} connects all ranks, but {a} reaches {b} only over other ranks")
    shares = []
    for place, root in enumerate(order):
        down = cyclic(order, root)
        up, weight = chain_up(paths, (*down[1:], root)), Fraction(1, len(order))
        shares.append(Share(weight, place, None, root, up, chain_down(paths, down)))
    return forest_on(request, name, network, shares)


def _forest(name: str, request: Request) -> Forest:
    if name.startswith(_ONE_PATH):
        return _one_path(name, request)
    how, _, links = name.partition("@")
    wanted = replace(request, links=links) if links else request
    return one_ring(wanted) if how == "one_ring" else algorithm(how).plan(wanted)


def _one_path(name: str, request: Request) -> Forest:
    try:
        path = tuple(int(vertex) for vertex in name.removeprefix(_ONE_PATH).split("-"))
    except ValueError:
        raise UsageError(f"{name}: expected a path of vertices, as in {_ONE_PATH}0-4-1") from None
    return forest_of(multi_path.plan(request), on_one_path(path))


def held_mbit_per_s(request: Request, candidates: Sequence[LabCandidate]) -> float:
    """The rate of a lane at which this machine's processors sustain all links together."""
    fastest = max(link.gb_per_s for one in candidates for link in one.forest.topology.links)
    held = _BYTES_PER_S * len(os.sched_getaffinity(0)) / max(one.gb_per_s for one in candidates)
    return lane_gb_per_s(request) * min(8 * held, _MOST_BIT_PER_S / fastest) / 1e6


def one_ring(request: Request) -> Forest:
    """The first of NCCL 2.4's rings with all of the data; UnsupportedError if there is only one."""
    forest = ring.plan(request)
    rings = len(ring.rings_for(request)[1])
    if rings == 1:
        raise UnsupportedError("one_ring: there is only one ring; use ring")
    first = forest.shares[: len(forest.shares) // rings]
    total = sum(share.weight for share in first)
    shares = tuple(replace(share, weight=share.weight / total) for share in first)
    return replace(forest, algorithm="one_ring", shares=shares, rate=attained_rate(forest.topology, shares))


def measure(
    field: Field,
    lab: Laboratory,
    sizes: Sequence[int],
    rounds: int,
    deadline_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[list[Measured]]:
    """Run all candidates of a ready field ``rounds`` times in turns, per size, and check every result.

    A first round is not kept: TCP's windows grow in it.
    """
    ready = field.candidates
    numbers: dict[LabCandidate, int] = {}
    total, done = len(sizes) * (rounds + 1) * len(ready), 0
    for size in sizes:
        row = [planned(one.at(size), size, field.slower) for one in ready]
        for measured in row:
            if measured.candidate not in numbers:
                numbers[measured.candidate] = measured.candidate.open(lab)
        for turn in range(rounds + 1):
            for measured in row:
                number = numbers[measured.candidate]
                run = lab.run(number, measured.pattern, measured.chunk_bytes, deadline_s)
                if turn > 0 or run.wrong:
                    measured.runs.append(run)
                done += 1
                progress(done, total)
        yield row
    for number in numbers.values():
        lab.close(number)


def planned(candidate: LabCandidate, size: int, slower: float) -> Measured:
    """A candidate with a size, ready to run; UsageError if it moves no data."""
    collective = candidate.forest.collective
    count = block_count(collective, size, _ITEMSIZE)
    if count == 0:
        raise UsageError(
            f"{collective.name} of {size} bytes moves no data, as blocks are rounded down: give a larger size (-b)"
        )
    pattern = Pattern(collective, count, in_place=collective.name != "alltoall")
    return Measured(candidate, pattern, candidate.chunk_bytes(size), slower)
