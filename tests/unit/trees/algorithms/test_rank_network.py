"""Contraction of chains: it keeps every cut, and all results translate back to real links."""

from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

import networkx as nx
import pytest

from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.packing.maxflow import min_cut
from support.planned import digraph


def chained(dice: Random) -> tuple[Topology, tuple[int, ...]]:
    """A strongly connected digraph of GPUs; some links lead through one or two NICs, some in both directions."""
    n = dice.randint(2, 4)
    ids = dice.sample(range(20), n)
    vertices, links, fresh = [Vertex(i, "gpu") for i in ids], [], 20
    pairs = {tuple(sorted(pair)) for pair in pairwise([*ids, ids[0]])}
    pairs |= {tuple(sorted(p)) for p in combinations(ids, 2) if dice.random() < 0.5}
    for u, v in sorted(pairs):
        inner = list(range(fresh, fresh + dice.choice([0, 0, 1, 2])))
        fresh += len(inner)
        vertices += [Vertex(i, "nic") for i in inner]
        way = [u, *inner, v]
        for a, b in [*pairwise(way), *pairwise(way[::-1])]:
            c = dice.randint(1, 5)
            links.append(Link(a, b, c, "nvlink", 25.0 * c, "synthetic"))
    return Topology("chained", 25.0, tuple(sorted(vertices, key=lambda v: v.id)), tuple(links)), tuple(ids)


@pytest.mark.parametrize("seed", range(25))
def test_contraction_removes_chains_and_keeps_flows(seed: int) -> None:
    topology, ranks = chained(Random(seed))
    view = rank_network_of(topology, ranks)
    assert view.ids[: len(ranks)] == ranks
    assert view.network.terminals == len(ranks)
    graph = nx.DiGraph()
    graph.add_edges_from((link.src, link.dst, {"capacity": link.capacity}) for link in topology.links)
    for s, t in combinations(range(len(ranks)), 2):
        value, side = min_cut(view.network, s, t)
        assert value == nx.maximum_flow_value(graph, ranks[s], ranks[t])
        real = view.side(side)
        assert sum(link.capacity for link in topology.links if link.src in real and link.dst not in real) == value
        assert ranks[s] in real
        assert ranks[t] not in real


@pytest.mark.parametrize("seed", range(25))
def test_an_arc_is_a_real_path_as_wide_as_its_narrowest_link(seed: int) -> None:
    topology, ranks = chained(Random(seed))
    view = rank_network_of(topology, ranks)
    prices = view.prices({arc: Fraction(1) for arc in view.network.capacity})
    for (u, v), c in view.network.capacity.items():
        path = view.path((u, v))
        assert (path[0], path[-1]) == (view.ids[u], view.ids[v])
        widths = [topology.link[arc].capacity for arc in pairwise(path)]
        assert c == min(widths)
        assert [topology.link[arc].capacity for arc in pairwise(path) if arc in prices] == [c]


@pytest.mark.parametrize("seed", range(10))
def test_a_partition_of_real_vertices_holds_each_once(seed: int) -> None:
    topology, ranks = chained(Random(seed))
    view = rank_network_of(topology, ranks)
    blocks = view.blocks([(v,) for v in range(view.network.n)])
    assert sorted(v for block in blocks for v in block) == [v.id for v in topology.vertices]
    assert [sum(r in block for r in ranks) for block in blocks].count(1) == len(ranks)


def test_a_hop_over_several_arcs_is_one_path() -> None:
    topology = digraph({(0, 3): 1, (3, 4): 1, (4, 2): 1, (2, 1): 1, (1, 0): 1, (2, 0): 1, (1, 4): 1}, 3, 2)
    view = rank_network_of(topology, (0, 1, 2))
    assert view.ids == (0, 1, 2, 4)
    assert view.path((0, 3, 2)) == (0, 3, 4, 2)


def test_switches_with_more_neighbours_stay() -> None:
    topology, ranks = load("star:4")
    view = rank_network_of(network_for(topology, ranks), ranks)
    assert (view.network.n, view.network.terminals) == (5, 4)


def test_a_bridge_beside_a_direct_link_stays() -> None:
    topology = digraph({(0, 1): 1, (1, 0): 1, (0, 2): 1, (2, 0): 1, (1, 2): 1, (2, 1): 1}, 2, 1)
    assert rank_network_of(topology, (0, 1)).network.n == 3


def test_the_nics_of_a_cluster_are_contracted() -> None:
    topology, ranks = load("2x dgx-a100 @ 200Gbps")
    view = rank_network_of(network_for(topology, ranks), ranks)
    assert view.network.n == 16 + 3
    assert rank_network_of(network_for(topology, ranks), ranks) is view
