"""Checking a plan file: the independent checker, then the verifier, on the links that the plan was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blinkccl.errors import ScheduleError, TopologyError, UsageError
from blinkccl.forest.check import Verdict, check_plan
from blinkccl.forest.document import from_document, without_collection
from blinkccl.forest.model import Forest
from blinkccl.report.plan_text import check_text, headline
from blinkccl.report.text import Paint, plain
from blinkccl.schedule.lower import lower
from blinkccl.schedule.order import order_faults
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.schema import SCHEMA_VERSION, upgraded
from blinkccl.topology.json_format import to_document
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_ranks, network_for

#: The links that every proof speaks of.
LISTED = "the links that the plan lists"
#: A document without these is no plan, and what is missing is named in its order.
_PLAN_MARKS = frozenset({"schema_version", "ranks", "shares"})


@dataclass(frozen=True, slots=True, repr=False)
class Audit:
    """What was found: ``faults`` has one sentence per violation of the verifier, naming rank, channel and step.

    ``verdict`` is the independent checker's; ``program`` is None where the plan cannot be lowered; ``scope`` are the
    links on which nothing is faster, if the verdict is "optimal".
    """

    forest: Forest
    verdict: Verdict
    program: Program | None
    faults: tuple[str, ...]
    scope: str
    schema_version: int

    @property
    def ok(self) -> bool:
        """Whether nothing is false and the program is valid."""
        return not self.verdict.violations and not self.faults

    @property
    def all_faults(self) -> list[str]:
        """What the checker and the verifier found."""
        return [*self.verdict.violations, *self.faults]

    def text(self, paint: Paint = plain) -> str:
        """What ``blink check`` prints."""
        return check_text(self.forest, self.verdict, self.program, self.faults, paint, self.scope, self.schema_version)

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def __repr__(self) -> str:
        return f"<Audit {headline(self.forest)}: {'ok' if self.ok else 'refused'}>"

    def document(self) -> dict[str, Any]:
        """The JSON object of ``blink check --json``."""
        verdict = self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "ok": self.ok,
            "plan_schema_version": self.schema_version,
            "collective": self.forest.collective.name,
            "algorithm": self.forest.algorithm,
            "ranks": list(self.forest.ranks),
            "rate": None if verdict.rate is None else str(verdict.rate),
            "bound": None if verdict.bound is None else str(verdict.bound),
            "optimal": verdict.optimal,
            "optimal_on": self.scope if verdict.optimal else None,
            "violations": [
                *({"by": "checker", "text": text} for text in verdict.violations),
                *({"by": "verifier", "text": text} for text in self.faults),
            ],
        }


@without_collection()
def audit(
    document: dict[str, Any], topology: Topology | None = None, links: str | None = None, source: str = "plan"
) -> Audit:
    """Check a plan, the JSON object of ``blink plan --json``, which messages call ``source``.

    ``topology`` is a machine that must have the plan's links; a plan that brings no topology is checked on its
    ``links`` (None: those that the plan was made for, as far as it tells).

    ScheduleError if it is no plan: a field is missing or has the wrong shape; UsageError if neither it nor ``topology``
    says which links there are; TopologyError if the ranks are not connected on ``links`` of ``topology``.
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
    """``document`` with the links of ``machine`` that it was made for, where it brings none of its own."""
    if document.get("topology") is not None or not document.keys() >= _PLAN_MARKS:
        return document
    if machine is None:
        raise UsageError("the plan brings no topology: give --topo SPEC, the machine that it was made for")
    return {**document, "topology": to_document(links_of(document, machine, links).network)}


def _scope(forest: Forest, machine: Topology | None, links: str | None) -> str:
    """On which links the plan's proof holds."""
    if machine is None:
        return LISTED
    choice = same_links(forest.topology, machine, forest.ranks, links)
    if choice is None:
        tried = "any --links" if links is None else f"--links {links}"
        return f"{LISTED}, which are not all that {machine.name} has for these ranks with {tried}"
    return f"the links of {machine.name} with {choice.typed}"


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """What was typed for a plan, and the links that it gives."""

    links: str
    relays: bool
    network: Topology

    @property
    def typed(self) -> str:
        """As on the command line."""
        return f"--links {self.links}{' --relays' if self.relays else ''}"


def same_links(plan: Topology, machine: Topology, ranks: Sequence[int], links: str | None) -> LinkChoice | None:
    """The choice (``links``; None: any) that gives exactly the links that ``plan`` lists; None where there is none."""
    wanted = _identity(plan)
    return _first(machine, ranks, links, lambda network: _identity(network) == wanted)


def links_of(document: dict[str, Any], machine: Topology, links: str | None) -> LinkChoice:
    """The links of ``machine`` that a plan without a topology was made for, told by its unit and loads.

    ``links`` was typed: UsageError if the plan is for others; None: what fits, else the first that joins the ranks.
    """
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return LinkChoice("all", False, machine)  # No ranks to choose links by; the reader says so with its place.
    check_ranks(machine, ranks)
    found = _first(machine, ranks, links, lambda network: _carries(network, document))
    if found is not None:
        return found
    other = None if links is None else _first(machine, ranks, None, lambda network: _carries(network, document))
    if other is not None:
        raise UsageError(f"its unit and capacities are those of {other.typed}, not of --links {links}")
    fallback = _first(machine, ranks, links, lambda network: True)
    if fallback is None or fallback.relays:
        return LinkChoice(links or "fast", False, network_for(machine, ranks, links or "fast"))
    return fallback


def _first(
    machine: Topology, ranks: Sequence[int], links: str | None, fits: Callable[[Topology], bool]
) -> LinkChoice | None:
    return next((choice for choice in _choices(machine, ranks, links) if fits(choice.network)), None)


def _choices(machine: Topology, ranks: Sequence[int], links: str | None) -> Iterator[LinkChoice]:
    if links is not None and links not in LINK_CHOICES:
        network_for(machine, ranks, links)  # Says what there is.
    for relays in (False, True):
        for choice in LINK_CHOICES if links is None else (links,):
            try:
                yield LinkChoice(choice, relays, network_for(machine, ranks, choice, relays=relays))
            except TopologyError:
                continue  # These links leave the ranks in parts: no plan was made for them.


def _identity(network: Topology) -> tuple[float, dict[int, str], dict[tuple[int, int], tuple[int, str]]]:
    """What makes two networks the same to a planner; names and origins do not."""
    return (
        network.unit_gb_per_s,
        {v.id: v.kind for v in network.vertices},
        {(x.src, x.dst): (x.capacity, f"{x.kind} {x.by}") for x in network.links},
    )


def _carries(network: Topology, document: dict[str, Any]) -> bool:
    """Whether the unit is the stated one, and every link with a load has the stated capacity."""
    if document.get("unit_gb_per_s") != network.unit_gb_per_s:
        return False
    rows = document.get("link_load")
    return all(_listed(network, row) for row in rows) if isinstance(rows, list) else True


def _listed(network: Topology, row: object) -> bool:
    if not isinstance(row, dict) or not all(type(row.get(key)) is int for key in ("src", "dst")):
        return True  # No shape that says anything; the reader refuses it with its place.
    link = network.link.get((row["src"], row["dst"]))
    return link is not None and str(link.capacity) == row.get("capacity")
