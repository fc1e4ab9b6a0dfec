"""Flattening: the same roots, multiplicities and capacities, and no greater depth than before."""

from dataclasses import replace
from random import Random

import pytest

from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.integral import Arborescence, flatten, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.undirected import pack_trees, undirected_widths
from support.small_networks import (
    assert_tree,
    assert_undirected_packing,
    depth_of,
    loads,
    one_way_ring,
    random_digraph,
    random_graph,
)


def levels(trees: list[Arborescence], base: int) -> int:
    """Σ base^depth over all trees and vertices: the objective that the search lowers."""
    total = 0
    for tree in trees:
        depth = {tree.root: 0}
        for u, v in tree.arcs:
            depth[v] = depth[u] + 1
        total += tree.multiplicity * sum(base**d for d in depth.values())
    return total


@pytest.mark.parametrize("seed", range(25))
def test_no_deeper_within_the_same_capacities(seed: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, dice.randint(2, 7), density=0.5)
    if seed % 2:
        rate, _ = broadcast_rate(network, 0)
        demand = {0: rate}
    else:
        ratio, _ = allgather_rate(network)
        network, demand = network.scaled(ratio.denominator), dict.fromkeys(range(network.n), ratio.numerator)
    trees = pack_arborescences(network, demand)
    flat = flatten(network.capacity, trees)
    assert [(t.root, t.multiplicity) for t in flat] == [(t.root, t.multiplicity) for t in trees]
    assert all(used <= network.capacity[arc] for arc, used in loads(flat).items())
    for tree in flat:
        assert_tree(network.n, tree)
    assert levels(flat, network.n) <= levels(trees, network.n)
    assert max(map(depth_of, flat)) <= max(map(depth_of, trees))


@pytest.mark.parametrize("seed", range(15))
def test_undirected_edges_keep_their_width_both_ways_together(seed: int) -> None:
    dice = Random(seed)
    network = random_graph(dice, dice.randint(2, 7))
    packing = pack_trees(network)
    widths = {edge: w * packing.scale for edge, w in undirected_widths(network).items()}
    flat = flatten(widths, packing.trees, undirected=True)
    assert [(t.root, t.multiplicity) for t in flat] == [(t.root, t.multiplicity) for t in packing.trees]
    assert_undirected_packing(network, replace(packing, trees=tuple(flat)))
    assert max(map(depth_of, flat)) <= max(map(depth_of, packing.trees))


def test_a_chain_beside_free_links_becomes_a_star() -> None:
    chain = Arborescence(0, 1, tuple((i, i + 1) for i in range(4)))
    capacity = {(u, v): 1 for u in range(5) for v in range(5) if u != v}
    (flat,) = flatten(capacity, [chain])
    assert depth_of(flat) == 1


def test_two_full_trees_may_only_exchange_parents() -> None:
    """All links are full. The trees 0→1→2→3 and 0→2→1→3 can exchange parents of 3, but not be shallower than 2 hops."""
    trees = [Arborescence(0, 1, ((0, 1), (1, 2), (2, 3))), Arborescence(0, 1, ((0, 2), (2, 1), (1, 3)))]
    flat = flatten(loads(trees), trees)
    assert loads(flat) == loads(trees)
    assert [depth_of(tree) for tree in flat] == [2, 2]


def test_a_ring_stays_unchanged() -> None:
    ring = one_way_ring(5)
    trees = pack_arborescences(ring, {0: 1})
    assert flatten(ring.capacity, trees) == trees
