"""Rotations are automorphisms, one per rank, a group; templates so rotated load an orbit alike, at the optimum."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from blinkccl.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.algorithms.symmetry import arc_orbits, pack_templates, rotated, rotations
from blinkccl.packing.bottleneck import allgather_rate
from blinkccl.packing.network import FlowNetwork
from support.planned import asked
from support.small_networks import both_ways


def view(spec: str, gpus: str | None = None) -> RankNetwork:
    request = asked(spec, "allgather", gpus)
    return rank_network_of(request.network, request.ranks)


@pytest.mark.parametrize(
    "spec",
    ["ring:6", "oneway:5", "clique:4", "star:5", "dgx-a100", "dgx-2", "2x dgx-a100 @ 200Gbps", "4x star:3 @ 100Gbps"],
)
def test_rotations_are_a_group_of_automorphisms(spec: str) -> None:
    found = view(spec)
    network, group = found.network, rotations(found)
    assert group is not None
    assert [move[0] for move in group] == list(range(network.terminals))
    for move in group:
        assert sorted(move) == list(range(network.n))
        assert {(move[u], move[v]): c for u, v, c in network.arcs} == network.capacity
        for other in group:
            assert tuple(move[other[v]] for v in range(network.n)) in group


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ("dgx-1v", None),
        ("chain:4", None),
        ("random:6:seed=1", None),
        ("2x dgx-a100 @ 200Gbps", "0,1,2+0,1"),
        ("2x dgx-a100 @ 200Gbps", "0,8,1,9"),
        ("2x dgx-1v @ 40Gbps", None),
    ],
)
def test_where_ranks_differ_there_are_none(spec: str, gpus: str | None) -> None:
    assert rotations(view(spec, gpus)) is None


def test_equal_parts_of_servers_rotate_too() -> None:
    group = rotations(view("2x dgx-a100 @ 200Gbps", "0,2,5+1,2,7"))
    assert group is not None
    assert len(group) == 6


def switched_ring(n: int) -> tuple[FlowNetwork, list[list[int]]]:
    """n terminals in a ring, each also on the one switch; and its rotations."""
    arcs = [(i, (i + 1) % n, 2) for i in range(n)] + [((i + 1) % n, i, 1) for i in range(n)]
    arcs += [(i, n, 3) for i in range(n)] + [(n, i, 3) for i in range(n)]
    return FlowNetwork(n + 1, n, tuple(sorted(arcs))), [[(i + k) % n for i in range(n)] + [n] for k in range(n)]


def test_orbits_are_the_classes_of_links() -> None:
    network, group = switched_ring(5)
    orbit = arc_orbits(network, group)
    assert len(set(orbit.values())) == 4
    for arc, name in orbit.items():
        assert network.capacity[arc] == network.capacity[name]
        assert name <= arc
        assert orbit[name] == name


@pytest.mark.parametrize("n", range(3, 8))
def test_rotations_load_every_orbit_evenly(n: int) -> None:
    network, group = switched_ring(n)
    packing = pack_templates(network, group, None)
    assert packing.rate == packing.bound == allgather_rate(network)[0]
    assert sum(w for _, w in packing.templates) == packing.rate
    load: dict[tuple[int, int], Fraction] = dict.fromkeys(network.capacity, Fraction(0))
    for hops, weight in packing.templates:
        for move in group:
            for hop in rotated(hops, move):
                for arc in itertools.pairwise(hop):
                    load[arc] += weight
    for arc, name in arc_orbits(network, group).items():
        assert load[arc] == load[name] <= network.capacity[arc]
        assert packing.prices.get(arc) == packing.prices.get(name)


def test_a_symmetric_ring_without_a_switch() -> None:
    ring = both_ways(6, {(min(i, (i + 1) % 6), max(i, (i + 1) % 6)): 1 for i in range(6)})
    group = [[(i + k) % 6 for i in range(6)] for k in range(6)]
    assert pack_templates(ring, group, Fraction(2, 5)).rate == Fraction(2, 5)


@pytest.mark.parametrize(
    ("servers", "gb_per_s"), [(2, Fraction(1040, 3)), (8, Fraction(1600, 7)), (16, Fraction(640, 3))]
)
def test_clusters_of_dgx_a100_reach_their_reference_value(servers: int, gb_per_s: Fraction) -> None:
    """346.67, then what 8 NICs of 25 GB/s let into a server of n: 200·n/(n−1), to 213.33."""
    found = view(f"{servers}x dgx-a100 @ 200Gbps")
    network, group = found.network, rotations(found)
    assert group is not None
    rate, _ = allgather_rate(network)
    packing = pack_templates(network, group, rate)
    assert packing.rate == rate
    assert float(packing.rate * network.terminals) * found.topology.unit_gb_per_s == pytest.approx(float(gb_per_s))
    assert all(len(hops) == network.terminals - 1 for hops, _ in packing.templates)
