"""At most so many shallow trees per root: they span, fit and are as few as asked; the best there are, by exhaustion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from blinkccl.trees.packing import shallow
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.shallow import tree_columns
from blinkccl.trees.packing.symmetry import symmetry_of
from support.planned import plan
from support.small_networks import (
    assert_tree,
    dgx_1p,
    dgx_1v,
    one_way_ring,
    random_digraph,
    random_graph,
)


def rate_of(network: FlowNetwork, trees: Sequence[tuple[Fraction, Sequence[Sequence[int]]]]) -> Fraction:
    """The rate at which the fullest link is full, by definition."""
    load: defaultdict[Arc, Fraction] = defaultdict(Fraction)
    for part, hops in trees:
        for u, v in hops:
            load[u, v] += part
    return min(network.capacity[arc] / carried for arc, carried in load.items())


def check(network: FlowNetwork, found: EqualTrees, most: int) -> None:
    """Whole blocks by spanning trees, at most ``most`` each, at the rate that is said."""
    for root, _, hops in found.trees:
        assert all(len(hop) == 2 for hop in hops)
        assert_tree(network.n, Arborescence(root, 1, tuple((hop[0], hop[1]) for hop in hops)))
    for root in range(network.n):
        parts = [part for r, part, _ in found.trees if r == root]
        assert len(parts) <= most
        assert sum(parts) == 1
    assert found.rate == rate_of(network, [(part, hops) for _, part, hops in found.trees])


def test_partitions_are_all_there_are() -> None:
    for units, most in product(range(1, 8), range(1, 5)):
        wanted = {tuple(sorted(filter(None, parts), reverse=True)) for parts in product(range(units + 1), repeat=most)}
        found = list(shallow.partitions(units, most, units))
        assert sorted(found) == sorted(parts for parts in wanted if sum(parts) == units)


@pytest.mark.parametrize(
    ("most", "least_depth", "rate", "depth"),
    [(1, False, "2/3", 2), (2, True, "5/6", 2), (2, False, "6/7", 3), (3, False, "6/7", 2)],
)
def test_a_dgx_1v(most: int, least_depth: bool, rate: str, depth: int) -> None:
    network = dgx_1v()
    found = shallow.few_trees(network, Fraction(6, 7), most, Fraction(1, 2), least_depth=least_depth)
    assert found is not None
    check(network, found, most)
    assert (found.rate, found.depth) == (Fraction(rate), depth)


@pytest.mark.parametrize("seed", range(30))
def test_one_tree_per_root_is_the_best_of_least_depth(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "MOST_TRIED", 1000)
    dice = Random(seed)
    network = random_digraph(dice, dice.randint(3, 4)) if seed % 2 else random_graph(dice, dice.randint(3, 4))
    rate, _ = allgather_rate(network)
    depth = max(map(network.eccentricity, range(network.n)))
    columns = tree_columns(network, range(network.n), depth)
    assert columns is not None
    mine = [[arcs for r, arcs in columns if r == root] for root in range(network.n)]
    best = max(rate_of(network, [(Fraction(1), arcs) for arcs in trees]) for trees in product(*mine))
    found = shallow.few_trees(network, rate, 1, best * Fraction(99, 100), least_depth=True)
    if len(symmetry_of(network).moves) == 1 and best < rate:
        assert found is not None
    if found is not None:
        check(network, found, 1)
        assert found.rate == best
    assert shallow.few_trees(network, rate, 1, best, least_depth=True) is None


@pytest.mark.parametrize("seed", range(20))
def test_more_trees_are_sound_and_above_what_was_known(seed: int) -> None:
    dice = Random(seed)
    network = random_graph(dice, dice.randint(3, 6))
    rate, _ = allgather_rate(network)
    known = rate / 2
    for most in (1, 2, 3):
        found = shallow.few_trees(network, rate, most, known)
        if found is not None:
            check(network, found, most)
            assert known < found.rate <= rate
            known = found.rate


def test_where_none_are_looked_for() -> None:
    half = Fraction(1, 2)
    switched = FlowNetwork(3, 2, ((0, 2, 1), (1, 2, 1), (2, 0, 1), (2, 1, 1)))
    assert shallow.few_trees(switched, Fraction(1), 2, half) is None
    assert shallow.few_trees(dgx_1v(), Fraction(6, 7), 2, Fraction(6, 7)) is None
    assert shallow.few_trees(dgx_1p(), Fraction(4, 7), shallow.MOST_UNITS + 1, half) is None


def test_widths_of_ten_digits_beside_one() -> None:
    wide = FlowNetwork(3, 3, tuple((u, v, 1 if 2 in (u, v) else 10**10) for u in range(3) for v in range(3) if u != v))
    rate, _ = allgather_rate(wide)
    found = shallow.few_trees(wide, rate, 2, rate / 1000)
    assert found is not None
    check(wide, found, 2)
    assert found.rate == rate


def test_too_many_trees_are_not_chosen_among(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "MOST_WEIGHTED", 10)
    assert shallow.few_trees(dgx_1v(), Fraction(6, 7), 3, Fraction(1, 2)) is None
    assert shallow.few_trees(one_way_ring(4), Fraction(1, 3), 1, Fraction(1, 4)) is not None


def test_a_program_that_is_not_decided_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "MOST_NODES", 0)
    assert shallow.few_trees(dgx_1v(), Fraction(6, 7), 2, Fraction(5, 6)) is None


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_plans_of_few_trees(collective: str) -> None:
    for most, objective, rate, depth in (
        (1, "shallow", Fraction(16, 3), 2),
        (2, "least-depth", Fraction(20, 3), 2),
        (2, "shallow", Fraction(48, 7), 3),
        (3, "shallow", Fraction(48, 7), 2),
    ):
        forest = plan("optimal", "dgx-1v", None, collective, max_trees=most, objective=objective)
        assert (forest.rate, forest.depth) == (rate, depth)
        assert forest.trees_per_block == most
