"""Upper bounds on the rate of any algorithm on given links, with a proof: one certificate per collective.

Rates are S per unit of time. Broadcast and reduce have a minimum cut as certificate. AllGather, ReduceScatter, gather
and scatter have a bottleneck ratio, and alltoall has prices. AllReduce has a partition on symmetric links without
transit, else prices. If transit vertices cannot multicast, prices may give trees a tighter bound than any cut;
``optimal`` computes such a bound if the cut is not attained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from blinkccl.collectives.spec import Collective
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.algorithms.request import Request
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

    ``optimal`` attains it on every switchless topology. With transit it does so for all collectives except broadcast,
    reduce, AllGather and ReduceScatter, where the bound is that of a cut. PackingError if the ranks are not connected.
    """
    view = rank_network_of(topology, ranks)
    if collective.name == "alltoall":
        flow = all_pairs_flow(view.network)
        return price_certificate(view, flow.prices, flow.bound * collective.world_size)
    if collective.name == "allreduce":
        return _allreduce(view)
    return cut_certificate(collective, view, _side(collective, view.network))


def bound_gb_per_s(request: Request) -> float:
    """The proved bound on algbw, in GB/s at nominal rates, of any plan on the links of ``request``."""
    network = request.network
    return float(certificate_for(request.collective, request.ranks, network).bound * exact_unit(network))


def _side(collective: Collective, network: FlowNetwork) -> tuple[int, ...]:
    """One side of the cut that limits ``collective``; reduce, reduce_scatter and scatter mirror other collectives."""
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
    """The cut with this side (network vertices): its capacity, and the part of S that must cross it.

    An item must cross if a rank inside contributes to it and a rank outside needs it.
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
    """A certificate on real links from prices of network arcs that prove ``bound``."""
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
    """The proof of :mod:`~blinkccl.trees.algorithms.optimal` for an AllReduce through switches or one-way links."""
    halves = halves_proof(network)
    if halves is not None:
        return halves
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
    """A partition that limits AllReduce among ranks joined directly by symmetric links.

    If :func:`singles_are_tight`, it is the partition into single ranks, without a search.
    """
    if singles_are_tight(network):
        return tuple((v,) for v in range(network.n))
    return strength(network.n, undirected_widths(network))[1]


def singles_are_tight(network: FlowNetwork) -> bool:
    """True if all ranks are equivalent by symmetry, and an AllGather's trees, used up and down, fill all links."""
    if len(symmetry_of(network).roots) > 1 or network.n < 2:
        return False
    return half_of_allgather(network) == Fraction(sum(c for _, _, c in network.arcs), 2 * (network.n - 1))


