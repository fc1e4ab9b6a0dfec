"""Trees of at most so many hops: the best mix of them that column generation finds, near a rate that is proved.

The cheapest tree within a number of hops is NP-hard to find, so columns are cheap trees and perhaps not the cheapest
(native/packing/hop_trees.cpp): a mix that is near the rate is one, and where none is found nothing is proved. Trees are
then left out for as long as the others make up for them. All trees that a symmetry makes of one have the same weight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from heapq import nsmallest
from itertools import chain, pairwise

from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.columns import Column, Prices, best_mix
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops, breadth_first
from blinkccl.trees.packing.oracles import column_of
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, no_symmetry
from blinkccl.trees.packing.templates import rotated, symmetric_hops

#: Lots of new trees, at most; a linear program after each.
MOST_ROUNDS = 100
#: New trees of a lot, at most, where they share the data.
MOST_SHARED = 16

#: A root, its part of the data (or of its own block), and the hops down from it.
Part = tuple[int, Fraction, Hops]


def from_roots(
    network: FlowNetwork, symmetry: Symmetry, levels: int, rate: Fraction, near: Fraction
) -> list[Part] | None:
    """Out-trees from every terminal, ``near`` per root at least of the proved ``rate``; None where none are found."""
    groups = {root: group for group, root in enumerate(symmetry.roots)}
    return _Mix(network, symmetry, levels, groups, both_ways=False).best(rate, near)


def from_root(network: FlowNetwork, root: int, levels: int, rate: Fraction, near: Fraction) -> list[Part] | None:
    """As :func:`from_roots`, from one root."""
    return _Mix(network, no_symmetry(network), levels, {root: 0}, both_ways=False).best(rate, near)


def up_and_down(
    network: FlowNetwork, symmetry: Symmetry, levels: int, rate: Fraction, near: Fraction
) -> list[Part] | None:
    """Trees from any terminals, each used up to its root and down again, ``near`` of ``rate`` in all.

    Links must be symmetric: then such trees reach what pairs of different ones do. (A pair and its mirror image load
    links as the two trees do, each both ways.)
    """
    return _Mix(network, symmetry, levels, dict.fromkeys(symmetry.roots, 0), both_ways=True).best(rate, near)


@dataclass(frozen=True)
class _Mix:
    network: FlowNetwork
    symmetry: Symmetry
    levels: int
    groups: dict[int, int]
    """The group of each root: all of one group share the data."""
    both_ways: bool

    def best(self, rate: Fraction, near: Fraction) -> list[Part] | None:
        orbit = arc_orbits(self.network, self.symmetry.moves)
        size = Counter(orbit.values())
        capacity = {name: self.network.capacity[name] * size[name] for name in size}
        copies = len(self.symmetry.moves)
        blocks = 1 if self.both_ways else copies  # of a group
        demand = [Fraction(1)] * len(set(self.groups.values()))
        found = best_mix(
            *(capacity, demand, lambda prices: self._columns(prices, orbit)),
            *(rate * blocks, near * blocks, MOST_ROUNDS),
        )
        if found is None:
            return None
        total, columns = found
        moved: list[Part] = []
        for column, weight in columns:
            root, hops = column.payload
            part, tree = weight * blocks / total / copies, breadth_first(root, hops)
            # Moved hops stay level by level, as the template's are.
            moved += [(move[root], part, rotated(tree, move)) for move in self.symmetry.moves]
        return sorted(moved, key=lambda tree: (tree[0], -tree[1]))

    def _columns(self, prices: Prices, orbit: dict[Arc, Arc]) -> list[Column]:
        each = {(u, v): prices.get(name, 0) for (u, v), name in orbit.items()}
        if self.both_ways:
            each = {(u, v): price + each[v, u] for (u, v), price in each.items()}
        cost, hop = symmetric_hops(self.network, self.symmetry, each)
        trees = [
            (root, [(u, v) for v, u in enumerate(parent) if u >= 0])
            for root, parent in native_flows.hop_trees(cost, self.levels, list(self.groups)) or ()
        ]
        if self.both_ways:  # of a group that all roots share
            trees = nsmallest(MOST_SHARED, trees, key=lambda tree: sum(cost[u][v] for u, v in tree[1]))
        ways = {ends: hop(*ends) for ends in dict.fromkeys(ends for _, tree in trees for ends in tree)}
        loaded = {ends: [orbit[arc] for arc in self._crossed(way)] for ends, way in ways.items()}
        return [
            column_of(
                self.groups[root],
                Counter(chain.from_iterable(loaded[ends] for ends in tree)),
                (root, tuple(ways[ends] for ends in tree)),
            )
            for root, tree in trees
        ]

    def _crossed(self, hop: Hop) -> list[Arc]:
        there = list(pairwise(hop))
        return there + [(v, u) for u, v in there] if self.both_ways else there
