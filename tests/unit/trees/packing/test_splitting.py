"""Removal of switches: maximum flows of networkx stay the same, and trees fit into the links with switches."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import networkx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blinkccl.topology.select import network_for
from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.packing import splitting
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.integral import Arborescence, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.native_flows import admissible
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.splitting import Direct, all_reach, without_transit


@st.composite
def balanced(draw: st.DrawFn) -> FlowNetwork:
    """A sum of cycles, so that every switch has equal capacity in and out."""
    terminals, transit = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    n = terminals + transit
    capacity: Counter[tuple[int, int]] = Counter()
    for _ in range(draw(st.integers(1, 6))):
        cycle = draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=n, unique=True))
        units = draw(st.integers(1, 4))
        for arc in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            capacity[arc] += units
    return FlowNetwork(n, terminals, tuple((u, v, c) for (u, v), c in sorted(capacity.items())))


def gets(network: FlowNetwork, demand: list[int], terminal: int) -> int:
    """The maximum flow to ``terminal`` from all r with at most ``demand[r]`` units, by networkx."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(network.n))
    for u, v, c in network.arcs:
        graph.add_edge(u, v, capacity=c)
    for r, units in enumerate(demand):
        graph.add_edge("source", r, capacity=units)
    return int(networkx.maximum_flow_value(graph, "source", terminal))


def assert_complete(network: FlowNetwork, demand: list[int], direct: Direct) -> None:
    """Assert that ``direct`` fits into the network and carries all demands, and that unfolded trees do so too."""
    assert direct.network.switchless
    assert all(gets(direct.network, demand, v) == sum(demand) for v in range(network.terminals))
    used: Counter[tuple[int, int]] = Counter()
    for (u, v), ways in direct.ways.items():
        assert sum(units for _, units in ways) == direct.network.capacity[u, v]
        for hop, units in ways:
            assert (hop[0], hop[-1]) == (u, v)
            assert len(set(hop)) == len(hop)
            assert all(x >= network.terminals for x in hop[1:-1])
            used.update(dict.fromkeys(pairwise(hop), units))
    assert all(units <= network.capacity[arc] for arc, units in used.items())

    by_root = {r: units for r, units in enumerate(demand) if units}
    packed: Counter[int] = Counter()
    load: Counter[tuple[int, int]] = Counter()
    for root, units, hops in direct.unfolded(pack_arborescences(direct.network, by_root)):
        assert sorted([root, *(hop[-1] for hop in hops)]) == list(range(network.terminals))
        packed[root] += units
        for hop in hops:
            load.update(dict.fromkeys(pairwise(hop), units))
    assert dict(packed) == by_root
    assert all(units <= network.capacity[arc] for arc, units in load.items())


@given(balanced(), st.booleans())
def test_no_rate_is_lost_without_switches(network: FlowNetwork, from_one: bool) -> None:
    """Bang-Jensen, Frank and Jackson: with balanced switches all capacity can be split off."""
    graph = networkx.DiGraph([(u, v) for u, v, _ in network.arcs])
    graph.add_nodes_from(range(network.n))
    assume(all(set(range(network.terminals)) <= {v, *networkx.descendants(graph, v)} for v in range(network.terminals)))
    if from_one:
        rate: Fraction | int = broadcast_rate(network, 0)[0]
        demand = [int(rate), *[0] * (network.terminals - 1)]
    else:
        rate = allgather_rate(network)[0]
        network, demand = network.scaled(rate.denominator), [rate.numerator] * network.terminals
    direct = without_transit(network, dict(enumerate(demand)))
    assert direct is not None
    assert_complete(network, demand, direct)


