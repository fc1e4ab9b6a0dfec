"""Refinement of plans for at most a hundredth of the rate: weights with small denominators, and trees of fewer hops.

Short weights are multiples of 1/q of a block, with q at most 64. The optimum of a linear program has weights like
47/91, or with dozens of digits, while chunks need small denominators. The trees of the plan stay. For each q every tree
gets the whole number of units nearest to its weight, q per block. Then units move from a tree on the fullest link to
another tree of the same block while that improves the rate. Blocks with the same weights, such as those of equivalent
ranks, get the same units, so a symmetric plan stays symmetric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import nsmallest
from itertools import chain, pairwise

from blinkccl.trees.algorithms.bounds import reverse_of
from blinkccl.trees.algorithms.forests import forest_of, tree_drafts
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import Paths, by_server, stays_inside, transit_paths
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, attained_rate, crossings, link_use
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.columns import Column, Prices, best_mix
from blinkccl.trees.packing.equal_trees import LOSS
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, OutTree, breadth_first
from blinkccl.trees.packing.oracles import column_of
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, folded, no_symmetry, symmetry_of
from blinkccl.trees.packing.templates import rotated, symmetric_hops

#: The largest denominator of a weight, as a part of a block.
LONGEST_WEIGHT = 64
#: The number of q, the best before any move, for which moves of units are tried, and the total limit of load checks.
FEW_IMPROVED, MOST_LOOKS = 8, 1_000_000


def least_rate(forest: Forest) -> Fraction:
    """The least rate after refinement: 99 % of the forest's rate, or of the bound if its rate is at least that."""
    near = forest.bound * (1 - LOSS)
    return max(forest.rate * (1 - LOSS), near) if forest.rate >= near else forest.rate * (1 - LOSS)


def shortened(forest: Forest) -> Forest:
    """The same trees with short weights at the best rate; ``forest`` itself if its are short, or if that costs more."""
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
    """Shares with equal units, one per block of a group; ``part`` is their part of the group, ``load`` their sum."""

    group: int
    part: Fraction
    load: dict[Arc, int]
    shares: tuple[int, ...]


class _Dealing:
    """The assignment of units to the shares of a forest."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._blocks = 1 if forest.collective.root is not None else len(forest.ranks)
        self._classes, self._blocks_of_group = _classes(forest, self._blocks)
        self._looks = 0
        self._capacity = {arc: forest.topology.link[arc].capacity for arc in crossings(forest.shares)}

    def best(self) -> list[Fraction]:
        """The weights with the highest rate, of equal ones the shortest."""
        units_by_q = {q: self._nearest(q) for q in range(1, LONGEST_WEIGHT + 1)}
        fullest = {q: max(self._full(units).values()) / q for q, units in units_by_q.items()}
        for q in sorted(units_by_q, key=lambda q: fullest[q])[:FEW_IMPROVED]:
            fullest[q] = self._improved(units_by_q[q]) / q
        limit = min(fullest.values()) * (1 + 1e-9)
        best = min(q for q in units_by_q if fullest[q] <= limit)
        weights = [Fraction(0)] * len(self._forest.shares)
        for kind, units in zip(self._classes, units_by_q[best], strict=True):
            for share in kind.shares:
                weights[share] = Fraction(units, best * self._blocks)
        return weights

    def _nearest(self, q: int) -> list[int]:
        """Whole units by largest remainders, q per block of a group."""
        exact = [kind.part * q * self._blocks_of_group[kind.group] for kind in self._classes]
        units = [int(x) for x in exact]
        for group, blocks in enumerate(self._blocks_of_group):
            mine = [i for i, kind in enumerate(self._classes) if kind.group == group]
            mine.sort(key=lambda i: units[i] - exact[i])
            for i in mine[: q * blocks - sum(units[i] for i in mine)]:
                units[i] += 1
        return units

    def _full(self, units: Sequence[int]) -> dict[Arc, float]:
        """The load of each link as a part of its capacity."""
        load: Counter[Arc] = Counter()
        for kind, count in zip(self._classes, units, strict=True):
            if count:
                for arc, times in kind.load.items():
                    load[arc] += count * times
        return {arc: load[arc] / capacity for arc, capacity in self._capacity.items()}

    def _improved(self, units: list[int]) -> float:
        """Move units while that helps; the result is the load of the fullest link."""
        full = self._full(units)
        while (move := self._move(units, full, max(full, key=lambda arc: full[arc]))) is not None:
            source, target = move
            units[source] -= 1
            units[target] += 1
            for arc, change in _changes(self._classes[source], self._classes[target]).items():
                full[arc] += change / self._capacity[arc]
        return max(full.values())

    def _move(self, units: Sequence[int], full: dict[Arc, float], fullest: Arc) -> tuple[int, int] | None:
        """The best move of a unit from a tree on the fullest link to another one, without a new link as full."""
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
    """The change of the load of arcs if a unit moves from ``source`` to ``target``."""
    changes = {arc: -times for arc, times in source.load.items()}
    for arc, times in target.load.items():
        changes[arc] = changes.get(arc, 0) + times
    return {arc: change for arc, change in changes.items() if change}


def _classes(forest: Forest, blocks: int) -> tuple[list[_Class], list[int]]:
    """The classes of a forest's shares, and the number of blocks of each group of classes.

    For an AllReduce all of S is one group of N blocks, unless every root has 1/N of S: then each root is a block.
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
    by_weights: dict[tuple[Fraction, ...], list[list[int]]] = {}
    for mine in by_block.values():
        ordered = sorted(mine, key=lambda i: -forest.shares[i].weight)
        by_weights.setdefault(tuple(forest.shares[i].weight for i in ordered), []).append(ordered)
    classes = []
    blocks_of_group = []
    for group, (weights, members) in enumerate(by_weights.items()):
        total = sum(weights)
        blocks_of_group.append(int(total * blocks))
        for place, weight in enumerate(weights):
            shares = tuple(mine[place] for mine in members)
            load = dict(crossings(forest.shares[i] for i in shares))
            classes.append(_Class(group, weight / total, load, shares))
    return classes, blocks_of_group


