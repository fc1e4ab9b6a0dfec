"""The Programs of one host: planned, verified, laid out, once per process.

To Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
Which Program serves which size is a table, a function of agreed numbers only, so that all ranks choose alike. What
differs between machines, and between moments, is left open: a choice may have variants, which the group measures while
it works. The numbers were measured on small machines (benchmarks/README.md); none of them changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import takewhile

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


class Crossing(IntEnum):
    """Whether the system may copy between ranks' own memories. Of the ranks' wishes the least holds for all."""

    NEVER = 0
    MEASURED = 1
    WHEREVER_POSSIBLE = 2


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A row of the table: what serves all sizes ``below`` so many bytes of S that no row before it serves.

    ``inline``: messages carry their flags inside. ``chunk_bytes`` is the wanted chunk, less where ``parts`` of S, of
    whole cache lines, are smaller. A row that is a ``variant`` is another way to do what the row before it does, with
    the same bits: the group measures while it works and takes the fastest (native/src/variants.h). With
    ``cross_memory`` the system copies, where it may; such rows are variants.
    """

    algorithm: str
    inline: bool
    chunk_bytes: int
    below: int = NO_LIMIT
    variant: bool = False
    cross_memory: bool = False
    parts: int = 0


def choose(name: str, nbytes: int, world_size: int, crossing: Crossing = Crossing.NEVER) -> tuple[HostChoice, ...]:
    """The variants for S = ``nbytes`` among ``world_size`` ≥ 2 ranks, which agree on ``crossing``."""
    table = choices(name, world_size)
    first = next(place for place, row in enumerate(table) if not row.variant and nbytes < row.below)
    rows = [table[first], *takewhile(lambda row: row.variant, table[first + 1 :])]
    crossed = [row for row in rows if row.cross_memory]
    if crossing is Crossing.NEVER:
        rows = [row for row in rows if not row.cross_memory]
    elif crossing is Crossing.WHEREVER_POSSIBLE and crossed:
        rows = crossed
    return tuple(_sized(row, nbytes) for row in rows)


def _sized(row: HostChoice, nbytes: int) -> HostChoice:
    if not row.parts:
        return row
    return replace(row, chunk_bytes=max(1, min(row.chunk_bytes, -(-nbytes // (64 * row.parts)) * 64)))


@cache
def choices(name: str, world_size: int) -> tuple[HostChoice, ...]:
    """The table for a collective: one step while a step costs more than the bytes, then two.

    A function of agreed numbers alone, and data: the bundle of a host has these rows too
    (:mod:`blinkccl.runtime.host_bundle`).
    """
    if name == "allreduce":
        return _TWO_RANKS if world_size == 2 else _more_ranks(world_size)
    rings = (HostChoice("one_hop", False, 256 * KIB), _variant(64 * KIB))
    if name == "reduce":  # goes one way: in a ring both ends work on it
        return (HostChoice("one_hop", True, 256 * KIB, below=64 * KIB), *rings)
    # Of what goes one way each of two ranks moves every other chunk; of gathers that is half of S.
    parts = 4 if world_size == 2 and name in ("gather", "scatter") else 2
    crossed = (_variant(512 * KIB, parts=parts), _variant(MIB, parts=parts))
    return (
        HostChoice("one_hop", True, 256 * KIB, below=32 * KIB),
        HostChoice("one_hop", False, 256 * KIB, below=128 * KIB),
        HostChoice("one_hop", False, 256 * KIB, below=parts * MIB),
        *rings[1:],
        crossed[0],
        *rings,
        *crossed,
    )


def _variant(chunk_bytes: int, parts: int = 0) -> HostChoice:
    """Of the row before: other chunks in rings, or (``parts``) cross-memory copies of so many parts."""
    return HostChoice("one_hop", False, chunk_bytes, variant=True, cross_memory=parts > 0, parts=parts)


#: Two ranks write replies over questions. With cross-memory copies sums come back when all are made: what a core has
#: just written is slow to read for another.
_TWO_RANKS = (
    HostChoice("one_shot", True, 64 * KIB, below=16 * KIB),
    HostChoice("one_hop", False, 512 * KIB, below=2 * MIB + 1),
    HostChoice("one_hop", False, 512 * KIB, below=64 * MIB),
    _variant(128 * KIB),
    _variant(8 * MIB, parts=1),
    HostChoice("one_hop", False, 512 * KIB),
    _variant(128 * KIB),
)


def _more_ranks(world_size: int) -> tuple[HostChoice, ...]:
    one_step = -(-256 * KIB // world_size)
    return (
        HostChoice("one_shot", True, 64 * KIB, below=min(16 * KIB, one_step)),
        HostChoice("one_shot", False, 64 * KIB, below=one_step),
        HostChoice("one_hop", True, 64 * KIB, below=64 * KIB),
        HostChoice("one_hop", False, 64 * KIB, below=512 * KIB),
        HostChoice("one_hop", False, 256 * KIB),
        _variant(64 * KIB),
    )
