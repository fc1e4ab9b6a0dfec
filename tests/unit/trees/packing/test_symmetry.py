"""Moves are a group of automorphisms. Moved templates load orbits equally, at the optimum, at the least depth."""

import itertools
import random
from fractions import Fraction

import pytest

from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import cheapest_hops
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, symmetry_of
from blinkccl.trees.packing.templates import (
    TemplatePacking,
    layered_templates,
    pack_templates,
    rotated,
    symmetric_hops,
)
from support.planned import asked
from support.small_networks import both_ways


def view(spec: str, gpus: str | None = None) -> RankNetwork:
    request = asked(spec, "allgather", gpus)
    return rank_network_of(request.network, request.ranks)


SYMMETRIC = [
    "ring:6",
    "oneway:5",
    "clique:4",
    "star:5",
    "torus:3x4",
    "hypercube:3",
    "dgx-a100",
    "dgx-2",
    "2x dgx-a100 @ 200Gbps",
    "4x star:3 @ 100Gbps",
]


@pytest.mark.parametrize(
    ("spec", "gpus", "orbits"),
    [
        *((spec, None, 1) for spec in SYMMETRIC),
        ("2x dgx-a100 @ 200Gbps", "0,2,5+1,2,7", 1),
        ("3x dgx-1v @ 100Gbps", None, 2),
        ("2x dgx-1v @ 40Gbps", "0-2+0-2", 3),
        ("dgx-1v", None, 2),
        ("chain:4", None, 4),
        ("random:6:seed=1", None, 6),
        ("2x dgx-a100 @ 200Gbps", "0,1,2+0,1", 5),
    ],
)
def test_moves_are_a_group_of_automorphisms(spec: str, gpus: str | None, orbits: int) -> None:
    network = view(spec, gpus).network
    symmetry = symmetry_of(network)
    assert len(symmetry.roots) == orbits
    assert len(symmetry.roots) * len(symmetry.moves) == network.terminals
    assert symmetry.moves[0] == tuple(range(network.n))
    assert set(symmetry.home) == set(range(network.terminals))
    assert all(move[root] == v for v, (root, move) in symmetry.home.items())
    for move in symmetry.moves:
        assert sorted(move) == list(range(network.n))
        assert {(move[u], move[v]): c for u, v, c in network.arcs} == network.capacity
        for other in symmetry.moves:
            assert tuple(move[other[v]] for v in range(network.n)) in symmetry.moves


@pytest.mark.parametrize("seed", range(20))
def test_one_different_link_breaks_the_symmetry(seed: int) -> None:
    network = view(random.Random(seed).choice(["torus:3x4", "hypercube:3", "ring:6"])).network
    at = random.Random(seed).randrange(len(network.arcs))
    arcs = [(u, v, c + (i == at)) for i, (u, v, c) in enumerate(network.arcs)]
    assert len(symmetry_of(FlowNetwork(network.n, network.terminals, tuple(arcs))).moves) == 1


def switched_ring(n: int) -> tuple[FlowNetwork, Symmetry]:
    """A ring of n terminals that are also joined to one switch, and its symmetry."""
    arcs = [(i, (i + 1) % n, 2) for i in range(n)] + [((i + 1) % n, i, 1) for i in range(n)]
    arcs += [(i, n, 3) for i in range(n)] + [(n, i, 3) for i in range(n)]
    network = FlowNetwork(n + 1, n, tuple(sorted(arcs)))
    symmetry = symmetry_of(network)
    assert symmetry.moves == tuple((*((i + k) % n for i in range(n)), n) for k in range(n))
    return network, symmetry


def test_orbits_are_the_classes_of_links() -> None:
    network, symmetry = switched_ring(5)
    orbit = arc_orbits(network, symmetry.moves)
    assert len(set(orbit.values())) == 4
    for arc, name in orbit.items():
        assert network.capacity[arc] == network.capacity[name]
        assert name <= arc
        assert orbit[name] == name


def load_evenly(network: FlowNetwork, symmetry: Symmetry, packing: TemplatePacking) -> bool:
    """True if every root has its rate, no load is above a capacity, and loads are equal within orbits."""
    load: dict[tuple[int, int], Fraction] = dict.fromkeys(network.capacity, Fraction(0))
    for _, weight, hops in packing.templates:
        for move in symmetry.moves:
            for hop in rotated(hops, move):
                for arc in itertools.pairwise(hop):
                    load[arc] += weight
    per_root = dict.fromkeys(symmetry.roots, Fraction(0))
    for root, weight, _ in packing.templates:
        per_root[root] += weight
    orbits = arc_orbits(network, symmetry.moves)
    return set(per_root.values()) == {packing.rate} and all(
        load[arc] == load[name] <= network.capacity[arc] for arc, name in orbits.items()
    )


