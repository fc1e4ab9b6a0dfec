"""AllReduce over one-way links: the bound is that of all pairs of trees, and integer trees fit into the links."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import PackingError
from blinkccl.trees.algorithms import bounds
from blinkccl.trees.packing.columns import dual_bound, pack_columns
from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import in_and_out_oracle
from blinkccl.trees.packing.phases import Pair, Phases, paired
from blinkccl.trees.packing.shallow import out_trees
from support.planned import plan
from support.small_networks import assert_tree, one_way_ring, random_digraph


def assert_pairs(network: FlowNetwork, pairs: list[Pair] | None, trees: int, limits: list[int]) -> None:
    """Assert ``trees`` spanning trees in both directions that load no arc above its limit."""
    assert pairs is not None
    load: Counter[Arc] = Counter()
    for root, units, up, down in pairs:
        assert_tree(network.n, Arborescence(root, units, up))
        assert_tree(network.n, Arborescence(root, units, down))
        load.update(dict.fromkeys(down, units))
        load.update(dict.fromkeys(((v, u) for u, v in up), units))
    assert sum(units for _, units, _, _ in pairs) == trees
    most = {(u, v): limit for (u, v, _), limit in zip(network.arcs, limits, strict=True)}
    assert all(used <= most.get(arc, 0) for arc, used in load.items())


def proved(network: FlowNetwork, phases: Phases) -> bool:
    return dual_bound(network.capacity, [Fraction(1)], in_and_out_oracle(network), phases.prices) == phases.bound


@given(st.integers(0, 1 << 30), st.integers(2, 7), st.sampled_from([0.0, 0.2, 0.6]))
def test_the_bound_is_the_optimum_of_all_pairs_of_trees(seed: int, n: int, density: float) -> None:
    network = random_digraph(Random(seed), n, density=density)
    phases = Phases(network)
    assert phases.tight
    assert proved(network, phases)
    assert phases.bound == pack_columns(network.capacity, [Fraction(1)], in_and_out_oracle(network)).rate


@pytest.mark.parametrize("seed", range(12))
def test_integer_trees_reach_the_optimum_and_no_more(seed: int) -> None:
    network = random_digraph(Random(seed), 4 + seed % 7)
    phases = Phases(network)
    for multiple in (1, 2, 3):
        limits = [c * phases.bound.denominator * multiple for _, _, c in network.arcs]
        trees = phases.bound.numerator * multiple
        assert phases.pairs(trees + 1, limits) is None
        pairs = phases.pairs(trees, limits)
        if pairs is not None:
            assert_pairs(network, pairs, trees, limits)
            return
    pytest.fail("no whole trees at the optimum")


def best_of_all(network: FlowNetwork, most: int) -> Fraction:
    """The best rate over all assignments of equal parts of the data to at most ``most`` trees up and down."""
    turned = FlowNetwork(network.n, network.n, tuple(sorted((v, u, c) for u, v, c in network.arcs)))
    loads = []
    for root in range(network.n):
        ups, downs = (list(out_trees(one, root, network.n - 1)) for one in (turned, network))
        loads += [Counter([*((v, u) for u, v in up), *down]) for up in ups for down in downs]
    best = Fraction(0)
    for trees in range(1, most + 1):
        for chosen in combinations_with_replacement(loads, trees):
            load = sum(chosen, Counter[Arc]())
            best = max(best, min(Fraction(network.capacity[arc] * trees, used) for arc, used in load.items()))
    return best


@pytest.mark.parametrize(("n", "density", "most"), [(2, 0.5, 4), (3, 0.3, 3), (3, 0.8, 3), (4, 0.1, 3), (4, 0.2, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_few_trees_have_the_best_possible_rate(n: int, density: float, most: int, seed: int) -> None:
    network = random_digraph(Random(seed), n, density=density)
    rate, trees, pairs = Phases(network).fastest(most)
    assert trees <= most
    assert_pairs(network, pairs, trees, [int(trees * c / rate) for _, _, c in network.arcs])
    assert rate == best_of_all(network, most)


@pytest.mark.parametrize("spec", ["oneway:5", "random:9:directed", "random:24:directed"])
def test_no_more_trees_than_asked_for_over_one_way_links(spec: str) -> None:
    rates = []
    for most in (1, 2, 3, 8):
        forest = plan("optimal", spec, None, "allreduce", max_trees=most)
        assert len(forest.shares) <= most
        rates.append(forest.rate)
    assert rates == sorted(rates)
    assert rates[-1] == forest.bound


def test_multiplicities_of_trees_up_and_down_are_split_into_pairs() -> None:
    ups = {2: [Arborescence(2, 3, ((2, 0),)), Arborescence(2, 2, ((2, 1),))]}
    downs = {2: [Arborescence(2, 1, ((0, 1),)), Arborescence(2, 4, ((1, 0),))]}
    a, b, c, d = ((2, 0),), ((2, 1),), ((0, 1),), ((1, 0),)
    assert paired(ups, downs) == [(2, 1, a, c), (2, 2, a, d), (2, 2, b, d)]


@pytest.mark.parametrize(("n", "steps"), [(5, {1: 1}), (6, {1: 2, 2: 1}), (7, {1: 1, 3: 2}), (8, {1: 1, 2: 1, 5: 3})])
def test_symmetric_ranks_have_the_rate_of_their_degree(n: int, steps: dict[int, int]) -> None:
    arcs = tuple(sorted((v, (v + step) % n, units) for step, units in steps.items() for v in range(n)))
    network = FlowNetwork(n, n, arcs)
    phases = Phases(network)
    # All ranks have equal capacity in and out, and the n − 1 hops of each tree need both.
    assert phases.bound == Fraction(n * sum(steps.values()), 2 * (n - 1))
    assert proved(network, phases)


def test_ranks_without_a_way_back_are_refused() -> None:
    with pytest.raises(PackingError, match="cannot be reached"):
        Phases(FlowNetwork(3, 3, ((0, 1, 1), (1, 0, 1), (1, 2, 4))))


@pytest.mark.parametrize(
    ("spec", "rate", "trees", "depth"),
    [
        ("oneway:6", Fraction(3, 5), 3, 5),
        ("random:16:directed", Fraction(5), 5, 6),
        ("random:32:directed", Fraction(7), 7, 6),
    ],
)
def test_plans_have_few_trees_and_no_columns_are_priced(
    spec: str, rate: Fraction, trees: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "pack_columns", None)
    forest = plan("optimal", spec, None, "allreduce")
    assert forest.rate == forest.bound == rate
    assert (len(forest.shares), forest.depth) == (trees, depth)


def test_a_long_ring_has_one_tree_near_the_optimum() -> None:
    forest = plan("optimal", "oneway:130", None, "allreduce")
    assert (forest.rate, forest.bound, len(forest.shares)) == (Fraction(1, 2), Fraction(65, 129), 1)
    exact = plan("optimal", "oneway:130", None, "allreduce", objective="exact")
    assert exact.rate == exact.bound == Fraction(65, 129)
    assert Phases(one_way_ring(3)).bound == Fraction(3, 4)
