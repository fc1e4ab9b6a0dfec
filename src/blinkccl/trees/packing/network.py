"""The input of every packing problem: a directed graph with integer capacities and terminals.

Vertices are 0 … n−1. The first ``terminals`` of them take part in the collective: they can be roots and relays, copy
and reduce. The others are *transit* and only pass single messages on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from blinkccl.errors import PackingError

#: An ordered pair of vertices.
Arc = tuple[int, int]
#: A hop between terminals: vertices (u, transit …, v).
Hop = tuple[int, ...]
#: Hops of an out-tree (or in-tree), in data-flow direction.
Hops = tuple[Hop, ...]
#: A root, the fraction of all data (or of the root's data), and hops, parents before children.
OutTree = tuple[int, Fraction, Hops]
#: A tuple of vertices, of any length or of a known one.
Way = TypeVar("Way", bound=tuple[int, ...])
_END = itemgetter(-1)


def followed(parent: Mapping[int, int], start: int, end: int) -> list[int]:
    """The vertices from ``start`` to ``end``; each is the parent of the one before."""
    path = [start]
    while path[-1] != end:
        path.append(parent[path[-1]])
    return path


def turned(hops: Iterable[Hop]) -> Hops:
    """All hops reversed: an out-tree becomes an in-tree on the same vertices."""
    return tuple(hop[::-1] for hop in hops)


def hops_along(network: FlowNetwork, path: Sequence[int]) -> Hops:
    """The hops of a path, from terminal to terminal."""
    stops = [i for i, v in enumerate(path) if v < network.terminals]
    return tuple(tuple(path[a : b + 1]) for a, b in pairwise(stops))


def hops_deep(root: int, hops: Hops) -> int:
    """Hops from ``root`` to the deepest terminal of an out-tree; parents must come before their children."""
    depth = {root: 0}
    for hop in hops:
        depth[hop[-1]] = depth[hop[0]] + 1
    return max(depth.values())


def breadth_first(root: int, hops: Sequence[Way]) -> tuple[Way, ...]:
    """Hops of an out-tree level by level, children ascending. With a cycle, the result is longer than the input."""
    below: dict[int, list[Way]] = {}
    for hop in sorted(hops, key=_END):
        below.setdefault(hop[0], []).append(hop)
    order: list[Way] = []
    queue = [root]
    for u in queue:
        if u in below:
            order += below[u]
            queue += map(_END, below[u])
        if len(order) > len(hops):
            break
    return tuple(order)


def rooted_at(root: int, hops: Sequence[Hop]) -> Hops:
    """A tree as an out-tree of ``root``, level by level, children ascending. Its hops may point in any direction."""
    near: dict[int, list[Hop]] = {}
    for hop in hops:
        near.setdefault(hop[0], []).append(hop)
        near.setdefault(hop[-1], []).append(hop[::-1])
    tree: list[Hop] = []
    reached, queue = {root}, [root]
    for u in queue:
        for hop in sorted(near[u], key=_END):
            if hop[-1] not in reached:
                reached.add(hop[-1])
                tree.append(hop)
                queue.append(hop[-1])
    return tuple(tree)


def longest_way(start: int, hops: Sequence[Hop]) -> list[int]:
    """A longest path of a tree, from a terminal farthest from ``start``. A root in its middle halves the depth."""
    end = rooted_at(start, hops)[-1][-1]
    away = rooted_at(end, hops)
    return followed({hop[-1]: hop[0] for hop in away}, away[-1][-1], end)


@dataclass(frozen=True)
class FlowNetwork:
    """A directed graph. ``arcs`` are ``(u, v, capacity)`` with positive integers, at most one per pair."""

    n: int
    terminals: int
    arcs: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not 1 <= self.terminals <= self.n:
            raise PackingError(f"a network of {self.n} vertices cannot have {self.terminals} terminals")
        pairs = set()
        for u, v, c in self.arcs:
            if not (0 <= u < self.n and 0 <= v < self.n) or u == v:
                raise PackingError(f"arc {u} → {v} is not a pair of different vertices in 0 … {self.n - 1}")
            if (u, v) in pairs:
                raise PackingError(f"arc {u} → {v} is given twice")
            if not isinstance(c, int) or c <= 0:
                raise PackingError(f"arc {u} → {v}: capacity must be a positive integer, got {c!r}")
            pairs.add((u, v))

    @cached_property
    def capacity(self) -> dict[Arc, int]:
        """Capacity by arc."""
        return {(u, v): c for u, v, c in self.arcs}

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Heads of the arcs that leave each vertex, ascending."""
        out: list[list[int]] = [[] for _ in range(self.n)]
        for u, v, _ in self.arcs:
            out[u].append(v)
        return tuple(tuple(sorted(heads)) for heads in out)

    @cached_property
    def symmetric(self) -> bool:
        """True if every arc has a reverse of the same capacity."""
        return all(self.capacity.get((v, u)) == c for u, v, c in self.arcs)

    @property
    def switchless(self) -> bool:
        """True if every vertex is a terminal."""
        return self.n == self.terminals

    def eccentricity(self, root: int) -> int:
        """Hops from ``root`` to the farthest vertex; ``n`` if some vertex cannot be reached."""
        distance = {root: 0}
        queue = [root]
        for u in queue:
            for v in self.successors[u]:
                if v not in distance:
                    distance[v] = distance[u] + 1
                    queue.append(v)
        return max(distance.values()) if len(distance) == self.n else self.n

    def hop_eccentricity(self, root: int) -> int:
        """Hops from ``root`` to the farthest reachable terminal; a path through transit is one hop."""
        reached, level, hops = {root}, [root], 0
        while True:
            beyond: list[int] = []
            for u in level:  # the loop appends transit vertices to ``level``
                for v in self.successors[u]:
                    if v not in reached:
                        reached.add(v)
                        (level if v >= self.terminals else beyond).append(v)
            if not beyond:
                return hops
            level, hops = beyond, hops + 1

    def reversed(self) -> FlowNetwork:
        """The network with all arcs reversed."""
        return FlowNetwork(self.n, self.terminals, tuple((v, u, c) for u, v, c in self.arcs))

    def scaled(self, factor: int) -> FlowNetwork:
        """The network with all capacities multiplied by ``factor``."""
        return FlowNetwork(self.n, self.terminals, tuple((u, v, c * factor) for u, v, c in self.arcs))

    def leaving(self, side: Iterable[int]) -> int:
        """Total capacity of the arcs from ``side`` to the rest."""
        inside = frozenset(side)
        return sum(c for u, v, c in self.arcs if u in inside and v not in inside)
