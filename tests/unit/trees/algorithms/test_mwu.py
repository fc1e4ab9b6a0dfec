"""Multiplicative weights: within the links, and never below (1 − ε) of the optimum."""

from fractions import Fraction
from random import Random

import pytest

from blinkccl.errors import UsageError
from blinkccl.trees.algorithms.blink import ApproximatePacking, pack_multiplicative
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.columns import Oracle, check_loads, pack_columns
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import out_tree_oracle, paths_oracle, relay_oracle, up_and_down_oracle
from blinkccl.trees.packing.undirected import strength, undirected_widths
from support.small_networks import dgx_1v, random_digraph, random_graph, random_switched

EPSILONS = (Fraction(1, 2), Fraction(1, 5), Fraction(1, 10), Fraction(1, 20))
ROUNDING = 1e-9


def broadcast(dice: Random) -> tuple[FlowNetwork, Oracle, Fraction]:
    network = random_digraph(dice, dice.randint(2, 7), most=dice.choice([1, 4, 1000]))
    return network, out_tree_oracle(network, [0]), Fraction(broadcast_rate(network, 0)[0])


def allreduce(dice: Random) -> tuple[FlowNetwork, Oracle, Fraction]:
    network = random_graph(dice, dice.randint(2, 7), most=dice.choice([1, 4, 1000]))
    return network, up_and_down_oracle(network, 0), strength(network.n, undirected_widths(network))[0]


def gather(dice: Random) -> tuple[FlowNetwork, Oracle, Fraction]:
    network = random_switched(dice, dice.randint(2, 5), 2, balanced=False)
    return network, paths_oracle(network, 0), gather_rate(network, 0)[0]


def relay(dice: Random) -> tuple[FlowNetwork, Oracle, Fraction]:
    network = random_graph(dice, dice.randint(2, 5))
    oracle = relay_oracle(network, 0)
    return network, oracle, pack_columns(network.capacity, [Fraction(1)], oracle).rate


#: Kind of packing → (network, oracle, the optimum by combinatorics).
PROBLEMS = {make.__name__: make for make in (broadcast, allreduce, gather, relay)}


def assert_guarantee(network: FlowNetwork, packing: ApproximatePacking, optimum: Fraction, epsilon: Fraction) -> None:
    check_loads(packing.columns, network.capacity, [Fraction(1)], packing.rate)
    assert packing.rate <= optimum <= packing.bound * (1 + ROUNDING)
    assert packing.rate >= (1 - epsilon) * packing.bound * (1 - ROUNDING)


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_guarantee_holds(name: str, epsilon: Fraction, seed: int) -> None:
    network, oracle, optimum = PROBLEMS[name](Random(seed))
    assert_guarantee(network, pack_multiplicative(network.capacity, oracle, epsilon), optimum, epsilon)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1, 50)], ids=str)
def test_the_guarantee_holds_on_a_dgx_1v(epsilon: Fraction) -> None:
    network = dgx_1v()
    packing = pack_multiplicative(network.capacity, out_tree_oracle(network, [0]), epsilon)
    assert_guarantee(network, packing, Fraction(6), epsilon)
    assert packing.iterations < 16 * 32 * 4 / epsilon**2


def test_the_same_input_gives_the_same_packing() -> None:
    network = dgx_1v()
    runs = [pack_multiplicative(network.capacity, up_and_down_oracle(network, 0), Fraction(1, 10)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("epsilon", [Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(2)])
def test_an_epsilon_out_of_range_is_refused(epsilon: Fraction) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        pack_multiplicative({(0, 1): 1}, out_tree_oracle(FlowNetwork(2, 2, ((0, 1, 1),)), [0]), epsilon)