@pytest.mark.parametrize("n", range(3, 8))
def test_templates_load_every_orbit_evenly(n: int) -> None:
    network, symmetry = switched_ring(n)
    packing = pack_templates(network, symmetry, None)
    assert packing.rate == packing.bound == allgather_rate(network)[0]
    assert load_evenly(network, symmetry, packing)
    for arc, name in arc_orbits(network, symmetry.moves).items():
        assert packing.prices.get(arc) == packing.prices.get(name)


def test_several_roots_have_the_same_rate() -> None:
    network = view("3x dgx-1v @ 100Gbps", "0,1,4+0,1,4+0,1,4").network
    symmetry = symmetry_of(network)
    packing = pack_templates(network, symmetry, None)
    assert packing.rate == packing.bound <= allgather_rate(network)[0]
    assert load_evenly(network, symmetry, packing)


def test_seeds_that_reach_the_target_need_no_search() -> None:
    network, symmetry = switched_ring(4)
    star = tuple((0, 4, v) for v in range(1, 4))
    packing = pack_templates(network, symmetry, Fraction(1), [(0, star)])
    assert packing.templates == ((0, Fraction(1), star),)
    assert pack_templates(network, symmetry, allgather_rate(network)[0], [(0, star)]).rate > 1


def test_hops_by_symmetry_are_the_cheapest() -> None:
    network, symmetry = switched_ring(6)
    orbit = arc_orbits(network, symmetry.moves)
    prices = {arc: 1 + hash(name) % 5 for arc, name in orbit.items()}
    cost, hop = symmetric_hops(network, symmetry, prices)
    assert cost == cheapest_hops(network, prices)[0]
    for u, v in itertools.permutations(range(6), 2):
        way = hop(u, v)
        assert (way[0], way[-1]) == (u, v)
        assert sum(prices[arc] for arc in itertools.pairwise(way)) == cost[u][v]


@pytest.mark.parametrize(
    "spec", ["ring:6", "ring:9", "torus:3x4", "torus:4x4", "hypercube:3", "hypercube:5", "clique:5", "chain:2"]
)
def test_layered_templates_fill_the_links_at_the_least_depth(spec: str) -> None:
    network = view(spec).network
    symmetry, rate = symmetry_of(network), allgather_rate(network)[0]
    templates = layered_templates(network, symmetry, rate)
    assert templates is not None
    assert load_evenly(network, symmetry, TemplatePacking(rate, templates, {}, rate))
    for root, _, tree in templates:
        depth = {root: 0}
        for u, v in tree:
            assert v not in depth
            depth[v] = depth[u] + 1
        assert len(depth) == network.n
        assert max(depth.values()) == network.eccentricity(root)


def test_no_layered_templates_if_the_least_depth_costs_rate() -> None:
    detour = both_ways(4, {(0, 1): 1, (1, 2): 9, (2, 3): 9, (0, 3): 9})  # the direct link 0 → 1 is narrow
    assert layered_templates(detour, symmetry_of(detour), allgather_rate(detour)[0]) is None


@pytest.mark.parametrize(
    ("servers", "gb_per_s"), [(2, Fraction(1040, 3)), (8, Fraction(1600, 7)), (16, Fraction(640, 3))]
)
def test_clusters_of_dgx_a100_reach_their_reference_value(servers: int, gb_per_s: Fraction) -> None:
    """AllGather reaches 200·n/(n−1) GB/s with 8 NICs of 25 GB/s per server of n (213.33 for 16); 346.67 for two."""
    cluster = view(f"{servers}x dgx-a100 @ 200Gbps")
    network, symmetry = cluster.network, symmetry_of(cluster.network)
    rate, _ = allgather_rate(network)
    packing = pack_templates(network, symmetry, rate)
    assert packing.rate == rate
    assert float(packing.rate * network.terminals) * cluster.topology.unit_gb_per_s == pytest.approx(float(gb_per_s))
    assert all(len(hops) == network.terminals - 1 for _, _, hops in packing.templates)
