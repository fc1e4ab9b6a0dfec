"""The best rate any algorithm can have on given links, with the proof: one certificate per collective.

Rates are S per unit of time. Broadcast and reduce: a minimum cut. AllGather, ReduceScatter, gather, scatter:
a bottleneck ratio. Alltoall: prices. AllReduce: a partition on symmetric links without transit, else prices.
With transit that cannot multicast the tree problems may have a tighter bound by prices than by any cut;
``optimal`` computes that one when the cut is not attained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from blinkccl.collectives.spec import Collective
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Partition
from blinkccl.trees.packing import clock, equal_trees
from blinkccl.trees.packing.bottleneck import allgather_rate, gather_rate
from blinkccl.trees.packing.columns import ExactPacking, dual_bound, pack_columns
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.maxflow import FlowGraph, broadcast_rate, min_cut
from blinkccl.trees.packing.multiflow import all_to_all
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import in_and_out_oracle, out_tree_oracle, undirected_oracle
from blinkccl.trees.packing.orientation import Orientation, orientation_of
from blinkccl.trees.packing.phases import Phases
from blinkccl.trees.packing.symmetry import symmetry_of
from blinkccl.trees.packing.undirected import strength, undirected_widths


def certificate_for(collective: Collective, ranks: tuple[int, ...], topology: Topology) -> Certificate:
    """A proof of an upper bound on the rate of ``collective`` among ``ranks`` on ``topology``.

    Attained by ``optimal`` on every switchless topology, and with transit for all collectives but broadcast,
    reduce, AllGather and ReduceScatter, where the bound is the cut's. PackingError if the ranks are not connected.
    """
    view = rank_network_of(topology, ranks)
    if collective.name == "alltoall":
        flow = all_pairs_flow(view.network)
        return price_certificate(view, flow.prices, flow.bound * collective.world_size)
    if collective.name == "allreduce":
        return _allreduce(view)
    return cut_certificate(collective, view, _side(collective, view.network))


def _side(collective: Collective, network: FlowNetwork) -> tuple[int, ...]:
    """The side of the cut that limits ``collective``; reduce, reduce_scatter and scatter mirror three others."""
    name, root = collective.name, collective.root
    if name == "sendrecv":
        assert collective.src is not None
        assert collective.dst is not None
        return min_cut(network, collective.src, collective.dst)[1]
    if name in ("reduce", "reduce_scatter", "scatter"):
        mirrored = {"reduce": "broadcast", "reduce_scatter": "allgather", "scatter": "gather"}[name]
        return rest(network, _side(Collective(mirrored, collective.world_size, root), reverse_of(network)))
    if name == "allgather":
        return allgather_bottleneck(network)[1]
    assert root is not None
    return broadcast_cut(network, root)[1] if name == "broadcast" else gather_rate(network, root)[1]


def cut_certificate(collective: Collective, view: RankNetwork, side: tuple[int, ...]) -> Cut:
    """The cut with this side (network vertices): its capacity, and how much of S must cross it.

    Demand by the universal rule: an item crosses if somebody inside contributes and somebody outside needs it.
    """
    real = view.side(side)
    inside = frozenset(v for v in side if v < view.network.terminals)
    demand = sum(
        (
            item.weight
            for item in collective.items()
            if any(r in inside for r, _ in item.contributions) and any(r not in inside for r, _ in item.destinations)
        ),
        Fraction(0),
    )
    held = frozenset(real)
    capacity = sum(link.capacity for link in view.topology.links if link.src in held and link.dst not in held)
    return Cut(real, Fraction(capacity), demand)


def rest(network: FlowNetwork, side: tuple[int, ...]) -> tuple[int, ...]:
    """The vertices outside ``side``."""
    held = frozenset(side)
    return tuple(v for v in range(network.n) if v not in held)


def price_certificate(view: RankNetwork, prices: Mapping[Arc, Fraction | int], bound: Fraction) -> Dual:
    """Prices in network arcs that prove ``bound``, as a certificate on real links."""
    real = view.prices(prices)
    value = sum((view.topology.link[arc].capacity * price for arc, price in real.items()), Fraction(0))
    return Dual(tuple((u, v, price) for (u, v), price in sorted(real.items())), value, value / bound)


def _allreduce(view: RankNetwork) -> Certificate:
    network = view.network
    if network.switchless and network.symmetric:
        return partition_certificate(view, tight_partition(network))
    proof = _price_proof(network)
    return price_certificate(view, proof.prices, proof.bound)


def _price_proof(network: FlowNetwork) -> PriceProof:
    """As :mod:`~blinkccl.trees.algorithms.optimal` proves an AllReduce through switches or one-way links."""
    found = halves_proof(network)
    if found is not None:
        return found
    oriented = orientation(network) if network.terminals <= SOLVED else None
    if oriented is not None:
        return PriceProof(oriented.prices, oriented.rate)
    near = near_optimum(network)
    if near is not None:
        return near[0]
    split = phases(network)
    if split is not None:
        return PriceProof(split.prices, split.bound)
    pairs = pairs_of_trees(network)
    return PriceProof(pairs.prices, pairs.bound)


@lru_cache(maxsize=256)
def tight_partition(network: FlowNetwork) -> tuple[tuple[int, ...], ...]:
    """A partition that limits AllReduce among ranks that symmetric links join directly.

    Where all ranks are alike and half of an AllGather fills all links, it is that into single ranks: no search.
    """
    if singles_are_tight(network):
        return tuple((v,) for v in range(network.n))
    return strength(network.n, undirected_widths(network))[1]


def singles_are_tight(network: FlowNetwork) -> bool:
    """Whether some move takes every rank to every other, and an AllGather's trees, used up and down, fill all links."""
    if len(symmetry_of(network).roots) > 1 or network.n < 2:
        return False
    return half_of_allgather(network) == Fraction(sum(c for _, _, c in network.arcs), 2 * (network.n - 1))


