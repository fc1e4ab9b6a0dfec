"""Oracles: the cheapest tree, pair of trees or bundle of paths under given prices.

Terminals may relay and copy. A hop between two terminals may cross any number of transit vertices, but no terminal. So
the cost of a tree is the sum of the costs of its unicast hops. With Fractions as prices the answer is exact.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from blinkccl.errors import PackingError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.columns import Column, Oracle, Prices
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops, followed, turned


def cheapest_hops(network: FlowNetwork, prices: Prices) -> tuple[list[list[Any]], Callable[[int, int], Hop]]:
    """Costs of the cheapest hops between terminals (None without one), and a function that returns the hop itself.

    Ties go to fewer links. Cost: one Dijkstra run per terminal over the transit part.
    """
    size = network.terminals
    cost: list[list[Any]] = [[None] * size for _ in range(size)]
    before: list[dict[int, int]] = []
    for source in range(size):
        distance, parent = cheapest_ways(network, prices, source, past_terminals=False)
        before.append(parent)
        for v in range(size):
            if v != source and v in distance:
                cost[source][v] = distance[v][0]

    return cost, lambda u, v: tuple(reversed(followed(before[u], v, u)))


def cheapest_ways(
    network: FlowNetwork, prices: Prices, source: int, *, past_terminals: bool = True
) -> tuple[dict[int, tuple[Any, int]], dict[int, int]]:
    """Price and number of links of the cheapest path from ``source`` to every vertex, and each predecessor.

    Dijkstra's algorithm; ties go to fewer links. Unless ``past_terminals``, a path ends at its first terminal.
    """
    distance: dict[int, tuple[Any, int]] = {source: (0, 0)}
    parent: dict[int, int] = {}
    heap: list[tuple[Any, int, int]] = [(0, 0, source)]
    clock.look()
    while heap:
        d, links, u = heappop(heap)
        if (d, links) > distance[u] or (u < network.terminals and u != source and not past_terminals):
            continue
        for v in network.successors[u]:
            candidate = (d + prices.get((u, v), 0), links + 1)
            if v not in distance or candidate < distance[v]:
                distance[v], parent[v] = candidate, u
                heappush(heap, (*candidate, v))
    return distance, parent


def loads_of(hops: Hops) -> Counter[Arc]:
    """Number of crossings of each arc."""
    return Counter(arc for hop in hops for arc in itertools.pairwise(hop))


def column_of(group: int, loads: Mapping[Arc, int], payload: Any) -> Column:
    """A column with sorted ``loads``."""
    return Column(group, tuple(sorted(loads.items())), payload)


def cheapest_tree_from(network: FlowNetwork, prices: Prices, root: int) -> Hops:
    """The cheapest out-tree over all terminals from ``root``. With symmetric costs, ties go to shallow trees."""
    return cheapest_tree(network, *cheapest_hops(network, prices), root)


def cheapest_tree(network: FlowNetwork, cost: list[list[Any]], hop: Callable[[int, int], Hop], root: int) -> Hops:
    """The tree of :func:`cheapest_tree_from`, from the results of :func:`cheapest_hops`."""
    size = network.terminals
    clock.look()
    if all(cost[u][v] == cost[v][u] for u in range(size) for v in range(u)):
        parent = shallow_minimum_tree(size, root, cost)
    else:
        parent = minimum_arborescence(size, root, cost)
    if parent is None:
        raise PackingError(f"some terminal cannot be reached from {root}")
    return tuple(hop(u, v) for v, u in enumerate(parent) if u >= 0)


def out_tree_oracle(network: FlowNetwork, roots: Sequence[int]) -> Oracle:
    """An oracle with one group per root. Columns are out-trees over all terminals; the payload is the hops."""

    def oracle(prices: Prices) -> list[Column]:
        hops = cheapest_hops(network, prices)
        trees = [cheapest_tree(network, *hops, root) for root in roots]
        return [column_of(group, loads_of(tree), tree) for group, tree in enumerate(trees)]

    return oracle


def in_and_out_oracle(network: FlowNetwork, roots: Sequence[int] | None = None) -> Oracle:
    """An oracle with one group, and a column of AllReduce for each of ``roots`` (default: all terminals).

    The payload is (root, hops of the in-tree, hops of the out-tree).
    """
    backward = network.reversed()

    def oracle(prices: Prices) -> list[Column]:
        ahead = cheapest_hops(network, prices)
        back = cheapest_hops(backward, {(v, u): y for (u, v), y in prices.items()})
        columns = []
        for root in range(network.terminals) if roots is None else roots:
            down = cheapest_tree(network, *ahead, root)
            up = turned(cheapest_tree(backward, *back, root))
            columns.append(column_of(0, loads_of(up + down), (root, up, down)))
        return columns

    return oracle


def up_and_down_oracle(network: FlowNetwork, root: int) -> Oracle:
    """An oracle with one group. A column is a tree used both up to ``root`` and down (Blink's AllReduce, §3.3).

    The payload is the hops of the down-tree. The up-tree is its reverse, so links must be symmetric.
    """

    def oracle(prices: Prices) -> list[Column]:
        both = {(u, v): prices.get((u, v), 0) + prices.get((v, u), 0) for u, v, _ in network.arcs}
        down = cheapest_tree(network, *cheapest_hops(network, both), root)
        return [column_of(0, loads_of(down + turned(down)), down)]

    return oracle


def undirected_oracle(network: FlowNetwork) -> Oracle:
    """An oracle with one group: columns of :func:`up_and_down_oracle` from terminal 0, as every root has the same rate.

    This is Prim's algorithm with transit. All joined terminals are sources of one search, so a tree visits each link
    once.
    """

    def oracle(prices: Prices) -> list[Column]:
        both = {(u, v): prices.get((u, v), 0) + prices.get((v, u), 0) for u, v, _ in network.arcs}
        down = _spanning_tree(network, both)
        return [column_of(0, loads_of(down + turned(down)), down)]

    return oracle


def _spanning_tree(network: FlowNetwork, prices: Prices) -> Hops:
    cost: dict[int, Any] = {0: 0}
    parent: dict[int, int] = {}
    joined: set[int] = set()
    hops: list[Hop] = []
    heap: list[tuple[Any, int]] = [(0, 0)]
    while heap and len(joined) < network.terminals:
        d, u = heappop(heap)
        if d > cost[u] or u in joined:
            continue
        if u < network.terminals:
            joined.add(u)
            if u:
                hop = [u]
                while len(hop) == 1 or hop[-1] >= network.terminals:
                    hop.append(parent[hop[-1]])
                hops.append(tuple(reversed(hop)))
            d = 0
        for v in network.successors[u]:
            offer = d + prices[u, v]
            if v not in joined and (v not in cost or offer < cost[v]):
                cost[v], parent[v] = offer, u
                heappush(heap, (offer, v))
    if len(joined) < network.terminals:
        raise PackingError("some terminal cannot be reached from 0")
    return tuple(hops)


def _shortest_paths_to(network: FlowNetwork, root: int, prices: Prices) -> dict[int, tuple[int, ...]]:
    """The cheapest path from every other terminal to ``root``. Terminals on it pass data on."""
    backward = network if network.symmetric else network.reversed()
    _, parent = cheapest_ways(backward, {(v, u): y for (u, v), y in prices.items()}, root)
    return {v: tuple(followed(parent, v, root)) for v in range(network.terminals) if v != root}


def paths_oracle(network: FlowNetwork, root: int) -> Oracle:
    """An oracle with one group. A column has a path from every other terminal to ``root``; the payload is the paths."""

    def oracle(prices: Prices) -> list[Column]:
        paths = _shortest_paths_to(network, root, prices)
        return [column_of(0, loads_of(tuple(paths.values())), paths)]

    return oracle


def relay_oracle(network: FlowNetwork, root: int) -> Oracle:
    """An oracle with one group. A column gathers a unit from every terminal at ``root`` and sends all N down a tree.

    This is the paper's AllGather through one root. The payload is (paths, hops of the tree).
    """

    def oracle(prices: Prices) -> list[Column]:
        paths = _shortest_paths_to(network, root, prices)
        tree = cheapest_tree_from(network, prices, root)
        loads = loads_of(tuple(paths.values()))
        loads.update({arc: network.terminals * times for arc, times in loads_of(tree).items()})
        return [column_of(0, loads, (paths, tree))]

    return oracle


# Minimum-cost arborescences (Chu-Liu 1965, Edmonds 1967), and Prim's tree for symmetric costs.
#
# Costs may be ints, floats or Fractions; with Fractions the answer is exact. This is the paper's "minimum weight
# spanning tree" of a directed graph. An undirected minimum spanning tree would be wrong there.
def minimum_arborescence(n: int, root: int, cost: Sequence[Sequence[Any]]) -> list[int] | None:
    """Parents of a minimum-cost out-tree that spans 0 … n−1, with −1 for ``root``; None if it does not reach all.

    ``cost[u][v]`` is the cost of arc u → v, None without one. Ties go to the lowest parent; a contracted cycle is
    higher than any vertex. Cost: at worst O(n³), and O(n²) without cycles.
    """
    entering = {
        v: {u: cost[u][v] for u in range(n) if u != v and cost[u][v] is not None} for v in range(n) if v != root
    }
    chosen = _chu_liu(root, entering, n)
    if chosen is None:
        return None
    parent = [-1] * n
    for u, v in chosen:
        parent[v] = u
    return parent


def _chu_liu(root: int, entering: dict[int, dict[int, Any]], fresh: int) -> list[Arc] | None:
    """Arcs of the optimum, or None. The graph is head → {tail: cost}; ``fresh`` is an unused vertex number."""
    clock.look()
    best: dict[int, int] = {}
    for v, tails in entering.items():
        if not tails:
            return None
        best[v] = min(tails, key=lambda u: (tails[u], u))
    cycle = _cycle(root, best)
    if cycle is None:
        return [(u, v) for v, u in best.items()]
    ring = frozenset(cycle)
    contracted, origin_in, origin_out = _contracted(entering, best, ring, fresh)
    solved = _chu_liu(root, contracted, fresh + 1)
    if solved is None:
        return None
    arcs: list[Arc] = []
    entry = cycle[0]
    for u, v in solved:
        if v == fresh:
            entry = origin_in[u]
            arcs.append((u, entry))
        else:
            arcs.append((origin_out[v], v) if u == fresh else (u, v))
    return arcs + [(best[v], v) for v in cycle if v != entry]


def _cycle(root: int, best: Mapping[int, int]) -> list[int] | None:
    state = {root: root}
    for start in best:
        path, v = [], start
        while v not in state:
            state[v] = start
            path.append(v)
            v = best[v]
        if v != root and state[v] == start and v in path:
            return path[path.index(v) :]
    return None


def _contracted(
    entering: dict[int, dict[int, Any]], best: Mapping[int, int], ring: frozenset[int], fresh: int
) -> tuple[dict[int, dict[int, Any]], dict[int, int], dict[int, int]]:
    into: dict[int, Any] = {}
    origin_in: dict[int, int] = {}
    origin_out: dict[int, int] = {}
    result: dict[int, dict[int, Any]] = {}
    for v, tails in entering.items():
        if v in ring:
            base = tails[best[v]]
            for u, c in tails.items():
                if u not in ring and (u not in into or c - base < into[u]):
                    into[u], origin_in[u] = c - base, v
            continue
        outside = {u: c for u, c in tails.items() if u not in ring}
        inside = [u for u in tails if u in ring]
        if inside:
            tail = min(inside, key=lambda u: (tails[u], u))
            outside[fresh], origin_out[v] = tails[tail], tail
        result[v] = outside
    result[fresh] = into
    return result, origin_in, origin_out


def shallow_minimum_tree(n: int, root: int, cost: list[list[Any]]) -> list[int] | None:
    """Prim's algorithm for symmetric costs; ties go to the parent nearest the root. None if ``root`` misses some."""
    best: dict[int, tuple[Any, int, int]] = {
        v: (cost[root][v], 0, root) for v in range(n) if v != root and cost[root][v] is not None
    }
    parent, depth = [-1] * n, {root: 0}
    while best:
        clock.look()
        v = min(best, key=lambda x: (best[x], x))
        _, above, u = best.pop(v)
        parent[v], depth[v] = u, above + 1
        row = cost[v]
        for w in range(n):
            if w not in depth and row[w] is not None:
                offer = (row[w], depth[v], v)
                if w not in best or offer < best[w]:
                    best[w] = offer
    return parent if len(depth) == n else None
