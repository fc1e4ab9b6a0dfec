"""The links of a machine that a plan was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blinkccl.errors import TopologyError, UsageError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_ranks, network_for


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """The options that were typed for a plan, and the links that they give."""

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
    """Two networks with the same identity are the same to a planner; names and origins are no part of it."""
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
        return True  # No shape that says anything; the reader refuses it with its place.
    link = network.link.get((row["src"], row["dst"]))
    return link is not None and str(link.capacity) == row.get("capacity")
