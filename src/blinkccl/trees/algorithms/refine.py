"""Plans made lighter for at most a hundredth of the rate: weights that chunks can have, and trees of fewer hops.

Short weights are multiples of 1/q of a block, q at most 64. The optimum of a linear program has weights like 47/91, or
of dozens of digits, and chunks want few. Here the trees of a plan stay, and for each q every tree gets a whole number
of the q units of its block: what is nearest to its weight, and then units go from a tree that crosses the fullest link
to another tree of the same block, for as long as that helps. Blocks that are cut alike, as those of ranks that are
alike, are dealt alike, so that what is symmetric stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import nsmallest
from itertools import chain, pairwise

from blinkccl.trees.algorithms.bounds import reverse_of
from blinkccl.trees.algorithms.forests import forest_of, tree_drafts
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, attained_rate, crossings
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.columns import Column, Prices, best_mix
from blinkccl.trees.packing.equal_trees import LOSS
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, OutTree, breadth_first
from blinkccl.trees.packing.oracles import column_of
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, folded, no_symmetry, symmetry_of
from blinkccl.trees.packing.templates import rotated, symmetric_hops

#: The largest denominator that a weight may have, as a part of a block.
LONGEST_WEIGHT = 64
#: So many q, the best as they are, are looked at for moves of units, with so many looks at loads in all.
FEW_IMPROVED, MOST_LOOKS = 8, 1_000_000


def least_rate(forest: Forest) -> Fraction:
    """What must be left of its rate: all but a hundredth, of the bound where it is as near to that."""
    near = forest.bound * (1 - LOSS)
    return max(forest.rate * (1 - LOSS), near) if forest.rate >= near else forest.rate * (1 - LOSS)


def shortened(forest: Forest) -> Forest:
    """The same trees with short weights, the fastest found; ``forest`` itself where its are, or too much is lost."""
    if forest.longest_weight <= LONGEST_WEIGHT:
        return forest
    weights = _Dealing(forest).best()
    shares = tuple(
        replace(share, weight=weight) for share, weight in zip(forest.shares, weights, strict=True) if weight
    )
    shares = tuple(replace(share, slice=number) for number, share in enumerate(shares))
    rate = attained_rate(forest.topology, shares)
    return replace(forest, shares=shares, rate=rate) if rate >= least_rate(forest) else forest


@dataclass(frozen=True, slots=True)
class _Class:
    """Shares that get as many units: one of each group that is cut alike. ``part`` is of a group, ``load`` of all."""

    group: int
    part: Fraction
    load: dict[Arc, int]
    shares: tuple[int, ...]


class _Dealing:
    """Units for the shares of a forest."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._blocks = 1 if forest.collective.root is not None else len(forest.ranks)
        self._classes, self._blocks_of_group = _classes(forest, self._blocks)
        self._looks = 0
        self._capacity = {arc: forest.topology.link[arc].capacity for arc in crossings(forest.shares)}

    def best(self) -> list[Fraction]:
        """The weights that are the fastest; of such the shortest."""
        dealt = {q: self._nearest(q) for q in range(1, LONGEST_WEIGHT + 1)}
        fullest = {q: max(self._full(units).values()) / q for q, units in dealt.items()}
        for q in sorted(dealt, key=lambda q: fullest[q])[:FEW_IMPROVED]:
            fullest[q] = self._improved(dealt[q]) / q
        limit = min(fullest.values()) * (1 + 1e-9)
        best = min(q for q in dealt if fullest[q] <= limit)
        weights = [Fraction(0)] * len(self._forest.shares)
        for kind, units in zip(self._classes, dealt[best], strict=True):
            for share in kind.shares:
                weights[share] = Fraction(units, best * self._blocks)
        return weights

    def _nearest(self, q: int) -> list[int]:
        """Whole units by the largest remainders: q for each block of a group."""
        exact = [kind.part * q * self._blocks_of_group[kind.group] for kind in self._classes]
        units = [int(x) for x in exact]
        for group, blocks in enumerate(self._blocks_of_group):
            mine = [i for i, kind in enumerate(self._classes) if kind.group == group]
            mine.sort(key=lambda i: units[i] - exact[i])
            for i in mine[: q * blocks - sum(units[i] for i in mine)]:
                units[i] += 1
        return units

    def _full(self, units: Sequence[int]) -> dict[Arc, float]:
        """How full each link is."""
        load: Counter[Arc] = Counter()
        for kind, count in zip(self._classes, units, strict=True):
            if count:
                for arc, times in kind.load.items():
                    load[arc] += count * times
        return {arc: load[arc] / capacity for arc, capacity in self._capacity.items()}

    def _improved(self, units: list[int]) -> float:
        """Moves units, and says how full that leaves the fullest link."""
        full = self._full(units)
        while (move := self._move(units, full, max(full, key=lambda arc: full[arc]))) is not None:
            source, target = move
            units[source] -= 1
            units[target] += 1
            for arc, change in _changes(self._classes[source], self._classes[target]).items():
                full[arc] += change / self._capacity[arc]
        return max(full.values())

    def _move(self, units: Sequence[int], full: dict[Arc, float], fullest: Arc) -> tuple[int, int] | None:
        """A unit less of a tree on the fullest link, one more of another, so that nothing it loads becomes as full."""
        best, limit = None, full[fullest] * (1 - 1e-9)
        for i, source in enumerate(self._classes):
            if not units[i] or fullest not in source.load:
                continue
            for j, target in enumerate(self._classes):
                if target.group != source.group or target.load.get(fullest, 0) >= source.load[fullest]:
                    continue
                self._looks += len(source.load) + len(target.load)
                if self._looks > MOST_LOOKS:
                    return None
                changes = _changes(source, target)
                worst = max(full[arc] + change / self._capacity[arc] for arc, change in changes.items())
                if worst < limit:
                    best, limit = (i, j), worst
        return best


