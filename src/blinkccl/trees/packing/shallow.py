"""Packings of the optimal rate with the least depth, or with the fewest trees.

For the least depth every out-tree up to a depth is a column, and an integer program selects integer multiplicities in
the scaled network. Enumeration is for small networks only (hundreds or thousands of columns). If there are more, or the
integer program reaches its limit, the caller keeps its packing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod

from blinkccl.trees.packing import clock
from blinkccl.trees.packing.columns import Column
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.integral import Arborescence, canonical_arcs
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.multiplicities import whole_units
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.solver import Entries, Model, UndecidedError, decide, whole
from blinkccl.trees.packing.symmetry import arc_orbits, symmetry_of
from blinkccl.trees.packing.templates import rotated

#: Most vertices; among more there are always too many trees.
MOST_VERTICES = 32
#: Most columns to enumerate.
MOST_COLUMNS = 6000
#: Most choices in an enumeration, dead ends included.
MOST_STEPS = 200_000


class EffortSpentError(Exception):
    """An enumeration reached its limit of steps."""


class Effort:
    """A limit of work in steps, not in time, so that results are reproducible."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self) -> None:
        """Count one step. EffortSpentError if none is left."""
        self._left -= 1
        clock.look()
        if self._left < 0:
            raise EffortSpentError


def out_trees(network: FlowNetwork, root: int, depth: int, effort: Effort | None = None) -> Iterator[tuple[Arc, ...]]:
    """Every spanning out-tree of a switchless network from ``root`` with at most ``depth`` levels, each once."""
    yield from _extended(network, effort or Effort(sys.maxsize), depth, [root], frozenset([root]), ())


def _can_finish(network: FlowNetwork, levels: int, last: list[int], reached: frozenset[int]) -> bool:
    """True if every other vertex lies within ``levels`` of the last level."""
    covered, level = set(reached), last
    for _ in range(levels):
        beyond = []
        for u in level:
            for v in network.successors[u]:
                if v not in covered:
                    covered.add(v)
                    beyond.append(v)
        level = beyond
    return len(covered) == network.n


def _extended(
    network: FlowNetwork, effort: Effort, levels: int, last: list[int], reached: frozenset[int], arcs: tuple[Arc, ...]
) -> Iterator[tuple[Arc, ...]]:
    if len(reached) == network.n:
        yield arcs
        return
    if not _can_finish(network, levels, last, reached):
        return
    parents: dict[int, list[int]] = {}
    for u in last:
        for v in network.successors[u]:
            if v not in reached:
                parents.setdefault(v, []).append(u)
    heads = sorted(parents)
    skip = [] if levels == 1 else [None]
    for choice in product(*[[*parents[v], *skip] for v in heads]):
        effort.spend()
        fresh = tuple((u, v) for u, v in zip(choice, heads, strict=True) if u is not None)
        if fresh:
            grown = [v for _, v in fresh]
            yield from _extended(network, effort, levels - 1, grown, reached.union(grown), arcs + fresh)


def _shortest_trees(network: FlowNetwork, root: int, depth: int) -> int:
    """The number of spanning shortest-path trees from ``root``; 0 if they are deeper than ``depth``."""
    distance, parents, level = {root: 0}, {root: 1}, [root]
    for levels in range(1, depth + 1):
        beyond = []
        for u in level:
            for v in network.successors[u]:
                if v not in distance:
                    distance[v], parents[v] = levels, 0
                    beyond.append(v)
                parents[v] += distance[v] == levels
        level = beyond
    return prod(parents.values()) if len(parents) == network.n else 0


def tree_columns(
    network: FlowNetwork, roots: Iterable[int], depth: int, *, undirected: bool = False, most: int = MOST_COLUMNS
) -> list[tuple[int, tuple[Arc, ...]]] | None:
    """(root, arcs) of every out-tree of at most this depth from every root; None if there are more than ``most``.

    With ``undirected``, every spanning tree within ``depth`` of some root, once, as an out-tree from its first such
    root.
    """
    trees: dict[tuple[int, tuple[Arc, ...]], tuple[int, tuple[Arc, ...]]] = {}
    effort = Effort(MOST_STEPS)
    if network.n > MOST_VERTICES:
        return None
    shortest = [_shortest_trees(network, root, depth) for root in roots]
    if (max(shortest) if undirected else sum(shortest)) > most:  # a lower bound, without enumeration
        return None
    try:
        for root in sorted(roots):
            for arcs in out_trees(network, root, depth, effort):
                edges = tuple(sorted((min(arc), max(arc)) for arc in arcs))
                trees.setdefault((0, edges) if undirected else (root, arcs), (root, arcs))
                if len(trees) > most:
                    return None
    except EffortSpentError:
        return None
    return list(trees.values())


