"""Trees with a limit of hops: they span all ranks within the limit and the links, or none are found."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.refine import HopLimited
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import Arc, FlowNetwork, OutTree, hops_deep
from blinkccl.trees.packing.shallow import out_trees
from blinkccl.trees.packing.symmetry import no_symmetry, symmetry_of
from blinkccl.trees.packing.undirected import pack_trees
from support.planned import asked
from support.small_networks import random_graph

Prices = list[list[float | None]]


def network_of(spec: str) -> FlowNetwork:
    request = asked(spec, "allgather")
    return rank_network_of(request.network, request.ranks).network


@st.composite
def prices(draw: st.DrawFn) -> Prices:
    """Prices of hops among up to six vertices; some hops may be missing."""
    n = draw(st.integers(2, 6))
    hop = st.one_of(st.none(), st.integers(0, 5).map(float))
    return [[None if u == v else draw(hop) for v in range(n)] for u in range(n)]


def price_of(price: Prices, parent: list[int]) -> float:
    """The price of a tree; asserts that it is a tree."""
    total = 0.0
    for v, u in enumerate(parent):
        if u >= 0:
            hop = price[u][v]
            assert hop is not None
            total += hop
    return total


def depth_of(root: int, parent: list[int]) -> int:
    """The depth of a tree; asserts that all vertices are below the root."""
    deepest = 0
    for v in range(len(parent)):
        hops, x = 0, v
        while x != root:
            x, hops = parent[x], hops + 1
            assert x >= 0
            assert hops < len(parent)
        deepest = max(deepest, hops)
    assert parent[root] == -1
    return deepest


@given(prices(), st.data())
def test_cheap_trees_are_trees_and_are_found_if_any_exist(price: Prices, data: st.DataObject) -> None:
    n = len(price)
    levels, root = data.draw(st.integers(1, n)), data.draw(st.integers(0, n - 1))
    arcs = tuple((u, v, 1) for u in range(n) for v in range(n) if price[u][v] is not None)
    every = list(out_trees(FlowNetwork(n, n, arcs), root, levels))
    trees = native_flows.hop_trees(price, levels, [root])
    if not every:
        assert trees is None
        return
    assert trees is not None
    least = min(sum(price[u][v] or 0.0 for u, v in tree) for tree in every)
    assert len({tuple(parent) for _, parent in trees}) == len(trees)
    for start, parent in trees:
        assert start == root
        assert depth_of(root, parent) <= levels
        assert price_of(price, parent) >= least


def test_a_move_takes_the_new_parent_along() -> None:
    """Prim's tree 0 → 1 → 2 is too deep for 3 below 2; 2 moves below the root for 1 more, and 3 below it saves 7."""
    price: Prices = [[None, 1.0, 2.0, 9.0], [None, None, 1.0, None], [None, None, None, 2.0], [None] * 4]
    trees = native_flows.hop_trees(price, 2, [0])
    assert trees is not None
    assert [-1, 0, 0, 2] in [parent for _, parent in trees]


def from_roots(network: FlowNetwork, levels: int, rate: Fraction, near: Fraction) -> list[OutTree] | None:
    symmetry = symmetry_of(network)
    return HopLimited(network, symmetry, levels, {root: i for i, root in enumerate(symmetry.roots)}).best(rate, near)


def from_first(network: FlowNetwork, levels: int, rate: Fraction, near: Fraction) -> list[OutTree] | None:
    return HopLimited(network, no_symmetry(network), levels, {0: 0}).best(rate, near)


def loads(network: FlowNetwork, trees: list[OutTree], levels: int, *, both: bool = False) -> dict[Arc, Fraction]:
    """The loads of a unit per root, or of one unit for all; asserts trees over all terminals within the levels."""
    load: defaultdict[Arc, Fraction] = defaultdict(Fraction)
    for root, part, hops in trees:
        assert part > 0
        assert {root, *(hop[-1] for hop in hops)} == set(range(network.terminals))
        assert len(hops) == network.terminals - 1
        assert hops_deep(root, hops) <= levels
        for u, v in (arc for hop in hops for arc in pairwise(hop)):
            load[u, v] += part
            if both:
                load[v, u] += part
    return load


def fits(network: FlowNetwork, load: dict[Arc, Fraction], rate: Fraction) -> bool:
    return all(units * rate <= network.capacity[arc] for arc, units in load.items())


@pytest.mark.parametrize(("spec", "levels"), [("mi250", 4), ("2x mi250", 5), ("dgx-1v", 2), ("ring:6", 3)])
def test_all_to_all(spec: str, levels: int) -> None:
    network = network_of(spec)
    rate, _ = allgather_rate(network)
    near = rate * Fraction(99, 100)
    trees = from_roots(network, levels, rate, near)
    assert trees is not None
    assert fits(network, loads(network, trees, levels), near)
    parts: defaultdict[int, Fraction] = defaultdict(Fraction)
    for root, part, _ in trees:
        parts[root] += part
    assert parts == dict.fromkeys(range(network.terminals), Fraction(1))


def test_fewer_levels_than_the_eccentricity_have_no_trees() -> None:
    network = network_of("ring:6")
    rate, _ = allgather_rate(network)
    assert from_roots(network, 2, rate, rate / 2) is None
    assert from_first(network, 2, Fraction(2), Fraction(1)) is None


def test_from_one_root_at_a_rate_that_few_levels_allow() -> None:
    """A broadcast in a ring at the full rate needs two chains of five hops; half of it needs three hops each way."""
    network = network_of("ring:6")
    rate, _ = broadcast_rate(network, 0)
    assert from_first(network, 4, Fraction(rate), Fraction(rate)) is None
    half = from_first(network, 3, Fraction(rate, 2), Fraction(rate, 2))
    assert half is not None
    assert fits(network, loads(network, half, 3), Fraction(rate, 2))
    assert sum(part for _, part, _ in half) == 1


@pytest.mark.parametrize("seed", range(12))
def test_trees_up_and_down_are_found_if_undirected_trees_fill_a_partition(seed: int) -> None:
    n = 3 + seed % 4
    network = random_graph(Random(seed), n)
    rate = pack_trees(network).rate
    near = rate * Fraction(9, 10)
    symmetry = symmetry_of(network)
    mix = HopLimited(network, symmetry, n - 1, dict.fromkeys(symmetry.roots, 0), both_ways=True)
    trees = mix.best(rate, near)
    assert trees is not None
    assert fits(network, loads(network, trees, n - 1, both=True), near)
    assert sum(part for _, part, _ in trees) == 1


def test_trees_are_dropped_while_the_others_can_carry_their_data() -> None:
    """On all eight GPUs of a DGX-1V about one tree less per root is needed for each hundredth of lost rate."""
    network = network_of("dgx-1v")
    rate, _ = allgather_rate(network)

    def trees(near: Fraction) -> int:
        packed = from_roots(network, 3, rate, near)
        assert packed is not None
        return len(packed)

    assert trees(rate * Fraction(3, 4)) < trees(rate)
