"""A request for a plan: a collective on ranks of a machine, its links, and the preference among plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UsageError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for

#: The preference among forests of the same rate. For many ranks without symmetry, only ``shallow`` may lose a hundredth
#: of the rate, for few trees of equal weight (``optimal.py``); ``exact`` is ``shallow`` without that loss.
OBJECTIVES = ("shallow", "fewest-trees", "least-depth", "exact")
#: The property of a result that is equal for every size: the order in which its elements are summed.
DETERMINISTIC = ("order",)


@dataclass(frozen=True)
class Request:
    """A collective to plan, on a whole machine or cluster: rank ``i`` of ``collective`` is vertex ``ranks[i]``.

    ``links`` and ``relays`` are those of :func:`blinkccl.topology.select.network_for`. ``max_trees`` is the most trees
    that share one block of the data, at any loss of rate; None for any number. ``deterministic`` is "order" for plans
    that sum every element in one order (:mod:`blinkccl.trees.algorithms.order`).
    """

    topology: Topology
    collective: Collective
    ranks: tuple[int, ...]
    links: str = "fast"
    relays: bool = False
    objective: str = "shallow"
    max_trees: int | None = None
    deterministic: str | None = None

    def __post_init__(self) -> None:
        if self.collective.world_size != len(self.ranks):
            raise UsageError(
                f"{self.collective.name} for {self.collective.world_size} ranks, but {len(self.ranks)} are given"
            )
        if self.max_trees is not None and self.max_trees < 1:
            raise UsageError(f"--max-trees {self.max_trees}: expected at least 1")
        if len(self.ranks) < 2:
            raise UsageError("a collective among fewer than two ranks moves nothing: give at least two GPUs")
        if self.objective not in OBJECTIVES:
            raise UsageError(f"--objective {self.objective}: expected one of {', '.join(OBJECTIVES)}")
        if self.deterministic not in (None, *DETERMINISTIC):
            raise UsageError(f"--deterministic {self.deterministic!r}: expected {' or '.join(DETERMINISTIC)}")

    @cached_property
    def network(self) -> Topology:
        """The links for planning: the part of ``topology`` for ``ranks``, ``links`` and ``relays``."""
        return network_for(self.topology, self.ranks, self.links, relays=self.relays)
