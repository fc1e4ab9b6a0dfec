"""Flows taken apart into paths, and the two complementary trees."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from blinkccl.errors import InternalError
from blinkccl.packing.bottleneck import gather_rate
from blinkccl.packing.integral import Arborescence, canonical_arcs
from blinkccl.packing.maxflow import max_flow
from blinkccl.packing.multiflow import decompose
from blinkccl.packing.two_trees import two_trees
from support.small_networks import assert_tree, random_digraph


@pytest.mark.parametrize("seed", range(25))
def test_paths_carry_the_flow_and_use_no_arc_more_than_it(seed: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, dice.randint(2, 8), most=5)
    if seed % 2:
        value, flow = max_flow(network, 0, 1)
        supply = {0: value}
    else:
        rate, _, flow = gather_rate(network, 1)
        supply = {v: rate.numerator for v in range(network.n) if v != 1}
    used: dict[tuple[int, int], int] = {}
    ways = decompose(flow, supply, 1)
    assert sorted(ways) == sorted(supply)
    for source, paths in ways.items():
        assert sum(units for _, units in paths) == supply[source]
        for path, units in paths:
            assert units > 0
            assert (path[0], path[-1]) == (source, 1)
            assert len(set(path)) == len(path)
            for arc in itertools.pairwise(path):
                used[arc] = used.get(arc, 0) + units
    assert all(units <= flow[arc] for arc, units in used.items())


def test_a_cycle_in_the_flow_is_left_behind() -> None:
    flow = {(0, 1): 2, (1, 2): 5, (2, 1): 3, (2, 3): 2}
    assert decompose(flow, {0: 2}, 3) == {0: [((0, 1, 2, 3), 2)]}


def test_a_flow_that_does_not_carry_the_supply_is_our_mistake() -> None:
    with pytest.raises(InternalError, match="not conserved"):
        decompose({(0, 1): 1}, {0: 2}, 1)


@pytest.mark.parametrize("count", range(2, 34))
def test_no_vertex_but_the_root_is_inner_in_both_trees(count: int) -> None:
    order = list(range(count))
    Random(count).shuffle(order)
    inner = []
    for arcs in two_trees(order):
        tree = Arborescence(order[0], 1, canonical_arcs(order[0], arcs))
        assert_tree(count, tree)
        depth = {order[0]: 0}
        for u, v in tree.arcs:
            depth[v] = depth[u] + 1
        assert max(depth.values()) <= (count - 1).bit_length() + 1
        assert sum(u == order[0] for u, _ in arcs) == 1
        children = [sum(u == v for u, _ in arcs) for v in order[1:]]
        assert max(children) <= 2
        inner.append({v for v, k in zip(order[1:], children, strict=True) if k})
    assert not inner[0] & inner[1]
