"""Column generation: exact rates, exact proofs, and the exact elimination below both."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from blinkccl.errors import InternalError
from blinkccl.trees.packing.columns import Column, check_loads, dual_bound, pack_columns, solve_exactly
from blinkccl.trees.packing.oracles import in_and_out_oracle, loads_of, out_tree_oracle, up_and_down_oracle
from blinkccl.trees.packing.undirected import strength, undirected_widths
from support.small_networks import assert_exact, dgx_1v, one_way_ring, random_graph

ONE = [Fraction(1)]


@pytest.mark.parametrize("seed", range(10))
def test_in_and_out_trees_reach_the_strength_on_symmetric_links(seed: int) -> None:
    dice = Random(seed)
    network = random_graph(dice, dice.randint(2, 6))
    tau = strength(network.n, undirected_widths(network))[0]
    for oracle in (in_and_out_oracle(network), up_and_down_oracle(network, 0)):
        packing = pack_columns(network.capacity, ONE, oracle)
        assert_exact(packing, network, ONE)
        assert packing.rate == tau


def test_unequal_demands_are_met_in_their_proportion() -> None:
    network, demand = dgx_1v(), [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    packing = pack_columns(network.capacity, demand, out_tree_oracle(network, [0, 1, 2]))
    assert_exact(packing, network, demand)


def test_seeds_are_preferred_and_a_target_ends_the_search() -> None:
    ring = one_way_ring(4)
    whole = tuple(((i, (i + 1) % 4), 1) for i in range(3))
    seed = Column(0, whole, "the only tree")
    calls = 0

    def oracle(prices: object) -> list[Column]:
        nonlocal calls
        calls += 1
        return [seed]

    packing = pack_columns(ring.capacity, ONE, oracle, seeds=[seed], target=Fraction(1))
    assert packing.columns == ((seed, Fraction(1)),)
    assert (packing.rate, packing.bound, packing.prices) == (1, 1, {})
    assert calls == 0


def test_any_positive_prices_bound_the_rate() -> None:
    network = dgx_1v()
    oracle = out_tree_oracle(network, [0])
    dice = Random(3)
    for _ in range(10):
        prices = {arc: Fraction(dice.randint(1, 9), dice.randint(1, 9)) for arc in network.capacity}
        assert dual_bound(network.capacity, ONE, oracle, prices) >= 6
    with pytest.raises(InternalError, match="prove no bound"):
        dual_bound(network.capacity, ONE, oracle, {})


def test_wrong_weights_are_refused() -> None:
    column = Column(0, (((0, 1), 2),), None)
    for weight, rate, reason in [
        (Fraction(-1), Fraction(-1), "negative"),
        (Fraction(1), Fraction(2), "do not sum"),
        (Fraction(1), Fraction(1), "overloads"),
    ]:
        with pytest.raises(InternalError, match=reason):
            check_loads([(column, weight)], {(0, 1): 1}, ONE, rate)


@pytest.mark.parametrize("seed", range(40))
def test_elimination_solves_random_systems_exactly(seed: int) -> None:
    dice = Random(seed)
    size = dice.randint(1, 9)
    matrix = [
        {
            j: Fraction(dice.randint(1, 9) * dice.choice([-1, 1]), dice.randint(1, 5))
            for j in range(size)
            if j == i or dice.random() < 0.4
        }
        for i in range(size)
    ]
    dice.shuffle(matrix)
    solution = [Fraction(dice.randint(-9, 9), dice.randint(1, 7)) for _ in range(size)]
    right = [sum((x * solution[j] for j, x in row.items()), Fraction(0)) for row in matrix]
    dense = np.array([[float(row.get(j, 0)) for j in range(size)] for row in matrix])
    before = [dict(row) for row in matrix]
    if abs(np.linalg.det(dense)) > 1e-9:
        assert solve_exactly(matrix, right) == solution
    else:
        with pytest.raises(InternalError, match="singular"):
            solve_exactly(matrix, right)
    assert matrix == before


def test_singular_and_non_square_systems_are_refused() -> None:
    twice = [{0: Fraction(1), 1: Fraction(2)}, {0: Fraction(2), 1: Fraction(4)}]
    with pytest.raises(InternalError, match="singular"):
        solve_exactly(twice, [Fraction(1), Fraction(2)])
    with pytest.raises(InternalError, match="not square"):
        solve_exactly(twice, [Fraction(1)])


def test_a_columns_cost_counts_every_crossing() -> None:
    hops = ((0, 2), (0, 3, 1), (2, 3, 1))
    loads = loads_of(hops)
    assert loads == {(0, 2): 1, (0, 3): 1, (3, 1): 2, (2, 3): 1}
    column = Column(0, tuple(sorted(loads.items())), hops)
    assert column.cost({(3, 1): Fraction(1, 2), (0, 2): 3}) == 4
