"""The enumeration yields every tree once; the integer program selects among them exactly."""

import itertools
from random import Random

import networkx as nx
import pytest

from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.shallow import (
    Effort,
    EffortSpentError,
    choose,
    out_trees,
    tree_columns,
)
from support.small_networks import assert_packing, depth_of, dgx_1p, dgx_1v, one_way_ring, random_digraph, random_graph


def kirchhoff(network: FlowNetwork, root: int) -> int:
    """The number of spanning out-trees from ``root`` (Tutte's matrix-tree theorem)."""
    return round(nx.number_of_spanning_trees(nx.DiGraph([*network.capacity]), root=root))


@pytest.mark.parametrize("network", [dgx_1v(), dgx_1p()], ids=["V", "P"])
def test_a_dgx_1_has_3456_arborescences_per_root(network: FlowNetwork) -> None:
    assert kirchhoff(network, 0) == 3456
    assert sum(1 for _ in out_trees(network, 0, 7)) == 3456


@pytest.mark.parametrize("seed", range(20))
def test_the_enumeration_yields_as_many_trees_as_the_determinant(seed: int) -> None:
    dice = Random(seed)
    n = dice.randint(2, 5)
    network = random_digraph(dice, n, density=0.5)
    root = dice.randrange(n)
    trees = list(out_trees(network, root, n - 1))
    assert len(trees) == len({frozenset(tree) for tree in trees}) == kirchhoff(network, root)
    for limit in range(1, n):
        within = {frozenset(t) for t in trees if depth_of(Arborescence(root, 1, t)) <= limit}
        assert {frozenset(t) for t in out_trees(network, root, limit)} == within


@pytest.mark.parametrize("seed", range(10))
def test_undirected_trees_are_enumerated_once(seed: int) -> None:
    dice = Random(seed)
    n = dice.randint(2, 5)
    network = random_graph(dice, n)
    columns = tree_columns(network, range(network.n), n - 1, undirected=True)
    assert columns is not None
    edges = {frozenset(frozenset(arc) for arc in tree) for _, tree in columns}
    assert len(columns) == len(edges) == kirchhoff(network, 0)
    for limit in range(1, n):
        shallow = tree_columns(network, range(network.n), limit, undirected=True)
        assert shallow is not None
        assert all(depth_of(Arborescence(root, 1, tree)) <= limit for root, tree in shallow)


def test_too_many_columns_give_none() -> None:
    clique = FlowNetwork(8, 8, tuple((u, v, 1) for u, v in itertools.permutations(range(8), 2)))
    assert tree_columns(clique, {0: 1}, 7) is None
    assert tree_columns(clique, range(clique.n), 7, undirected=True) is None
    few = tree_columns(clique, {0: 1, 3: 1, 5: 0}, 1)
    assert few is not None
    assert [root for root, _ in few] == [0, 3, 5]


def test_depth_2_serves_the_allgather_of_a_dgx_1v_at_its_optimum() -> None:
    scaled, demand = dgx_1v().scaled(7), dict.fromkeys(range(8), 6)
    columns = tree_columns(scaled, demand, 2)
    assert columns is not None
    assert len(columns) == 304  # 38 per root; the column of the rate is the 305th
    trees = choose(columns, scaled.capacity, demand)
    assert trees is not None
    assert_packing(scaled, trees, demand)


@pytest.mark.parametrize("network", [dgx_1v(), one_way_ring(6)], ids=["V", "ring"])
def test_a_search_ends_after_its_steps(network: FlowNetwork) -> None:
    effort = Effort(4)
    with pytest.raises(EffortSpentError):
        list(out_trees(network, 0, network.n - 1, effort))
    with pytest.raises(EffortSpentError):
        effort.spend()


def test_dead_ends_are_detected_at_once() -> None:
    """No arc enters the last of 30 vertices, so no tree exists. Without this test there would be 3^28 choices."""
    arcs = [(u, v, 1) for u in range(29) for v in range(max(0, u - 3), min(29, u + 4)) if u != v]
    network = FlowNetwork(30, 30, (*arcs, (29, 0, 1)))
    assert list(out_trees(network, 0, 29, Effort(1))) == []


def test_no_columns_or_too_little_capacity_gives_none() -> None:
    assert choose([], {(0, 1): 1}, {0: 1}) is None
    ring = one_way_ring(3)
    assert choose(tree_columns(ring, {0: 2}, 2) or [], ring.capacity, {0: 2}) is None
