"""Whether a forest is symmetric: the orbits of its shares and loads, by which a plan states them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest, Share
from blinkccl.trees.forest.turns import Turn, expanded
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.symmetry import Permutation, symmetry_of

#: A forest with more shares and hops is looked at for symmetry when it is written; what is smaller is easier to read.
TURNED_ABOVE = 20_000


@dataclass(frozen=True)
class Orbits:
    """``shares`` and ``turns`` that state all shares of a forest."""

    shares: tuple[Share, ...]
    turns: tuple[Turn, ...]

    def links(self, links: Iterable[Arc]) -> list[Arc]:
        """The least link of each orbit, in order."""
        first = []
        left = dict.fromkeys(sorted(links))
        for link in list(left):
            if link in left:
                first.append(link)
                orbit = [link]
                del left[link]
                for arc in orbit:
                    for turn in self.turns:
                        image = (turn.vertex[arc[0]], turn.vertex[arc[1]])
                        if image in left:
                            del left[image]
                            orbit.append(image)
        return first


def orbits_of(forest: Forest) -> Orbits | None:
    """How to state a big forest by orbits; None where it is small, or no symmetry of its links moves it onto itself."""
    if len(forest.shares) + sum(len(tree.edges) for share in forest.shares for tree in share.trees()) <= TURNED_ABOVE:
        return None
    ids, network = _network(forest.topology, forest.ranks)
    symmetry = symmetry_of(network)
    roots = {ids[root] for root in symmetry.roots}
    shares = tuple(share for share in forest.shares if share.root in roots)
    if len(symmetry.moves) == 1 or len(shares) * len(symmetry.moves) != len(forest.shares):
        return None
    turns = tuple(Turn(_cycles(turn, ids)) for turn in symmetry.turns)
    return Orbits(shares, turns) if expanded(shares, turns, forest.ranks) == forest.shares else None


def _network(topology: Topology, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], FlowNetwork]:
    """The topology with the ranks as terminals, and the vertex ids of its vertices."""
    ids = tuple(dict.fromkeys((*ranks, *sorted(topology.vertex))))
    index = {vertex: i for i, vertex in enumerate(ids)}
    arcs = sorted((index[u], index[v], link.capacity) for (u, v), link in topology.link.items())
    return ids, FlowNetwork(len(ids), len(ranks), tuple(arcs))


def _cycles(turn: Permutation, ids: tuple[int, ...]) -> list[list[int]]:
    """The cycles of what moves, by ids."""
    cycles: list[list[int]] = []
    seen: set[int] = set()
    for start in range(len(turn)):
        cycle, at = [], start
        while at not in seen:
            seen.add(at)
            cycle.append(ids[at])
            at = turn[at]
        if len(cycle) > 1:
            cycles.append(cycle)
    return cycles
