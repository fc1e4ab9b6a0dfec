"""Parts and paths, against networkx and against the definition."""

import random
from itertools import combinations

import networkx as nx
import pytest

from blinkccl.topology.connectivity import between, parts, reachable


def test_reachable_follows_directions() -> None:
    assert reachable(0, {0: [1], 1: [2], 3: [0]}) == {0, 1, 2}


def test_parts_group_by_mutual_reach_in_the_order_given() -> None:
    assert parts((6, 1, 0), [(0, 1), (1, 0), (1, 6)]) == [(6,), (1, 0)]
    assert parts((), []) == []


@pytest.mark.parametrize("seed", range(40))
def test_between_gives_the_vertices_of_simple_paths_between_ranks(seed: int) -> None:
    dice = random.Random(seed)
    graph = nx.gnp_random_graph(8, 0.3, seed=seed)
    ranks = sorted(dice.sample(range(8), 3))
    on_the_way = set(ranks)
    for a, b in combinations(ranks, 2):
        for path in nx.all_simple_paths(graph, a, b):
            on_the_way |= set(path)
    neighbours = {v: sorted(graph[v]) for v in graph}
    assert between(ranks, neighbours) == on_the_way


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_strong_components(seed: int) -> None:
    graph = nx.gnp_random_graph(9, 0.15, seed=seed, directed=True)
    expected = sorted(tuple(sorted(c)) for c in nx.strongly_connected_components(graph))
    assert sorted(parts(range(9), graph.edges)) == expected
