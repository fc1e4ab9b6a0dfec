"""Minimum-cost arborescences (Chu-Liu 1965, Edmonds 1967), and Prim's tree where costs are symmetric.

Costs may be ints, floats or Fractions; with Fractions the answer is exact. The paper's "minimum weight spanning
tree" of a directed graph is this; a minimum spanning tree in the undirected sense would be wrong there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc


def minimum_arborescence(n: int, root: int, cost: Sequence[Sequence[Any]]) -> list[int] | None:
    """Parents of a minimum-cost out-tree spanning 0 … n−1, ``parent[root]`` being −1; None where one cannot be reached.

    ``cost[u][v]`` is that of arc u → v, None where there is none. Ties go to the lowest parent, a contracted
    cycle counting as higher than any vertex. Cost: O(n³) at worst, O(n²) when no cycle is met.
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
    """Arcs of the optimum of a graph given as head → {tail: cost}; ``fresh`` is an unused vertex number."""
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
    """Prim's algorithm for symmetric costs; among equally cheap parents the one nearest the root."""
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
