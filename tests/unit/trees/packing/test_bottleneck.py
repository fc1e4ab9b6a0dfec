"""Bottleneck ratios against all vertex sets."""

from collections.abc import Callable
from fractions import Fraction
from random import Random

import networkx as nx
import pytest

from blinkccl.errors import PackingError
from blinkccl.trees.packing.bottleneck import allgather_rate, gather_rate, short_cuts
from blinkccl.trees.packing.network import FlowNetwork
from support.small_networks import least_ratio, random_digraph, random_network


def flow_from_all(network: FlowNetwork, units: list[int], sink: int) -> int:
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(network.arcs, "capacity")
    graph.add_weighted_edges_from((("all", r, k) for r, k in enumerate(units)), "capacity")
    return int(nx.maximum_flow_value(graph, "all", sink))


def attained(network: FlowNetwork, side: tuple[int, ...]) -> Fraction:
    return Fraction(network.leaving(side), sum(v < network.terminals for v in side))


@pytest.mark.parametrize("seed", range(60))
def test_allgather_is_the_least_ratio_over_all_sets(seed: int) -> None:
    network = random_network(seed, 7)
    rate, side = allgather_rate(network)
    assert rate == least_ratio(network) == attained(network, side)
    assert any(v not in side for v in range(network.terminals))


@pytest.mark.parametrize("seed", range(60))
def test_gather_is_the_least_ratio_over_sets(seed: int) -> None:
    network = random_network(seed, 7)
    root = Random(seed).randrange(network.terminals)
    rate, side, flow = gather_rate(network, root)
    assert rate == least_ratio(network, to=root) == attained(network, side)
    assert root not in side
    assert all(0 < f <= network.capacity[arc] * rate.denominator for arc, f in flow.items())
    for v in range(network.n):
        net = sum(f for (u, _), f in flow.items() if u == v) - sum(f for (_, w), f in flow.items() if w == v)
        sent = rate.numerator if v < network.terminals else 0
        assert net == (sent if v != root else -sent * (network.terminals - 1))


@pytest.mark.parametrize("size", [6, 40])
@pytest.mark.parametrize("seed", range(10))
def test_every_terminal_that_lacks_units_has_a_violated_cut(seed: int, size: int) -> None:
    dice = Random(seed)
    network = random_digraph(dice, size, density=0.2)
    units = [dice.randint(0, 2 * seed // size) for _ in range(size)]
    lacking = [v for v in range(size) if flow_from_all(network, units, v) < sum(units)]
    sides = list(short_cuts(network, units))
    assert len(sides) == len(lacking)
    for v, side in zip(lacking, sides, strict=True):
        assert v not in side
        assert network.leaving(side) < sum(units[r] for r in side)


@pytest.mark.parametrize("rate_of", [allgather_rate, lambda network: gather_rate(network, 2)])
def test_terminals_that_cannot_be_reached_are_named(rate_of: Callable[[FlowNetwork], object]) -> None:
    with pytest.raises(PackingError, match=r"terminals 0, 1 cannot reach|no capacity enters"):
        rate_of(FlowNetwork(3, 3, ((0, 1, 1), (1, 0, 1), (2, 0, 1))))
    with pytest.raises(PackingError, match=r"cannot reach the others|no capacity enters|cannot reach 2"):
        rate_of(FlowNetwork(4, 4, ((0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1))))


def test_one_terminal_is_no_bottleneck() -> None:
    with pytest.raises(PackingError, match="at least two"):
        allgather_rate(FlowNetwork(1, 1, ()))
    with pytest.raises(PackingError, match="at least two"):
        gather_rate(FlowNetwork(2, 1, ((0, 1, 1),)), 0)
