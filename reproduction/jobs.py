"""The jobs of the documents' claims: their plans and times.

Blink's side in its evaluation is the algorithm ``blink`` (the paper's TreeGen: directed packings for Broadcast,
undirected trees for AllReduce) on the copy engines' calibration of the machine, at a chunk near the best. NCCL's side
is the baseline ``nccl-2.4``, which has its own calibration. Plans are cached, because they depend only on the topology;
times are computed anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.oracle import make_inputs, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.candidate import Conditions, Prepared, TimedPlan, planned
from blinkccl.cost.baselines.nccl_model import choose
from blinkccl.cost.baselines.nccl_search import Channels, search
from blinkccl.cost.baselines.registry import BASELINES
from blinkccl.engines import reference
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from reproduction.claim import Context

__all__ = ["connected_allocations"]

#: GPUs of a job, by id.
Gpus = tuple[int, ...]
KIB, MIB, GIB = 2**10, 2**20, 2**30
#: The copy engines' calibration of each machine.
COPY_ENGINES = {"dgx-1v": "v100-copy-engine", "dgx-1p": "p100-copy-engine", "dgx-2": "dgx-2"}
#: Message size of Figs 15 to 17 (§5.2.1).
SIZE_BYTES = 500_000_000
MB = 1_000_000
EIGHT = tuple(range(8))


@lru_cache(maxsize=64)
def topology_of(spec: str) -> Topology:
    """A catalog machine, a synthetic one, or several servers."""
    return parse_spec(spec)


@lru_cache(maxsize=1024)
def request(spec: str, collective: str, gpus: Gpus | None = None) -> Request:
    """A job on the topology that ``spec`` names; its root or source is its first GPU, its destination the second."""
    topology = topology_of(spec)
    ranks = topology.ranks if gpus is None else gpus
    ends = {"root": 0, "src": 0, "dst": 1}
    wanted = Collective(collective, len(ranks), **{key: ends[key] for key in COLLECTIVES[collective].parameters})
    return Request(topology, wanted, ranks)


@lru_cache(maxsize=1024)
def plan(how: str, spec: str, collective: str, gpus: Gpus | None = None, objective: str = "shallow") -> Forest:
    """The forest of the algorithm ``how``."""
    return algorithm(how).plan(replace(request(spec, collective, gpus), objective=objective))


def conditions(context: Context, calibration: str) -> Conditions:
    """The conditions of a job on a calibration of the context."""
    return Conditions(context.calibration(calibration), named=context.calibration)


@lru_cache(maxsize=8)
def channels(spec: str) -> Channels:
    """The channels that NCCL 2.30 sets up among all GPUs."""
    topology = topology_of(spec)
    return search(topology, topology.ranks)


@dataclass(frozen=True, slots=True)
class BothSides:
    """Algbw of both sides for one allocation, GB/s."""

    gpus: Gpus
    blink_gb_per_s: float
    nccl_gb_per_s: float

    @property
    def speedup(self) -> float:
        return self.blink_gb_per_s / self.nccl_gb_per_s


def nccl_winners(found: Channels) -> list[tuple[int, str]]:
    """The algorithm that NCCL takes for an AllReduce from each size on, up to 16 GiB, exact to the byte.

    In an eighth of an octave its straight lines meet once.
    """

    def taken(size_bytes: int) -> str:
        return choose(found, "allreduce", size_bytes).algorithm

    winners = [(0, taken(0))]
    for size in sorted({(8 + part) << power >> 3 for power in range(34) for part in range(8)}):
        if taken(size) != winners[-1][1]:
            first = bisect_left(range(size), True, lo=winners[-1][0], key=lambda at: taken(at) != winners[-1][1])
            winners.append((first, taken(first)))
    return winners


def blink(context: Context, name: str, collective: str, gpus: Gpus | None = None, how: str = "blink") -> TimedPlan:
    """Blink's side, with a chunk near the closed form's for each size."""
    return planned(how, plan(how, name, collective, gpus), conditions(context, COPY_ENGINES[name]))


def seconds(context: Context, forest: Forest, calibration: str, size_bytes: int) -> float:
    """The time of a forest's plan, with a chunk near the closed form's."""
    return planned(forest.algorithm, forest, conditions(context, calibration)).at(size_bytes).seconds


def nccl(context: Context, job: Request, calibration: str, baseline: str = "nccl-2.4") -> Prepared:
    """NCCL's side; ``calibration`` is for machines without one in the baseline."""
    return BASELINES[baseline].prepare(job, conditions(context, calibration))


def timed(context: Context, name: str, collective: str, gpus: Gpus, how: str = "blink") -> BothSides:
    """Both sides at 500 MB."""
    blink_rate = blink(context, name, collective, gpus, how).at(SIZE_BYTES).algbw_gb_per_s
    nccl_rate = nccl(context, request(name, collective, gpus), COPY_ENGINES[name]).at(SIZE_BYTES).algbw_gb_per_s
    return BothSides(gpus, blink_rate, nccl_rate)


def all_timed(context: Context, name: str, collective: str, how: str = "blink") -> tuple[BothSides, ...]:
    """Every allocation of a machine: the bars of Figs 15, 16 and 17."""
    return tuple(timed(context, name, collective, gpus, how) for gpus in connected_allocations(name))


def basis_of(name: str, collective: str, how: str = "blink") -> str:
    """The basis of :func:`timed`, in words."""
    generation = COPY_ENGINES[name].split("-")[0]
    timing = f"{how} plans for {collective}, {COPY_ENGINES[name]}, near-best chunk"
    return f"{timing}; nccl-2.4 on nccl-2.4-{generation}; 500 MB"


def geometric_mean(numbers: Iterable[float]) -> float:
    """Geometric mean of positive numbers."""
    logs = [log(number) for number in numbers]
    return exp(sum(logs) / len(logs))


def wrong_elements(forest: Forest, count: int) -> int:
    """Number of elements in which a run of the plan on real buffers differs from the collective's definition.

    Integers on the reference engine, ``count`` per block. In an invalid program all elements count as wrong.
    """
    program = lower(forest)
    inputs = make_inputs(program.collective, count, "int32", 0, "sum")
    expected = oracle(program.collective, inputs)
    if violations(program, forest.topology):
        return sum(block.size for block in expected if block is not None)
    outputs = reference.run(program, inputs, CollectiveCall.of(program.collective, "int32", count), chunk_bytes=64)
    return sum(
        int((output != block).sum())
        for output, block in zip(outputs, expected, strict=True)
        if output is not None and block is not None
    )
