"""The bound on orders of summation: no order of few terminals exceeds it, and an order reaches it with few links."""

from fractions import Fraction
from random import Random

import pytest

from blinkccl.trees.algorithms.order import MOST_CLIQUES, order_bound
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.packing.nested_groups import NestedGroup, neighbours, pack_group
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import cheapest_hops
from support.planned import asked


def every_group(count: int) -> list[NestedGroup]:
    groups = [NestedGroup(tuple(range(count)))]
    known = set(groups)
    for group in groups:
        fresh = [each for each in neighbours(group) if each not in known]
        known.update(fresh)
        groups += fresh
    return groups


def random_network(random: Random, size: int, symmetric: bool) -> FlowNetwork:
    width = {}
    for u in range(size):
        for v in range(u):
            if u == v + 1 or random.random() < 0.3:
                width[u, v], width[v, u] = random.randint(1, 4), random.randint(1, 4)
                if symmetric:
                    width[v, u] = width[u, v]
    return FlowNetwork(size, size, tuple((u, v, c) for (u, v), c in sorted(width.items())))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_no_order_exceeds_it(size: int) -> None:
    for seed in range(12 if size < 5 else 3):
        network = random_network(Random(seed), size, symmetric=seed % 2 == 0)
        ones = cheapest_hops(network, dict.fromkeys(network.capacity, 1))[0]
        packed = (pack_group(network, group) for group in every_group(size) if group.in_trees(ones))
        best = max(packing.rate for packing in packed if packing is not None)
        bound = order_bound(network)
        assert bound is not None
        assert best <= bound, (seed, network)


def test_a_mi250_pays_the_least_that_any_order_pays() -> None:
    """Two GPUs of a module have two links to other modules: the free optimum is 24/7, that of an order at most 2."""
    request = asked("mi250", deterministic="order")
    assert order_bound(rank_network_of(request.network, request.ranks).network) == 2
    plan = ALGORITHMS["optimal"].plan(request)
    assert (plan.bound, plan.rate) == (Fraction(24, 7), 2)


def test_there_is_no_bound_through_switches_or_for_too_many_cliques() -> None:
    switched = asked("hgx-h100")
    assert order_bound(rank_network_of(switched.network, switched.ranks).network) is None
    size = 10
    assert 2**size > MOST_CLIQUES
    arcs = tuple((u, v, 1) for u in range(size) for v in range(size) if u != v)
    assert order_bound(FlowNetwork(size, size, arcs)) is None
