"""Packings of the optimal rate with the least depth, or with the fewest trees.

For the least depth every out-tree up to a depth is a column; an integer program picks whole multiplicities in the
scaled network. Enumeration is for small networks only (hundreds or thousands of columns); where there are more, or the
integer program gives up, the caller keeps the packing it has.
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

#: Among more vertices than this there are always too many.
MOST_VERTICES = 32
#: More columns than this are not enumerated.
MOST_COLUMNS = 6000
#: Nor is a search for them continued that has looked at this many choices, dead ends included.
MOST_STEPS = 200_000


class EffortSpentError(Exception):
    """An enumeration has taken all the steps that it may."""


class Effort:
    """A limit of work: steps instead of time, so that answers are reproducible."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self) -> None:
        """Take one step, or raise EffortSpentError."""
        self._left -= 1
        clock.look()
        if self._left < 0:
            raise EffortSpentError


def out_trees(network: FlowNetwork, root: int, depth: int, effort: Effort | None = None) -> Iterator[tuple[Arc, ...]]:
    """Every spanning out-tree of a switchless network from ``root`` with at most ``depth`` levels, each once."""
    yield from _extended(network, effort or Effort(sys.maxsize), depth, [root], frozenset([root]), ())


def _can_finish(network: FlowNetwork, levels: int, last: list[int], reached: frozenset[int]) -> bool:
    """Whether every vertex that is not reached lies within ``levels`` of the last level."""
    seen, level = set(reached), last
    for _ in range(levels):
        beyond = []
        for u in level:
            for v in network.successors[u]:
                if v not in seen:
                    seen.add(v)
                    beyond.append(v)
        level = beyond
    return len(seen) == network.n


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
    """The number of spanning out-trees of shortest paths from ``root``; 0 where these take more than ``depth``."""
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
    """(root, arcs) of every out-tree of this depth from every root; None if there are more than ``most``.

    With ``undirected`` every spanning tree within ``depth`` of some root, once, as an out-tree from the first such.
    """
    found: dict[tuple[int, tuple[Arc, ...]], tuple[int, tuple[Arc, ...]]] = {}
    effort = Effort(MOST_STEPS)
    if network.n > MOST_VERTICES:
        return None
    shortest = [_shortest_trees(network, root, depth) for root in roots]
    if (max(shortest) if undirected else sum(shortest)) > most:  # without a look at any
        return None
    try:
        for root in sorted(roots):
            for arcs in out_trees(network, root, depth, effort):
                edges = tuple(sorted((min(arc), max(arc)) for arc in arcs))
                found.setdefault((0, edges) if undirected else (root, arcs), (root, arcs))
                if len(found) > most:
                    return None
    except EffortSpentError:
        return None
    return list(found.values())


def choose(
    columns: Sequence[tuple[int, tuple[Arc, ...]]],
    capacity: Mapping[Arc, int],
    demand: Mapping[int, int],
    *,
    undirected: bool = False,
    node_limit: int = 200,
) -> list[Arborescence] | None:
    """Whole multiplicities for ``columns`` that meet ``demand`` per root within ``capacity``; None if not found.

    With ``undirected``, ``capacity`` is per edge (u < v), and ``demand`` has one entry for all roots together.
    ``node_limit`` branchings of the integer program are a limit of work, so the answer is reproducible.
    """
    if not columns:
        return None
    group = {root: i for i, root in enumerate(sorted(demand))}
    shaped = []
    for root, tree in columns:
        edges = [(min(a), max(a)) for a in tree] if undirected else tree
        shaped.append(Column(group.get(root, 0), tuple((arc, 1) for arc in edges), (root, tree)))
    wanted = [demand[root] for root in group]
    try:
        units = whole_units(shaped, capacity, wanted, node_limit, relaxed_first=True)
    except UndecidedError:
        return None
    if units is None:
        return None
    return [Arborescence(c.payload[0], k, canonical_arcs(*c.payload)) for c, k in units]


#: Columns that a search which is not thorough is willing to hand to an integer program, and its branchings.
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
    """The least depth at which whole multiplicities exist (or were found), fewest trees among equals; else ``known``.

    ``undirected`` is that of :func:`choose`: trees then have any root.
    """
    roots = range(network.n) if undirected else demand
    least = (min if undirected else max)(map(network.eccentricity, roots))
    for levels in range(least, max(tree.depth for tree in known)):
        most = MOST_COLUMNS if thorough else FEW_COLUMNS
        columns = tree_columns(network, roots, levels, undirected=undirected, most=most)
        if columns is None:
            break
        nodes = 2000 if thorough else FEW_NODES
        found = choose(columns, capacity, demand, undirected=undirected, node_limit=nodes)
        if found is not None:
            return found
    return known


# The fewest arborescences that fill a cut: depth-first search over trees of decreasing multiplicity. Every tree enters
# each vertex by exactly one arc, so at least as many trees are needed as arcs it takes to bring the demand into any
# vertex (or out of the root). The search tries that number, then one more, and so on; after each tree the max-flow of
# what is left decides whether the remaining demand still fits. For the broadcast of a full DGX-1V it finds 4 trees
# (multiplicities 2, 2, 1, 1) where the paper's 0/1 program needs 6.
#: Trees looked at before the search gives up: a limit of work, so the answer is reproducible.
MOST_TREES = 30_000
#: Up to this many vertices; as a tree costs a flow to each vertex, fewer are looked at in larger networks.
FULL_BUDGET_VERTICES = 8
#: Steps of the enumeration per tree of the budget, dead ends included.
STEPS_PER_TREE = 20


