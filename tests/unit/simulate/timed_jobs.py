"""Jobs that tests of the simulator time."""

from __future__ import annotations

from blinkccl.algorithms.registry import Request
from blinkccl.baselines.candidate import Conditions, Planned
from blinkccl.baselines.registry import candidates
from blinkccl.collectives.spec import Collective
from blinkccl.simulate.calibration import calibration
from blinkccl.simulate.translate import Settings
from blinkccl.topology.spec import parse_gpus, parse_spec


def request(spec: str, collective: str = "allreduce", gpus: str | None = None) -> Request:
    """What to plan, with the first rank as root."""
    topology = parse_spec(spec)
    ranks = parse_gpus(gpus, topology)
    ends = {"root": 0} if collective in ("broadcast", "reduce", "gather", "scatter") else {}
    return Request(topology, Collective(collective, len(ranks), **ends), ranks)


def plan(
    spec: str,
    algorithm: str = "optimal",
    collective: str = "allreduce",
    gpus: str | None = None,
    named: str = "nominal",
    settings: Settings | None = None,
) -> Planned:
    """A candidate that is a plan."""
    conditions = Conditions(calibration(named), settings or Settings())
    found = candidates()[algorithm].prepare(request(spec, collective, gpus), conditions)
    assert isinstance(found, Planned)
    return found
