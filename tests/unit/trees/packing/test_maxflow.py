"""Flows and cuts against networkx and against each other."""

from random import Random

import networkx as nx
import pytest

from blinkccl.trees.packing.maxflow import FlowGraph, broadcast_rate, max_flow, min_cut
from blinkccl.trees.packing.network import FlowNetwork
from support.small_networks import dgx_1v, random_digraph, random_graph, subsets

DRAWS = 60


def as_networkx(network: FlowNetwork) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(network.n))
    graph.add_edges_from((u, v, {"capacity": c}) for u, v, c in network.arcs)
    return graph


def drawn(seed: int) -> FlowNetwork:
    dice = Random(seed)
    n = dice.randint(2, 9)
    if seed % 3 == 0:
        return random_graph(dice, n, most=9)
    return random_digraph(dice, n, most=dice.choice([1, 3, 1000]), connected=seed % 3 == 1)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_flow_and_cut_agree_with_networkx_and_with_each_other(seed: int) -> None:
    network = drawn(seed)
    source, sink = Random(seed).sample(range(network.n), 2)
    value, flow = max_flow(network, source, sink)
    assert value == nx.maximum_flow_value(as_networkx(network), source, sink)
    assert all(0 < units <= network.capacity[arc] for arc, units in flow.items())
    for v in range(network.n):
        gained = sum(f for (_, w), f in flow.items() if w == v) - sum(f for (u, _), f in flow.items() if u == v)
        assert gained == (value if v == sink else -value if v == source else 0)
    cut, side = min_cut(network, source, sink)
    assert cut == value == network.leaving(side)
    assert source in side
    assert sink not in side


@pytest.mark.parametrize("seed", range(30))
def test_the_least_and_the_greatest_minimum_cut(seed: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, 6, most=2, density=0.3)
    graph = FlowGraph.of(network)
    value = graph.max_flow(0, 5)
    minimum = [set(s) for s in subsets(6) if 0 in s and 5 not in s and network.leaving(s) == value]
    assert set(graph.source_side(0)) == set.intersection(*minimum)
    assert set(range(6)) - set(graph.sink_side(5)) == set.union(*minimum)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_the_broadcast_rate_is_the_least_flow(seed: int) -> None:
    network = drawn(seed)
    root = Random(seed).randrange(network.n)
    rate, side = broadcast_rate(network, root)
    graph = as_networkx(network)
    assert rate == min(nx.maximum_flow_value(graph, root, t) for t in range(network.n) if t != root)
    assert rate == network.leaving(side)
    assert root in side
    assert len(side) < network.n


def test_only_terminals_count_in_a_broadcast() -> None:
    dead_end = FlowNetwork(3, 2, ((0, 1, 5), (1, 2, 1)))
    assert broadcast_rate(dead_end, 0) == (5, (0,))
    assert broadcast_rate(dead_end, 1) == (0, (1, 2))


def test_a_limit_stops_early_and_later_calls_add_flow() -> None:
    graph = FlowGraph.of(dgx_1v())
    assert graph.max_flow(0, 7, limit=2) == 2
    assert graph.max_flow(0, 7) == 4
    assert graph.max_flow(0, 7) == 0
    graph.reset()
    assert graph.max_flow(0, 7) == 6


def test_a_capacity_changes_at_the_next_reset() -> None:
    graph = FlowGraph(2)
    edge = graph.add(0, 1, 3)
    assert edge % 2 == 0
    graph.set_capacity(edge, 5)
    assert graph.max_flow(0, 1) == 3
    graph.reset()
    assert (graph.max_flow(0, 1), graph.flow(edge)) == (5, 5)