# Shallower plans: trees of fewer hops within a hundredth of the best rate, for every collective with trees.
#
# Trees that fill a cut exactly are optimized for their rate and may be deep, but a hop costs as much time as thousands
# of bytes. If a plan is deeper than necessary, trees with a limit of hops are searched, by bisection of the depth.
#: The largest number of roots with separate trees times pairs of ranks, and of links with separate loads. The latter is
#: four times as large for ``least-depth``.
MOST_PRICED, MOST_LINKS = 1 << 20, 192
#: The loss of rate for fewer hops; the other half of a hundredth is for shorter weights.
TREES_LOSS = LOSS / 2


def is_deep(request: Request, view: RankNetwork, current: Forest) -> bool:
    """True if ``current`` is deeper than the objective requires, and a search for fewer hops takes seconds."""
    network = _packed_in(request, view)
    return not _is_fair(request, _fewest_hops(request, network), current.depth) and _served(request, network)


def shallower(request: Request, view: RankNetwork, current: Forest) -> Forest:
    """The shallowest forest near the bound of ``current``; ``current`` itself if none with fewer hops is known."""
    network = _packed_in(request, view)
    low, high = _fewest_hops(request, network), current.depth
    best = current
    while low < high:
        levels = (low + high) // 2
        forest = _within(request, view, network, levels, current)
        if forest is None:
            low = levels + 1
        else:
            best, high = forest, forest.depth
    return best


def _within(request: Request, view: RankNetwork, network: FlowNetwork, levels: int, current: Forest) -> Forest | None:
    """A forest of at most ``levels`` hops near the bound of ``current``, with short weights; None without success."""
    mix = _mix(request, network, levels)
    all_to_all = request.collective.root is None and not mix.both_ways
    bound = current.bound / network.terminals if all_to_all else current.bound
    trees = mix.best(bound, bound * (1 - TREES_LOSS))
    if trees is None:
        return None
    forest = shortened(forest_of(request, view, "optimal", tree_drafts(request, trees), current.certificate))
    return forest if forest.longest_weight <= LONGEST_WEIGHT else None


def _packed_in(request: Request, view: RankNetwork) -> FlowNetwork:
    """The network for out-trees from the roots: reversed for collectives that only reduce."""
    return reverse_of(view.network) if request.collective.only_reduces else view.network


def _fewest_hops(request: Request, network: FlowNetwork) -> int:
    """The least depth that reaches all ranks; AllReduce may use the roots with the least depth."""
    if request.collective.root is not None:
        return network.hop_eccentricity(request.collective.root)
    hops = [network.hop_eccentricity(root) for root in symmetry_of(network).roots]
    return min(hops) if request.collective.name == "allreduce" else max(hops)


