"""Jobs for tests of the simulator, and their costs."""

from collections.abc import Sequence
from dataclasses import fields

import msgspec

from blinkccl.cost.baselines.candidate import Conditions, TimedPlan
from blinkccl.cost.baselines.registry import candidates
from blinkccl.cost.simulate.calibration import Calibration, EngineCosts, LinkClass, Number, calibration
from blinkccl.cost.simulate.translate import Settings
from blinkccl.cost.simulate.workload import Outcome, Trace
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.registry import algorithm
from support.planned import asked


def lowered(algo: str, spec: str, collective: str, gpus: str | Sequence[int] | None = None) -> tuple[Program, Topology]:
    """Return the program of a plan, and its network."""
    request = asked(spec, collective, gpus)
    return lower(algorithm(algo).plan(request)), request.network


def candidate(
    spec: str,
    algo: str = "optimal",
    collective: str = "allreduce",
    gpus: str | Sequence[int] | None = None,
    named: str = "nominal",
    settings: Settings | None = None,
) -> TimedPlan:
    """Return a candidate that is a plan."""
    conditions = Conditions(calibration(named), settings or Settings())
    plan = candidates()[algo].prepare(asked(spec, collective, gpus), conditions)
    assert isinstance(plan, TimedPlan)
    return plan


def bits(outcome: Outcome) -> tuple[object, ...]:
    """Return all results of a traced run."""
    assert outcome.trace is not None
    arrays = [outcome.actor_s, outcome.busy_s, *(getattr(outcome.trace, field.name) for field in fields(Trace))]
    columns = [(array.dtype, array.tobytes()) for array in arrays]
    return (outcome.seconds, outcome.transfers, outcome.executions, *columns)


def link_class(
    kind: str, nominal_gb_per_s: float, gb_per_s: float, latency_us: float = 0.0, duplex: float = 1.0
) -> LinkClass:
    return LinkClass(kind, nominal_gb_per_s, *(Number(value, "test") for value in (gb_per_s, latency_us, duplex)))


def calibration_of(*links: LinkClass, **engine: float) -> Calibration:
    """Return these links; a GPU's engines cost only the given values."""
    numbers = {name: Number(value, "test") for name, value in engine.items()}
    return Calibration(1, "test", "a test", EngineCosts(**numbers), links)


def with_links(costs: Calibration, factor: float, *kinds: str) -> Calibration:
    """Return the costs with another rate for every link of these kinds; without ``kinds`` of all."""
    links = (
        msgspec.structs.replace(link, gb_per_s=Number(factor * link.gb_per_s.value, "a test"))
        if not kinds or link.kind in kinds
        else link
        for link in costs.link
    )
    return msgspec.structs.replace(costs, link=tuple(links))
