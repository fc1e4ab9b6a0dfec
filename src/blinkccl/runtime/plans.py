"""The Programs of one host: planned, verified, laid out, once per process.

To Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
Which Program serves which size is :mod:`blinkccl.cost.choice.host_table`'s.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import INLINE, Area, HostPlan
from blinkccl.runtime.plan_cache import PlanCache, PlanKey
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request


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