def _is_fair(request: Request, least: int, depth: int) -> bool:
    """True if a plan of ``depth`` is shallow enough for the objective; ``least`` is the least possible depth.

    The default accepts two thirds more, and at least one hop more. It accepts all trees from one root, since fewer hops
    would need more trees, and a linear program for a plan that otherwise needs none.
    """
    if request.objective == "least-depth":
        return depth <= least
    return request.collective.root is not None or depth <= least + max(1, 2 * least // 3)


def _served(request: Request, network: FlowNetwork) -> bool:
    """True if the search takes seconds: not too many links, which for an AllReduce must be symmetric."""
    if request.collective.name == "allreduce" and not network.symmetric:
        return False
    symmetry = symmetry_of(network)
    roots = 1 if request.collective.root is not None else len(symmetry.roots)
    links = len(set(arc_orbits(network, symmetry.moves).values()))
    most = MOST_LINKS * (4 if request.objective == "least-depth" else 1)
    return links <= most and roots * network.terminals**2 <= MOST_PRICED


def _mix(request: Request, network: FlowNetwork, levels: int) -> HopLimited:
    """Trees from the root or from every rank; for an AllReduce from any rank, each used up and down.

    An AllReduce needs symmetric links. Such trees then reach the rate of pairs of different trees: a pair and its
    mirror image load the links as both trees used up and down do.
    """
    if request.collective.root is not None:
        return HopLimited(network, no_symmetry(network), levels, {request.collective.root: 0})
    symmetry = symmetry_of(network)
    if request.collective.name == "allreduce":
        return HopLimited(network, symmetry, levels, dict.fromkeys(symmetry.roots, 0), both_ways=True)
    return HopLimited(network, symmetry, levels, {root: group for group, root in enumerate(symmetry.roots)})


# Trees with a limit of hops: the best mix that column generation finds, near a proved rate.
#
# The cheapest tree within a number of hops is NP-hard to find. So columns are cheap trees, perhaps not the cheapest
# (native/packing/hop_trees.cpp). A mix near the rate is valid, but if none is found, nothing is proved. Trees are then
# dropped while the others can carry their data. All images of a tree under the symmetry have the same weight.
#: The most rounds of new trees, with a linear program after each.
MOST_ROUNDS = 100
#: The most new trees of a round for roots that share the data.
MOST_SHARED = 16


@dataclass(frozen=True)
class HopLimited:
    """The search for trees of at most ``levels`` hops; roots with the same number in ``groups`` share the data."""

    network: FlowNetwork
    symmetry: Symmetry
    levels: int
    groups: dict[int, int]
    both_ways: bool = False

    def best(self, rate: Fraction, near: Fraction) -> list[OutTree] | None:
        """Trees with a rate per group of at least ``near``, of the proved ``rate``; None if none are found."""
        orbit = arc_orbits(self.network, self.symmetry.moves)
        copies = len(self.symmetry.moves)
        blocks = 1 if self.both_ways else copies  # blocks of a group
        demand = [Fraction(1)] * len(set(self.groups.values()))
        mix = best_mix(
            *(folded(self.network, orbit), demand, lambda prices: self._columns(prices, orbit)),
            *(rate * blocks, near * blocks, MOST_ROUNDS),
        )
        if mix is None:
            return None
        total, columns = mix
        moved: list[OutTree] = []
        for column, weight in columns:
            root, hops = column.payload
            part, tree = weight * blocks / total / copies, breadth_first(root, hops)
            # Moved hops stay ordered by level, as the template's hops are.
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
        if self.both_ways:  # all roots are one group
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
        arcs = list(pairwise(hop))
        return arcs + [(v, u) for u, v in arcs] if self.both_ways else arcs


# Hops inside servers. A tree of the best rate may send data back to a server that has it already. This costs no rate,
# but a message between servers. A rank then receives from that rank of its server which is nearest to the root.


def inside_servers(request: Request, forest: Forest) -> Forest:
    """The trees of one root with hops inside servers instead of between them, where neither rate nor depth suffers."""
    if forest.collective.root is None or len(by_server(forest.topology, forest.ranks)) == 1:
        return forest
    moving = _MovingInside(forest, transit_paths(request.network, forest.ranks), link_use(forest.shares))
    return replace(forest, shares=tuple(map(moving.moved, forest.shares)))


@dataclass(frozen=True, slots=True)
class _MovingInside:
    """A forest whose hops move one after another; ``use`` has the present data over links, as parts of S."""

    forest: Forest
    paths: Paths
    use: dict[Arc, Fraction]

    def moved(self, share: Share) -> Share:
        """The share with the hops of its one tree moved."""
        if share.broadcast is not None:
            return replace(share, broadcast=self._tree(share.broadcast, share.weight, lambda path: path))
        assert share.reduce is not None
        down = self._tree(share.reduce.reversed(), share.weight, lambda path: path[::-1])
        return replace(share, reduce=down.reversed())

    def _tree(self, tree: Tree, weight: Fraction, turned: Callable[[Path], Path]) -> Tree:
        """An out-tree with moved hops; ``turned`` turns a hop of it into the direction of the data, and back.

        A parent stays nearer to the root than its child was at first, so no cycle arises.
        """
        vertex = self.forest.topology.vertex
        depth, nearest = {tree.root: 0}, {vertex[tree.root].server: tree.root}
        for hop in breadth_first(tree.root, tree.edges):
            depth[hop[-1]] = depth[hop[0]] + 1
            nearest.setdefault(vertex[hop[-1]].server, hop[-1])
        edges = []
        for path in tree.edges:
            rank, near = path[-1], nearest[vertex[path[-1]].server]
            first, last = turned((near, rank))
            way = self.paths.get((first, last)) if depth[near] < depth[rank] else None
            moves = way is not None and self._move(turned(path), way, weight)
            edges.append(turned(way) if moves and way is not None else path)
        return replace(tree, edges=tuple(edges))

    def _move(self, old: Path, new: Path, weight: Fraction) -> bool:
        """Move data to ``new`` if it alone stays inside a server and its links have room; True if so."""
        topology, rate = self.forest.topology, self.forest.rate
        if stays_inside(topology, old) or not stays_inside(topology, new):
            return False
        links = [*pairwise(new)]
        if any((self.use.get(arc, 0) + weight) * rate > topology.link[arc].capacity for arc in links):
            return False
        for arc in pairwise(old):
            self.use[arc] -= weight
        for arc in links:
            self.use[arc] = self.use.get(arc, Fraction(0)) + weight
        return True
