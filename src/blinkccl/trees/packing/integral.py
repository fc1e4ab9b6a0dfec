"""Integral packing of arborescences: trees with whole multiplicities that fill a cut exactly.

Given demands p(r) ≥ 0 per root such that every set X of vertices is entered by at least
Σ {p(r) : r ∉ X} capacity, arc-disjoint arborescences, p(r) of them rooted at r and each spanning everything,
exist (Edmonds 1973; with several roots Frank 1978). They are found by growing *groups* of equal partial trees
(root, vertex set S, multiplicity k) arc by arc. Arc (u, v) can be given to μ of the k trees when

    μ = min( c(u,v), k, F − Σ m_h ),

with F the maximum u → v flow after joining u to every other unfinished group h with capacity m_h and h to all
of its vertices (the proof of Lovász 1976 in the form of Bérczi and Frank 2010; arXiv 2402.06787, appendix).
A group is split when μ < k. Only switchless networks: every vertex must be a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.maxflow import INFINITE, NATIVE_EDGES, FlowGraph
from blinkccl.trees.packing.network import Arc, FlowNetwork, breadth_first

DOES_NOT_FIT = "the trees wanted do not fit: some set of vertices is entered by too little capacity"


@dataclass(frozen=True, slots=True)
class Arborescence:
    """``multiplicity`` equal out-trees; ``arcs`` in an order in which every tail comes before its heads."""

    root: int
    multiplicity: int
    arcs: tuple[Arc, ...]


class _Partial:
    __slots__ = ("arcs", "depth", "multiplicity", "root")

    def __init__(self, root: int, multiplicity: int, depth: dict[int, int], arcs: tuple[Arc, ...]) -> None:
        self.root, self.multiplicity, self.depth, self.arcs = root, multiplicity, depth, arcs

    def grown(self, arc: Arc, multiplicity: int) -> _Partial:
        u, v = arc
        return _Partial(self.root, multiplicity, {**self.depth, v: self.depth[u] + 1}, (*self.arcs, arc))


def pack_arborescences(network: FlowNetwork, demand: Mapping[int, int], *, few: bool = False) -> list[Arborescence]:
    """``demand[r]`` arborescences rooted at each ``r`` of a switchless network, shallow arcs first.

    ``few`` grows the largest group by the arc that takes most of it, however deep: fewer different trees. PackingError
    if the network has transit vertices, or the demand does not fit (some set of vertices is entered by too little).
    """
    if not network.switchless:
        raise PackingError("integral packing needs a network without transit vertices")
    if len(demand) * len(network.arcs) >= NATIVE_EDGES:
        from blinkccl.trees.packing import native_flows  # only here: small plans need no ctypes

        if native_flows.can_hold(sum(network.capacity.values()) + sum(demand.values())):
            trees = native_flows.pack(network, demand, few)
            if trees is None:
                raise PackingError(DOES_NOT_FIT)
            return merged(Arborescence(*tree) for tree in trees)
    return merged(_grown(network, demand, few))


def _grown(network: FlowNetwork, demand: Mapping[int, int], few: bool) -> list[Arborescence]:
    residual = dict(network.capacity)
    open_groups = [_Partial(r, k, {r: 0}, ()) for r, k in sorted(demand.items()) if k > 0]
    done: list[Arborescence] = []
    while open_groups:
        clock.look()
        group = open_groups.pop(_largest(open_groups) if few else 0)
        if len(group.depth) == network.n:
            done.append(Arborescence(group.root, group.multiplicity, group.arcs))
            continue
        arc, amount = _best_arc(network, residual, group, open_groups, anywhere=few)
        residual[arc] -= amount
        if amount < group.multiplicity:
            group.multiplicity -= amount
            open_groups.append(group)
        open_groups.append(group.grown(arc, amount))
    return done


def _largest(groups: list[_Partial]) -> int:
    """The group with most trees; among equals the one that has grown most, then the first."""
    return max(range(len(groups)), key=lambda i: (groups[i].multiplicity, len(groups[i].depth), -i))


def _best_arc(
    network: FlowNetwork, residual: dict[Arc, int], group: _Partial, others: Iterable[_Partial], *, anywhere: bool
) -> tuple[Arc, int]:
    """The arc that takes most of the group, of those nearest the root (or of all); the whole group is enough."""
    best: tuple[Arc, int] | None = None
    nearest = -1
    for u in sorted(group.depth, key=lambda x: (group.depth[x], x)):
        if best is not None and group.depth[u] > nearest and not anywhere:
            break
        for v in network.successors[u]:
            if v in group.depth or not residual[u, v]:
                continue
            wanted = min(residual[u, v], group.multiplicity)
            if best is not None and wanted <= best[1]:
                continue
            amount = _allowed(network, residual, (u, v), wanted, others)
            if amount == group.multiplicity:
                return (u, v), amount
            if amount > (best[1] if best else 0):
                best, nearest = ((u, v), amount), group.depth[u]
    if best is None:
        raise PackingError(DOES_NOT_FIT)
    return best


def _allowed(network: FlowNetwork, residual: dict[Arc, int], arc: Arc, wanted: int, others: Iterable[_Partial]) -> int:
    """μ: how many of the group's trees may take ``arc`` so that all other trees still fit."""
    open_others: dict[frozenset[int], int] = {}
    for other in others:
        if len(other.depth) < network.n:
            key = frozenset(other.depth)
            open_others[key] = open_others.get(key, 0) + other.multiplicity
    graph = FlowGraph(network.n + len(open_others))
    for (a, b), c in residual.items():
        if c:
            graph.add(a, b, c)
    promised = 0
    for node, (vertices, multiplicity) in enumerate(open_others.items(), start=network.n):
        graph.add(arc[0], node, multiplicity)
        promised += multiplicity
        for v in sorted(vertices):
            graph.add(node, v, INFINITE)
    return max(0, graph.max_flow(arc[0], arc[1], promised + wanted) - promised)


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