@given(balanced(), st.data())
def test_exactly_the_most_units_of_a_pair_are_admissible(network: FlowNetwork, data: st.DataObject) -> None:
    """By definition: the most units with which all terminals still get their demands."""
    w = data.draw(st.integers(network.terminals, network.n - 1))
    into = [u for u, v, _ in network.arcs if v == w]
    assume(into)
    u, t = data.draw(st.sampled_from(into)), data.draw(st.sampled_from(network.successors[w]))
    demand = data.draw(st.lists(st.integers(0, 3), min_size=network.terminals, max_size=network.terminals))
    assume(all_reach(network, demand))
    most = min(network.capacity[u, w], network.capacity[w, t])

    def split(units: int) -> FlowNetwork:
        capacity = Counter(network.capacity)
        capacity[u, w] -= units
        capacity[w, t] -= units
        capacity[u, t] += units if u != t else 0
        return FlowNetwork(network.n, network.terminals, tuple((a, b, c) for (a, b), c in capacity.items() if c))

    fit = [
        k for k in range(most + 1) if all(gets(split(k), demand, v) == sum(demand) for v in range(network.terminals))
    ]
    order = list(range(network.terminals))
    assert admissible(network, demand, (u, w, t), most, order) == fit[-1] == len(fit) - 1
    assert sorted(order) == list(range(network.terminals))


@given(balanced(), st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_all_reach_agrees_with_flows(network: FlowNetwork, demand: list[int]) -> None:
    demand = demand[: network.terminals]
    assert all_reach(network, demand) == all(gets(network, demand, v) == sum(demand) for v in range(network.terminals))


def clusters(spec: str, gpus: str) -> FlowNetwork:
    topology, ranks = load(spec, gpus)
    return rank_network_of(network_for(topology, ranks), ranks).network


@pytest.mark.parametrize(
    ("spec", "gpus", "trees"),
    [("2x mi250", "0-15+0-15", 3), ("2x dgx-a100", "0-7+0-6", 8), ("4x hgx-h100", "0-7+0-6+0-5+0-4", 2)],
)
def test_servers_take_few_trees_by_rails(spec: str, gpus: str, trees: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test of all cuts accepts the rails, so no pair is tested."""
    monkeypatch.setattr(splitting, "admissible", None)
    network = clusters(spec, gpus)
    rate, _ = allgather_rate(network)
    network, demand = network.scaled(rate.denominator), [rate.numerator] * network.terminals
    direct = without_transit(network, dict(enumerate(demand)))
    assert direct is not None
    assert_complete(network, demand, direct)
    packed = pack_arborescences(direct.network, dict(enumerate(demand)))
    assert len(packed) <= trees * network.terminals


def test_a_switch_with_less_capacity_out_than_in() -> None:
    """Two units enter the switch, and one leaves to each of two ranks: a broadcast of two units fits, of three not."""
    arcs = ((0, 3, 2), (3, 1, 1), (3, 2, 1), (1, 2, 1), (2, 1, 1))
    network = FlowNetwork(4, 3, arcs)
    assert without_transit(network, {0: 3}) is None
    assert without_transit(network, {0: 2}) is not None


def test_a_tree_uses_a_hop_that_has_room_for_it() -> None:
    """An arc has hops of one unit and of two units, so a tree of two units is not split."""
    network = FlowNetwork(2, 2, ((0, 1, 3),))
    direct = Direct(network, {(0, 1): (((0, 2, 1), 2), ((0, 1), 1))})
    trees = [Arborescence(0, 1, ((0, 1),)), Arborescence(0, 2, ((0, 1),))]
    assert direct.unfolded(trees) == [(0, 2, ((0, 2, 1),)), (0, 1, ((0, 1),))]
    assert direct.unfolded(trees[:1] * 3) == [(0, 1, ((0, 1),)), (0, 1, ((0, 2, 1),)), (0, 1, ((0, 2, 1),))]


def test_too_many_pairs_to_test_give_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan for the whole switch is accepted, and work is limited."""
    network = FlowNetwork(4, 3, ((0, 3, 1), (1, 3, 1), (2, 3, 1), (3, 0, 1), (3, 1, 1), (3, 2, 1)))
    monkeypatch.setattr(splitting._Splitting, "_may_be", lambda *_: False)
    monkeypatch.setattr(splitting, "_rails", lambda groups: {v: () for group in groups for v in group})
    assert without_transit(network, {0: 1}) is not None
    monkeypatch.setattr(splitting, "MOST_FLOWS", 26)
    assert without_transit(network, {0: 1}) is None
