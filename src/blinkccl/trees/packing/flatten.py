"""Making packed trees shallower without touching their rate: local search over who hangs below whom.

Two moves keep every capacity: give a vertex another parent over an arc with room left, or let two trees of
equal multiplicity exchange their parents at one vertex. A move is made when it lowers Σ over all trees and
vertices of n^depth, so the deepest levels empty first; the search ends because that sum only falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blinkccl.trees.packing.integral import Arborescence, canonical_arcs
from blinkccl.trees.packing.maxflow import NATIVE_EDGES
from blinkccl.trees.packing.network import Arc


class _HungTree:
    """Parents, children and depths of one arborescence that may be re-hung."""

    def __init__(self, tree: Arborescence) -> None:
        self.root, self.multiplicity = tree.root, tree.multiplicity
        self.parent: dict[int, int] = {}
        self.children: dict[int, list[int]] = {tree.root: []}
        self.depth = {tree.root: 0}
        for u, v in tree.arcs:
            self.parent[v] = u
            self.children[u].append(v)
            self.children[v] = []
            self.depth[v] = self.depth[u] + 1

    def below(self, v: int) -> list[int]:
        """``v`` and its descendants, parents first."""
        order = [v]
        for u in order:
            order.extend(self.children[u])
        return order

    def shift(self, v: int, parent: int) -> int:
        """How many levels ``v`` would sink under ``parent``."""
        return self.depth[parent] + 1 - self.depth[v]

    def gain(self, v: int, parent: int, base: int) -> int | None:
        """How much Σ base^depth would fall with ``v`` under ``parent``; None if that makes a cycle."""
        subtree = self.below(v)
        if parent in subtree:
            return None
        shift = self.shift(v, parent)
        fall: int = sum(base ** self.depth[x] - base ** (self.depth[x] + shift) for x in subtree) if shift else 0
        return fall * self.multiplicity

    def hang(self, v: int, parent: int) -> None:
        """Make ``parent`` the parent of ``v``."""
        self.children[self.parent[v]].remove(v)
        self.children[parent].append(v)
        self.parent[v] = parent
        for x in self.below(v):
            self.depth[x] = self.depth[self.parent[x]] + 1


class _Room:
    """Capacity left per arc, or per undirected edge where an arc and its reverse share one capacity."""

    def __init__(self, capacity: Mapping[Arc, int], undirected: bool) -> None:
        self._left, self._undirected = dict(capacity), undirected

    def __getitem__(self, arc: Arc) -> int:
        return self._left[min(arc, arc[::-1]) if self._undirected else arc]

    def give(self, arc: Arc, units: int) -> None:
        self._left[min(arc, arc[::-1]) if self._undirected else arc] += units


def flatten(
    capacity: Mapping[Arc, int],
    trees: Sequence[Arborescence],
    *,
    undirected: bool = False,
    most_passes: int = 50,
) -> list[Arborescence]:
    """The same roots and multiplicities within the same capacities, no deeper and usually shallower.

    ``capacity`` is per arc; with ``undirected`` per edge (u < v), each used by a tree at most once in either direction.
    Cost: a few passes of O(trees² · n) moves looked at.
    """
    if len(trees) * len(capacity) >= NATIVE_EDGES:
        from blinkccl.trees.packing import native_flows  # only here: small plans need no ctypes

        if native_flows.can_hold(sum(capacity.values())):
            found = native_flows.flattened(
                len(trees[0].arcs) + 1, capacity, [(t.multiplicity, t.arcs) for t in trees], undirected, most_passes
            )
            return [_hung(t.root, t.multiplicity, arcs) for t, arcs in zip(trees, found, strict=True)]
    hung = [_HungTree(tree) for tree in trees]
    room = _Room(capacity, undirected)
    for tree in hung:
        for v, u in tree.parent.items():
            room.give((u, v), -tree.multiplicity)
    vertices = sorted({v for tree in hung for v in tree.depth})
    entering: dict[int, list[int]] = {v: [] for v in vertices}
    for u, v in sorted(capacity):
        entering[v].append(u)
        if undirected:
            entering[u].append(v)
    for _ in range(most_passes):
        moved = False
        for v in vertices:
            moved |= _rehang(hung, room, v, entering[v], len(vertices))
            moved |= _exchange(hung, v, len(vertices))
        if not moved:
            break
    return [_hung(t.root, t.multiplicity, tuple((u, v) for v, u in t.parent.items())) for t in hung]


def _hung(root: int, multiplicity: int, arcs: tuple[Arc, ...]) -> Arborescence:
    return Arborescence(root, multiplicity, canonical_arcs(root, arcs))


def _rehang(hung: list[_HungTree], room: _Room, v: int, parents: list[int], base: int) -> bool:
    moved = False
    for tree in hung:
        if v == tree.root:
            continue
        best = max(
            (
                (gain, -u)
                for u in parents
                if tree.shift(v, u) < 0
                and room[u, v] >= tree.multiplicity
                and (gain := tree.gain(v, u, base)) is not None
            ),
            default=(0, 0),
        )
        if best[0] > 0:
            room.give((tree.parent[v], v), tree.multiplicity)
            room.give((-best[1], v), -tree.multiplicity)
            tree.hang(v, -best[1])
            moved = True
    return moved


def _exchange(hung: list[_HungTree], v: int, base: int) -> bool:
    moved = False
    for i, one in enumerate(hung):
        if v == one.root:
            continue
        for other in hung[i + 1 :]:
            if v == other.root or one.multiplicity != other.multiplicity or one.parent[v] == other.parent[v]:
                continue
            if min(one.shift(v, other.parent[v]), other.shift(v, one.parent[v])) >= 0:
                continue  # nothing rises: the usual case, told without a walk through subtrees
            mine, theirs = one.gain(v, other.parent[v], base), other.gain(v, one.parent[v], base)
            if mine is not None and theirs is not None and mine + theirs > 0:
                u, w = one.parent[v], other.parent[v]
                one.hang(v, w)
                other.hang(v, u)
                moved = True
    return moved