def partition_certificate(view: RankNetwork, blocks: tuple[tuple[int, ...], ...]) -> Certificate:
    """The partition (of network vertices) as a certificate.

    Where contracted chains are narrower one way at another link than the other way, a partition of real
    vertices would prove less; then the same proof is written as prices: 1 on every arc between blocks.
    """
    home = {v: i for i, block in enumerate(blocks) for v in block}
    crossing = {(u, v): Fraction(1) for u, v, _ in view.network.arcs if home[u] != home[v]}
    capacity = Fraction(sum(view.network.capacity[arc] for arc in crossing), 2)
    real = view.blocks(blocks)
    block_of = {vertex: i for i, block in enumerate(real) for vertex in block}
    across = sum(link.capacity for link in view.topology.links if block_of[link.src] != block_of[link.dst])
    if Fraction(across, 2) == capacity:
        return Partition(real, capacity)
    return price_certificate(view, crossing, capacity / (len(blocks) - 1))


@lru_cache(maxsize=256)
def reverse_of(network: FlowNetwork) -> FlowNetwork:
    """The reversed network, or the network itself where it is symmetric: then both directions share results."""
    return network if network.symmetric else network.reversed()


#: Remembered, as plans and proofs ask for the same.
allgather_bottleneck = lru_cache(maxsize=256)(allgather_rate)
broadcast_cut = lru_cache(maxsize=256)(broadcast_rate)
all_pairs_flow = lru_cache(maxsize=64)(all_to_all)


@lru_cache(maxsize=64)
def reduce_broadcast_packing(network: FlowNetwork) -> ExactPacking:
    """The exact optimum of AllReduce by column generation over pairs of in- and out-trees."""
    return pack_columns(network.capacity, [Fraction(1)], in_and_out_oracle(network))


#: Up to so many terminals the weights of a linear program are short enough.
WHOLE_RATE = 8
#: Up to this many ranks column generation over all trees of all roots takes seconds at most.
SEARCHED = 16


@lru_cache(maxsize=64)
def phases(network: FlowNetwork) -> Phases | None:
    """The optimum of AllReduce over one-way links without switches (:mod:`~blinkccl.trees.packing.phases`), or None."""
    if network.symmetric or not network.switchless:
        return None
    found = Phases(network)
    return found if found.tight else None


@lru_cache(maxsize=64)
def orientation(network: FlowNetwork) -> Orientation | None:
    """The optimum of AllReduce through switches by :mod:`~blinkccl.trees.packing.orientation`; None among few ranks."""
    return orientation_of(network) if network.symmetric and network.terminals > WHOLE_RATE else None


def pairs_of_trees(network: FlowNetwork) -> ExactPacking:
    """The exact optimum of AllReduce, among many ranks by trees used up and down where that is exact."""
    if network.symmetric and network.terminals > SEARCHED:
        return undirected_hops_packing(network)
    return reduce_broadcast_packing(network)


