"""Cheapest arborescences against networkx."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import networkx as nx
import pytest

from blinkccl.trees.packing.oracles import minimum_arborescence, shallow_minimum_tree

Cost = list[list[Any]]
DRAW: dict[str, Callable[[Random], Any]] = {
    "ints": lambda dice: dice.randint(0, 20),
    "ties": lambda dice: dice.randint(0, 2),
    "all equal": lambda _: 1,
    "fractions": lambda dice: Fraction(dice.randint(0, 30), dice.randint(1, 9)),
    "floats": lambda dice: dice.random(),
}


def costs(dice: Random, n: int, draw: Callable[[Random], Any], chance: float) -> Cost:
    return [[draw(dice) if u != v and dice.random() < chance else None for v in range(n)] for u in range(n)]


def price(cost: Cost, parent: list[int], root: int) -> Any:
    """Cost of the tree. An assertion checks that every vertex leads to the root over existing arcs."""
    assert parent[root] == -1
    for v in range(len(cost)):
        at, steps = v, 0
        while at != root:
            assert cost[parent[at]][at] is not None
            at, steps = parent[at], steps + 1
            assert steps < len(cost)
    return sum(cost[u][v] for v, u in enumerate(parent) if v != root)


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("seed", range(16))
def test_as_cheap_as_networkx(kind: str, seed: int) -> None:
    dice = Random(seed)
    n = dice.randint(1, 5) if seed < 12 else dice.randint(8, 14)
    cost = costs(dice, n, DRAW[kind], 0.7)
    for u in range(1, n):
        cost[u][0] = None  # so that networkx takes 0 as root
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from((u, v, c) for u, row in enumerate(cost) for v, c in enumerate(row) if c is not None)
    parent = minimum_arborescence(n, 0, cost)
    if len(nx.descendants(graph, 0)) < n - 1:
        assert parent is None
        return
    assert parent is not None
    best = nx.minimum_spanning_arborescence(graph).size("weight")
    assert float(price(cost, parent, 0)) == pytest.approx(float(best))


def test_nested_cycles_are_contracted_twice() -> None:
    """Two cheap rings in a cheap ring, far from the root, need every level of the contraction."""
    cost: Cost = [[None] * 5 for _ in range(5)]
    for u, v, c in [(0, 1, 50), (0, 3, 49), (1, 2, 1), (2, 1, 1), (3, 4, 1), (4, 3, 1), (2, 3, 5), (4, 1, 5)]:
        cost[u][v] = c
    parent = minimum_arborescence(5, 0, cost)
    assert parent == [-1, 4, 1, 0, 3]
    assert price(cost, parent, 0) == 49 + 1 + 5 + 1


def test_ties_go_to_the_lowest_parent() -> None:
    assert minimum_arborescence(4, 0, [[1] * 4 for _ in range(4)]) == [-1, 0, 0, 0]
    assert minimum_arborescence(4, 1, [[0, 9, 5, 5], [3, 9, 3, 5], [9] * 4, [9] * 4]) == [1, -1, 1, 0]


def symmetric_costs(dice: Random, n: int, draw: Callable[[Random], Any], chance: float) -> Cost:
    cost = costs(dice, n, draw, chance)
    return [[cost[min(u, v)][max(u, v)] for v in range(n)] for u in range(n)]


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("seed", range(8))
def test_prims_tree_is_as_cheap_for_symmetric_costs(kind: str, seed: int) -> None:
    dice = Random(seed)
    n = dice.randint(2, 9)
    cost = symmetric_costs(dice, n, DRAW[kind], 0.6)
    root = dice.randrange(n)
    parent, other = shallow_minimum_tree(n, root, cost), minimum_arborescence(n, root, cost)
    assert (parent is None) == (other is None)
    if parent is not None and other is not None:
        assert price(cost, parent, root) == pytest.approx(price(cost, other, root))


def test_prims_tree_is_a_star_for_equal_costs() -> None:
    assert shallow_minimum_tree(5, 3, [[7] * 5 for _ in range(5)]) == [3, 3, 3, -1, 3]
