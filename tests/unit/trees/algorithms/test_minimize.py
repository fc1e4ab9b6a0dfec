"""Few trees: the paper's threshold holds, and whole weights are integral and exact."""

from collections.abc import Sequence
from fractions import Fraction
from random import Random

import pytest

from blinkccl.trees.algorithms.blink import minimize_trees, pack_multiplicative
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.columns import Column, check_loads, pack_columns
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.multiplicities import MULTIPLES, whole_weights
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import out_tree_oracle, up_and_down_oracle
from blinkccl.trees.packing.undirected import strength, undirected_widths
from support.small_networks import dgx_1v, random_digraph, random_graph, random_switched

PAPERS = Fraction(1, 20)


def candidates(network: FlowNetwork, *, undirected: bool) -> list[Column]:
    oracle = up_and_down_oracle(network, 0) if undirected else out_tree_oracle(network, [0])
    packing = pack_multiplicative(network.capacity, oracle, Fraction(1, 20))
    return [column for column, _ in sorted(packing.columns, key=lambda part: -part[1])]


def total(chosen: Sequence[tuple[Column, Fraction]]) -> Fraction:
    return sum((weight for _, weight in chosen), Fraction(0))


@pytest.mark.parametrize("threshold", [PAPERS, Fraction(1, 4), Fraction(1, 2)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_few_trees_within_the_threshold(seed: int, threshold: Fraction) -> None:
    dice = Random(seed)
    undirected = seed % 2 == 0
    network = random_graph(dice, dice.randint(3, 7)) if undirected else random_digraph(dice, dice.randint(3, 7))
    optimum = (
        strength(network.n, undirected_widths(network))[0] if undirected else Fraction(broadcast_rate(network, 0)[0])
    )
    many = candidates(network, undirected=undirected)
    few = minimize_trees(many, network.capacity, optimum, threshold)
    if few is None:
        assert threshold == PAPERS, "multiplicative weights are themselves within 5 %"
        return
    check_loads(few, network.capacity, [Fraction(1)], total(few))
    assert (1 - threshold) * optimum <= total(few) <= optimum
    assert all(weight > 0 for _, weight in few)
    assert len({column.loads for column, _ in few}) == len(few) <= len(many)


def test_candidates_that_cannot_reach_the_threshold_are_refused() -> None:
    network = dgx_1v()
    one = candidates(network, undirected=False)[:1]
    assert minimize_trees(one, network.capacity, Fraction(6), PAPERS) is None


@pytest.mark.parametrize("seed", range(8))
def test_whole_weights_reach_the_optimum_with_small_denominators(seed: int) -> None:
    network = random_switched(Random(seed), 4, 2, balanced=True)
    demand = [Fraction(1)] * 4
    packing = pack_columns(network.capacity, demand, out_tree_oracle(network, list(range(4))))
    assert packing.rate == allgather_rate(network)[0]
    weights = whole_weights(packing.pool, network.capacity, demand, packing.rate)
    if weights is not None:
        check_loads(weights, network.capacity, demand, packing.rate)
        assert any((packing.rate.denominator * k * w).denominator == 1 for k in MULTIPLES for _, w in weights)
        largest = packing.rate.denominator * max(MULTIPLES)
        assert all(w.denominator <= largest for _, w in weights)


def test_whole_weights_that_do_not_exist_are_none() -> None:
    """Two columns cannot both use a link of capacity 1, at any scale."""
    columns = [Column(0, (((0, 1), 1),), "a"), Column(1, (((0, 1), 1),), "b")]
    demand = [Fraction(1)] * 2
    assert whole_weights(columns, {(0, 1): 1}, demand, Fraction(1)) is None
    halves = whole_weights(columns, {(0, 1): 1}, demand, Fraction(1, 2))
    assert halves is not None
    assert [weight for _, weight in halves] == [Fraction(1, 2)] * 2