def choose(
    columns: Sequence[tuple[int, tuple[Arc, ...]]],
    capacity: Mapping[Arc, int],
    demand: Mapping[int, int],
    *,
    undirected: bool = False,
    node_limit: int = 200,
) -> list[Arborescence] | None:
    """Integer multiplicities of ``columns`` that meet ``demand`` per root within ``capacity``; None if not found.

    With ``undirected``, ``capacity`` is per edge (u < v), and ``demand`` has one entry for all roots together.
    ``node_limit`` branchings are a limit of work, not of time, so the result is reproducible.
    """
    if not columns:
        return None
    group = {root: i for i, root in enumerate(sorted(demand))}
    shaped = []
    for root, tree in columns:
        edges = [(min(a), max(a)) for a in tree] if undirected else tree
        shaped.append(Column(group.get(root, 0), tuple((arc, 1) for arc in edges), (root, tree)))
    demanded = [demand[root] for root in group]
    try:
        units = whole_units(shaped, capacity, demanded, node_limit, relaxed_first=True)
    except UndecidedError:
        return None
    if units is None:
        return None
    return [Arborescence(c.payload[0], k, canonical_arcs(*c.payload)) for c, k in units]


#: Most columns of an integer program in a search that is not thorough, and its branchings.
FEW_COLUMNS, FEW_NODES = 700, 20


def least_deep(
    network: FlowNetwork,
    capacity: Mapping[Arc, int],
    demand: Mapping[int, int],
    known: list[Arborescence],
    *,
    thorough: bool,
    undirected: bool = False,
) -> list[Arborescence]:
    """A packing of the least depth for which integer multiplicities were found; else ``known``.

    With ``undirected``, as in :func:`choose`, trees may have any root.
    """
    roots = range(network.n) if undirected else demand
    least = (min if undirected else max)(map(network.eccentricity, roots))
    for levels in range(least, max(tree.depth for tree in known)):
        most = MOST_COLUMNS if thorough else FEW_COLUMNS
        columns = tree_columns(network, roots, levels, undirected=undirected, most=most)
        if columns is None:
            break
        nodes = 2000 if thorough else FEW_NODES
        chosen = choose(columns, capacity, demand, undirected=undirected, node_limit=nodes)
        if chosen is not None:
            return chosen
    return known


# The fewest arborescences that fill a cut: depth-first search over trees of decreasing multiplicity. Every tree enters
# each vertex by exactly one arc. So the number of trees is at least the number of arcs needed to carry the demand into
# any vertex (or out of the root). The search tries that number, then one more, and so on. After each tree, maximum
# flows decide if the remaining demand fits into the remaining capacity. For the broadcast of a full DGX-1V the search
# finds 4 trees (multiplicities 2, 2, 1, 1), where the paper's 0/1 program needs 6.
#: Most trees in a search: a limit of work, not of time, so the result is reproducible.
MOST_TREES = 30_000
#: Largest network with the full limit. A tree costs a flow to each vertex, so the limit is lower in larger networks.
FULL_BUDGET_VERTICES = 8
#: Steps of the enumeration per tree of the limit, dead ends included.
STEPS_PER_TREE = 20


