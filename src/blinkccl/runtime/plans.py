"""The Programs of one host: planned, verified, laid out, once per process.

To Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
"""

from __future__ import annotations

from dataclasses import replace
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
def host_topology(world_size: int) -> Topology:
    """One host of ``world_size`` ≥ 2 ranks: all memory is equally near."""
    return parse_spec(f"clique:{world_size}")


@cache
def host_plan(collective: Collective, algorithm_name: str, inline: bool, area: Area) -> HostPlan:
    """The plan of a collective among all ranks of one host."""
    topology = host_topology(collective.world_size)
    program = planned(topology, collective, topology.ranks, algorithm_name, PlanCache())
    if inline:
        program = replace(program, channels=tuple(replace(channel, protocol=INLINE) for channel in program.channels))
    return HostPlan(program, area)


def planned(
    topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str, plans: PlanCache
) -> Program:
    """A verified Program, from the cache or planned now and put there.

    Raises
    ------
    UnsupportedError
        If the algorithm does not serve this.
    VerificationError
        If it made a wrong program.
    """
    key = PlanKey(topology, collective, ranks, algorithm_name)
    program = plans.get(key)
    if program is None:
        program = lower(algorithm(algorithm_name).plan(Request(topology, collective, ranks)))
        verify(program, topology)
        plans.put(key, program)
    return program
