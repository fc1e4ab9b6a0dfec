"""Properties of packings on any network: they fit, they span, and no more would fit."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import PackingError
from blinkccl.trees.packing.bottleneck import allgather_rate, gather_rate
from blinkccl.trees.packing.columns import pack_columns
from blinkccl.trees.packing.integral import flatten, merged, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import out_tree_oracle, paths_oracle
from blinkccl.trees.packing.undirected import crossing, pack_trees, strength, undirected_widths
from support.examples import examples
from support.small_networks import (
    assert_exact,
    assert_packing,
    assert_undirected_packing,
    random_digraph,
    random_graph,
    random_switched,
)

ordinary = examples(150)
ONE = [Fraction(1)]


dice = st.randoms(use_true_random=False)
most_capacity = st.sampled_from([1, 4, 10**6])
density = st.floats(0, 1)


def digraphs(most: int = 6) -> st.SearchStrategy[FlowNetwork]:
    """Strongly connected, switchless networks."""
    return st.builds(random_digraph, dice, st.integers(2, most), most=most_capacity, density=density)


def graphs(most: int = 6) -> st.SearchStrategy[FlowNetwork]:
    """Connected, switchless, symmetric networks."""
    return st.builds(random_graph, dice, st.integers(2, most), most=most_capacity, density=density)


def switched() -> st.SearchStrategy[FlowNetwork]:
    """Terminals on one or two switches, balanced or not."""
    size = st.integers(2, 4), st.integers(1, 2)
    return st.builds(random_switched, dice, *size, balanced=st.booleans(), most=st.just(5))


@ordinary
@given(digraphs() | graphs(), st.data())
def test_integer_trees_fill_a_minimum_cut(network: FlowNetwork, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, network.n - 1))
    rate, side = broadcast_rate(network, root)
    assert rate == network.leaving(side)
    trees = pack_arborescences(network, {root: rate})
    assert_packing(network, trees, {root: rate})
    assert_packing(network, merged(flatten(network.capacity, trees)), {root: rate})
    with pytest.raises(PackingError, match="do not fit"):
        pack_arborescences(network, {root: rate + 1})


@ordinary
@given(digraphs(most=5) | graphs(most=5))
def test_trees_from_every_root_fill_the_bottleneck(network: FlowNetwork) -> None:
    rate, side = allgather_rate(network)
    assert rate == Fraction(network.leaving(side), len(side))
    scaled = network.scaled(rate.denominator)
    demand = dict.fromkeys(range(network.n), rate.numerator)
    for few in (False, True):
        assert_packing(scaled, pack_arborescences(scaled, demand, few=few), demand)
    with pytest.raises(PackingError, match="do not fit"):
        pack_arborescences(scaled, dict.fromkeys(range(network.n), rate.numerator + 1))


@ordinary
@given(graphs())
def test_undirected_trees_fill_a_partition(network: FlowNetwork) -> None:
    packing = pack_trees(network)
    widths = undirected_widths(network)
    assert packing.rate == Fraction(crossing(widths, packing.blocks), len(packing.blocks) - 1)
    assert packing.scale == packing.rate.denominator
    assert_undirected_packing(network, packing)
    few = pack_trees(network, few=True)
    assert (few.rate, few.scale, few.blocks) == (packing.rate, packing.scale, packing.blocks)
    assert_undirected_packing(network, few)


@ordinary
@given(digraphs() | graphs() | switched(), st.integers(2, 9))
def test_rates_scale_with_the_capacities(network: FlowNetwork, factor: int) -> None:
    scaled = network.scaled(factor)
    assert broadcast_rate(scaled, 0)[0] == factor * broadcast_rate(network, 0)[0]
    assert allgather_rate(scaled)[0] == factor * allgather_rate(network)[0]
    assert gather_rate(scaled, 0)[0] == factor * gather_rate(network, 0)[0]


@ordinary
@given(digraphs() | graphs() | switched(), st.data())
def test_rates_do_not_depend_on_numbers(network: FlowNetwork, data: st.DataObject) -> None:
    new = data.draw(st.permutations(range(network.terminals)))
    new = [*new, *range(network.terminals, network.n)]
    moved = FlowNetwork(network.n, network.terminals, tuple((new[u], new[v], c) for u, v, c in network.arcs))
    assert broadcast_rate(moved, new[0])[0] == broadcast_rate(network, 0)[0]
    assert allgather_rate(moved)[0] == allgather_rate(network)[0]
    assert gather_rate(moved, new[0])[0] == gather_rate(network, 0)[0]
    if network.switchless and network.symmetric:
        assert strength(network.n, undirected_widths(moved))[0] == strength(network.n, undirected_widths(network))[0]


@examples(60)
@given(digraphs() | switched())
def test_columns_reach_the_bound_of_prices_and_cuts(network: FlowNetwork) -> None:
    roots = list(range(network.terminals))
    packing = pack_columns(network.capacity, ONE * len(roots), out_tree_oracle(network, roots))
    assert_exact(packing, network, ONE * len(roots))
    assert packing.rate <= allgather_rate(network)[0]
    if network.switchless or network.symmetric:
        assert packing.rate == allgather_rate(network)[0]
    gathered = pack_columns(network.capacity, ONE, paths_oracle(network, 0))
    assert_exact(gathered, network, ONE)
    assert gathered.rate == gather_rate(network, 0)[0]
    if network.switchless:
        rooted = pack_columns(network.capacity, ONE, out_tree_oracle(network, [0]))
        assert_exact(rooted, network, ONE)
        assert rooted.rate == broadcast_rate(network, 0)[0]
