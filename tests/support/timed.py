"""Jobs that tests of the simulator time."""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.algorithms.registry import algorithm
from blinkccl.baselines.candidate import Conditions, Planned
from blinkccl.baselines.registry import candidates
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.simulate.calibration import calibration
from blinkccl.simulate.translate import Settings
from blinkccl.topology.model import Topology
from support.planned import asked


def lowered(algo: str, spec: str, collective: str, gpus: str | Sequence[int] | None = None) -> tuple[Program, Topology]:
    """The program of a plan, and the network that it is for."""
    request = asked(spec, collective, gpus)
    return lower(algorithm(algo).plan(request)), request.network


def candidate(
    spec: str,
    algo: str = "optimal",
    collective: str = "allreduce",
    gpus: str | Sequence[int] | None = None,
    named: str = "nominal",
    settings: Settings | None = None,
) -> Planned:
    """A candidate that is a plan."""
    conditions = Conditions(calibration(named), settings or Settings())
    found = candidates()[algo].prepare(asked(spec, collective, gpus), conditions)
    assert isinstance(found, Planned)
    return found
