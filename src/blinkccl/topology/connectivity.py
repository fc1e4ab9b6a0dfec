"""Reachability: the parts of a topology, and the vertices on paths between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Neighbours = Mapping[int, Sequence[int]]


def beside(arcs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The neighbours of each vertex, regardless of the arcs' direction."""
    near: dict[int, list[int]] = {}
    for src, dst in arcs:
        near.setdefault(src, []).append(dst)
        near.setdefault(dst, []).append(src)
    return near


def reachable(start: int, neighbours: Neighbours) -> set[int]:
    """Vertices that ``start`` reaches, itself included. O(links)."""
    reached = {start}
    stack = [start]
    while stack:
        for other in neighbours.get(stack.pop(), ()):
            if other not in reached:
                reached.add(other)
                stack.append(other)
    return reached


def parts(ranks: Sequence[int], arcs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Ranks grouped by mutual reachability, each part in the order of ``ranks``. O(parts × links)."""
    ahead: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for src, dst in arcs:
        ahead.setdefault(src, []).append(dst)
        back.setdefault(dst, []).append(src)
    left = list(ranks)
    groups: list[tuple[int, ...]] = []
    while left:
        both = reachable(left[0], ahead) & reachable(left[0], back)
        groups.append(tuple(r for r in left if r in both))
        left = [r for r in left if r not in both]
    return groups


def between(ranks: Iterable[int], neighbours: Neighbours) -> set[int]:
    """Vertices on a simple path between two ranks, and the ranks themselves.

    Join one more vertex ``t`` to every rank. By Menger's theorem, a vertex lies on such a path if and only if no
    single other vertex separates it from ``t``. One depth-first search from ``t`` with lowpoints (Tarjan 1972) finds
    all of these. O(links).
    """
    ranks = list(ranks)
    top = -1
    rank_set = set(ranks)
    discovered: dict[int, int] = {top: 0}
    low: dict[int, int] = {top: 0}
    parent: dict[int, int] = {}
    order: list[int] = []
    stack = [(top, iter(ranks))]
    while stack:
        vertex, ahead = stack[-1]
        for other in ahead:
            if other not in discovered:
                discovered[other] = len(discovered)
                low[other] = 0 if other in rank_set else discovered[other]
                parent[other] = vertex
                order.append(other)
                stack.append((other, iter(neighbours.get(other, ()))))
                break
            if other != parent.get(vertex):
                low[vertex] = min(low[vertex], discovered[other])
        else:
            stack.pop()
            if stack:
                low[stack[-1][0]] = min(low[stack[-1][0]], low[vertex])
    inside = {top}
    for vertex in order:
        above = parent[vertex]
        if above == top or (above in inside and low[vertex] < discovered[above]):
            inside.add(vertex)
    return (inside | rank_set) - {top}