class _Search:
    def __init__(self, n: int, root: int, budget: int) -> None:
        self.n, self.root, self._budget = n, root, Effort(budget)
        self._steps = Effort(STEPS_PER_TREE * budget)
        self._sinks = [v for v in range(n) if v != root]

    def fill(self, capacity: dict[Arc, int], demand: int, trees: int, largest: int) -> list[Arborescence] | None:
        """At most ``trees`` trees of multiplicity ≤ ``largest`` with the sum ``demand``; None if there are none."""
        if demand == 0:
            return []
        if demand > trees * largest or fewest_bound(self.n, self.root, capacity, demand) > trees:
            return None
        for multiplicity in range(min(largest, demand), (demand - 1) // trees, -1):
            for arcs in self._trees(capacity, multiplicity):
                left = {arc: c - multiplicity if arc in arcs else c for arc, c in capacity.items()}
                if self._fits(left, demand - multiplicity):
                    rest = self.fill(left, demand - multiplicity, trees - 1, multiplicity)
                    if rest is not None:
                        return [
                            Arborescence(self.root, multiplicity, canonical_arcs(self.root, tuple(arcs))),
                            *rest,
                        ]
        return None

    def _trees(self, capacity: dict[Arc, int], multiplicity: int) -> Iterator[frozenset[Arc]]:
        wide = tuple((u, v, c) for (u, v), c in sorted(capacity.items()) if c >= multiplicity)
        for arcs in out_trees(FlowNetwork(self.n, self.n, wide), self.root, self.n - 1, self._steps):
            self._budget.spend()
            yield frozenset(arcs)

    def _fits(self, capacity: dict[Arc, int], demand: int) -> bool:
        """True if ``demand`` still flows to every vertex. The last vertex that failed is tested first."""
        graph = FlowGraph(self.n)
        for (u, v), c in capacity.items():
            if c:
                graph.add(u, v, c)
        for place, sink in enumerate(self._sinks):
            graph.reset()
            if graph.max_flow(self.root, sink, demand) < demand:
                self._sinks.insert(0, self._sinks.pop(place))
                return False
        return True


def fewest_bound(n: int, root: int, capacity: dict[Arc, int], demand: int) -> int:
    """A lower bound on the number of trees: the arcs needed to carry ``demand`` into the worst vertex."""
    entering: list[list[int]] = [[] for _ in range(n)]
    leaving: list[int] = []
    for (u, v), c in capacity.items():
        entering[v].append(c)
        if u == root:
            leaving.append(c)
    return max(_needed(widths, demand) for v, widths in enumerate([*entering, leaving]) if v != root)


def _needed(widths: list[int], demand: int) -> int:
    total = count = 0
    for width in sorted(widths, reverse=True):
        if total >= demand:
            break
        total += width
        count += 1
    return count if total >= demand else len(widths) + demand


def fewest_arborescences(
    network: FlowNetwork, root: int, demand: int, known: list[Arborescence], budget: int | None = None
) -> tuple[list[Arborescence], bool]:
    """The fewest arborescences found, and True if fewer with integer multiplicities are proved impossible.

    ``known`` is a packing to improve. ``budget`` is the most trees that the search may examine, by default
    :data:`MOST_TREES`, and fewer in large networks.
    """
    least = fewest_bound(network.n, root, network.capacity, demand)
    if budget is None:
        budget = MOST_TREES * FULL_BUDGET_VERTICES**2 // max(FULL_BUDGET_VERTICES, network.n) ** 2
    search = _Search(network.n, root, budget)
    try:
        for trees in range(least, len(known)):
            packing = search.fill(dict(network.capacity), demand, trees, max(network.capacity.values()))
            if packing is not None:
                return packing, True
    except EffortSpentError:
        return known, len(known) == least
    return known, True


# A limited number of shallow trees per root, with weights in integer units of a block, above a known rate.
#
# On switchless networks with few trees, an integer program selects among all of them. One root per orbit has trees, and
# moves copy them to the other roots. The program selects a partition of each root's units, and a tree for each part. It
# takes tenths of a second. With arbitrary weights, and a limit on the number of trees, it would take minutes. On a
# DGX-1V two trees per root reach the full rate of AllGather at depth 3, and 35/36 of it at depth 2; three reach it in
# full.
#: Limits of a program: trees to select from, branchings, units of a block, and pairs of rate and units to try.
MOST_WEIGHTED, MOST_NODES, MOST_UNITS, MOST_TRIED = 1500, 100, 8, 8

#: A root, and the arcs of an out-tree.
Rooted = tuple[int, tuple[Arc, ...]]


def few_trees(
    network: FlowNetwork, rate: Fraction, most: int, above: Fraction, *, least_depth: bool = False
) -> EqualTrees | None:
    """Out-trees, at most ``most`` per terminal, with a rate per root higher than ``above``; ``rate`` is a bound.

    Their depth is the least possible. It may be one more for the full ``rate``, unless ``least_depth``. None if no such
    trees are found, if there are too many trees to select from, or if the network has transit vertices.
    """
    if not network.switchless or most > MOST_UNITS or above >= rate:
        return None
    roots = symmetry_of(network).roots
    depth = max(map(network.eccentricity, roots))
    shallow = tree_columns(network, roots, depth, most=MOST_WEIGHTED)
    if shallow is None:
        return None
    for hoped, units in _hoped(network, rate, most, above)[:MOST_TRIED]:
        total = units * (network.n - 1)  # most units over one link
        room = {arc: min(int(units * c / hoped), total) for arc, c in network.capacity.items()}
        deeper = hoped == rate and not least_depth
        for columns in (shallow, tree_columns(network, roots, depth + 1, most=MOST_WEIGHTED) if deeper else None):
            if columns is None:
                break
            chosen = _weights_of(network, columns, room, list(partitions(units, most, units)))
            if chosen is not None:
                return _moved(network, chosen, units)
    return None


def _hoped(network: FlowNetwork, rate: Fraction, most: int, above: Fraction) -> list[tuple[Fraction, int]]:
    """(rate, units), best rates first, at which some link is full and each terminal can receive all others' data."""
    candidates = {
        (Fraction(units * c, load), units)
        for units in range(1, MOST_UNITS + 1 if most > 1 else 2)
        for c in set(network.capacity.values())
        for load in range(max(1, int(units * c / rate)), min(int(units * c / above), units * (network.n - 1)) + 1)
        if above < Fraction(units * c, load) <= rate
    }
    entering = [[c for (_, v), c in network.capacity.items() if v == sink] for sink in range(network.n)]
    enough = {
        (hoped, units)
        for hoped, units in candidates
        if all(sum(int(units * c / hoped) for c in into) >= units * (network.n - 1) for into in entering)
    }
    return sorted(enough, key=lambda tried: (-tried[0], tried[1]))


def partitions(units: int, most: int, largest: int) -> Iterator[tuple[int, ...]]:
    """``units`` as sums of at most ``most`` parts of at most ``largest``, in descending order."""
    if units == 0:
        yield ()
    elif most:
        for part in range(min(units, largest), 0, -1):
            for others in partitions(units - part, most - 1, part):
                yield (part, *others)


def _weights_of(
    network: FlowNetwork,
    columns: Sequence[Rooted],
    room: Mapping[Arc, int],
    shapes: Sequence[tuple[int, ...]],
) -> list[tuple[Rooted, int]] | None:
    """Trees with units, in one of ``shapes`` per orbit root, whose images under all moves fit into ``room``."""
    symmetry = symmetry_of(network)
    orbit = arc_orbits(network, symmetry.moves)
    parts = sorted({part for shape in shapes for part in shape})
    kinds = [(root, part) for root in symmetry.roots for part in parts]
    links = sorted(set(orbit.values()))
    one = {root: i for i, root in enumerate(symmetry.roots)}
    kind = {name: len(one) + i for i, name in enumerate(kinds)}
    link = {arc: len(one) + len(kinds) + i for i, arc in enumerate(links)}
    entries: list[Entries] = [
        {one[root]: 1, **{kind[root, part]: -times for part, times in Counter(shape).items()}}
        for root in symmetry.roots
        for shape in shapes
    ]
    weighted = [(tree, part) for tree in columns for part in parts]
    for (root, arcs), part in weighted:
        # Only the identity fixes a terminal or an arc, so the moved trees load all arcs of an orbit equally.
        hits = Counter(link[orbit[arc]] for arc in arcs)
        entries.append({kind[root, part]: 1, **{row: part * times for row, times in hits.items()}})
    lower = [*(1 for _ in one), *(0 for _ in kinds), *(None for _ in links)]
    upper = [*(1 for _ in one), *(0 for _ in kinds), *(room[arc] for arc in links)]
    try:
        values = decide(Model(entries, lower, upper, integer=True), MOST_NODES)
    except UndecidedError:
        return None
    times = None if values is None else whole(values)
    if times is None:
        return None
    counts = times[-len(weighted) :]
    chosen = [(tree, part * count) for (tree, part), count in zip(weighted, counts, strict=True) if count]
    total: Counter[int] = Counter()
    for (root, _), units in chosen:
        total[root] += units
    return chosen if all(total[root] == sum(shapes[0]) for root in symmetry.roots) else None


def _moved(network: FlowNetwork, chosen: Sequence[tuple[Rooted, int]], units: int) -> EqualTrees:
    """The trees of all terminals, and the rate that follows from the loads of links."""
    load: Counter[Arc] = Counter()
    trees = []
    for (root, arcs), times in chosen:
        for move in symmetry_of(network).moves:
            trees.append((move[root], Fraction(times, units), rotated(arcs, move)))
            load.update({(move[u], move[v]): times for u, v in arcs})
    reached = min(Fraction(network.capacity[arc] * units, carried) for arc, carried in load.items())
    return EqualTrees(reached, tuple(sorted(trees, key=lambda tree: (tree[0], -tree[1], tree[2]))))
