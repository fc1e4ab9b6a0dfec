"""Oracles give the cheapest column: no existing tree or path costs less."""

import itertools
from fractions import Fraction
from random import Random

import networkx as nx
import pytest

from blinkccl.errors import PackingError
from blinkccl.trees.packing.integral import Arborescence, canonical_arcs
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import (
    Hops,
    cheapest_hops,
    cheapest_tree_from,
    in_and_out_oracle,
    loads_of,
    out_tree_oracle,
    paths_oracle,
    relay_oracle,
    up_and_down_oracle,
)
from blinkccl.trees.packing.shallow import out_trees
from support.small_networks import depth_of, dgx_1v, one_way_ring, random_digraph, random_graph, random_switched


def priced(dice: Random, network: FlowNetwork) -> dict[Arc, Fraction]:
    return {arc: Fraction(dice.randint(0, 6), dice.randint(1, 4)) for arc in network.capacity}


def assert_hops(network: FlowNetwork, root: int, hops: Hops) -> None:
    """Assert hops over existing arcs, with transit inside only, that form an out-tree over all terminals."""
    parent = {}
    for hop in hops:
        assert all(arc in network.capacity for arc in itertools.pairwise(hop))
        assert hop[0] < network.terminals > hop[-1]
        assert all(v >= network.terminals for v in hop[1:-1])
        assert hop[-1] not in parent
        parent[hop[-1]] = hop[0]
    assert set(parent) == set(range(network.terminals)) - {root}
    for v in parent:
        at = v
        for _ in parent:
            at = parent.get(at, root)
        assert at == root


@pytest.mark.parametrize("seed", range(20))
def test_hops_cost_what_networkx_says(seed: int) -> None:
    dice = Random(seed)
    network = random_switched(dice, 5, 3, balanced=False)
    prices = priced(dice, network)
    cost, hop = cheapest_hops(network, prices)
    for u, v in itertools.permutations(range(5), 2):
        graph = nx.DiGraph()
        graph.add_weighted_edges_from(
            (a, b, prices[a, b]) for a, b in network.capacity if all(x >= 5 or x in (u, v) for x in (a, b))
        )
        if not (graph.has_node(u) and graph.has_node(v) and nx.has_path(graph, u, v)):
            assert cost[u][v] is None
            continue
        assert cost[u][v] == nx.shortest_path_length(graph, u, v, weight="weight")
        assert sum(prices[arc] for arc in itertools.pairwise(hop(u, v))) == cost[u][v]


@pytest.mark.parametrize("seed", range(20))
def test_the_out_tree_is_the_cheapest_of_all(seed: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, 5) if seed % 2 else random_graph(dice, 5)
    prices = priced(dice, network)
    if seed % 2 == 0:
        prices = {(u, v): prices[min(u, v), max(u, v)] for u, v in prices}
    for column, root in zip(out_tree_oracle(network, [3, 1])(prices), (3, 1), strict=True):
        assert_hops(network, root, column.payload)
        assert dict(column.loads) == loads_of(column.payload)
        assert column.cost(prices) == min(
            sum(prices[arc] for arc in tree) for tree in out_trees(network, root, network.n - 1)
        )


@pytest.mark.parametrize("seed", range(10))
def test_the_cheapest_pair_of_trees(seed: int) -> None:
    dice = Random(seed)
    network = random_switched(dice, 4, 2, balanced=False)
    prices = priced(dice, network)
    backward = {(v, u): y for (u, v), y in prices.items()}
    for column in in_and_out_oracle(network)(prices):
        root, up, down = column.payload
        assert_hops(network, root, down)
        assert_hops(network.reversed(), root, tuple(hop[::-1] for hop in up))
        out = out_tree_oracle(network, [root])(prices)[0].cost(prices)
        into = out_tree_oracle(network.reversed(), [root])(backward)[0].cost(backward)
        assert column.cost(prices) == out + into
        assert dict(column.loads) == loads_of(up + down)


@pytest.mark.parametrize("seed", range(10))
def test_one_tree_up_and_down_loads_both_directions_equally(seed: int) -> None:
    dice = Random(seed)
    network = random_graph(dice, 5)
    prices = priced(dice, network)
    (column,) = up_and_down_oracle(network, 2)(prices)
    assert_hops(network, 2, column.payload)
    loads = dict(column.loads)
    assert all(loads[v, u] == times for (u, v), times in loads.items())
    both = {(u, v): prices[u, v] + prices[v, u] for u, v in prices}
    assert column.cost(prices) == min(sum(both[a] for a in tree) for tree in out_trees(network, 2, 4))


@pytest.mark.parametrize("seed", range(10))
def test_cost_of_gather_paths_and_relays(seed: int) -> None:
    dice = Random(seed)
    network = random_switched(dice, 4, 2, balanced=False)
    prices = priced(dice, network)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((u, v, prices[u, v]) for u, v in prices)
    (column,) = paths_oracle(network, 1)(prices)
    assert sorted(column.payload) == [0, 2, 3]
    for v, path in column.payload.items():
        assert (path[0], path[-1]) == (v, 1)
        assert sum(prices[a] for a in itertools.pairwise(path)) == nx.shortest_path_length(graph, v, 1, "weight")
    (relay,) = relay_oracle(network, 1)(prices)
    tree = out_tree_oracle(network, [1])(prices)[0]
    assert relay.cost(prices) == column.cost(prices) + 4 * tree.cost(prices)


def test_free_prices_give_the_fewest_links_and_a_shallow_tree() -> None:
    tree = cheapest_tree_from(dgx_1v(), {}, 0)
    arcs = canonical_arcs(0, tuple((hop[0], hop[-1]) for hop in tree))
    assert depth_of(Arborescence(0, 1, arcs)) == 2


def test_an_unreachable_terminal_is_a_packing_error() -> None:
    network = FlowNetwork(3, 3, ((0, 1, 1), (1, 0, 1), (2, 0, 1)))
    with pytest.raises(PackingError, match="cannot be reached from 0"):
        cheapest_tree_from(network, {}, 0)
    assert len(cheapest_tree_from(one_way_ring(4), {}, 2)) == 3
