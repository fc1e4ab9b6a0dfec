"""Link-disjoint directed Hamiltonian cycles for rings, as many as the links hold.

The search is branch and bound for up to :data:`EXACT_VERTICES` GPUs, which proves the maximum, and greedy above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Arc = tuple[int, int]
Cycle = tuple[int, ...]

#: The most vertices for which the maximum is computed; more are packed greedily.
EXACT_VERTICES = 8
#: The number of states after which a number of cycles counts as refuted. Allocations of a DGX-1 need at most 100.
REFUTE_LIMIT = 2_000
#: The most lanes of an arc that are packed one by one, and the bundles if it has more: each cycle is one recursion.
MOST_LANES, _BUNDLES = 256, 32
#: The number of states after which the search for one path gives up; 16 vertices have at most 2^16 · 16.
STATE_LIMIT = 200_000


def max_disjoint_cycles(capacity: Mapping[Arc, int], vertices: Sequence[int]) -> tuple[tuple[Cycle, int], ...]:
    """Hamiltonian cycles with their multiplicity, with at most ``capacity`` of them on any arc.

    Cycles start at the first vertex and are distinct, in ascending order. Their number is the maximum for up to
    :data:`EXACT_VERTICES` vertices, with two exceptions: irregular dense graphs whose refutation passes
    :data:`REFUTE_LIMIT`, and arcs with more than :data:`MOST_LANES`, where cycles use bundles of lanes, largest first.
    Cost: all cycles once (at most (n−1)!), then a branch and bound; every allocation of a DGX-1 takes about 1 ms.
    """
    most = max(capacity.values(), default=0)
    if most <= MOST_LANES:
        return tuple(sorted(Counter(_packed(capacity, vertices)).items()))
    free, cycles = dict(capacity), Counter[Cycle]()
    bundle = -(-most // _BUNDLES)
    while bundle:
        bundles = {arc: min(lanes // bundle, _BUNDLES) for arc, lanes in free.items() if lanes >= bundle}
        for cycle in _packed(bundles, vertices):
            cycles[cycle] += bundle
            for arc in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                free[arc] -= bundle
        bundle //= 2
    return tuple(sorted(cycles.items()))


def _packed(capacity: Mapping[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """Cycles of one lane each."""
    exact = len(vertices) <= EXACT_VERTICES
    return _Packing(capacity, vertices).best() if exact else _greedy(dict(capacity), vertices)


def all_cycles(arcs: Mapping[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """Every directed Hamiltonian cycle over ``vertices``, from the first of them."""
    start = vertices[0]
    following = {u: [v for v in vertices if (u, v) in arcs] for u in vertices}
    cycles: list[Cycle] = []

    def extend(path: Cycle, unvisited: frozenset[int]) -> None:
        if not unvisited and (path[-1], start) in arcs:
            cycles.append(path)
        for v in following[path[-1]]:
            if v in unvisited:
                extend((*path, v), unvisited - {v})

    extend((start,), frozenset(vertices[1:]))
    return cycles


class _Packing:
    """Branch and bound for the most cycles whose arcs fit into ``capacity``.

    A vertex that needs all its remaining lanes forces the choice. So the search branches on the vertex with the least
    slack: it covers one of its arcs by each cycle in turn, or leaves one lane of that arc unused.
    """

    def __init__(self, capacity: Mapping[Arc, int], vertices: Sequence[int]) -> None:
        self.vertices = vertices
        self.cycles = all_cycles(capacity, vertices)
        self.arcs = [tuple(zip(cycle, (*cycle[1:], cycle[0]), strict=True)) for cycle in self.cycles]
        self.through: dict[Arc, list[int]] = {}
        for index, arcs in enumerate(self.arcs):
            for arc in arcs:
                self.through.setdefault(arc, []).append(index)
        # Lanes that no cycle can use are dropped, as they would only hide that a vertex is tight.
        self.free = {arc: lanes for arc, lanes in sorted(capacity.items()) if arc in self.through}
        self.refuted: set[tuple[int, tuple[int, ...]]] = set()

    def best(self) -> list[Cycle]:
        most = min(self._lanes(v, end) for v in self.vertices for end in (0, 1)) if self.cycles else 0
        for count in range(most, 0, -1):
            self.refuted.clear()
            chosen = self._choose(count)
            if chosen is not None:
                return [self.cycles[index] for index in chosen]
        return []

    def _lanes(self, vertex: int, end: int) -> int:
        return sum(lanes for arc, lanes in self.free.items() if arc[end] == vertex)

    def _choose(self, count: int) -> list[int] | None:
        """Indexes of ``count`` cycles that fit, or None if none do."""
        if count == 0:
            return []
        state = (count, tuple(self.free.values()))
        if state in self.refuted or len(self.refuted) > REFUTE_LIMIT:
            return None
        lanes, vertex, end = min((self._lanes(v, end), v, end) for v in self.vertices for end in (0, 1))
        if lanes >= count:
            pivot = next(arc for arc, unused in self.free.items() if unused and arc[end] == vertex)
            chosen = self._cover(pivot, count)
            if chosen is None and lanes > count:
                self.free[pivot] -= 1
                chosen = self._choose(count)
                self.free[pivot] += 1
            if chosen is not None:
                return chosen
        self.refuted.add(state)
        return None

    def _cover(self, pivot: Arc, count: int) -> list[int] | None:
        for index in self.through[pivot]:
            if all(self.free[arc] for arc in self.arcs[index]):
                for arc in self.arcs[index]:
                    self.free[arc] -= 1
                rest = self._choose(count - 1)
                for arc in self.arcs[index]:
                    self.free[arc] += 1
                if rest is not None:
                    return [index, *rest]
        return None


def _greedy(free: dict[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """Cycles packed one after the other, each along the arcs with the most free lanes."""
    chosen: list[Cycle] = []
    while True:
        cycle = hamiltonian_path(free, vertices, vertices[0], closed=True)
        if cycle is None:
            return chosen
        chosen.append(cycle)
        for arc in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            free[arc] -= 1
            if not free[arc]:
                del free[arc]


def hamiltonian_path(
    arcs: Mapping[Arc, int], vertices: Sequence[int], start: int | None = None, *, closed: bool = False
) -> Cycle | None:
    """The first path over all ``vertices`` along ``arcs``, or None; if ``closed``, an arc must lead back to its start.

    Wider arcs are tried first, then earlier ``vertices``. With ``start`` None, every vertex is tried. After
    :data:`STATE_LIMIT` dead states (vertex, unvisited vertices) it returns None, although a path may exist.
    """
    place = {v: i for i, v in enumerate(vertices)}
    following: dict[int, list[int]] = {v: [] for v in vertices}
    for u, v in sorted(
        (arc for arc in arcs if arc[0] in place and arc[1] in place),
        key=lambda arc: (-arcs[arc], place[arc[1]]),
    ):
        following[u].append(v)
    for first in vertices if start is None else (start,):
        path = _path_from(first, following, [v for v in vertices if v != first], closed)
        if path is not None:
            return path
    return None


def _path_from(first: int, following: Mapping[int, Sequence[int]], others: Sequence[int], closed: bool) -> Cycle | None:
    """Depth-first search with an explicit stack, since clusters exceed the interpreter's recursion limit."""
    bit = {first: 0, **{v: 1 << i for i, v in enumerate(others)}}
    unvisited = sum(bit.values())
    dead: set[tuple[int, int]] = set()
    path, ahead = [first], [iter(following[first])]
    while path:
        if not unvisited and (not closed or first in following[path[-1]]):
            return tuple(path)
        onward = next((v for v in ahead[-1] if unvisited & bit[v] and (v, unvisited ^ bit[v]) not in dead), None)
        if onward is not None:
            unvisited ^= bit[onward]
            path.append(onward)
            ahead.append(iter(following[onward]))
            continue
        dead.add((path[-1], unvisited))
        if len(dead) > STATE_LIMIT:
            return None
        unvisited |= bit[path.pop()]
        ahead.pop()
    return None
