"""All-to-all against scipy's linear program with one commodity per ordered pair; decomposition into paths."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import multiflow
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.maxflow import max_flow
from blinkccl.trees.packing.multiflow import Multiflow, UnitPath, all_to_all, decompose, price_bound
from blinkccl.trees.packing.network import Arc, FlowNetwork
from support.small_networks import (
    dgx_1v,
    one_way_ring,
    random_digraph,
    random_graph,
    random_network,
    random_switched,
)


def concurrent_flow(network: FlowNetwork) -> float:
    """Maximum x such that x flows between every ordered pair of terminals, with one commodity per pair."""
    pairs = list(itertools.permutations(range(network.terminals), 2))
    arcs, n = network.arcs, network.n
    count = len(pairs) * len(arcs) + 1
    equal = np.zeros((len(pairs) * n, count))
    for k, (s, t) in enumerate(pairs):
        for e, (u, v, _) in enumerate(arcs):
            equal[k * n + u, k * len(arcs) + e] -= 1
            equal[k * n + v, k * len(arcs) + e] += 1
        equal[k * n + s, -1], equal[k * n + t, -1] = 1, -1
    within = np.hstack([np.hstack([np.eye(len(arcs))] * len(pairs)), np.zeros((len(arcs), 1))])
    cost = np.zeros(count)
    cost[-1] = -1
    right = np.zeros(len(equal))
    return float(-linprog(cost, within, [c for _, _, c in arcs], equal, right, method="highs").fun)


def assert_paths(
    ways: Sequence[UnitPath], source: int, target: int, total: Fraction | int, used: dict[Arc, int]
) -> None:
    """Assert simple paths of ``total`` units, and add their loads to ``used``."""
    assert sum(units for _, units in ways) == total
    for way, units in ways:
        assert units > 0
        assert (way[0], way[-1]) == (source, target)
        assert len(set(way)) == len(way)
        for arc in itertools.pairwise(way):
            used[arc] = used.get(arc, 0) + units


def assert_multiflow(network: FlowNetwork, flow: Multiflow) -> None:
    """Assert paths of equal integer units per pair that fill an arc, and prices that prove the bound."""
    used: dict[Arc, int] = {}
    for s, t in itertools.permutations(range(network.terminals), 2):
        assert_paths(flow.paths(s, t), s, t, flow.units, used)
    assert min(Fraction(network.capacity[arc] * flow.units, units) for arc, units in used.items()) == flow.rate
    assert price_bound(network, flow.prices, range(network.terminals), 1) == flow.bound >= flow.rate


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_linear_program(seed: int) -> None:
    network = random_network(seed, 6)
    flow = all_to_all(network)
    assert_multiflow(network, flow)
    assert float(flow.rate) == pytest.approx(concurrent_flow(network))


def pairs_around_switches(sides: int, trunk: int, bypass: int) -> FlowNetwork:
    """A circle of ``sides`` switches with two terminals each, and links between the terminals of neighbours."""
    n, widths = 2 * sides, {}
    for i in range(sides):
        near = (i + 1) % sides
        widths |= {(2 * i, n + i): 9, (2 * i + 1, n + i): 9, (n + i, n + near): trunk}
        widths |= {(2 * i, 2 * near): bypass, (2 * i + 1, 2 * near + 1): bypass}
    arcs = {arc: c for (u, v), c in widths.items() for arc in ((u, v), (v, u))}
    return FlowNetwork(n + sides, n, tuple((u, v, c) for (u, v), c in sorted(arcs.items())))


@pytest.mark.parametrize("network", [pairs_around_switches(*form) for form in ((2, 3, 1), (2, 1, 3), (3, 1, 4))])
def test_small_orbits_of_links_count_several_times(network: FlowNetwork) -> None:
    flow = all_to_all(network)
    assert len(flow.symmetry.moves) == network.terminals
    assert_multiflow(network, flow)
    assert float(flow.rate) == pytest.approx(concurrent_flow(network))


def test_the_rate_has_its_reference_value() -> None:
    assert all_to_all(dgx_1v()).rate == Fraction(3, 8)
    assert all_to_all(one_way_ring(5)).rate == Fraction(1, 10)


IRREGULAR = [
    random_graph(Random(1), 12),
    random_digraph(Random(2), 10),
    random_switched(Random(3), 8, 3, balanced=True),
]


@pytest.mark.parametrize("network", IRREGULAR)
def test_growing_prices_come_near_the_linear_program(network: FlowNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    best = all_to_all(network)
    assert best.rate == best.bound
    monkeypatch.setattr(multiflow, "MOST_COLUMNS", 0)
    flow = all_to_all(network)
    assert_multiflow(network, flow)
    assert flow.rate <= best.rate <= flow.bound
    assert flow.rate >= 0.95 * flow.bound


def test_prices_grow_until_the_flow_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds leave this graph a twentieth below its bound; enough rounds come nearer."""
    network = random_graph(Random(5), 16)
    monkeypatch.setattr(multiflow, "MOST_COLUMNS", 0)
    monkeypatch.setattr(multiflow, "MOST_ROUNDS", 20)
    near = all_to_all(network)
    monkeypatch.setattr(multiflow, "NEAR_ENOUGH", 0.0)
    short = all_to_all(network)
    assert short.rate < 0.95 * short.bound
    assert near.rate >= 0.95 * near.bound


