"""Link-disjoint directed Hamiltonian cycles, as many as the links hold: what every ring is made of.

Branch and bound for up to :data:`EXACT_VERTICES` GPUs, which proves the maximum; greedy beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Arc = tuple[int, int]
Cycle = tuple[int, ...]

#: Up to this many vertices the maximum is searched for; more are packed greedily.
EXACT_VERTICES = 8
#: States after which one number of cycles counts as refuted. The allocations of a DGX-1 need at most 100.
REFUTE_LIMIT = 2_000
#: Lanes of an arc that are packed one by one, and bundles where there are more: a cycle is a step down in the search.
MOST_LANES, _BUNDLES = 256, 32
#: States after which the search for one path gives up; 16 vertices have at most 2^16 · 16.
STATE_LIMIT = 200_000


def max_disjoint_cycles(capacity: Mapping[Arc, int], vertices: Sequence[int]) -> tuple[tuple[Cycle, int], ...]:
    """Hamiltonian cycles and how often each is taken, with at most ``capacity`` of them on any arc.

    Cycles start at the first vertex and are distinct, in ascending order. Their number is the maximum for up to
    :data:`EXACT_VERTICES` vertices, but for irregular dense graphs whose refutation passes :data:`REFUTE_LIMIT`, and
    where an arc has more than :data:`MOST_LANES`: there cycles are taken by bundles of lanes, of large ones first.
    Cost: all cycles once (at most (n−1)!), then a branch and bound; every allocation of a DGX-1 takes about 1 ms.
    """
    most = max(capacity.values(), default=0)
    if most <= MOST_LANES:
        return tuple(sorted(Counter(_packed(capacity, vertices)).items()))
    left, found = dict(capacity), Counter[Cycle]()
    bundle = -(-most // _BUNDLES)
    while bundle:
        bundles = {arc: min(lanes // bundle, _BUNDLES) for arc, lanes in left.items() if lanes >= bundle}
        for cycle in _packed(bundles, vertices):
            found[cycle] += bundle
            for arc in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                left[arc] -= bundle
        bundle //= 2
    return tuple(sorted(found.items()))


def _packed(capacity: Mapping[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """Cycles lane by lane."""
    exact = len(vertices) <= EXACT_VERTICES
    return _Packing(capacity, vertices).best() if exact else _greedy(dict(capacity), vertices)


def all_cycles(arcs: Mapping[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """Every directed Hamiltonian cycle over ``vertices``, starting at the first of them."""
    start = vertices[0]
    following = {u: [v for v in vertices if (u, v) in arcs] for u in vertices}
    found: list[Cycle] = []

    def extend(path: Cycle, left: frozenset[int]) -> None:
        if not left and (path[-1], start) in arcs:
            found.append(path)
        for v in following[path[-1]]:
            if v in left:
                extend((*path, v), left - {v})

    extend((start,), frozenset(vertices[1:]))
    return found


class _Packing:
    """Branch and bound for the most cycles whose arcs fit into ``capacity``.

    A vertex all of whose remaining lanes are needed forces the choice, so the search takes the one with the least slack
    and either covers one of its arcs by each cycle in turn, or gives one lane of it up.
    """

    def __init__(self, capacity: Mapping[Arc, int], vertices: Sequence[int]) -> None:
        self.vertices = vertices
        self.cycles = all_cycles(capacity, vertices)
        self.arcs = [tuple(zip(cycle, (*cycle[1:], cycle[0]), strict=True)) for cycle in self.cycles]
        self.through: dict[Arc, list[int]] = {}
        for index, arcs in enumerate(self.arcs):
            for arc in arcs:
                self.through.setdefault(arc, []).append(index)
        # Lanes that no cycle can use would only hide how tight a vertex is.
        self.free = {arc: lanes for arc, lanes in sorted(capacity.items()) if arc in self.through}
        self.refuted: set[tuple[int, tuple[int, ...]]] = set()

    def best(self) -> list[Cycle]:
        most = min(self._lanes(v, end) for v in self.vertices for end in (0, 1)) if self.cycles else 0
        for wanted in range(most, 0, -1):
            self.refuted.clear()
            chosen = self._choose(wanted)
            if chosen is not None:
                return [self.cycles[index] for index in chosen]
        return []

    def _lanes(self, vertex: int, end: int) -> int:
        return sum(lanes for arc, lanes in self.free.items() if arc[end] == vertex)

    def _choose(self, wanted: int) -> list[int] | None:
        """Indexes of ``wanted`` cycles that fit, or None if there are none such."""
        if wanted == 0:
            return []
        state = (wanted, tuple(self.free.values()))
        if state in self.refuted or len(self.refuted) > REFUTE_LIMIT:
            return None
        lanes, vertex, end = min((self._lanes(v, end), v, end) for v in self.vertices for end in (0, 1))
        if lanes >= wanted:
            pivot = next(arc for arc, left in self.free.items() if left and arc[end] == vertex)
            chosen = self._cover(pivot, wanted)
            if chosen is None and lanes > wanted:
                self.free[pivot] -= 1
                chosen = self._choose(wanted)
                self.free[pivot] += 1
            if chosen is not None:
                return chosen
        self.refuted.add(state)
        return None

    def _cover(self, pivot: Arc, wanted: int) -> list[int] | None:
        for index in self.through[pivot]:
            if all(self.free[arc] for arc in self.arcs[index]):
                for arc in self.arcs[index]:
                    self.free[arc] -= 1
                rest = self._choose(wanted - 1)
                for arc in self.arcs[index]:
                    self.free[arc] += 1
                if rest is not None:
                    return [index, *rest]
        return None


def _greedy(free: dict[Arc, int], vertices: Sequence[int]) -> list[Cycle]:
    """One cycle after the other, each along the arcs with the most lanes left."""
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
    """The first path over all ``vertices`` along ``arcs``, or None; ``closed``: an arc must lead back to its beginning.

    Wider arcs come first, then earlier ``vertices``; ``start`` None: every vertex in turn. States (vertex, vertices
    left) that led nowhere are remembered; after :data:`STATE_LIMIT` the answer is None although there may be a path.
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
    """Depth-first with an explicit stack, as clusters are deeper than the interpreter's recursion."""
    bit = {first: 0, **{v: 1 << i for i, v in enumerate(others)}}
    left = sum(bit.values())
    dead: set[tuple[int, int]] = set()
    path, ahead = [first], [iter(following[first])]
    while path:
        if not left and (not closed or first in following[path[-1]]):
            return tuple(path)
        onward = next((v for v in ahead[-1] if left & bit[v] and (v, left ^ bit[v]) not in dead), None)
        if onward is not None:
            left ^= bit[onward]
            path.append(onward)
            ahead.append(iter(following[onward]))
            continue
        dead.add((path[-1], left))
        if len(dead) > STATE_LIMIT:
            return None
        left |= bit[path.pop()]
        ahead.pop()
    return None
