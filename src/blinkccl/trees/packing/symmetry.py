"""Symmetry of a network: automorphisms that rotate the digits of its terminals' numbers.

Terminals have numbers 0 … n−1, and s·r divides n. The move "digit of stride s plus one, modulo r" maps terminal t to
t + s, or back by s·(r−1) if that digit is r−1. All such moves are tried, and each is verified arc by arc. Moves of
digits that do not overlap form a group; the largest such group is selected. This detects rings, tori, hypercubes,
cliques, GPUs behind one switch, equal servers and their rails, under any name. A network without symmetry has the
identity alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc, FlowNetwork

#: A permutation of the network's vertices.
Permutation = tuple[int, ...]


@dataclass(frozen=True)
class Symmetry:
    """A group of automorphisms ``moves``, the identity first. Every other move changes every terminal.

    ``roots`` has the least terminal of each orbit. ``turns`` generate the group: each move is a unique product of their
    powers.
    """

    moves: tuple[Permutation, ...]
    roots: tuple[int, ...]
    turns: tuple[Permutation, ...]

    @cached_property
    def home(self) -> dict[int, tuple[int, Permutation]]:
        """For each terminal, its orbit's root and the move that maps this root to it."""
        return {move[root]: (root, move) for root in self.roots for move in self.moves}


def no_symmetry(network: FlowNetwork) -> Symmetry:
    """The identity alone: every terminal is its own orbit."""
    return Symmetry((tuple(range(network.n)),), tuple(range(network.terminals)), ())


@lru_cache(maxsize=64)
def symmetry_of(network: FlowNetwork) -> Symmetry:
    """The largest group of digit rotations. Cost: a pass over all arcs per pair of stride and radix."""
    identity = tuple(range(network.n))
    moves = [identity]
    turns = _generators(network)
    for generator, radix in turns:
        powers = [identity]
        for _ in range(radix - 1):
            powers.append(_after(generator, powers[-1]))
        moves = [_after(power, move) for power in powers for move in moves]
    covered: set[int] = set()
    roots = []
    for v in range(network.terminals):
        if v not in covered:
            roots.append(v)
            covered.update(move[v] for move in moves)
    return Symmetry(tuple(moves), tuple(roots), tuple(turn for turn, _ in turns))


def _after(second: Permutation, first: Sequence[int]) -> Permutation:
    return tuple(map(second.__getitem__, first))


def _generators(network: FlowNetwork) -> list[tuple[Permutation, int]]:
    """Generators, with their radices, of the largest group of digits that do not overlap; as few as possible."""
    n = network.terminals
    mover = _Mover(network)
    best: dict[int, tuple[int, int, list[tuple[Permutation, int]]]] = {1: (1, 0, [])}
    for stride in (d for d in range(1, n) if n % d == 0):
        if stride not in best:
            continue
        order, fewer, chosen = best[stride]
        for radix in (r for r in range(2, n // stride + 1) if n // stride % r == 0):
            turn = mover.turned(stride, radix)
            offer = (order, fewer, chosen)
            if turn is not None and all(_after(turn, other) == _after(other, turn) for other, _ in chosen):
                offer = (order * radix, fewer - 1, [*chosen, (turn, radix)])
            if offer[:2] > best.get(stride * radix, (0, 0))[:2]:
                best[stride * radix] = offer
    return max(best.values(), key=lambda offer: offer[:2])[2]


class _Mover:
    """Extension of permutations of the terminals to automorphisms."""

    def __init__(self, network: FlowNetwork) -> None:
        self._network = network
        self._near: list[dict[int, tuple[int, int]]] = [{} for _ in range(network.n)]  # neighbour → capacity out, in
        for u, v, c in network.arcs:
            back = network.capacity.get((v, u), 0)
            self._near[u][v] = (c, back)
            self._near[v].setdefault(u, (back, c))
        self._widths = [sorted(widths.values()) for widths in self._near]

    def turned(self, stride: int, radix: int) -> Permutation | None:
        """The automorphism of order ``radix`` that rotates this digit; None if it does not exist or is not found."""
        clock.look()
        n = self._network.terminals
        wrap = stride * (radix - 1)
        image = [t + stride if t // stride % radix < radix - 1 else t - wrap for t in range(n)]
        if any(self._widths[t] != self._widths[moved] for t, moved in enumerate(image)):
            return None
        move = self._extended(image)
        if move is None:
            return None
        capacity = self._network.capacity
        if any(capacity.get((move[u], move[v])) != c for u, v, c in self._network.arcs):
            return None
        power = move
        for _ in range(radix - 1):
            power = _after(move, power)
        return move if power == tuple(range(self._network.n)) else None

    def _extended(self, image: Sequence[int]) -> Permutation | None:
        """``image`` extended to transit by the images of neighbours; equal neighbours keep their ascending order."""
        mapped = dict(enumerate(image))
        waiting = list(range(self._network.terminals, self._network.n))
        while waiting:
            used = set(mapped.values())
            sources = self._by_neighbours(waiting, mapped)
            targets = self._by_neighbours([w for w in range(self._network.n) if w not in used], {w: w for w in used})
            if not sources:
                return None
            for key, vertices in sources.items():
                images = targets.get(key, [])
                if len(images) != len(vertices):
                    return None
                mapped.update(zip(vertices, images, strict=True))
            waiting = [v for v in waiting if v not in mapped]
        return tuple(mapped[v] for v in range(self._network.n))

    def _by_neighbours(
        self, vertices: Sequence[int], mapped: dict[int, int]
    ) -> dict[frozenset[tuple[int, tuple[int, int]]], list[int]]:
        """The vertices by the images of their neighbours, without vertices that have no mapped neighbour."""
        by_key: dict[frozenset[tuple[int, tuple[int, int]]], list[int]] = {}
        for v in vertices:
            key = frozenset((mapped[u], widths) for u, widths in self._near[v].items() if u in mapped)
            if key:
                by_key.setdefault(key, []).append(v)
        return by_key


def folded(network: FlowNetwork, orbit: Mapping[Arc, Arc]) -> dict[Arc, int]:
    """Total capacity of the arcs of each orbit."""
    size = Counter(orbit.values())
    return {name: network.capacity[name] * size[name] for name in size}


def arc_orbits(network: FlowNetwork, moves: Sequence[Sequence[int]]) -> dict[Arc, Arc]:
    """The orbit of each arc under a group, named by its least arc."""
    orbit: dict[Arc, Arc] = {}
    for u, v, _ in sorted(network.arcs):
        if (u, v) not in orbit:
            for move in moves:
                orbit.setdefault((move[u], move[v]), (u, v))
    return orbit
