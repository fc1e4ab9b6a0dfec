"""Integral packing of arborescences: trees with whole multiplicities that fill a cut exactly, and are made shallow.

Given demands p(r) ≥ 0 per root such that every set X of vertices is entered by at least
Σ {p(r) : r ∉ X} capacity, arc-disjoint arborescences, p(r) of them rooted at r and each spanning everything,
exist (Edmonds 1973; with several roots Frank 1978). They are found by growing *groups* of equal partial trees
(root, vertex set S, multiplicity k) arc by arc. Arc (u, v) can be given to μ of the k trees when

    μ = min( c(u,v), k, F − Σ m_h ),

with F the maximum u → v flow after joining u to every other unfinished group h with capacity m_h and h to all
of its vertices (the proof of Lovász 1976 in the form of Bérczi and Frank 2010; arXiv 2402.06787, appendix).
A group is split when μ < k. Only switchless networks: every vertex must be a terminal. ``native/packing/`` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.network import Arc, FlowNetwork, breadth_first, hops_deep

DOES_NOT_FIT = "the trees wanted do not fit: some set of vertices is entered by too little capacity"


@dataclass(frozen=True, slots=True)
class Arborescence:
    """``multiplicity`` equal out-trees; ``arcs`` in an order in which every tail comes before its heads."""

    root: int
    multiplicity: int
    arcs: tuple[Arc, ...]

    @property
    def depth(self) -> int:
        """Hops from the root to the deepest vertex."""
        return hops_deep(self.root, self.arcs)


def pack_arborescences(network: FlowNetwork, demand: Mapping[int, int], *, few: bool = False) -> list[Arborescence]:
    """``demand[r]`` arborescences rooted at each ``r`` of a switchless network, shallow arcs first.

    ``few`` grows the largest group by the arc that takes most of it, however deep: fewer different trees. PackingError
    if the network has transit vertices, or the demand does not fit (some set of vertices is entered by too little).
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
    """The same roots and multiplicities within the same capacities, no deeper and usually shallower.

    By local search over who hangs below whom. ``capacity`` is per arc; with ``undirected`` per edge (u < v), each used
    by a tree at most once in either direction. Cost: a few passes of O(trees² · n) moves looked at.
    """
    if not trees or not trees[0].arcs:
        return list(trees)
    given = [(tree.multiplicity, tree.arcs) for tree in trees]
    hung = native_flows.flattened(len(trees[0].arcs) + 1, capacity, given, undirected, most_passes)
    return [replace(tree, arcs=canonical_arcs(tree.root, arcs)) for tree, arcs in zip(trees, hung, strict=True)]


def merged(trees: Iterable[Arborescence]) -> list[Arborescence]:
    """Equal trees as one, in a canonical order: by root, largest first."""
    total: dict[tuple[int, tuple[Arc, ...]], int] = {}
    for tree in trees:
        key = (tree.root, canonical_arcs(tree.root, tree.arcs))
        total[key] = total.get(key, 0) + tree.multiplicity
    distinct = [Arborescence(root, k, arcs) for (root, arcs), k in total.items()]
    return sorted(distinct, key=lambda t: (t.root, -t.multiplicity, t.arcs))


def canonical_arcs(root: int, arcs: tuple[Arc, ...]) -> tuple[Arc, ...]:
    """The arcs of an out-tree breadth first from ``root``, children ascending; InternalError if they are none."""
    order = breadth_first(root, arcs)
    if len(order) != len(arcs):
        raise InternalError(f"{arcs} is no tree rooted at {root}")
    return order