def _changes(source: _Class, target: _Class) -> dict[Arc, int]:
    """By how much the load of arcs changes when a unit goes from one to the other."""
    changes = {arc: -times for arc, times in source.load.items()}
    for arc, times in target.load.items():
        changes[arc] = changes.get(arc, 0) + times
    return {arc: change for arc, change in changes.items() if change}


def _classes(forest: Forest, blocks: int) -> tuple[list[_Class], list[int]]:
    """The classes of a forest's shares, and for each group of them how many blocks it has.

    Of an AllReduce all of S is one group of N blocks, unless every root has a block's worth: then each has a group.
    """
    by_block: dict[object, list[int]] = {}
    for i, share in enumerate(forest.shares):
        by_block.setdefault(share.block, []).append(i)
    if blocks > 1 and set(by_block) == {None}:
        by_root: dict[object, list[int]] = {}
        for i, share in enumerate(forest.shares):
            by_root.setdefault(share.root, []).append(i)
        totals = {sum((forest.shares[i].weight for i in mine), Fraction(0)) for mine in by_root.values()}
        by_block = by_root if totals == {Fraction(1, blocks)} else by_block
    alike: dict[tuple[Fraction, ...], list[list[int]]] = {}
    for mine in by_block.values():
        ordered = sorted(mine, key=lambda i: -forest.shares[i].weight)
        alike.setdefault(tuple(forest.shares[i].weight for i in ordered), []).append(ordered)
    classes = []
    blocks_of_group = []
    for group, (weights, members) in enumerate(alike.items()):
        total = sum(weights)
        blocks_of_group.append(int(total * blocks))
        for place, weight in enumerate(weights):
            shares = tuple(mine[place] for mine in members)
            load = dict(crossings(forest.shares[i] for i in shares))
            classes.append(_Class(group, weight / total, load, shares))
    return classes, blocks_of_group


# Plans made shallower: trees of fewer hops within a hundredth of the best rate, of every collective that has trees.
#
# Trees that fill a cut exactly are grown for their rate, and may be deep, while a hop costs as much as thousands of
# bytes. Where a plan is deeper than it need be, trees of at most so many hops are looked for, by halving the depths
# that there are.
#: Roots with trees of their own, times pairs of ranks, at most; and links with loads of their own, four times as many
#: where the least depth is asked for.
MOST_PRICED, MOST_LINKS = 1 << 20, 192
#: How much of the rate trees may lose: the other half of a hundredth is for shorter weights.
TREES_LOSS = LOSS / 2


def is_deep(request: Request, view: RankNetwork, known: Forest) -> bool:
    """True if ``known`` is deeper than is asked, and a search for fewer hops takes seconds."""
    network = _packed_in(request, view)
    return not _is_fair(request, _fewest_hops(request, network), known.depth) and _served(request, network)


def shallower(request: Request, view: RankNetwork, known: Forest) -> Forest:
    """A forest of fewer hops than ``known``, as few as are found, near its bound; ``known`` where there is none."""
    network = _packed_in(request, view)
    low, high = _fewest_hops(request, network), known.depth
    best = known
    while low < high:
        levels = (low + high) // 2
        found = _within(request, view, network, levels, known)
        if found is None:
            low = levels + 1
        else:
            best, high = found, found.depth
    return best


