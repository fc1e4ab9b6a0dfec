"""Undirected packings against the definition: the least cap(P) / (|P| − 1) over all partitions."""

from fractions import Fraction
from itertools import combinations
from random import Random

import networkx as nx
import pytest

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing.integral import Arborescence, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.undirected import (
    crossing,
    direct,
    merge_equal,
    most_central,
    recentred,
    strength,
    undirected_widths,
)
from support.small_networks import (
    assert_tree,
    both_ways,
    depth_of,
    dgx_1v,
    partitions,
    random_digraph,
    random_graph,
    random_switched,
)


def least_of_all_partitions(n: int, widths: dict[tuple[int, int], int]) -> Fraction:
    return min(
        Fraction(crossing(widths, blocks), len(blocks) - 1) for blocks in partitions(range(n)) if len(blocks) > 1
    )


def drawn(seed: int) -> FlowNetwork:
    dice = Random(seed)
    return random_graph(dice, dice.randint(2, 6), most=dice.choice([1, 3, 100]), density=dice.random())


@pytest.mark.parametrize("seed", range(60))
def test_the_strength_is_the_least_ratio(seed: int) -> None:
    network = drawn(seed)
    widths = undirected_widths(network)
    rate, blocks = strength(network.n, widths)
    assert rate == least_of_all_partitions(network.n, widths)
    assert sorted(v for block in blocks for v in block) == list(range(network.n))
    assert Fraction(crossing(widths, blocks), len(blocks) - 1) == rate
    if len(blocks) > 2:  # coarse enough to show the bottleneck: no merged pair of blocks would be tight
        assert all(crossing(widths, pair) != rate for pair in combinations(blocks, 2))


def test_disconnected_vertices_are_named_by_part() -> None:
    with pytest.raises(PackingError, match=r"not connected: \{0, 2\} and \{1, 3\} and \{4\}"):
        strength(5, {(0, 2): 3, (1, 3): 1})
    with pytest.raises(PackingError, match="at least two"):
        strength(1, {})


def test_one_way_links_and_transit_are_refused() -> None:
    for network in (random_digraph(Random(0), 4), random_switched(Random(0), 3, 1, balanced=True)):
        with pytest.raises(PackingError, match="symmetric links and no transit"):
            undirected_widths(network)


@pytest.mark.parametrize("seed", range(30))
def test_directed_links_keep_widths_and_carry_no_more_than_the_rate(seed: int) -> None:
    network = drawn(seed)
    widths = undirected_widths(network)
    rate, _ = strength(network.n, widths)
    scaled = {edge: w * rate.denominator for edge, w in widths.items()}
    root = Random(seed).randrange(network.n)
    directed = direct(network.n, scaled, root, rate.numerator)
    for (u, v), w in scaled.items():
        assert directed.capacity.get((u, v), 0) + directed.capacity.get((v, u), 0) == w
    assert broadcast_rate(directed, root)[0] >= rate.numerator
    pack_arborescences(directed, {root: rate.numerator})
    with pytest.raises(InternalError, match="no orientation"):
        direct(network.n, scaled, 0, rate.numerator + 1)


def test_the_most_central_vertex_has_the_least_eccentricity() -> None:
    chain = both_ways(5, {(i, i + 1): 1 for i in range(4)})
    assert most_central(chain) == 2
    assert most_central(dgx_1v()) == 0


@pytest.mark.parametrize("seed", range(30))
def test_recentring_keeps_the_edges_and_halves_the_depth(seed: int) -> None:
    dice = Random(seed)
    n = dice.randint(2, 12)
    arcs = tuple((dice.randrange(v), v) for v in range(1, n))
    tree = recentred(Arborescence(0, 3, arcs))
    assert_tree(n, tree)
    assert tree.multiplicity == 3
    assert {frozenset(arc) for arc in tree.arcs} == {frozenset(arc) for arc in arcs}
    assert depth_of(tree) == nx.radius(nx.Graph(arcs))


def test_equal_trees_are_merged_largest_first() -> None:
    a, b = ((0, 1), (0, 2)), ((0, 1), (1, 2))
    merged = merge_equal([Arborescence(0, 2, a), Arborescence(0, 3, b), Arborescence(0, 2, a)])
    assert merged == [Arborescence(0, 4, a), Arborescence(0, 3, b)]
