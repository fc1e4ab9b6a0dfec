"""Shares by orbits: the plan of a symmetric forest states one share per orbit, and the turns that give the others.

A *turn* is a permutation of the topology's vertices that maps ranks onto ranks. It is stated by its cycles: each vertex
of a cycle maps to the next, the last to the first, and a vertex in no cycle stays. The turn's *order* is the length of
its longest cycle; the lengths of all cycles divide it. A turned share has the turned root, block and vertices of trees;
its weight and the order of edges stay.

A share in the plan stands for all its images: turned e₁ times by the first turn, then e₂ times by the second, and so
on, for all 0 ≤ eₖ < order of turn k. The forest has the images of all shares in the plan. They are sorted by the index
of the root among the ranks, the index of the block (its source, then its destination), the share in the plan, and
(…, e₂, e₁), in this order of priority. Their ``slice`` is their index in this order, from 0; a share states its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from blinkccl.collectives.spec import Block
from blinkccl.errors import ScheduleError
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest, Path, Share, Tree
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.symmetry import Permutation, symmetry_of

#: A permutation of vertices by its cycles, as in a plan.
Cycles = Sequence[Sequence[int]]


class Turn:
    """A permutation of vertices by its ``cycles``, at least one. ``path`` caches images of paths."""

    def __init__(self, cycles: Iterable[Iterable[int]]) -> None:
        self.cycles = tuple(map(tuple, cycles))
        self.order = max(map(len, self.cycles))
        self.vertex = _Image((v, w) for cycle in self.cycles for v, w in zip(cycle, cycle[1:] + cycle[:1], strict=True))
        self.path = _Paths(self.vertex)


class _Image(dict[int, int]):
    """The image of each vertex; a vertex that is no key maps to itself."""

    def __missing__(self, vertex: int) -> int:
        return vertex


class _Paths(dict[Path, Path]):
    """The image of each path. Trees share one tuple per path, which takes a quarter of the memory."""

    def __init__(self, image: _Image) -> None:
        super().__init__()
        self._to = image.__getitem__

    def __missing__(self, path: Path) -> Path:
        image = self[path] = tuple(map(self._to, path))
        return image


def expanded(shares: Sequence[Share], turns: Sequence[Turn], ranks: Sequence[int]) -> tuple[Share, ...]:
    """All shares of the forest stated by ``shares`` and ``turns``. Roots and blocks must be ranks."""
    return _numbered(_in_order(shares, turns, ranks))


def _in_order(shares: Sequence[Share], turns: Sequence[Turn], ranks: Sequence[int]) -> list[Share]:
    """The images of ``shares``, with the shares themselves; each has the slice of its share."""
    place = {rank: i for i, rank in enumerate(ranks)}
    images = [image for share in shares for image in _images(share, turns)]
    images.sort(key=lambda image: [place[rank] for rank in _named(image)])
    return images


def _numbered(images: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(replace(image, slice=number) for number, image in enumerate(images))


def _named(share: Share) -> tuple[int, ...]:
    """The root and the ranks of the block."""
    block = share.block
    return (share.root, *(block if isinstance(block, tuple) else () if block is None else (block,)))


def _images(share: Share, turns: Sequence[Turn]) -> list[Share]:
    images = [share]
    for turn in turns:
        layer = images
        for _ in range(turn.order - 1):
            layer = [_turned(image, turn) for image in layer]
            images = images + layer
    return images


def _turned(share: Share, turn: Turn) -> Share:
    block: Block = share.block
    if isinstance(block, tuple):
        block = (turn.vertex[block[0]], turn.vertex[block[1]])
    elif block is not None:
        block = turn.vertex[block]
    up, down = (None if tree is None else _turned_tree(tree, turn) for tree in (share.reduce, share.broadcast))
    return Share(share.weight, share.slice, block, turn.vertex[share.root], up, down)


def _turned_tree(tree: Tree, turn: Turn) -> Tree:
    return Tree(turn.vertex[tree.root], tuple(map(turn.path.__getitem__, tree.edges)))


def read_turns(stated: Sequence[Cycles], ranks: Sequence[int], vertices: Collection[int]) -> list[Turn]:
    """The turns of a plan. ScheduleError, with the place, if one is invalid, or shares have more images than ranks."""
    turns: list[Turn] = []
    named, moves = frozenset(ranks), 1
    for i, cycles in enumerate(stated):
        _read_cycles(cycles, f"turns[{i}]", vertices)
        turn = Turn(cycles)
        for j, cycle in enumerate(turn.cycles):
            if turn.order % len(cycle):
                raise ScheduleError(
                    f"turns[{i}].cycles[{j}]: expected a length that divides {turn.order}, got {len(cycle)}"
                )
        outside = next((rank for rank in ranks if turn.vertex[rank] not in named), None)
        if outside is not None:
            raise ScheduleError(f"turns[{i}]: rank {outside} maps to {turn.vertex[outside]}, which is no rank")
        moves *= turn.order
        if moves > len(ranks):
            raise ScheduleError(f"turns[{i}]: expected at most {len(ranks)} images of a share, got {moves}")
        turns.append(turn)
    return turns


def _read_cycles(cycles: Cycles, where: str, vertices: Collection[int]) -> None:
    named: set[int] = set()
    for j, cycle in enumerate(cycles):
        for vertex in cycle:
            if vertex not in vertices or vertex in named:
                wrong = "is no vertex of the topology" if vertex not in vertices else "is named twice in this turn"
                raise ScheduleError(f"{where}.cycles[{j}]: {vertex} {wrong}")
            named.add(vertex)


def read_expanded(
    shares: Sequence[Share], turns: Sequence[Turn], ranks: Sequence[int], most_shares: int, most_vertices: int
) -> tuple[Share, ...]:
    """All shares of a plan. ScheduleError, with the place, if one is invalid or they would take too much memory."""
    moves = math.prod(turn.order for turn in turns)
    crossed = sum(len(path) for share in shares for tree in share.trees() for path in tree.edges)
    if moves * len(shares) > most_shares or moves * crossed > most_vertices:
        raise ScheduleError(
            f"turns: expected at most {most_shares} shares and {most_vertices} vertices in their hops, got "
            f"{moves * len(shares)} and {moves * crossed}, as each share has {moves} images"
        )
    known = frozenset(ranks)
    for i, share in enumerate(shares):
        for rank in _named(share):
            if rank not in known:
                raise ScheduleError(f"shares[{i}]: its root and block must be ranks, but {rank} is no rank")
    images = _in_order(shares, turns, ranks)
    stated = {id(share): i for i, share in enumerate(shares)}
    for number, image in enumerate(images):
        if image.slice != number and id(image) in stated:
            where = f"shares[{stated[id(image)]}].slice"
            raise ScheduleError(f"{where}: expected {number}, its place among all shares, got {image.slice}")
    return _numbered(images)


# Symmetry of a forest: the orbits of its shares and loads, as a plan states them.
#: A forest with more shares and hops is written by orbits if it is symmetric; a smaller file is easier to read in full.
TURNED_ABOVE = 20_000


@dataclass(frozen=True)
class Orbits:
    """The ``shares`` and ``turns`` that state all shares of a forest."""

    shares: tuple[Share, ...]
    turns: tuple[Turn, ...]

    def links(self, links: Iterable[Arc]) -> list[Arc]:
        """The least link of each orbit, in order."""
        first = []
        left = dict.fromkeys(sorted(links))
        for link in list(left):
            if link in left:
                first.append(link)
                orbit = [link]
                del left[link]
                for arc in orbit:
                    for turn in self.turns:
                        image = (turn.vertex[arc[0]], turn.vertex[arc[1]])
                        if image in left:
                            del left[image]
                            orbit.append(image)
        return first


def orbits_of(forest: Forest) -> Orbits | None:
    """The orbits of a big forest; None if it is small, or no symmetry of its links maps it onto itself."""
    if len(forest.shares) + sum(len(tree.edges) for share in forest.shares for tree in share.trees()) <= TURNED_ABOVE:
        return None
    ids, network = _network(forest.topology, forest.ranks)
    symmetry = symmetry_of(network)
    roots = {ids[root] for root in symmetry.roots}
    shares = tuple(share for share in forest.shares if share.root in roots)
    if len(symmetry.moves) == 1 or len(shares) * len(symmetry.moves) != len(forest.shares):
        return None
    turns = tuple(Turn(_cycles(turn, ids)) for turn in symmetry.turns)
    return Orbits(shares, turns) if expanded(shares, turns, forest.ranks) == forest.shares else None


def _network(topology: Topology, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], FlowNetwork]:
    """The vertex ids of the network's vertices, and the topology as a network with the ranks as terminals."""
    ids = tuple(dict.fromkeys((*ranks, *sorted(topology.vertex))))
    index = {vertex: i for i, vertex in enumerate(ids)}
    arcs = sorted((index[u], index[v], link.capacity) for (u, v), link in topology.link.items())
    return ids, FlowNetwork(len(ids), len(ranks), tuple(arcs))


def _cycles(turn: Permutation, ids: tuple[int, ...]) -> list[list[int]]:
    """The cycles of the vertices that move, by ids."""
    cycles: list[list[int]] = []
    visited: set[int] = set()
    for start in range(len(turn)):
        cycle, at = [], start
        while at not in visited:
            visited.add(at)
            cycle.append(ids[at])
            at = turn[at]
        if len(cycle) > 1:
            cycles.append(cycle)
    return cycles
