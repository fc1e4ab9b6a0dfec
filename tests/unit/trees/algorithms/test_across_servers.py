"""Broadcasts composed of trees over servers and trees inside them: trees, links, and the rate by a cut."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.topology.loss import without
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.across_servers import Groups, across_servers
from blinkccl.trees.algorithms.optimal_trees import worth_its_hops
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork, hops_deep
from support.planned import asked, planned
from support.small_networks import random_graph


def cluster(dice: Random, servers: int, *, alike: bool) -> tuple[FlowNetwork, Groups]:
    """Servers of one to four ranks, joined by links or a switch, with links of 0 to 3 units to one or two networks.

    If they are ``alike``, one network and a wide switch per server join all ranks.
    """
    kinds: list[tuple[FlowNetwork | None, list[int]]] = []
    for _ in range(1 if alike else servers):
        size = dice.randint(1, 4)
        inside = None if alike or dice.random() < 0.5 else random_graph(dice, size)
        kinds.append((inside, [dice.randint(1, 3), *(dice.randint(0, 3) for _ in range(size - 1))]))
    kinds = [kinds[i % len(kinds)] for i in range(servers)]
    ranks = sum(len(ports) for _, ports in kinds)
    networks = 1 if alike else dice.randint(1, 2)
    arcs, groups, first = [], [], 0
    for place, (inside, ports) in enumerate(kinds):
        group = tuple(range(first, first + len(ports)))
        groups.append(group)
        first += len(ports)
        if inside is not None:
            arcs += [(group[u], group[v], c) for u, v, c in inside.arcs]
        for v, units in zip(group, ports, strict=True):
            ways = [(ranks + dice.randrange(networks), units)] * (units > 0)
            ways += [(ranks + networks + place, 20 if alike else 3)] * (inside is None)
            arcs += [arc for w, c in ways for arc in ((v, w, c), (w, v, c))]
    return FlowNetwork(ranks + networks + servers, ranks, tuple(sorted(arcs))), tuple(groups)


def assert_trees(network: FlowNetwork, root: int, trees: EqualTrees) -> None:
    """Check that every tree spans all ranks, and that the links hold all trees at their rate."""
    load: defaultdict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for start, part, hops in trees.trees:
        assert start == root
        above = {hop[-1]: hop[0] for hop in hops}
        assert hops_deep(root, hops) < network.terminals, "hops begin where earlier ones ended"
        assert sorted([root, *(hop[-1] for hop in hops)]) == list(range(network.terminals))
        for v in above:
            path = [v]
            while path[-1] != root:
                assert len(path) <= network.terminals
                path.append(above[path[-1]])
        for hop in hops:
            assert all(x >= network.terminals for x in hop[1:-1])
            for arc in pairwise(hop):
                load[arc] += part
    assert sum(part for _, part, _ in trees.trees) == 1
    assert all(units * trees.rate <= network.capacity[arc] for arc, units in load.items())
    assert any(units * trees.rate == network.capacity[arc] for arc, units in load.items())


@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_trees_span_and_fit(dice: Random, servers: int) -> None:
    network, groups = cluster(dice, servers, alike=False)
    root = dice.randrange(network.terminals)
    rate = broadcast_rate(network, root)[0]
    trees = across_servers(network, root, groups, rate, 1000)
    if trees is not None:
        assert trees.rate <= rate
        assert_trees(network, root, trees)


@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_nothing_is_lost_among_equal_servers(dice: Random, servers: int) -> None:
    network, groups = cluster(dice, servers, alike=True)
    root = dice.randrange(network.terminals)
    rate = broadcast_rate(network, root)[0]
    trees = across_servers(network, root, groups, rate, 1000)
    assert trees is not None
    assert trees.rate == rate
    assert_trees(network, root, trees)


def lost(spec: str, *nics: int) -> Request:
    """A broadcast without the NICs at these positions."""
    topology = parse_spec(spec)
    places = [vertex.id for vertex in topology.vertices if vertex.kind == "nic"]
    return asked(without(topology, (), [places[nic] for nic in nics]), "broadcast")


@pytest.mark.parametrize(
    ("request_", "trees", "depth"),
    [
        pytest.param(lost("16x dgx-a100", 3, 126), 105, 6, id="two NICs lost"),
        pytest.param(asked("12x mi250", "broadcast", root=3), 32, 14, id="12 MI250"),
        pytest.param(asked("8x mi250 @ fabric=tree:2:2", "reduce", root=20), 32, 18, id="narrow leaves"),
    ],
)
def test_few_trees_reach_the_bound_on_several_servers(request_: Request, trees: int, depth: int) -> None:
    forest = planned("optimal", request_)
    assert forest.rate == forest.bound
    assert len(forest.shares) <= trees
    assert forest.depth <= depth


def test_networks_without_composed_trees() -> None:
    """A single server, a server whose ranks are joined by the network alone, and more trees than the limit."""
    pair = FlowNetwork(5, 4, tuple(sorted(arc for v in range(4) for arc in ((v, 4, 1), (4, v, 1)))))
    assert across_servers(pair, 0, ((0, 1, 2, 3),), 1, 100) is None
    assert across_servers(pair, 0, ((0, 1), (2, 3)), 1, 100) is None
    joined = FlowNetwork(5, 4, tuple(sorted((*pair.arcs, *((v, v ^ 1, 1) for v in range(4))))))
    trees = across_servers(joined, 0, ((0, 1), (2, 3)), 1, 100)
    assert trees is not None
    assert trees.rate == 1
    assert across_servers(joined, 0, ((0, 1), (2, 3)), 1, 0) is None


def test_a_tenth_of_the_rate_is_worth_fewer_hops() -> None:
    deep, shallow = ((0, 1), (1, 2)), ((0, 1), (0, 2))
    for slower, wins in ((Fraction(89, 100), deep), (Fraction(9, 10), shallow), (Fraction(1), shallow)):
        candidates = [
            EqualTrees(rate, ((0, Fraction(1), hops),)) for rate, hops in ((Fraction(1), deep), (slower, shallow))
        ]
        assert worth_its_hops(candidates).trees[0][2] == wins
        assert worth_its_hops(candidates[::-1]).trees[0][2] == wins
