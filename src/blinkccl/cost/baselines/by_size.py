"""Algorithms that split the data by its size, which a forest does not know: ``hybrid`` and ``multi_path``.

- ``hybrid``: Eq 8 splits each size at the rates that both sets of trees reach with their parts. PCIe begins T_dpa later
  (Blink, MLSys 2020, §3.4). The sets share no link except the bus between the sockets of an AC922, so each is timed
  alone. The job ends with the later set.
- ``multi_path``: a table gives the split for each size. Without a table, the simulator fills the row of the pair. The
  calibration gives the cost of each path beside the other paths on its links. A copy is issued, then waits for the
  latency of the links once per leg. A path that stores n chunks L − 1 times takes (n + L − 1) / n of the time that its
  links need. Water filling gives a split for each number of streams and chunks. The simulator selects the fastest, or
  one copy on one path where no split is faster.

Copies of different streams are issued at the same time here, as a calibration has the cost of a copy, not its thread.
If one thread issues all copies, many streams pay later than a simulated table says; a measured one has this cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from math import fsum, inf, prod

import msgspec

from blinkccl.cost.baselines.candidate import ChunkedPlan, Conditions, Estimate, TimedPlan, modelled, planned
from blinkccl.cost.simulate.calibration import Calibration, link_cost
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.memories import HOST_KINDS, memories_on
from blinkccl.trees.algorithms.hybrid import ALGORITHM as HYBRID
from blinkccl.trees.algorithms.hybrid import LinkClassSplit, class_plan, hybrid_split
from blinkccl.trees.algorithms.multi_path import ALGORITHM as MULTI_PATH
from blinkccl.trees.algorithms.multi_path import (
    PathCost,
    WeightedPath,
    direct_path,
    forest_of,
    on_one_path,
    plan,
    portions,
    water_filling,
    ways,
)
from blinkccl.trees.algorithms.path_table import BEYOND_BYTES, MOST_STREAMS, PairSplits, Part, Split, fill
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, Path
from blinkccl.units import GB

#: Rounds of Eq 8, each with the rates that the parts of the previous round reach.
_ROUNDS = 4
#: Candidates: streams of a path with intermediate memories, and chunks of a stream.
STREAMS = (1, 2, 4, MOST_STREAMS)
CHUNKS = (1, 2, 4)


@dataclass(frozen=True)
class HybridJob:
    """Both sets of trees; ``t_dpa_s`` is the time to switch peer access before PCIe can begin."""

    request: Request
    nvlink: TimedPlan
    pcie: TimedPlan
    t_dpa_s: float
    name: str = HYBRID

    @property
    def forest(self) -> Forest:
        """The NVLink trees, which carry small sizes alone."""
        return self.nvlink.forest

    def split(self, size_bytes: int, over_pcie: int) -> LinkClassSplit | None:
        """Eq 8 at the rates that both sets reach with ``over_pcie`` bytes over PCIe; None if no data moves."""
        pcie, nvlink = self.pcie.at(over_pcie), self.nvlink.at(size_bytes - over_pcie)
        if not pcie.algbw_gb_per_s or not nvlink.algbw_gb_per_s:
            return None
        return hybrid_split(size_bytes, pcie.algbw_gb_per_s, nvlink.algbw_gb_per_s, self.t_dpa_s)

    def at(self, size_bytes: int) -> Estimate:
        """The later end of both sets at the best of a few splits, because rates and parts depend on each other."""
        alone = self.nvlink.at(size_bytes)
        best = replace(alone, name=self.name, detail=f"NVLink alone: PCIe would be slower after {self._wait()}")
        over_pcie = size_bytes // 2
        for _ in range(_ROUNDS):
            split = self.split(size_bytes, over_pcie)
            over_pcie = 0 if split is None else int(split.pcie_bytes)
            if over_pcie == 0:
                break
            slow_s = self.t_dpa_s + self.pcie.at(over_pcie).seconds
            seconds = max(self.nvlink.at(size_bytes - over_pcie).seconds, slow_s)
            if seconds < best.seconds:
                detail = f"{over_pcie / size_bytes:.1%} over PCIe after {self._wait()}"
                best = modelled(self.name, self.request, size_bytes, seconds, detail)
        return best

    def _wait(self) -> str:
        return f"{self.t_dpa_s * 1e3:.2f} ms to disable peer access"


def prepare_hybrid(request: Request, conditions: Conditions) -> HybridJob:
    """The trees of both classes; UnsupportedError on AMD's GPUs, whose cost of the switch between them is unknown."""
    if any(link.kind == "xgmi" for link in request.network.links):
        raise UnsupportedError(
            "hybrid disables peer access between its two phases, whose time is published for NVIDIA's GPUs alone"
        )
    t_dpa_s = conditions.calibration.engine.peer_access_us.value * 1e-6 * len(request.ranks)
    nvlink = planned(HYBRID, class_plan(request, "fast"), conditions)
    pcie = planned(HYBRID, class_plan(request, "pcie"), conditions)
    return HybridJob(request, nvlink, pcie, t_dpa_s)


