"""Minimum-cost arborescences (Chu-Liu 1965, Edmonds 1967) and cheapest hops through transit.

These are the oracles of the packing problems. Costs may be ints, floats or Fractions; with Fractions the
answer is exact. Terminals may relay and copy; a hop between two terminals may cross any number of transit
vertices but no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

from blinkccl.packing.columns import Column, Oracle, Prices
from blinkccl.packing.network import Arc, Network

#: A hop: vertices (u, transit …, v).
Hop = tuple[int, ...]
#: Hops of an out-tree (or in-tree), in data-flow direction.
Hops = tuple[Hop, ...]


def minimum_arborescence(n: int, root: int, cost: Sequence[Sequence[Any]]) -> list[int] | None:
    """Parents of a minimum-cost out-tree spanning 0 … n−1; ``parent[root]`` is −1.

    Parameters
    ----------
    cost
        ``cost[u][v]`` of arc u → v, None where there is none. Ties go to the lowest parent.

    Returns
    -------
    None where some vertex cannot be reached. Cost: O(n³) at worst, O(n²) when no cycle is met.
    """
    entering = {v: {u: cost[u][v] for u in range(n) if u != v and cost[u][v] is not None}
                for v in range(n) if v != root}
    chosen = _chu_liu(root, entering, n)
    if chosen is None:
        return None
    parent = [-1] * n
    for u, v in chosen:
        parent[v] = u
    return parent


def _chu_liu(root: int, entering: dict[int, dict[int, Any]], fresh: int) -> list[Arc] | None:
    """Arcs of the optimum of a graph given as head → {tail: cost}; ``fresh`` is an unused vertex number."""
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
            return path[path.index(v):]
    return None


def _contracted(entering: dict[int, dict[int, Any]], best: Mapping[int, int], ring: frozenset[int], fresh: int
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


def cheapest_hops(network: Network, prices: Prices) -> tuple[list[list[Any]], Callable[[int, int], Hop]]:
    """Cost of the cheapest hop between every two terminals, and a function that gives the hop itself.

    Ties go to fewer links. Cost: one Dijkstra per terminal over the transit part.
    """
    size = network.terminals
    cost: list[list[Any]] = [[None] * size for _ in range(size)]
    before: list[dict[int, int]] = []
    for source in range(size):
        distance, parent = _hops_from(network, prices, source)
        before.append(parent)
        for v in range(size):
            if v != source and v in distance:
                cost[source][v] = distance[v][0]

    def hop(u: int, v: int) -> Hop:
        path = [v]
        while path[-1] != u:
            path.append(before[u][path[-1]])
        return tuple(reversed(path))

    return cost, hop


def _hops_from(network: Network, prices: Prices, source: int) -> tuple[dict[int, tuple[Any, int]], dict[int, int]]:
    distance: dict[int, tuple[Any, int]] = {source: (0, 0)}
    parent: dict[int, int] = {}
    heap: list[tuple[Any, int, int]] = [(0, 0, source)]
    while heap:
        d, links, u = heappop(heap)
        if (d, links) > distance[u] or (u < network.terminals and u != source):
            continue
        for v in network.successors[u]:
            candidate = (d + prices.get((u, v), 0), links + 1)
            if v != source and (v not in distance or candidate < distance[v]):
                distance[v], parent[v] = candidate, u
                heappush(heap, (*candidate, v))
    return distance, parent


def loads_of(hops: Hops) -> dict[Arc, int]:
    """How many times each arc is crossed."""
    loads: dict[Arc, int] = {}
    for hop in hops:
        for arc in zip(hop, hop[1:], strict=False):
            loads[arc] = loads.get(arc, 0) + 1
    return loads


def out_tree(network: Network, prices: Prices, root: int) -> Hops | None:
    """The cheapest out-tree over all terminals from ``root``."""
    cost, hop = cheapest_hops(network, prices)
    return _tree(network, cost, hop, root)


def _tree(network: Network, cost: list[list[Any]], hop: Callable[[int, int], Hop], root: int) -> Hops | None:
    parent = minimum_arborescence(network.terminals, root, cost)
    if parent is None:
        return None
    return tuple(hop(u, v) for v, u in enumerate(parent) if u >= 0)


def out_tree_oracle(network: Network, roots: Sequence[int]) -> Oracle:
    """One group per root; its columns are out-trees over all terminals. The payload is the hops."""
    def oracle(prices: Prices) -> list[Column]:
        cost, hop = cheapest_hops(network, prices)
        columns = []
        for group, root in enumerate(roots):
            tree = _tree(network, cost, hop, root)
            assert tree is not None
            columns.append(Column(group, tuple(sorted(loads_of(tree).items())), tree))
        return columns
    return oracle


def in_and_out_oracle(network: Network) -> Oracle:
    """One group; a column is a root, an in-tree to it and an out-tree from it (AllReduce), one for every root.

    The payload is (root, hops of the in-tree, hops of the out-tree).
    """
    backward = network.reversed()

    def oracle(prices: Prices) -> list[Column]:
        cost, hop = cheapest_hops(network, prices)
        back_prices = {(v, u): y for (u, v), y in prices.items()}
        back_cost, back_hop = cheapest_hops(backward, back_prices)
        columns = []
        for root in range(network.terminals):
            down, backed = _tree(network, cost, hop, root), _tree(backward, back_cost, back_hop, root)
            assert down is not None
            assert backed is not None
            up = tuple(h[::-1] for h in backed)
            columns.append(Column(0, tuple(sorted(loads_of(up + down).items())), (root, up, down)))
        return columns
    return oracle


def shortest_tree_oracle(network: Network, root: int, weight: Fraction) -> Oracle:
    """One group; a column is a shortest path from every terminal to ``root`` (Gather through trees).

    Loads are counted per path, so ``weight`` × N is the demand. The payload is the paths by terminal.
    """
    del weight
    backward = network.reversed()

    def oracle(prices: Prices) -> list[Column]:
        distance: dict[int, Any] = {root: 0}
        parent: dict[int, int] = {}
        heap: list[tuple[Any, int]] = [(0, root)]
        while heap:
            d, u = heappop(heap)
            if d > distance[u]:
                continue
            for v in backward.successors[u]:
                candidate = d + prices.get((v, u), 0)
                if v not in distance or candidate < distance[v]:
                    distance[v], parent[v] = candidate, u
                    heappush(heap, (candidate, v))
        paths = {}
        for v in range(network.terminals):
            if v != root:
                path = [v]
                while path[-1] != root:
                    path.append(parent[path[-1]])
                paths[v] = tuple(path)
        return [Column(0, tuple(sorted(loads_of(tuple(paths.values())).items())), paths)]
    return oracle