@pytest.mark.parametrize("seed", range(12))
def test_flows_without_small_denominators_have_few_units(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiflow, "_least_whole", lambda flows, whole: [])
    network = random_network(seed, 6)
    flow = all_to_all(network)
    assert_multiflow(network, flow)
    assert flow.units in multiflow.UNITS
    assert flow.rate >= multiflow.NEAR * flow.bound


@pytest.mark.parametrize("seed", range(12))
def test_weak_prices_give_a_higher_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No flow reaches the bound of these prices. The flow of the program is used, and the plan states both rates."""
    monkeypatch.setattr(multiflow, "_roundings", lambda prices: [dict.fromkeys(prices, Fraction(1))])
    network = random_network(seed, 6)
    flow = all_to_all(network)
    assert_multiflow(network, flow)
    assert float(flow.rate) == pytest.approx(concurrent_flow(network), rel=0.011)


def test_any_positive_prices_bound_the_rate() -> None:
    network, dice = dgx_1v(), Random(1)
    for _ in range(10):
        prices = {arc: Fraction(dice.randint(0, 5), 7) for arc in network.capacity}
        assert price_bound(network, prices, range(network.terminals), 1) >= Fraction(3, 8)
    with pytest.raises(InternalError, match="prove no bound"):
        price_bound(network, {}, range(network.terminals), 1)


def test_one_way_streets_are_a_packing_error() -> None:
    with pytest.raises(PackingError, match="cannot reach another"):
        all_to_all(FlowNetwork(2, 2, ((0, 1, 1),)))


@pytest.mark.parametrize("seed", range(25))
def test_paths_carry_the_supply_within_the_flow(seed: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, dice.randint(2, 8), most=5)
    if seed % 2:
        value, flow = max_flow(network, 0, 1)
        supply = {0: value}
    else:
        rate, _, flow = gather_rate(network, 1)
        supply = {v: rate.numerator for v in range(network.n) if v != 1}
    used: dict[Arc, int] = {}
    ways = decompose(flow, supply, 1)
    assert sorted(ways) == sorted(supply)
    for source, paths in ways.items():
        assert_paths(paths, source, 1, supply[source], used)
    assert all(units <= flow[arc] for arc, units in used.items())


def test_paths_leave_out_cycles_of_the_flow() -> None:
    flow = {(0, 1): 2, (1, 2): 5, (2, 1): 3, (2, 3): 2}
    assert decompose(flow, {0: 2}, 3) == {0: [((0, 1, 2, 3), 2)]}


def test_a_flow_smaller_than_the_supply_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="not conserved"):
        decompose({(0, 1): 1}, {0: 2}, 1)