def _within(request: Request, view: RankNetwork, network: FlowNetwork, levels: int, known: Forest) -> Forest | None:
    """A forest of at most so many hops, near the bound of ``known``, with weights that chunks can have."""
    mix = _mix(request, network, levels)
    all_to_all = request.collective.root is None and not mix.both_ways
    bound = known.bound / network.terminals if all_to_all else known.bound
    trees = mix.best(bound, bound * (1 - TREES_LOSS))
    if trees is None:
        return None
    found = shortened(forest_of(request, view, "optimal", tree_drafts(request, trees), known.certificate))
    return found if found.longest_weight <= LONGEST_WEIGHT else None


def _packed_in(request: Request, view: RankNetwork) -> FlowNetwork:
    """The links as trees from their roots see them."""
    return reverse_of(view.network) if request.collective.only_reduces else view.network


def _fewest_hops(request: Request, network: FlowNetwork) -> int:
    """Hops without which some rank is not reached; AllReduce may have the roots that reach all soonest."""
    if request.collective.root is not None:
        return network.hop_eccentricity(request.collective.root)
    hops = [network.hop_eccentricity(root) for root in symmetry_of(network).roots]
    return min(hops) if request.collective.name == "allreduce" else max(hops)


def _is_fair(request: Request, least: int, depth: int) -> bool:
    """Whether a plan is as shallow as is asked, where no rank is reached in fewer than ``least`` hops.

    By default two thirds more are, and a hop. So are all trees from one root: those of fewer hops are many, and take a
    linear program to find where a plan needs none.
    """
    if request.objective == "least-depth":
        return depth <= least
    return request.collective.root is not None or depth <= least + max(1, 2 * least // 3)


def _served(request: Request, network: FlowNetwork) -> bool:
    """Whether the search takes seconds: of links both ways alike, where both ways are used, and of not too many."""
    if request.collective.name == "allreduce" and not network.symmetric:
        return False
    symmetry = symmetry_of(network)
    roots = 1 if request.collective.root is not None else len(symmetry.roots)
    links = len(set(arc_orbits(network, symmetry.moves).values()))
    most = MOST_LINKS * (4 if request.objective == "least-depth" else 1)
    return links <= most and roots * network.terminals**2 <= MOST_PRICED


def _mix(request: Request, network: FlowNetwork, levels: int) -> HopLimited:
    """Trees from the root, or from every rank; of an AllReduce from any, used up to its root and down again.

    The links of an AllReduce must be symmetric: then such trees reach what pairs of different ones do. (A pair and its
    mirror image load links as the two trees do, each both ways.)
    """
    if request.collective.root is not None:
        return HopLimited(network, no_symmetry(network), levels, {request.collective.root: 0})
    symmetry = symmetry_of(network)
    if request.collective.name == "allreduce":
        return HopLimited(network, symmetry, levels, dict.fromkeys(symmetry.roots, 0), both_ways=True)
    return HopLimited(network, symmetry, levels, {root: group for group, root in enumerate(symmetry.roots)})


# Trees of at most so many hops: the best mix of them that column generation finds, near a rate that is proved.
#
# The cheapest tree within a number of hops is NP-hard to find, so columns are cheap trees and perhaps not the
# cheapest (native/packing/hop_trees.cpp): a mix that is near the rate is one, and where none is found nothing is
# proved. Trees are then left out for as long as the others make up for them. All trees that a symmetry makes of one
# have the same weight.
#: Lots of new trees, at most; a linear program after each.
MOST_ROUNDS = 100
#: New trees of a lot, at most, where they share the data.
MOST_SHARED = 16


@dataclass(frozen=True)
class HopLimited:
    """Trees of at most so many ``levels``; roots of one of the ``groups``, by number, share the data."""

    network: FlowNetwork
    symmetry: Symmetry
    levels: int
    groups: dict[int, int]
    both_ways: bool = False

    def best(self, rate: Fraction, near: Fraction) -> list[OutTree] | None:
        """Trees that carry ``near`` per group at least, of the proved ``rate``; None where none are found."""
        orbit = arc_orbits(self.network, self.symmetry.moves)
        copies = len(self.symmetry.moves)
        blocks = 1 if self.both_ways else copies  # of a group
        demand = [Fraction(1)] * len(set(self.groups.values()))
        found = best_mix(
            *(folded(self.network, orbit), demand, lambda prices: self._columns(prices, orbit)),
            *(rate * blocks, near * blocks, MOST_ROUNDS),
        )
        if found is None:
            return None
        total, columns = found
        moved: list[OutTree] = []
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
