"""Groups: exactly the in-trees of their order, the cheapest of these, and a search that only improves."""

import itertools
import math
from fractions import Fraction
from random import Random

import pytest

from blinkccl.errors import PackingError
from blinkccl.trees.packing.columns import check_loads, dual_bound
from blinkccl.trees.packing.nested_groups import (
    Limits,
    NestedGroup,
    best_group,
    clique_groups,
    group_of_tree,
    grouped_oracle,
    neighbours,
    pack_group,
    wide_groups,
)
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import cheapest_hops

#: A clique and a chain.
CLIQUE = FlowNetwork(5, 5, tuple((u, v, 1) for u in range(5) for v in range(5) if u != v))
CHAIN = FlowNetwork(4, 4, tuple((u, v, 2) for u in range(4) for v in range(4) if abs(u - v) == 1))


def random_network(random: Random, size: int) -> FlowNetwork:
    arcs = {(v, (v + 1) % size) for v in range(size)} | {((v + 1) % size, v) for v in range(size)}
    arcs |= {(u, v) for u in range(size) for v in range(size) if u != v and random.random() < 0.4}
    return FlowNetwork(size, size, tuple((u, v, random.randint(1, 3)) for u, v in sorted(arcs)))


def all_in_trees(network: FlowNetwork) -> list[tuple[int, tuple[Arc, ...]]]:
    """Every in-tree over all terminals, by trying all parents."""
    trees = []
    for root in range(network.n):
        others = [v for v in range(network.n) if v != root]
        for parents in itertools.product(*(network.successors[v] for v in others)):
            above = dict(zip(others, parents, strict=True))
            if all(reaches(above, v, root) for v in others):
                trees.append((root, tuple(above.items())))
    return trees


def reaches(above: dict[int, int], vertex: int, root: int) -> bool:
    for _ in above:
        vertex = above.get(vertex, root)
    return vertex == root


@pytest.mark.parametrize("seed", range(4))
def test_heads_find_the_cheapest_of_all_in_trees_with_these_groups(seed: int) -> None:
    random = Random(seed)
    network = random_network(random, 4)
    prices = {arc: Fraction(random.randint(0, 9)) for arc in network.capacity}
    cost, _ = cheapest_hops(network, prices)
    trees: dict[NestedGroup, list[tuple[int, tuple[Arc, ...]]]] = {}
    for root, arcs in all_in_trees(network):
        trees.setdefault(group_of_tree(root, arcs), []).append((root, arcs))
    for group, of_group in trees.items():
        assert group.in_trees(cost) == len(of_group)
        heads = group.heads(cost)
        for root in range(network.n):
            costs = [sum(prices[arc] for arc in arcs) for at, arcs in of_group if at == root]
            assert (root in heads) == bool(costs)
            if costs:
                assert heads[root][0] == min(costs) == sum(prices[arc] for arc in heads[root][1])


def test_a_star_a_chain_and_two_levels() -> None:
    assert group_of_tree(2, ((0, 2), (1, 2))) == NestedGroup((0, 1, 2))
    assert group_of_tree(3, ((0, 1), (1, 2), (2, 3))) == NestedGroup((3,), (NestedGroup((2,), (NestedGroup((0, 1)),)),))
    assert group_of_tree(0, ((3, 2), (1, 0), (2, 0))) == NestedGroup((0, 1), (NestedGroup((2, 3)),))


def test_the_packing_of_a_group_has_a_proof() -> None:
    group = NestedGroup((2, 3, 4), (NestedGroup((0, 1)),))
    packing = pack_group(CLIQUE, group)
    assert packing is not None
    check_loads(packing.columns, CLIQUE.capacity, [Fraction(1)], packing.rate)
    assert (
        dual_bound(CLIQUE.capacity, [Fraction(1)], grouped_oracle(CLIQUE, group, [None]), packing.prices)
        == packing.rate
    )
    assert packing.rate == packing.bound
    for column, _ in packing.columns:
        root, up, _ = column.payload
        assert group_of_tree(root, up) == group
    assert pack_group(CLIQUE, NestedGroup((0, 1, 2, 3, 4)), [0, 1, 2, 3, 4]) is not None


