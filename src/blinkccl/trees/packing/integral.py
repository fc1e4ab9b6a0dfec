"""Integral packing of arborescences: trees with integer multiplicities that fill a cut exactly, and a search for depth.

Let p(r) ≥ 0 be demands per root, such that capacity of at least Σ {p(r) : r ∉ X} enters every set X of vertices. Then
arc-disjoint spanning arborescences exist, p(r) of them with root r (Edmonds 1973; with several roots Frank 1978). The
algorithm grows *groups* of equal partial trees (root, vertex set S, multiplicity k) arc by arc. Arc (u, v) can extend μ
of the k trees with

    μ = min( c(u,v), k, F − Σ m_h ).

F is the maximum u → v flow in an extended network: u is joined to every other unfinished group h with capacity m_h, and
h to all of its vertices (the proof of Lovász 1976 in the form of Bérczi and Frank 2010; arXiv 2402.06787, appendix). A
group is split if μ < k. The network must be switchless: every vertex a terminal. The code is in ``native/packing/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.network import Arc, FlowNetwork, breadth_first, hops_deep

DOES_NOT_FIT = "the trees do not fit: too little capacity enters some set of vertices"


@dataclass(frozen=True, slots=True)
class Arborescence:
    """``multiplicity`` equal out-trees. ``arcs`` are ordered such that each vertex is entered before it is left."""

    root: int
    multiplicity: int
    arcs: tuple[Arc, ...]

    @property
    def depth(self) -> int:
        """Hops from the root to the deepest vertex."""
        return hops_deep(self.root, self.arcs)


def pack_arborescences(network: FlowNetwork, demand: Mapping[int, int], *, few: bool = False) -> list[Arborescence]:
    """``demand[r]`` arborescences rooted at each ``r`` of a switchless network, shallow arcs first.

    With ``few``, the largest group grows by the arc that fits most of its trees, at any depth, which gives fewer
    different trees. PackingError if the network has transit vertices, or the demand does not fit.
    """
    if not network.switchless:
        raise PackingError("integral packing needs a network without transit vertices")
    trees = native_flows.pack(network, demand, few)
    if trees is None:
        raise PackingError(DOES_NOT_FIT)
    return merged(Arborescence(*tree) for tree in trees)


def flatten(
    capacity: Mapping[Arc, int], trees: Sequence[Arborescence], *, undirected: bool = False, most_passes: int = 50
) -> list[Arborescence]:
    """Trees with the same roots and multiplicities within the same capacities, no deeper and usually shallower.

    This is a local search over parents. ``capacity`` is per arc; with ``undirected`` it is per edge (u < v), and a tree
    uses an edge at most once, in either direction. Cost: a few passes, each with O(trees² · n) candidate moves.
    """
    if not trees or not trees[0].arcs:
        return list(trees)
    before = [(tree.multiplicity, tree.arcs) for tree in trees]
    after = native_flows.flattened(len(trees[0].arcs) + 1, capacity, before, undirected, most_passes)
    return [replace(tree, arcs=canonical_arcs(tree.root, arcs)) for tree, arcs in zip(trees, after, strict=True)]


def merged(trees: Iterable[Arborescence]) -> list[Arborescence]:
    """Trees with equal ones merged, in canonical order: by root, largest multiplicity first."""
    total: dict[tuple[int, tuple[Arc, ...]], int] = {}
    for tree in trees:
        key = (tree.root, canonical_arcs(tree.root, tree.arcs))
        total[key] = total.get(key, 0) + tree.multiplicity
    distinct = [Arborescence(root, k, arcs) for (root, arcs), k in total.items()]
    return sorted(distinct, key=lambda t: (t.root, -t.multiplicity, t.arcs))


def canonical_arcs(root: int, arcs: tuple[Arc, ...]) -> tuple[Arc, ...]:
    """The arcs of an out-tree, breadth first from ``root``, children ascending. InternalError if they form no tree."""
    order = breadth_first(root, arcs)
    if len(order) != len(arcs):
        raise InternalError(f"{arcs} form no tree with root {root}")
    return order
