"""The fewest arborescences: proved against exhaustion on tiny graphs, four on every root of a DGX-1V."""

import itertools
from random import Random

import pytest

from blinkccl.trees.packing.integral import pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.shallow import fewest_arborescences, fewest_bound, out_trees
from support.small_networks import assert_packing, depth_of, dgx_1p, dgx_1v, random_digraph


def least_by_exhaustion(network: FlowNetwork, root: int, demand: int) -> int:
    """The fewest different trees of an integral packing of ``demand``."""
    trees = [frozenset(tree) for tree in out_trees(network, root, network.n - 1)]
    for count in range(1, demand + 1):
        for chosen in itertools.combinations(trees, count):
            for units in itertools.product(range(1, demand + 1), repeat=count):
                if sum(units) == demand and fits(network.capacity, chosen, units):
                    return count
    raise AssertionError("the demand does not fit")


def fits(capacity: dict[Arc, int], trees: tuple[frozenset[Arc], ...], units: tuple[int, ...]) -> bool:
    return all(sum(k for tree, k in zip(trees, units, strict=True) if a in tree) <= c for a, c in capacity.items())


@pytest.mark.parametrize("seed", range(25))
def test_no_packing_has_fewer_trees(seed: int) -> None:
    network = random_digraph(Random(seed), 4, most=3, density=0.5)
    rate, _ = broadcast_rate(network, 0)
    trees, proved = fewest_arborescences(network, 0, rate, pack_arborescences(network, {0: rate}))
    assert proved
    assert_packing(network, trees, {0: rate})
    assert len(trees) == least_by_exhaustion(network, 0, rate)
    assert len(trees) >= fewest_bound(4, 0, network.capacity, rate)


@pytest.mark.parametrize("root", range(8))
def test_four_trees_fill_a_dgx_1v_and_three_do_not(root: int) -> None:
    """B13 says 6. The root's links are 2, 2, 1 and 1 wide, so 4 trees are needed, and 4 suffice."""
    network = dgx_1v()
    trees, proved = fewest_arborescences(network, root, 6, pack_arborescences(network, {root: 6}))
    assert (len(trees), proved) == (4, True)
    assert fewest_bound(8, root, network.capacity, 6) == 4
    assert sorted(tree.multiplicity for tree in trees) == [1, 1, 2, 2]
    assert_packing(network, trees, {root: 6})
    assert max(depth_of(tree) for tree in trees) <= 7


def test_single_lanes_need_a_tree_each() -> None:
    network = dgx_1p()
    known = pack_arborescences(network, {0: 4})
    assert fewest_arborescences(network, 0, 4, known) == (known, True)


def test_a_search_without_steps_returns_the_known_packing() -> None:
    network = dgx_1v()
    known = pack_arborescences(network, {0: 6})
    trees, proved = fewest_arborescences(network, 0, 6, known, budget=0)
    assert trees == known
    assert proved == (len(known) == 4)


def test_a_demand_that_cannot_enter_has_no_trees() -> None:
    assert fewest_bound(2, 0, {(0, 1): 2}, 3) > 3
