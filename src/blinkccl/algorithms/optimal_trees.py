"""One-to-all and all-to-all trees at the optimum: broadcast, reduce, AllGather, ReduceScatter.

Reduce and ReduceScatter are the other two on the reversed network, every hop turned round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from blinkccl.algorithms.bounds import (
    allgather_bottleneck,
    cut_certificate,
    price_certificate,
    rest,
    reverse_of,
    tree_packing,
)
from blinkccl.algorithms.forests import Draft, OutTree, backward, forest_of, normalised, ordered
from blinkccl.algorithms.lanes import Lanes
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.symmetry import Permutation, rotations
from blinkccl.forest.model import Certificate, Forest
from blinkccl.packing.columns import Column
from blinkccl.packing.fewest import fewest_arborescences
from blinkccl.packing.flatten import flatten
from blinkccl.packing.integral import Arborescence, merged, pack_arborescences
from blinkccl.packing.maxflow import broadcast_rate
from blinkccl.packing.multiplicities import whole_weights
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.oracles import cheapest_hops, loads_of
from blinkccl.packing.orbit import pack_templates, rotated
from blinkccl.packing.shallow import choose, rooted_columns
from blinkccl.packing.two_trees import two_trees

#: Rotate templates instead of packing every root from this many ranks on.
ROTATE_FROM = 9


@dataclass(frozen=True, slots=True)
class Packed:
    """Out-trees whose weights sum to 1 per root, and the proof: a cut's side or prices with their bound."""

    trees: tuple[OutTree, ...]
    side: tuple[int, ...] | None
    prices: Mapping[Arc, Fraction] | None = None
    bound: Fraction = Fraction(0)


def broadcast(request: Request, lanes: Lanes) -> Forest:
    """Out-trees from the root."""
    return _one(request, lanes, lanes.network, up=False)


def reduce(request: Request, lanes: Lanes) -> Forest:
    """In-trees to the root."""
    return _one(request, lanes, reverse_of(lanes.network), up=True)


def allgather(request: Request, lanes: Lanes) -> Forest:
    """Out-trees from every rank, each carrying its block."""
    return _every(request, lanes, lanes.network, up=False)


def reduce_scatter(request: Request, lanes: Lanes) -> Forest:
    """In-trees to every rank, each carrying its block."""
    return _every(request, lanes, reverse_of(lanes.network), up=True)


def _one(request: Request, lanes: Lanes, network: Network, *, up: bool) -> Forest:
    root = request.collective.root
    assert root is not None
    packed = one_root(network, root, request.objective)
    drafts = [
        Draft(None, weight, root, backward(hops) if up else None, None if up else hops)
        for _, weight, hops in packed.trees
    ]
    return forest_of(request, lanes, "optimal", drafts, proof(request, lanes, packed, up=up))


def _every(request: Request, lanes: Lanes, network: Network, *, up: bool) -> Forest:
    packed = every_root(network, request.objective, rotations(lanes))
    size = request.collective.world_size
    drafts = [
        Draft(root, weight / size, root, backward(hops) if up else None, None if up else hops)
        for root, weight, hops in packed.trees
    ]
    return forest_of(request, lanes, "optimal", drafts, proof(request, lanes, packed, up=up))


def proof(request: Request, lanes: Lanes, packed: Packed, *, up: bool) -> Certificate:
    """The packing's proof as a certificate; ``up`` where it was packed in the reversed network."""
    if packed.side is not None:
        side = rest(lanes.network, packed.side) if up else packed.side
        return cut_certificate(request.collective, lanes, side)
    assert packed.prices is not None
    prices = {(v, u) if up else (u, v): y for (u, v), y in packed.prices.items()}
    return price_certificate(lanes, prices, packed.bound)


@lru_cache(maxsize=512)
def one_root(network: Network, root: int, objective: str) -> Packed:
    """Out-trees from ``root`` at the optimal rate."""
    rate, side = broadcast_rate(network, root)
    if network.switchless:
        trees = _chosen(network, {root: rate}, objective)
        return Packed(tuple(normalised(trees, rate)), side)
    for seeds in familiar_trees(network, root):
        weights = whole_weights(seeds, network.capacity, [Fraction(1)], Fraction(rate))
        if weights is not None:
            return Packed(_weighted(root, weights, Fraction(rate)), side)
    packing = tree_packing(network, (root,))
    weights = whole_weights(packing.pool, network.capacity, [Fraction(1)], packing.rate) or list(packing.columns)
    out = _weighted(root, weights, packing.rate)
    return Packed(out, side) if packing.rate == rate else Packed(out, None, packing.prices, packing.bound)


