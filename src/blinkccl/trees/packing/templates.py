"""Templates: the trees of one root per orbit, which the network's symmetry moves to all other roots.

The moved trees of an AllGather load all arcs of an orbit equally: hops in the orbit × moves / size of the orbit. The
packing problem shrinks to one row per orbit of arcs and one group per orbit of terminals, for any number of terminals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinkccl.trees.packing.columns import Column, Oracle, Prices, pack_columns
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops, OutTree, followed
from blinkccl.trees.packing.oracles import cheapest_tree, cheapest_ways, column_of, loads_of
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, folded


@dataclass(frozen=True, slots=True)
class TemplatePacking:
    """A ``rate`` per root, templates whose weights sum to it for each root, and prices that prove ``bound`` per root.

    Prices are per arc, and equal within an orbit. ``prices`` is empty if ``rate`` is the target, proved beforehand.
    """

    rate: Fraction
    templates: tuple[OutTree, ...]
    prices: dict[Arc, Fraction]
    bound: Fraction


def rotated(hops: Hops, move: Sequence[int]) -> Hops:
    """The template moved by one automorphism."""
    return tuple(tuple(move[v] for v in hop) for hop in hops)


def pack_templates(
    network: FlowNetwork, symmetry: Symmetry, target: Fraction | None, seeds: Iterable[tuple[int, Hops]] = ()
) -> TemplatePacking:
    """The best mix of templates, by :func:`~blinkccl.trees.packing.columns.pack_columns`.

    ``target`` is a proved upper bound per root. ``seeds`` (roots with trees) are preferred if they reach it.
    """
    orbit = arc_orbits(network, symmetry.moves)
    oracle = _template_oracle(network, symmetry, orbit)
    return _packed(network, symmetry, orbit, oracle, target, [_template(symmetry, orbit, *seed) for seed in seeds])


def _packed(
    network: FlowNetwork,
    symmetry: Symmetry,
    orbit: dict[Arc, Arc],
    oracle: Oracle,
    target: Fraction | None,
    seeds: Sequence[Column] = (),
) -> TemplatePacking:
    capacity, count = folded(network, orbit), len(symmetry.moves)
    goal = None if target is None else target * count
    packing = pack_columns(capacity, [Fraction(1)] * len(symmetry.roots), oracle, seeds, goal)
    templates = tuple((column.payload[0], weight / count, column.payload[1]) for column, weight in packing.columns)
    prices = {arc: packing.prices[name] for arc, name in sorted(orbit.items()) if name in packing.prices}
    return TemplatePacking(packing.rate / count, templates, prices, packing.bound / count)


def _template(symmetry: Symmetry, orbit: dict[Arc, Arc], root: int, tree: Hops) -> Column:
    loads: Counter[Arc] = Counter()
    for arc, times in loads_of(tree).items():
        loads[orbit[arc]] += times
    return column_of(symmetry.roots.index(root), loads, (root, tree))


def _template_oracle(network: FlowNetwork, symmetry: Symmetry, orbit: dict[Arc, Arc]) -> Oracle:
    def oracle(prices: Prices) -> list[Column]:
        hops = symmetric_hops(network, symmetry, {arc: prices.get(name, 0) for arc, name in orbit.items()})
        return [_template(symmetry, orbit, root, cheapest_tree(network, *hops, root)) for root in symmetry.roots]

    return oracle


def symmetric_hops(
    network: FlowNetwork, symmetry: Symmetry, prices: Prices
) -> tuple[list[list[Any]], Callable[[int, int], Hop]]:
    """:func:`~blinkccl.trees.packing.oracles.cheapest_hops` under symmetric prices, with a Dijkstra run per orbit."""
    size = network.terminals
    cost: list[list[Any]] = [[None] * size for _ in range(size)]
    before: dict[int, dict[int, int]] = {}
    for root in symmetry.roots:
        distance, before[root] = cheapest_ways(network, prices, root, past_terminals=False)
        ends = [(v, d) for v, (d, _) in distance.items() if v < size and v != root]
        for move in symmetry.moves:
            row = cost[move[root]]
            for v, d in ends:
                row[move[v]] = d

    def hop(u: int, v: int) -> Hop:
        root, move = symmetry.home[u]
        path = followed(before[root], move.index(v), root)
        return tuple(move[x] for x in reversed(path))

    return cost, hop


# Layered templates. In a switchless network, a tree of shortest paths gives each vertex a parent nearer to the root,
# and any choice of such parents is a tree. So mixes of k templates of equal weight are the solutions of a flow problem.
# It has k units for every pair of root and vertex. Each unit goes to the orbit of the arc that enters the vertex, and
# the capacity of an orbit bounds its units.
#: Numbers of templates per root to try before the numerator of the rate, which suffices if any number does.
FEW_TEMPLATES = 16


def layered_templates(network: FlowNetwork, symmetry: Symmetry, rate: Fraction) -> tuple[OutTree, ...] | None:
    """Templates of the least possible depth that reach ``rate`` per root; None if there are none."""
    orbit = arc_orbits(network, symmetry.moves)
    entering = {root: _layers(network, orbit, root) for root in symmetry.roots}
    if any(len(choices) < network.n - 1 for choices in entering.values()):
        return None
    room = {name: units / (rate * len(symmetry.moves)) for name, units in folded(network, orbit).items()}
    for count in sorted({*range(1, min(rate.numerator, FEW_TEMPLATES) + 1), rate.numerator}):
        chosen = _dealt(entering, {name: int(count * most) for name, most in room.items()}, count)
        if chosen is not None:
            return _as_templates(chosen, count, rate)
    return None


def _layers(network: FlowNetwork, orbit: dict[Arc, Arc], root: int) -> dict[int, dict[Arc, Arc]]:
    """For every vertex, by distance, the arcs that enter it from one step nearer to the root, one per orbit."""
    distance = {root: 0}
    entering: dict[int, dict[Arc, Arc]] = {}
    queue = [root]
    for u in queue:
        for v in network.successors[u]:
            if v not in distance:
                distance[v] = distance[u] + 1
                queue.append(v)
            if distance[v] == distance[u] + 1:
                entering.setdefault(v, {}).setdefault(orbit[u, v], (u, v))
    return entering


def _dealt(
    entering: dict[int, dict[int, dict[Arc, Arc]]], room: dict[Arc, int], count: int
) -> dict[tuple[int, int], list[tuple[Arc, int]]] | None:
    """``count`` arcs for every root and vertex, within the room of each orbit; None if impossible.

    Arcs have multiplicities, because counts may have ten digits.
    """
    places = [(root, v) for root, choices in entering.items() for v in choices]
    names = {name: len(places) + i for i, name in enumerate(room)}
    source = len(places) + len(names)
    graph = FlowGraph(source + 2)
    for i in range(len(places)):
        graph.add(source, i, count)
    for name, most in room.items():
        graph.add(names[name], source + 1, most)
    edges = [
        {arc: graph.add(i, names[name], count) for name, arc in entering[root][v].items()}
        for i, (root, v) in enumerate(places)
    ]
    if graph.max_flow(source, source + 1) < count * len(places):
        return None
    return {
        place: [(arc, graph.flow(edge)) for arc, edge in edge_of.items() if graph.flow(edge)]
        for place, edge_of in zip(places, edges, strict=True)
    }


def _as_templates(
    chosen: dict[tuple[int, int], list[tuple[Arc, int]]], count: int, rate: Fraction
) -> tuple[OutTree, ...]:
    """Templates, with equal ones merged. The order of arcs by orbit makes many templates equal."""
    trees: dict[tuple[int, Hops], int] = {}
    for root in dict.fromkeys(root for root, _ in chosen):
        rows = [list(reversed(arcs)) for (owner, _), arcs in chosen.items() if owner == root]
        while rows and rows[0]:
            units = min(row[-1][1] for row in rows)
            tree = tuple(row[-1][0] for row in rows)
            trees[root, tree] = trees.get((root, tree), 0) + units
            for row in rows:
                arc, left = row.pop()
                if left > units:
                    row.append((arc, left - units))
    return tuple((root, rate * units / count, tree) for (root, tree), units in trees.items())
