"""AllReduce through switches by an orientation: the optimum of all trees, proved, and trees that reach it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.topology.select import network_for
from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.bounds import reduce_broadcast_packing
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.packing import orientation, splitting
from blinkccl.trees.packing.columns import dual_bound
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import in_and_out_oracle
from blinkccl.trees.packing.orientation import Orientation, orientation_of, pack_through_switches
from blinkccl.trees.packing.undirected import strength, undirected_widths
from support.planned import plan


@st.composite
def symmetric_networks(draw: st.DrawFn, transit: int = 3) -> FlowNetwork:
    """Random widths, the same both ways; every terminal is reached, in a line or through the first switch."""
    terminals = draw(st.integers(2, 6))
    n = terminals + draw(st.integers(0, transit))
    width = {(u, v): draw(st.integers(0, 6)) for v in range(n) for u in range(v)}
    hub = terminals if n > terminals and draw(st.booleans()) else None
    for v in range(terminals):
        edge = (v, hub) if hub is not None else (v, v + 1)
        if edge[1] < n and (hub is not None or edge[1] < terminals):
            width[edge] = max(1, width[edge])
    both = {(u, v): c for (u, v), c in width.items()} | {(v, u): c for (u, v), c in width.items()}
    return FlowNetwork(n, terminals, tuple((u, v, c) for (u, v), c in sorted(both.items()) if c))


def assert_reaches(network: FlowNetwork, found: Orientation) -> None:
    """The trees span, use hops of the network, and load no link more than its share of the rate, either way."""
    trees = pack_through_switches(found)
    assert trees is not None
    assert sum(part for part, _ in trees) == 1
    load: defaultdict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for part, hops in trees:
        assert all(x >= network.terminals for hop in hops for x in hop[1:-1])
        graph = networkx.Graph([(hop[0], hop[-1]) for hop in hops])
        graph.add_nodes_from(range(network.terminals))
        assert networkx.is_tree(graph)
        assert len(graph) == network.terminals
        for hop in hops:
            for u, v in pairwise(hop):
                load[u, v] += part
                load[v, u] += part
    assert all(found.rate * part <= network.capacity[arc] for arc, part in load.items())


@given(symmetric_networks())
def test_it_is_the_optimum_of_all_pairs_of_trees(network: FlowNetwork) -> None:
    found = orientation_of(network)
    assert found is not None
    assert found.rate == reduce_broadcast_packing(network).rate
    assert dual_bound(network.capacity, [Fraction(1)], in_and_out_oracle(network), found.prices) == found.rate
    assert_reaches(network, found)


@given(symmetric_networks(transit=0))
def test_without_switches_it_is_the_strength(network: FlowNetwork) -> None:
    found = orientation_of(network)
    assert found is not None
    assert found.rate == strength(network.n, undirected_widths(network))[0]


@pytest.mark.parametrize(
    ("spec", "gpus", "rate", "most"),
    [
        ("2x dgx-a100", "0-7+0-6", Fraction(111, 16), 111),
        ("2x hgx-h100", "0-7+0-5", Fraction(43, 8), 43),
        ("4x hgx-h100", "0-7+0-6+0-5+0-4", Fraction(13, 3), 13),
        ("4x dgx-a100", "0-7+0-7+0-7+0-6", Fraction(31, 6), 31),
    ],
)
def test_unequal_servers(spec: str, gpus: str, rate: Fraction, most: int) -> None:
    topology, ranks = load(spec, gpus)
    network = rank_network_of(network_for(topology, ranks), ranks).network
    found = orientation_of(network)
    assert found is not None
    assert found.rate == rate
    assert_reaches(network, found)
    trees = pack_through_switches(found)
    assert trees is not None
    assert max(part.denominator for part, _ in trees) <= most


def line() -> FlowNetwork:
    return FlowNetwork(3, 3, ((0, 1, 2), (1, 0, 2), (1, 2, 3), (2, 1, 3)))


@pytest.mark.parametrize("wrong", ["too much", "no proof", "free"])
def test_nothing_of_the_program_is_believed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert orientation_of(line()) is not None
    program = orientation._Orienting
    solved = program.solved

    def told(self: orientation._Orienting, cost: Sequence[float]) -> tuple[list[float], list[float]]:
        values, duals = solved(self, cost)
        if wrong == "too much":
            values = [2 * value for value in values]
        return values, duals if wrong == "too much" else [
            0.5 * y if wrong == "no proof" and y < -0.1 else 0.0 for y in duals
        ]

    if wrong == "no proof":  # a price of the wide link as well
        monkeypatch.setattr(program, "prices", lambda self, _: dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1)], 1.0))
    else:
        monkeypatch.setattr(program, "solved", told)
    assert orientation_of(line()) is None


def test_a_network_with_lengthy_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no short fraction is the optimum there is none."""
    monkeypatch.setattr(orientation, "LARGEST_DENOMINATOR", 1)
    triangle = FlowNetwork(3, 3, tuple((u, v, 1) for u in range(3) for v in range(3) if u != v))
    assert orientation_of(triangle) is None


def test_switches_that_cannot_be_taken_out() -> None:
    network = FlowNetwork(3, 2, ((0, 2, 1), (2, 1, 1)))
    assert pack_through_switches(Orientation(Fraction(2), 1, network, {})) is None


def test_columns_serve_where_switches_are_too_many_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same optimum, by the trees of the program that came before."""
    asked_for = ("optimal", "2x dgx-a100 @ 200Gbps", "0-4+0-4,6", "allreduce")
    split = plan(*asked_for, objective="exact")
    monkeypatch.setattr(splitting, "MOST_FLOWS", 0)
    monkeypatch.setattr(splitting._Splitting, "_may_be", lambda *_: False)
    columns = plan(*asked_for, objective="exact")
    assert columns.rate == columns.bound == split.rate
    assert columns.longest_weight != split.longest_weight
