"""AllReduce through switches by an orientation: a proved optimum over all trees, and trees that reach it."""

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
    """Random symmetric widths. A line or the first switch connects all terminals."""
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


def assert_reaches(network: FlowNetwork, optimum: Orientation) -> None:
    """Assert trees that span, use existing hops, and load no link above its capacity in either direction."""
    trees = pack_through_switches(optimum)
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
    assert all(optimum.rate * part <= network.capacity[arc] for arc, part in load.items())


@given(symmetric_networks())
def test_the_rate_is_the_optimum_of_all_pairs_of_trees(network: FlowNetwork) -> None:
    optimum = orientation_of(network)
    assert optimum is not None
    assert optimum.rate == reduce_broadcast_packing(network).rate
    assert dual_bound(network.capacity, [Fraction(1)], in_and_out_oracle(network), optimum.prices) == optimum.rate
    assert_reaches(network, optimum)


@given(symmetric_networks(transit=0))
def test_without_switches_the_rate_is_the_strength(network: FlowNetwork) -> None:
    optimum = orientation_of(network)
    assert optimum is not None
    assert optimum.rate == strength(network.n, undirected_widths(network))[0]


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
    optimum = orientation_of(network)
    assert optimum is not None
    assert optimum.rate == rate
    assert_reaches(network, optimum)
    trees = pack_through_switches(optimum)
    assert trees is not None
    assert max(part.denominator for part, _ in trees) <= most


def line() -> FlowNetwork:
    return FlowNetwork(3, 3, ((0, 1, 2), (1, 0, 2), (1, 2, 3), (2, 1, 3)))


@pytest.mark.parametrize("wrong", ["too much", "no proof", "free"])
def test_wrong_numbers_of_the_solver_are_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert orientation_of(line()) is not None
    program = orientation._Orienting
    solved = program.solved

    def wrong_numbers(self: orientation._Orienting, cost: Sequence[float]) -> tuple[list[float], list[float]]:
        values, duals = solved(self, cost)
        if wrong == "too much":
            values = [2 * value for value in values]
        return values, duals if wrong == "too much" else [
            0.5 * y if wrong == "no proof" and y < -0.1 else 0.0 for y in duals
        ]

    if wrong == "no proof":  # with a price of the wide link too
        monkeypatch.setattr(program, "prices", lambda self, _: dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1)], 1.0))
    else:
        monkeypatch.setattr(program, "solved", wrong_numbers)
    assert orientation_of(line()) is None


def test_an_optimum_that_is_no_short_fraction_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orientation, "LARGEST_DENOMINATOR", 1)
    triangle = FlowNetwork(3, 3, tuple((u, v, 1) for u in range(3) for v in range(3) if u != v))
    assert orientation_of(triangle) is None


def test_switches_that_cannot_be_removed_give_no_packing() -> None:
    network = FlowNetwork(3, 2, ((0, 2, 1), (2, 1, 1)))
    assert pack_through_switches(Orientation(Fraction(2), 1, network, {})) is None


def test_columns_give_the_optimum_if_switches_have_too_many_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is the same, with the trees of column generation."""
    arguments = ("optimal", "2x dgx-a100 @ 200Gbps", "0-4+0-4,6", "allreduce")
    split = plan(*arguments, objective="exact")
    monkeypatch.setattr(splitting, "MOST_FLOWS", 0)
    monkeypatch.setattr(splitting._Splitting, "_may_be", lambda *_: False)
    columns = plan(*arguments, objective="exact")
    assert columns.rate == columns.bound == split.rate
    assert columns.longest_weight != split.longest_weight