def partition_certificate(view: RankNetwork, blocks: tuple[tuple[int, ...], ...]) -> Certificate:
    """The partition (of network vertices) as a certificate.

    A contracted chain may have its narrowest link at different places in the two directions. Then a partition of real
    vertices would prove less, so the same proof is written as prices: 1 on every arc between blocks.
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
    """The reversed network, or the same object if it is symmetric, so that both directions share cached results."""
    return network if network.symmetric else network.reversed()


#: Cached, since plans and proofs need the same results.
allgather_bottleneck = lru_cache(maxsize=256)(allgather_rate)
broadcast_cut = lru_cache(maxsize=256)(broadcast_rate)
all_pairs_flow = lru_cache(maxsize=64)(all_to_all)


@lru_cache(maxsize=64)
def reduce_broadcast_packing(network: FlowNetwork) -> ExactPacking:
    """The exact optimum of AllReduce by column generation over pairs of in- and out-trees."""
    return pack_columns(network.capacity, [Fraction(1)], in_and_out_oracle(network))


#: The most terminals for which the denominators of a linear program are small enough.
WHOLE_RATE = 8
#: The most ranks for which column generation over all trees of all roots takes seconds at most.
SEARCHED = 16


@lru_cache(maxsize=64)
def phases(network: FlowNetwork) -> Phases | None:
    """The optimum of AllReduce over one-way links without switches (:mod:`~blinkccl.trees.packing.phases`), or None."""
    if network.symmetric or not network.switchless:
        return None
    optimum = Phases(network)
    return optimum if optimum.tight else None


@lru_cache(maxsize=64)
def orientation(network: FlowNetwork) -> Orientation | None:
    """The optimum of AllReduce through switches by :mod:`~blinkccl.trees.packing.orientation`; None for few ranks."""
    return orientation_of(network) if network.symmetric and network.terminals > WHOLE_RATE else None


def pairs_of_trees(network: FlowNetwork) -> ExactPacking:
    """The exact optimum of AllReduce; for many ranks by trees used up and down, if links are symmetric."""
    if network.symmetric and network.terminals > SEARCHED:
        return undirected_hops_packing(network)
    return reduce_broadcast_packing(network)


@lru_cache(maxsize=64)
def undirected_hops_packing(network: FlowNetwork) -> ExactPacking:
    """The optimum of :func:`reduce_broadcast_packing` on symmetric links, by trees used up and down.

    Reversing all arcs maps pairs of trees to pairs of trees, so some optimal prices are equal in both directions. With
    these, an in-tree and an out-tree of any root cost twice as much as a minimum spanning tree.
    """
    packing = pack_columns(network.capacity, [Fraction(1)], undirected_oracle(network))
    half = {arc: price / 2 for arc, price in packing.prices.items()}
    prices = {(u, v): half.get((u, v), Fraction(0)) + half.get((v, u), Fraction(0)) for u, v in network.capacity}
    return replace(packing, prices={arc: price for arc, price in prices.items() if price})


@dataclass(frozen=True)
class PriceProof:
    """Prices of network arcs, and the bound that they prove."""

    prices: Mapping[Arc, Fraction | int]
    bound: Fraction


def half_of_allgather(network: FlowNetwork) -> Fraction:
    """The rate of an AllReduce that uses the AllGather's trees up and down."""
    return allgather_bottleneck(network)[0] * network.terminals / 2


@lru_cache(maxsize=64)
def halves_proof(network: FlowNetwork) -> PriceProof | None:
    """A proof that no AllReduce is faster than :func:`half_of_allgather`, by an AllGather's tight cuts; else None.

    It succeeds on clusters of equal servers, in a fraction of the time of column generation.
    """
    if not network.symmetric:
        return None
    goal = half_of_allgather(network)
    prices = _tight_prices(network)
    if not prices or dual_bound(network.capacity, [Fraction(1)], undirected_oracle(network), prices) != goal:
        return None
    return PriceProof(prices, goal)


#: Above this number of ranks equal trees are used at any distance from the optimum, since columns take too long.
SOLVED = 64


def most_equal(network: FlowNetwork) -> int:
    """The largest number of trees of equal weight for an AllReduce."""
    return 64 if network.terminals <= SOLVED else 256


@lru_cache(maxsize=64)
def near_optimum(network: FlowNetwork) -> tuple[PriceProof, EqualTrees] | None:
    """A bound on AllReduce by its narrow links, and equal trees within a hundredth of it; else None.

    Prices are 1 on links up to some capacity, which include links between servers. The bound then needs a few spanning
    trees, while columns take minutes from a hundred ranks on.
    """
    if not network.symmetric or network.terminals <= SEARCHED:
        return None
    proof = _narrow_proof(network)
    clock.bounded(proof.bound)
    trees = equal_trees.up_and_down(network, proof.bound, most_equal(network), proof.prices)
    if not (trees.near(proof.bound) or network.terminals > SOLVED):
        return None
    return proof, trees


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
    """The number of terminals whose tight AllGather cut crosses each arc, in either direction.

    A cut that is full when all others send to terminal t leaves a set around t. An AllReduce must cross its arcs too,
    in both directions. The caller checks the bound that their sum over t proves.
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