def _weighted(root: int, weights: list[tuple[Column, Fraction]], rate: Fraction) -> tuple[OutTree, ...]:
    return tuple((root, w / rate, ordered(root, column.payload)) for column, w in weights)


def familiar_trees(network: Network, root: int) -> list[list[Column]]:
    """Shapes worth trying before any search, shallow first: the star, two complementary trees, a chain.

    A shape is left out where some pair in it is joined by no hop.
    """
    cost, hop = cheapest_hops(network, {})
    others = [v for v in range(network.terminals) if v != root]
    star = tuple((root, v) for v in others)
    chain = tuple(zip([root, *others], others, strict=False))
    columns = []
    for shapes in ([star], list(two_trees([root, *others])), [chain]):
        if any(cost[u][v] is None for shape in shapes for u, v in shape):
            continue
        hops = [tuple(hop(u, v) for u, v in shape) for shape in shapes]
        columns.append([Column(0, tuple(sorted(loads_of(tree).items())), tree) for tree in hops])
    return columns


@lru_cache(maxsize=64)
def every_root(network: Network, objective: str, group: tuple[Permutation, ...] | None) -> Packed:
    """Out-trees from every terminal at the optimal equal rate."""
    rate, side = allgather_bottleneck(network)
    if not network.switchless:
        return _every_with_transit(network, rate, side, group)
    p, scaled = rate.numerator, network.scaled(rate.denominator)
    demand = dict.fromkeys(range(network.terminals), p)
    trees = _chosen(scaled, demand, objective)
    return Packed(tuple(normalised(trees, p)), side)


def _every_with_transit(
    network: Network, rate: Fraction, side: tuple[int, ...], group: tuple[Permutation, ...] | None
) -> Packed:
    roots = tuple(range(network.terminals))
    if group is not None:
        rotating = pack_templates(network, group, rate)
        out = tuple(
            (root, w / rotating.rate, ordered(root, rotated(hops, move)))
            for root, move in zip(roots, group, strict=True)
            for hops, w in rotating.templates
        )
        if rotating.rate == rate:
            return Packed(out, side)
        return Packed(out, None, rotating.prices, rotating.bound * len(roots))
    packing = tree_packing(network, roots)
    weights = whole_weights(packing.pool, network.capacity, [Fraction(1)] * len(roots), packing.rate) or packing.columns
    out = tuple(
        sorted(
            ((column.group, w / packing.rate, ordered(column.group, column.payload)) for column, w in weights),
            key=lambda t: (t[0], -t[1], t[2]),
        )
    )
    if packing.rate == rate:
        return Packed(out, side)
    return Packed(out, None, packing.prices, packing.bound * len(roots))


def _chosen(network: Network, demand: dict[int, int], objective: str) -> list[Arborescence]:
    """The packing that the objective asks for, all of the same rate."""
    if objective == "fewest-trees":
        few = pack_arborescences(network, demand, few=True)
        if len(demand) > 1:
            return few
        ((root, rate),) = demand.items()
        return fewest_arborescences(network, root, rate, few)[0]
    flat = merged(flatten(network.capacity, pack_arborescences(network, demand)))
    return _least_deep(network, demand, flat) if objective == "least-depth" else flat


def _least_deep(network: Network, demand: dict[int, int], flat: list[Arborescence]) -> list[Arborescence]:
    """The least depth at which whole multiplicities exist (or were found), fewest trees among equals."""
    known = max(depth_of(tree) for tree in flat)
    for levels in range(max(map(network.eccentricity, demand)), known):
        columns = rooted_columns(network, demand, levels)
        if columns is None:
            break
        found = choose(columns, network.capacity, demand, node_limit=2000)
        if found is not None:
            return found
    return flat


def depth_of(tree: Arborescence) -> int:
    """Hops from the root to the deepest vertex."""
    depth = {tree.root: 0}
    for u, v in tree.arcs:
        depth[v] = depth[u] + 1
    return max(depth.values())
