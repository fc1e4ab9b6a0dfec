"""The jobs of Blink's evaluation: their plans, and both sides timed.

Blink's side is the algorithm ``blink`` (the paper's TreeGen: directed packings for Broadcast, undirected trees for
AllReduce) on the copy engines' calibration of the machine, at the best chunk. NCCL's is the baseline ``nccl-2.4``,
which brings its own calibration. Plans are kept, as they depend on the topology alone; times are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.baselines.candidate import Conditions, Planned, Prepared, planned
from blinkccl.baselines.registry import BASELINES
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.forest.model import Forest
from blinkccl.paper.allocations import Gpus, connected_allocations
from blinkccl.paper.claim import Context
from blinkccl.simulate.chunk_search import best_chunk
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec

#: The copy engines' calibration of each machine.
COPY_ENGINES = {"dgx-1v": "v100-copy-engine", "dgx-1p": "p100-copy-engine", "dgx-2": "dgx-2"}
#: What Figs 15 to 17 are measured with (§5.2.1).
SIZE_BYTES = 500_000_000
MB = 1_000_000
EIGHT = tuple(range(8))


@lru_cache(maxsize=64)
def topology_of(spec: str) -> Topology:
    """A catalog machine, a synthetic one, or several servers."""
    return parse_spec(spec)


def request(spec: str, collective: str, gpus: Sequence[int] | None = None) -> Request:
    """A job on ``spec``; a root is the first of ``gpus``, which are all where none are given."""
    topology = topology_of(spec)
    ranks = topology.ranks if gpus is None else tuple(gpus)
    root = 0 if "root" in COLLECTIVES[collective].parameters else None
    return Request(topology, Collective(collective, len(ranks), root=root), ranks)


@lru_cache(maxsize=1024)
def plan(how: str, spec: str, collective: str, gpus: Gpus | None = None, objective: str = "shallow") -> Forest:
    """The forest of the algorithm ``how``."""
    return algorithm(how).plan(replace(request(spec, collective, gpus), objective=objective))


@dataclass(frozen=True, slots=True)
class Timed:
    """Algbw of both sides for one allocation, GB/s."""

    gpus: Gpus
    blink_gb_per_s: float
    nccl_gb_per_s: float

    @property
    def speedup(self) -> float:
        return self.blink_gb_per_s / self.nccl_gb_per_s


def blink(context: Context, name: str, collective: str, gpus: Gpus | None = None, how: str = "blink") -> Planned:
    """Blink's side, with the closed form's chunk for each size."""
    conditions = Conditions(context.calibration(COPY_ENGINES[name]), named=context.calibration)
    return planned(how, plan(how, name, collective, gpus), conditions)


def at_best_chunk(side: Planned, size_bytes: int) -> float:
    """Algbw in GB/s at the fastest chunk that a search finds."""
    costs = side.conditions.calibration
    chunk_bytes = best_chunk(side.program, side.forest.topology, costs, size_bytes)
    return replace(side, conditions=replace(side.conditions, chunk_bytes=chunk_bytes)).at(size_bytes).algbw_gb_per_s


def nccl(context: Context, asked: Request, calibration: str, baseline: str = "nccl-2.4") -> Prepared:
    """NCCL's side; ``calibration`` is for machines of which the baseline has none of its own."""
    conditions = Conditions(context.calibration(calibration), named=context.calibration)
    return BASELINES[baseline].prepare(asked, conditions)


def timed(context: Context, name: str, collective: str, gpus: Gpus, how: str = "blink") -> Timed:
    """Both sides at 500 MB."""
    ours = at_best_chunk(blink(context, name, collective, gpus, how), SIZE_BYTES)
    theirs = nccl(context, request(name, collective, gpus), COPY_ENGINES[name]).at(SIZE_BYTES).algbw_gb_per_s
    return Timed(gpus, ours, theirs)


def all_timed(context: Context, name: str, collective: str, how: str = "blink") -> tuple[Timed, ...]:
    """Every allocation of a machine: the bars of Figs 15, 16 and 17."""
    return tuple(timed(context, name, collective, gpus, how) for gpus in connected_allocations(name))


def basis_of(name: str, collective: str, how: str = "blink") -> str:
    """What :func:`timed` computes with, in words."""
    generation = COPY_ENGINES[name].split("-")[0]
    return f"{how} plans for {collective}, {COPY_ENGINES[name]}, best chunk; nccl-2.4 on nccl-2.4-{generation}; 500 MB"


def geometric_mean(numbers: Iterable[float]) -> float:
    """Of positive numbers."""
    logs = [log(number) for number in numbers]
    return exp(sum(logs) / len(logs))