class _Search:
    def __init__(self, n: int, root: int, budget: int) -> None:
        self.n, self.root, self._budget = n, root, Effort(budget)
        self._steps = Effort(STEPS_PER_TREE * budget)
        self._sinks = [v for v in range(n) if v != root]

    def fill(self, capacity: dict[Arc, int], demand: int, trees: int, largest: int) -> list[Arborescence] | None:
        """At most ``trees`` trees of multiplicity ≤ ``largest`` that make up ``demand``; None if there are none."""
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
        """Whether ``demand`` still flows to every vertex; the one that failed last is asked first."""
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
    """How many trees are needed at least: the arcs it takes to bring ``demand`` into the worst vertex."""
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
    """As few arborescences as the search finds, and whether fewer are proved impossible in whole multiplicities.

    ``known`` is a packing to beat; ``budget`` how many trees the search may look at, by default :data:`MOST_TREES`,
    less in large networks.
    """
    least = fewest_bound(network.n, root, network.capacity, demand)
    if budget is None:
        budget = MOST_TREES * FULL_BUDGET_VERTICES**2 // max(FULL_BUDGET_VERTICES, network.n) ** 2
    search = _Search(network.n, root, budget)
    try:
        for trees in range(least, len(known)):
            found = search.fill(dict(network.capacity), demand, trees, max(network.capacity.values()))
            if found is not None:
                return found, True
    except EffortSpentError:
        return known, len(known) == least
    return known, True


# At most so many shallow trees per root, with weights in whole units of a block, above a rate that is known.
#
# Where links join ranks directly and trees are few, an integer program chooses among all of them: one root per orbit
# has trees, which are moved to all. It chooses a partition of each root's units first, and then a tree for each of
# its parts: programs in which a tree may have any weight, and few may have any, take minutes where these take tenths
# of a second. On a DGX-1V two trees per root have all of AllGather's rate at depth 3, and 35/36 of it at depth 2;
# three have all.
#: Trees that a program chooses among, its branchings, the units of a block, and pairs of rate and units, at most.
MOST_WEIGHTED, MOST_NODES, MOST_UNITS, MOST_TRIED = 1500, 100, 8, 8

#: A root, and the arcs of an out-tree.
Rooted = tuple[int, tuple[Arc, ...]]


def few_trees(
    network: FlowNetwork, rate: Fraction, most: int, above: Fraction, *, least_depth: bool = False
) -> EqualTrees | None:
    """Out-trees, at most ``most`` from each terminal, of a rate per root ``above`` one and up to ``rate``, a bound.

    Of least depth, or for all of ``rate`` one more unless ``least_depth``. None where none are found, and where there
    are too many trees to choose among, or transit vertices.
    """
    if not network.switchless or most > MOST_UNITS or above >= rate:
        return None
    roots = symmetry_of(network).roots
    depth = max(map(network.eccentricity, roots))
    shallow = tree_columns(network, roots, depth, most=MOST_WEIGHTED)
    if shallow is None:
        return None
    for hoped, units in _hoped(network, rate, most, above)[:MOST_TRIED]:
        everybody = units * (network.n - 1)  # through one link
        room = {arc: min(int(units * c / hoped), everybody) for arc, c in network.capacity.items()}
        deeper = hoped == rate and not least_depth
        for columns in (shallow, tree_columns(network, roots, depth + 1, most=MOST_WEIGHTED) if deeper else None):
            if columns is None:
                break
            chosen = _weights_of(network, columns, room, list(partitions(units, most, units)))
            if chosen is not None:
                return _moved(network, chosen, units)
    return None


def _hoped(network: FlowNetwork, rate: Fraction, most: int, above: Fraction) -> list[tuple[Fraction, int]]:
    """(rate, units) at which some link is full, and what all others send may enter each terminal; best rates first."""
    found = {
        (Fraction(units * c, load), units)
        for units in range(1, MOST_UNITS + 1 if most > 1 else 2)
        for c in set(network.capacity.values())
        for load in range(max(1, int(units * c / rate)), min(int(units * c / above), units * (network.n - 1)) + 1)
        if above < Fraction(units * c, load) <= rate
    }
    entering = [[c for (_, v), c in network.capacity.items() if v == sink] for sink in range(network.n)]
    enough = {
        (hoped, units)
        for hoped, units in found
        if all(sum(int(units * c / hoped) for c in into) >= units * (network.n - 1) for into in entering)
    }
    return sorted(enough, key=lambda tried: (-tried[0], tried[1]))


def partitions(units: int, most: int, largest: int) -> Iterator[tuple[int, ...]]:
    """``units`` as a sum of at most ``most`` parts of at most ``largest``, which never grow."""
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
    """Trees with units, in one of ``shapes`` for each root of an orbit, that moved to all fit into ``room``."""
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
        # Only the identity keeps a terminal, or an arc, in its place: moved trees load an orbit's arcs alike.
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
    """The trees of all terminals, and the rate by the loads that they put on links."""
    load: Counter[Arc] = Counter()
    trees = []
    for (root, arcs), times in chosen:
        for move in symmetry_of(network).moves:
            trees.append((move[root], Fraction(times, units), rotated(arcs, move)))
            load.update({(move[u], move[v]): times for u, v in arcs})
    reached = min(Fraction(network.capacity[arc] * units, carried) for arc, carried in load.items())
    return EqualTrees(reached, tuple(sorted(trees, key=lambda tree: (tree[0], -tree[1], tree[2]))))