@pytest.mark.parametrize("seed", range(3))
def test_the_prices_of_one_group_limit_the_rates_of_all(seed: int) -> None:
    """The best of several price vectors counts. A group's own prices give its exact rate."""
    network = random_network(Random(seed), 5)
    start = clique_groups(network, 2)
    limits, rates = Limits(network), {}
    assert limits.of(start) == math.inf
    for group in [start, *itertools.islice(neighbours(start), 40)]:
        if (packing := pack_group(network, group)) is None:
            assert limits.of(group) == 0
            continue
        rates[group] = packing.rate
        limits.add(packing.prices)
        assert limits.of(group) == pytest.approx(float(packing.rate))
    assert len(rates) > 10
    assert all(limits.of(group) >= float(rate) * (1 - 1e-9) for group, rate in rates.items())


def test_wide_groups_come_from_trees_over_wide_links() -> None:
    """A ring with one narrow link, which no tree needs."""
    widths = {(v, (v + 1) % 5): 3 if v else 1 for v in range(5)}
    ring = FlowNetwork(5, 5, tuple((*arc, c) for (u, v), c in widths.items() for arc in ((u, v), (v, u))))
    packings = [pack_group(ring, group) for group in wide_groups(ring, 2)]
    assert [each.rate for each in packings if each is not None] == [3, 3]


def test_where_nobody_can_be_reached_there_is_no_packing() -> None:
    """A search can still start from it."""
    star = NestedGroup((0, 1, 2, 3))
    assert pack_group(CHAIN, star) is None
    with pytest.raises(PackingError, match="no group of the search can reduce all contributions"):
        best_group(CHAIN, [star], Fraction(2), 0)
    assert best_group(CHAIN, [star], Fraction(2), 100)[1] == 2
    with pytest.raises(PackingError, match="lacks a path"):
        grouped_oracle(CHAIN, star, [None])({})


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_different_groups_of_the_same_terminals(seed: int) -> None:
    random = Random(seed)
    network = random_network(random, 6)
    group = clique_groups(network, random.choice([2, 3, 8]))
    groups = list(neighbours(group))
    assert len(set(groups)) == len(groups)
    assert group not in groups
    for each in groups:
        members = [v for part in each.upward() for v in part.members]
        assert sorted(members) == list(range(6))
        for part in each.upward():
            assert part.members == tuple(sorted(part.members))
            assert part.members
            assert len(part.members) + len(part.below) > 1


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_of_all_groups_of_four(seed: int) -> None:
    """Four terminals have few in-trees, so exhaustion is possible."""
    network = random_network(Random(seed), 4)
    groups = list(dict.fromkeys(group_of_tree(*tree) for tree in all_in_trees(network)))
    packed = {group: pack_group(network, group) for group in groups}
    best = max(packing.rate for packing in packed.values() if packing is not None)
    start = min(groups, key=lambda group: 0 if packed[group] is None else packed[group].rate)  # type: ignore[union-attr]
    assert best_group(network, [start], best, 400)[1] == best
    assert best_group(network, [start], best + 1, 400)[1] == best  # the search ends with an unreachable bound too


def test_cliques_become_groups_that_many_hops_join() -> None:
    """Two cliques of three with three links between them, and a chain of four in pairs."""
    arcs = [(u, v) for u in range(6) for v in range(6) if u != v and (u // 3 == v // 3 or abs(u - v) == 3)]
    network = FlowNetwork(6, 6, tuple((u, v, 1) for u, v in arcs))
    group = clique_groups(network, 8)
    assert {group.members, group.below[0].members} == {(0, 1, 2), (3, 4, 5)}
    assert clique_groups(CHAIN, 2).upward()[0].members in ((0, 1), (2, 3))
