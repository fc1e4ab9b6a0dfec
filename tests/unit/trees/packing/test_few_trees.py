"""A limited number of shallow trees per root: they span and fit; exhaustion shows that they are the best."""

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
    """The rate at which the most loaded link is full, by definition."""
    load: defaultdict[Arc, Fraction] = defaultdict(Fraction)
    for part, hops in trees:
        for u, v in hops:
            load[u, v] += part
    return min(network.capacity[arc] / carried for arc, carried in load.items())


def check(network: FlowNetwork, few: EqualTrees, most: int) -> None:
    """Assert spanning trees for whole blocks, at most ``most`` per root, at the stated rate."""
    for root, _, hops in few.trees:
        assert all(len(hop) == 2 for hop in hops)
        assert_tree(network.n, Arborescence(root, 1, tuple((hop[0], hop[1]) for hop in hops)))
    for root in range(network.n):
        parts = [part for r, part, _ in few.trees if r == root]
        assert len(parts) <= most
        assert sum(parts) == 1
    assert few.rate == rate_of(network, [(part, hops) for _, part, hops in few.trees])


def test_partitions_are_complete() -> None:
    for units, most in product(range(1, 8), range(1, 5)):
        candidates = {
            tuple(sorted(filter(None, parts), reverse=True)) for parts in product(range(units + 1), repeat=most)
        }
        partitions = list(shallow.partitions(units, most, units))
        assert sorted(partitions) == sorted(parts for parts in candidates if sum(parts) == units)


@pytest.mark.parametrize(
    ("most", "least_depth", "rate", "depth"),
    [(1, False, "2/3", 2), (2, True, "5/6", 2), (2, False, "6/7", 3), (3, False, "6/7", 2)],
)
def test_trees_of_a_dgx_1v(most: int, least_depth: bool, rate: str, depth: int) -> None:
    network = dgx_1v()
    few = shallow.few_trees(network, Fraction(6, 7), most, Fraction(1, 2), least_depth=least_depth)
    assert few is not None
    check(network, few, most)
    assert (few.rate, few.depth) == (Fraction(rate), depth)


@pytest.mark.parametrize("seed", range(30))
def test_one_tree_per_root_is_the_best_of_least_depth(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "MOST_TRIED", 1000)
    dice = Random(seed)
    network = random_digraph(dice, dice.randint(3, 4)) if seed % 2 else random_graph(dice, dice.randint(3, 4))
    rate, _ = allgather_rate(network)
    depth = max(map(network.eccentricity, range(network.n)))
    columns = tree_columns(network, range(network.n), depth)
    assert columns is not None
    by_root = [[arcs for r, arcs in columns if r == root] for root in range(network.n)]
    best = max(rate_of(network, [(Fraction(1), arcs) for arcs in trees]) for trees in product(*by_root))
    few = shallow.few_trees(network, rate, 1, best * Fraction(99, 100), least_depth=True)
    if len(symmetry_of(network).moves) == 1 and best < rate:
        assert few is not None
    if few is not None:
        check(network, few, 1)
        assert few.rate == best
    assert shallow.few_trees(network, rate, 1, best, least_depth=True) is None


@pytest.mark.parametrize("seed", range(20))
def test_more_trees_are_valid_and_faster_than_the_known_rate(seed: int) -> None:
    dice = Random(seed)
    network = random_graph(dice, dice.randint(3, 6))
    rate, _ = allgather_rate(network)
    known = rate / 2
    for most in (1, 2, 3):
        few = shallow.few_trees(network, rate, most, known)
        if few is not None:
            check(network, few, most)
            assert known < few.rate <= rate
            known = few.rate


def test_no_search_with_transit_at_the_bound_or_with_many_trees() -> None:
    half = Fraction(1, 2)
    switched = FlowNetwork(3, 2, ((0, 2, 1), (1, 2, 1), (2, 0, 1), (2, 1, 1)))
    assert shallow.few_trees(switched, Fraction(1), 2, half) is None
    assert shallow.few_trees(dgx_1v(), Fraction(6, 7), 2, Fraction(6, 7)) is None
    assert shallow.few_trees(dgx_1p(), Fraction(4, 7), shallow.MOST_UNITS + 1, half) is None


def test_widths_of_ten_digits_beside_one() -> None:
    wide = FlowNetwork(3, 3, tuple((u, v, 1 if 2 in (u, v) else 10**10) for u in range(3) for v in range(3) if u != v))
    rate, _ = allgather_rate(wide)
    few = shallow.few_trees(wide, rate, 2, rate / 1000)
    assert few is not None
    check(wide, few, 2)
    assert few.rate == rate


def test_a_program_of_too_many_trees_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "MOST_WEIGHTED", 10)
    assert shallow.few_trees(dgx_1v(), Fraction(6, 7), 3, Fraction(1, 2)) is None
    assert shallow.few_trees(one_way_ring(4), Fraction(1, 3), 1, Fraction(1, 4)) is not None


def test_an_undecided_program_gives_no_trees(monkeypatch: pytest.MonkeyPatch) -> None:
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
