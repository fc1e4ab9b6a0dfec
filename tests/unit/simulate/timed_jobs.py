"""Jobs that tests of the simulator time."""

from __future__ import annotations

from blinkccl.algorithms.registry import Request
from blinkccl.baselines.candidate import Conditions, Planned
from blinkccl.baselines.registry import candidates
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.simulate.calibration import calibration
from blinkccl.simulate.translate import Settings
from blinkccl.topology.spec import parse_gpus, parse_spec


def request(spec: str, collective: str = "allreduce", gpus: str | None = None) -> Request:
    """What to plan, with the first rank as root or source and the second as destination."""
    topology = parse_spec(spec)
    ranks = parse_gpus(gpus, topology)
    given = {"root": 0, "src": 0, "dst": 1}
    ends = {key: given[key] for key in COLLECTIVES[collective].parameters}
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