@lru_cache(maxsize=64)
def undirected_hops_packing(network: FlowNetwork) -> ExactPacking:
    """The same optimum where links are symmetric, by trees used up and down.

    Turning every arc round turns pairs of trees into pairs of trees, so some optimal prices are the same both ways;
    then an in-tree and an out-tree of any root cost what a least spanning tree costs, twice.
    """
    found = pack_columns(network.capacity, [Fraction(1)], undirected_oracle(network))
    half = {arc: price / 2 for arc, price in found.prices.items()}
    prices = {(u, v): half.get((u, v), Fraction(0)) + half.get((v, u), Fraction(0)) for u, v in network.capacity}
    return replace(found, prices={arc: price for arc, price in prices.items() if price})


@dataclass(frozen=True)
class PriceProof:
    """Prices in network arcs, and the bound that they prove."""

    prices: Mapping[Arc, Fraction | int]
    bound: Fraction


def half_of_allgather(network: FlowNetwork) -> Fraction:
    """The rate of an AllReduce that uses the AllGather's trees up and down."""
    return allgather_bottleneck(network)[0] * network.terminals / 2


@lru_cache(maxsize=64)
def halves_proof(network: FlowNetwork) -> PriceProof | None:
    """A proof by an AllGather's tight cuts that no AllReduce is faster than half of it; None where there is none.

    On clusters of equal servers they do, in a fraction of the time that column generation takes.
    """
    if not network.symmetric:
        return None
    goal = half_of_allgather(network)
    prices = _tight_prices(network)
    if not prices or dual_bound(network.capacity, [Fraction(1)], undirected_oracle(network), prices) != goal:
        return None
    return PriceProof(prices, goal)


#: Among more ranks columns of all trees are not waited for, however far from the optimum equal trees stay.
SOLVED = 64


def most_equal(network: FlowNetwork) -> int:
    """Trees of equal weight that share a whole AllReduce, at most."""
    return 64 if network.terminals <= SOLVED else 256


@lru_cache(maxsize=64)
def near_optimum(network: FlowNetwork) -> tuple[PriceProof, EqualTrees] | None:
    """A bound on AllReduce by its narrow links, and equal trees within a hundredth of it; else None.

    Prices are 1 on links up to some capacity, as those between servers are: a look at a few spanning trees; columns
    take minutes from a hundred ranks on.
    """
    if not network.symmetric or network.terminals <= SEARCHED:
        return None
    proof = _narrow_proof(network)
    clock.bounded(proof.bound)
    found = equal_trees.up_and_down(network, proof.bound, most_equal(network), proof.prices)
    if not (found.near(proof.bound) or network.terminals > SOLVED):
        return None
    return proof, found


def _narrow_proof(network: FlowNetwork) -> PriceProof:
    """The best bound on AllReduce over symmetric links by equal prices on all links up to some capacity."""
    oracle = undirected_oracle(network)
    proofs = []
    for widest in sorted(set(network.capacity.values())):
        prices = {arc: 1 for arc, c in network.capacity.items() if c <= widest}
        cost = oracle(prices)[0].cost(prices)
        if cost:
            proofs.append(PriceProof(prices, Fraction(sum(network.capacity[arc] for arc in prices), cost)))
    return min(proofs, key=lambda each: each.bound)


def _tight_prices(network: FlowNetwork) -> dict[Arc, int]:
    """How many terminals' tight AllGather cuts each arc crosses, both ways round.

    A cut that is full when all others send to terminal t leaves a set around t; its arcs, in both directions, are what
    an AllReduce must cross too. Whether their sum over t proves anything is for the caller to check.
    """
    rate = allgather_bottleneck(network)[0]
    graph = FlowGraph.of(network.scaled(rate.denominator), extra=1)
    for v in range(network.terminals):
        graph.add(network.n, v, rate.numerator)
    prices: dict[Arc, int] = {}
    for sink in range(network.terminals):
        graph.reset()
        graph.max_flow(network.n, sink)
        around = frozenset(graph.sink_side(sink))
        if network.n in around:
            continue
        for u, v, _ in network.arcs:
            if (u in around) != (v in around):
                prices[u, v] = prices.get((u, v), 0) + 1
    return prices


@lru_cache(maxsize=64)
def tree_packing(network: FlowNetwork, roots: tuple[int, ...]) -> ExactPacking:
    """The exact optimum of equal out-tree packings from ``roots`` by column generation."""
    return pack_columns(network.capacity, [Fraction(1)] * len(roots), out_tree_oracle(network, roots))
