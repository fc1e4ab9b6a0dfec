"""Is this plan true, and does it run? The independent checker, then the law of schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinkccl.errors import ScheduleError
from blinkccl.forest.check import Verdict, check_plan
from blinkccl.forest.document import from_document
from blinkccl.forest.model import Forest
from blinkccl.schedule.law import violations
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.json_format import to_document
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Parameters
    ----------
    forest
        The plan as read.
    verdict
        The independent checker's: what the plan states, recomputed.
    program
        What engines would run; None where the plan cannot be lowered.
    law
        One sentence per violation of the law, naming rank, channel and step.
    """

    forest: Forest
    verdict: Verdict
    program: Program | None
    law: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is false and the program keeps the law."""
        return not self.verdict.violations and not self.law

    def document(self) -> dict[str, Any]:
        """The JSON object of ``blink check --json``."""
        verdict = self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "ok": self.ok,
            "collective": self.forest.collective.name,
            "algorithm": self.forest.algorithm,
            "ranks": list(self.forest.ranks),
            "rate": None if verdict.rate is None else str(verdict.rate),
            "bound": None if verdict.bound is None else str(verdict.bound),
            "optimal": verdict.optimal,
            "violations": [*({"by": "checker", "text": text} for text in verdict.violations),
                           *({"by": "law", "text": text} for text in self.law)],
        }


def audit(document: dict[str, Any], topology: Topology | None = None, links: str = "fast") -> Audit:
    """Check a plan.

    Parameters
    ----------
    document
        The JSON object of ``blink plan --json``.
    topology
        A machine that must have the plan's links. Where the plan brings no topology of its own, it is
        checked on this machine's ``links``.

    Raises
    ------
    ScheduleError
        If it is no plan: a field is missing or has the wrong shape.
    TopologyError
        If the plan brings no topology and its ranks are not connected on ``links``.

    Notes
    -----
    Cost: linear in the plan, plus the certificate and the liveness of the program.
    """
    if topology is not None and "topology" not in document:
        document = {**document, "topology": to_document(_links_of(document, topology, links))}
    forest = from_document(document)
    verdict = check_plan(document, None if topology is None else to_document(topology))
    try:
        program = lower(forest)
    except ScheduleError as error:
        return Audit(forest, verdict, None, (str(error),))
    return Audit(forest, verdict, program, tuple(violations(program, forest.topology)))


def _links_of(document: dict[str, Any], topology: Topology, links: str) -> Topology:
    """The links of ``topology`` that a plan for these ranks may use."""
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return topology  # No ranks to choose links by; the reader says so with its place.
    return network_for(topology, ranks, links)
