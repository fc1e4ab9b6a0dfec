"""The Programs of one host: planned, verified, laid out, once per process.

To Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
Which Program serves which size is a table, a function of agreed numbers only, so that all ranks choose alike. Its
numbers were measured on small machines (benchmarks/README.md); none of them changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import INLINE, Area, HostPlan
from blinkccl.runtime.plan_cache import PlanCache, PlanKey
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec


@cache
def host_plan(collective: Collective, algorithm_name: str, inline: bool, area: Area) -> HostPlan:
    """The plan of a collective among all ranks of one host."""
    topology = parse_spec(f"clique:{collective.world_size}")  # all memory is equally near
    return laid_out(planned(topology, collective, topology.ranks, algorithm_name, PlanCache()), inline, area)


def laid_out(program: Program, inline: bool, area: Area) -> HostPlan:
    """The layout of a program; ``inline``: its messages carry their flags inside."""
    if inline:
        program = replace(program, channels=tuple(replace(channel, protocol=INLINE) for channel in program.channels))
    return HostPlan(program, area)


def planned(
    topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str, plans: PlanCache
) -> Program:
    """A verified Program, from the cache or planned now and put there.

    UnsupportedError if the algorithm does not serve this, VerificationError if it made a wrong program.
    """
    key = PlanKey(topology, collective, ranks, algorithm_name)
    program = plans.get(key)
    if program is None:
        program = planned_anew(topology, collective, ranks, algorithm_name)
        plans.put(key, program)
    return program


def planned_anew(topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str) -> Program:
    """The same, planned now."""
    forest = algorithm(algorithm_name).plan(Request(topology, collective, ranks))
    program = lower(forest)
    verify(program, forest.topology)
    return program


KIB = 1024
MIB = KIB * KIB


#: More than any size.
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A row of the table: what serves all sizes ``below`` so many bytes of S that no row before it serves.

    ``inline``: messages carry their flags inside. ``cross_memory``: the system copies; such rows are for groups where
    that pays. ``chunk_bytes`` is the wanted chunk, less where ``parts`` of S, of whole cache lines, are smaller.
    """

    algorithm: str
    inline: bool
    chunk_bytes: int
    below: int = NO_LIMIT
    cross_memory: bool = False
    parts: int = 0


def choose(name: str, nbytes: int, world_size: int, crosses: bool = False) -> HostChoice:
    """The choice for S = ``nbytes`` among ``world_size`` ≥ 2 ranks, which agree whether copies by the system pay."""
    row = next(row for row in choices(name, world_size) if nbytes < row.below and (crosses or not row.cross_memory))
    if row.parts:
        return replace(row, chunk_bytes=min(row.chunk_bytes, -(-nbytes // (64 * row.parts)) * 64))
    return row


@cache
def choices(name: str, world_size: int) -> tuple[HostChoice, ...]:
    """The table for a collective: one step while a step costs more than the bytes, then two.

    A function of agreed numbers alone, and data: the bundle of a host has these rows too
    (:mod:`blinkccl.runtime.host_bundle`).
    """
    if name == "allreduce":
        return _TWO_RANKS if world_size == 2 else _more_ranks(world_size)
    crossing = (
        HostChoice("one_hop", True, 256 * KIB, below=32 * KIB),
        # Of what goes one way each of two ranks moves every other chunk.
        HostChoice("one_hop", False, 512 * KIB, cross_memory=True, parts=2),
    )
    rings = (HostChoice("one_hop", True, 256 * KIB, below=64 * KIB), HostChoice("one_hop", False, 256 * KIB))
    return rings if name == "reduce" else crossing + rings  # a Reduce goes one way: in a ring both work on it


#: Two ranks write replies over questions. With cross-memory copies sums come back when all are made: what a core has
#: just written is slow to read for another.
_TWO_RANKS = (
    HostChoice("one_shot", True, 64 * KIB, below=16 * KIB),
    HostChoice("one_hop", False, 512 * KIB, below=2 * MIB + 1),
    HostChoice("one_hop", False, 8 * MIB, below=16 * MIB + 1, cross_memory=True),
    HostChoice("one_hop", False, 256 * KIB, below=16 * MIB + 1),
    HostChoice("one_hop", False, 512 * KIB),
)


def _more_ranks(world_size: int) -> tuple[HostChoice, ...]:
    return (
        HostChoice("one_shot", True, 64 * KIB, below=-(-256 * KIB // world_size)),
        HostChoice("one_hop", True, 64 * KIB, below=64 * KIB),
        HostChoice("one_hop", False, 64 * KIB),
    )
