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
    program = planned(topology, collective, topology.ranks, algorithm_name, PlanCache())
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
        forest = algorithm(algorithm_name).plan(Request(topology, collective, ranks))
        program = lower(forest)
        verify(program, forest.topology)
        plans.put(key, program)
    return program


KIB = 1024
MIB = KIB * KIB


@dataclass(frozen=True, slots=True)
class HostChoice:
    """What there is to choose; ``inline``: messages carry their flags inside; ``cross_memory``: the system may copy."""

    algorithm: str
    inline: bool
    chunk_bytes: int
    cross_memory: bool = False


def choose(name: str, nbytes: int, world_size: int, crosses: bool = False) -> HostChoice:
    """The choice for S = ``nbytes`` among ``world_size`` ≥ 2 ranks, which agree whether copies by the system pay."""
    if name == "allreduce":
        return _allreduce(nbytes, world_size, crosses)
    if crosses and nbytes >= 32 * KIB and name != "reduce":  # which goes one way: in a ring both work on it
        return HostChoice("one_hop", False, _halves(nbytes), True)
    return HostChoice("one_hop", nbytes < 64 * KIB, 256 * KIB)


def _halves(nbytes: int) -> int:
    """Chunks for two ranks, of which each moves every other one where data goes one way only."""
    return min(512 * KIB, -(-nbytes // 128) * 64)


def _allreduce(nbytes: int, world_size: int, crosses: bool) -> HostChoice:
    """One step while a step costs more than the bytes; then two, in which two ranks write replies over questions.

    With cross-memory copies sums come back when all are made: what a core has just written is slow to read for another.
    """
    if world_size == 2:
        if nbytes < 16 * KIB:
            return HostChoice("one_shot", True, 64 * KIB)
        if 2 * MIB < nbytes <= 16 * MIB:
            return HostChoice("one_hop", False, 8 * MIB, True) if crosses else HostChoice("one_hop", False, 256 * KIB)
        return HostChoice("one_hop", False, 512 * KIB)
    if nbytes * world_size < 256 * KIB:
        return HostChoice("one_shot", True, 64 * KIB)
    return HostChoice("one_hop", nbytes < 64 * KIB, 64 * KIB)
