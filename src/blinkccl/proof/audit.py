"""Audit of a plan file: the independent checker, then the verifier, on the links that the plan was made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinkccl.errors import ScheduleError, TopologyError, UsageError
from blinkccl.proof.check import Verdict, check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.order import order_faults
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.schema import SCHEMA_VERSION, upgraded
from blinkccl.topology.json_format import to_document
from blinkccl.topology.model import Topology
from blinkccl.topology.plan_links import links_of, same_links
from blinkccl.topology.stated import assumed
from blinkccl.trees.forest.document import from_document, without_collection
from blinkccl.trees.forest.model import Forest

#: The default scope of a proof.
LISTED = "the links that the plan lists"
#: Fields of every plan. If one is missing, the reader names it, before any topology is added.
_PLAN_MARKS = frozenset({"schema_version", "ranks", "shares"})


@dataclass(frozen=True, slots=True)
class Audit:
    """Results of checker and verifier. ``faults`` has a sentence per verifier violation, with rank, channel and step.

    ``verdict`` comes from the independent checker. Without ``program`` the plan cannot be lowered. ``scope`` names
    the links on which nothing is faster, if the verdict is "optimal".
    """

    forest: Forest
    verdict: Verdict
    program: Program | None
    faults: tuple[str, ...]
    scope: str
    schema_version: int

    @property
    def ok(self) -> bool:
        """True if the checker and the verifier found no violation."""
        return not self.verdict.violations and not self.faults

    @property
    def all_faults(self) -> list[str]:
        """Violations of the checker, then of the verifier."""
        return [*self.verdict.violations, *self.faults]

    def document(self) -> dict[str, Any]:
        """The JSON object of ``blink check --json``."""
        verdict = self.verdict
        return {
            "ok": self.ok,
            "plan_schema_version": self.schema_version,
            "collective": self.forest.collective.name,
            "algorithm": self.forest.algorithm,
            "ranks": list(self.forest.ranks),
            "rate": None if verdict.rate is None else str(verdict.rate),
            "bound": None if verdict.bound is None else str(verdict.bound),
            "optimal": verdict.optimal,
            "optimal_on": self.scope if verdict.optimal else None,
            "assumed": assumed(self.forest.topology),
            "violations": [
                *({"by": "checker", "text": text} for text in verdict.violations),
                *({"by": "verifier", "text": text} for text in self.faults),
            ],
        }


@without_collection()
def audit(
    document: dict[str, Any], topology: Topology | None = None, links: str | None = None, source: str = "plan"
) -> Audit:
    """Check a plan: the JSON object of ``blink plan --json``. Messages call it ``source``.

    ``topology`` is a machine that must have the plan's links. A plan without a topology is checked on the machine's
    ``links`` (None: the links that the plan was made for, if they can be derived).

    ScheduleError if it is no plan: a field is missing or has the wrong shape. UsageError if neither the plan nor the
    caller gives a topology. TopologyError if the ranks are not connected on ``links`` of ``topology``.
    """
    try:
        written_as = document.get("schema_version", SCHEMA_VERSION)
        document = _with_topology(upgraded(document), topology, links)
        forest = from_document(document)
        verdict = check_plan(document, None if topology is None else to_document(topology))
        scope = _scope(forest, topology, links)
    except (ScheduleError, TopologyError, UsageError) as error:
        raise type(error)(f"{source}: {error}") from None
    try:
        program = lower(forest)
    except ScheduleError as error:
        return Audit(forest, verdict, None, (str(error),), scope, written_as)
    faults = violations(program, forest.topology)
    if not faults and forest.order is not None:
        faults = order_faults(program, forest.order)
    return Audit(forest, verdict, program, tuple(faults), scope, written_as)


def _with_topology(document: dict[str, Any], machine: Topology | None, links: str | None) -> dict[str, Any]:
    """``document``; if it has no topology, with the links of ``machine`` that it was made for."""
    if document.get("topology") is not None or not document.keys() >= _PLAN_MARKS:
        return document
    if machine is None:
        raise UsageError("the plan has no topology: give the machine that it was made for, --topo SPEC")
    return {**document, "topology": to_document(links_of(document, machine, links).network)}


def _scope(forest: Forest, machine: Topology | None, links: str | None) -> str:
    """The links for which the plan's proof holds, in words."""
    if machine is None:
        return LISTED
    choice = same_links(forest.topology, machine, forest.ranks, links)
    if choice is None:
        tried = "any --links" if links is None else f"--links {links}"
        return f"{LISTED}, which are not all that {machine.name} has for these ranks with {tried}"
    return f"the links of {machine.name} with {choice.typed}"