def timed_split(flow: Forest, conditions: Conditions, split: Split, window: int = 1) -> ChunkedPlan:
    """A split of the message that ``flow`` plans, ready to be timed; raises as
    :func:`~blinkccl.trees.algorithms.multi_path.forest_of`.
    """
    base = planned(MULTI_PATH, forest_of(flow, split), conditions)
    return ChunkedPlan(base.name, base.forest, base.program, conditions, split.text(), split.chunks, window)


@dataclass(frozen=True)
class MultiPath:
    """A message between two GPUs over all paths; ``row`` holds the split by size."""

    flow: Forest
    conditions: Conditions
    row: PairSplits
    name: str = MULTI_PATH

    @property
    def forest(self) -> Forest:
        """The plan of large messages."""
        return self.flow

    def at(self, size_bytes: int) -> Estimate:
        split = self.row.at(size_bytes)
        if any(part.streams > 1 for part in split.parts):  # longer messages have more chunks, not longer ones
            chunks = split.chunks * max(1, -(-size_bytes // BEYOND_BYTES))
            split = msgspec.structs.replace(split, chunks=chunks)
        return timed_split(self.flow, self.conditions, split).at(size_bytes)


def prepare_multi_path(request: Request, conditions: Conditions) -> MultiPath:
    """The message of a request, with the table's row for its two ends, or a simulated row.

    UnsupportedError if the topology lacks a path of the table.
    """
    flow = plan(request)
    first = ways(flow)[0].path
    row = conditions.paths and conditions.paths.pair(first[0], first[-1])
    for split in row.splits if row else ():
        forest_of(flow, split)
    return MultiPath(flow, conditions, row or simulated_row(flow, conditions))


def simulated_row(flow: Forest, conditions: Conditions) -> PairSplits:
    """The row of a table for a message, filled by the simulator.

    At no size is it slower than one copy on any single path. Cost: some 20 simulations per class, 0.5 s for two paths
    and a few for eight.
    """
    timed: dict[tuple[tuple[Part, ...], int], ChunkedPlan] = {}

    def timer(split: Split, size_bytes: int) -> float:
        key = split.parts, split.chunks
        if key not in timed:
            timed[key] = timed_split(flow, conditions, split)
        return timed[key].at(size_bytes).seconds

    try:
        direct = direct_path(flow)
        return fill(direct[0], direct[-1], on_one_path(direct), _options(flow, conditions), timer)
    except TopologyError as error:  # a link without a class in the calibration excludes this candidate alone
        raise UnsupportedError(str(error)) from None


def _options(flow: Forest, conditions: Conditions) -> Callable[[int], Iterator[Split]]:
    """A function from a size to the splits to try."""
    calibration, most_memories = conditions.calibration, conditions.most_memories
    usable = [way for way in ways(flow) if most_memories is None or way.legs <= most_memories + 1]
    part = portions(flow)
    rates = [path_rate(flow, calibration, way, part) for way in usable]
    starts = [_start_s(flow, calibration, way) for way in usable]

    def options(size_bytes: int) -> Iterator[Split]:
        yield from (on_one_path(way.path) for way in usable)
        # Paths with the most legs are the first to be left out.
        most_legs = [sum(way.legs <= legs for way in usable) for legs in sorted({way.legs for way in usable})]
        tried = [
            filled(usable[:most], size_bytes, starts, rates, streams, chunks)
            for streams, chunks in sorted(product(STREAMS, CHUNKS), key=prod)
            for most in dict.fromkeys((min(1, len(usable)), *most_legs))
            if most
        ]
        yield from dict.fromkeys(tried)

    return options


def filled(
    paths: Sequence[WeightedPath],
    size_bytes: int,
    starts: Sequence[float],
    rates: Sequence[float],
    streams: int,
    chunks: int,
) -> Split:
    """The split of a size by water filling: ``streams`` on paths with intermediate memories, one on direct paths."""
    costs = []
    for way, start_s, rate in zip(paths, starts, rates, strict=False):
        pieces = chunks * streams
        costs.append(PathCost(start_s, rate * pieces / (pieces + way.legs - 1)))
    weights = water_filling(size_bytes, costs)
    parts = [
        Part(way.path, weight, streams if way.legs > 1 else 1)
        for way, weight in zip(paths, weights, strict=True)
        if weight
    ]
    return Split(parts=tuple(parts), chunks=chunks)


def path_rate(
    flow: Forest, calibration: Calibration, way: WeightedPath, part: dict[tuple[Path, tuple[int, int]], Fraction]
) -> float:
    """Bytes per second of a path beside the others; host memory counts twice, as it is written and read."""
    pairs = list(pairwise(way.path))
    memory = calibration.engine.memory_gb_per_s.value
    hosts = any(flow.topology.vertex[at].kind in HOST_KINDS for at in memories_on(flow.topology, way.path))
    most = memory / 2 * GB if memory and hosts else inf
    return min(most, *(link_cost(calibration, flow.topology.link[x]).rate * float(part[way.path, x]) for x in pairs))


def _start_s(flow: Forest, calibration: Calibration, way: WeightedPath) -> float:
    """Seconds of a chunk of 0 bytes: issue and signal per leg, and the latency of all links."""
    latency_s = fsum(link_cost(calibration, flow.topology.link[pair]).latency_s for pair in pairwise(way.path))
    engine = calibration.engine
    return way.legs * (engine.issue_us.value + engine.signal_us.value) * 1e-6 + latency_s
