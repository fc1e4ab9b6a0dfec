"""The links that a plan was made for, recovered from a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blinkccl.errors import TopologyError, UsageError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_ranks, network_for


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """Options on the command line, and the links that they select."""

    links: str
    relays: bool
    network: Topology

    @property
    def typed(self) -> str:
        """The options as typed on the command line."""
        return f"--links {self.links}{' --relays' if self.relays else ''}"


def same_links(plan: Topology, machine: Topology, ranks: Sequence[int], links: str | None) -> LinkChoice | None:
    """The choice (``links``; None: any) that selects exactly the links listed in ``plan``; None without one."""
    identity = _identity(plan)
    return _first(machine, ranks, links, lambda network: _identity(network) == identity)


def links_of(document: dict[str, Any], machine: Topology, links: str | None) -> LinkChoice:
    """The links of ``machine`` for a plan without a topology, recognised by the plan's unit and loads.

    ``links`` is the user's choice: UsageError if the plan is for other links. None: the first choice that fits the
    plan, else the first that joins the ranks.
    """
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return LinkChoice("all", False, machine)  # No ranks to choose links by; the plan's reader reports it.
    check_ranks(machine, ranks)
    fitting = _first(machine, ranks, links, lambda network: _carries(network, document))
    if fitting is not None:
        return fitting
    other = None if links is None else _first(machine, ranks, None, lambda network: _carries(network, document))
    if other is not None:
        raise UsageError(f"its unit and capacities match {other.typed}, not --links {links}")
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
        network_for(machine, ranks, links)  # Raises, and lists the choices.
    for relays in (False, True):
        for choice in LINK_CHOICES if links is None else (links,):
            try:
                yield LinkChoice(choice, relays, network_for(machine, ranks, choice, relays=relays))
            except TopologyError:
                continue  # These links do not join the ranks, so no plan uses them.


def _identity(network: Topology) -> tuple[float, dict[int, str], dict[tuple[int, int], tuple[int, str]]]:
    """All properties of a network that matter to a planner; names and origins do not."""
    return (
        network.unit_gb_per_s,
        {v.id: v.kind for v in network.vertices},
        {(x.src, x.dst): (x.capacity, f"{x.kind} {x.by}") for x in network.links},
    )


def _carries(network: Topology, document: dict[str, Any]) -> bool:
    """True if the unit is the stated one, and every link with a load has the stated capacity."""
    if document.get("unit_gb_per_s") != network.unit_gb_per_s:
        return False
    rows = document.get("link_load")
    return all(_listed(network, row) for row in rows) if isinstance(rows, list) else True


def _listed(network: Topology, row: object) -> bool:
    if not isinstance(row, dict) or not all(type(row.get(key)) is int for key in ("src", "dst")):
        return True  # Malformed; the plan's reader refuses it.
    link = network.link.get((row["src"], row["dst"]))
    return link is not None and str(link.capacity) == row.get("capacity")
