"""Claims of Blink (MLSys 2020) that are graph mathematics, by their row in the table of claims, computed a second way.

The numbers in ``docs/claims.md`` are not repeated here. If a claim is false, the test asserts the true statement.
"""

from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from math import floor

import networkx as nx
import pytest
from machines import nvlinks, plan, rings, settings

from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.forest.model import Forest, tree_depth
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.undirected import strength, undirected_widths
from support.planned import asked

MACHINES = {"dgx-1v": (46, 53), "dgx-1p": (14, 17)}


def network(machine: str, gpus: tuple[int, ...]) -> FlowNetwork:
    request = asked(machine, "allreduce", gpus)
    return rank_network_of(request.network, request.ranks).network


def tau(machine: str, gpus: tuple[int, ...]) -> Fraction:
    links = network(machine, gpus)
    return strength(links.n, undirected_widths(links))[0]


def test_b4_four_of_28_sets_have_three_trees_for_two_rings() -> None:
    three = [
        gpus
        for gpus in combinations(range(8), 6)
        if nx.is_connected(nvlinks("dgx-1p").subgraph(gpus)) and broadcast_rate(network("dgx-1p", gpus), 0)[0] == 3
    ]
    assert three == [(0, 1, 2, 4, 5, 6), (0, 1, 3, 4, 5, 7), (0, 2, 3, 4, 6, 7), (1, 2, 3, 5, 6, 7)]
    for gpus in three:
        assert rings("dgx-1p", gpus) == 2
        assert len(plan("optimal", "dgx-1p", "broadcast", gpus).shares) == 3


@pytest.mark.parametrize("machine", MACHINES)
def test_b10_the_optimum_is_the_minimum_cut_for_every_root(machine: str) -> None:
    for gpus in settings(machine):
        graph = nx.DiGraph()
        links = network(machine, gpus)
        graph.add_edges_from((u, v, {"capacity": c}) for u, v, c in links.arcs)
        least = min(nx.maximum_flow_value(graph, 0, t) for t in range(1, links.n))
        assert {broadcast_rate(links, root)[0] for root in range(links.n)} == {least}
        assert plan("optimal", machine, "broadcast", gpus, root=links.n - 1).rate == least


@pytest.mark.parametrize(
    ("machine", "losing", "worst"), [("dgx-1v", 12, Fraction(2, 3)), ("dgx-1p", 7, Fraction(5, 9))]
)
def test_b14_whole_lanes_are_not_enough_for_allreduce(machine: str, losing: int, worst: Fraction) -> None:
    """Nash-Williams: ⌊τ⌋ edge-disjoint spanning trees and no more."""
    parts = [Fraction(floor(tau(machine, gpus))) / tau(machine, gpus) for gpus in settings(machine)]
    assert sum(part < 1 for part in parts) == losing
    assert min(parts) == worst
    threshold = Fraction(95, 100)
    for gpus in settings(machine)[::5]:
        assert plan("blink", machine, "allreduce", gpus).rate >= threshold * tau(machine, gpus)


def finish(forest: Forest, chunks: int) -> Fraction:
    """Time at which the last chunk arrives: a link carries one chunk at a time, a rank forwards complete chunks.

    A chunk takes 1/chunks of the time that the whole takes over one link.
    """
    (share,) = forest.shares
    assert share.broadcast is not None
    free: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    last = Fraction(0)
    for _ in range(chunks):
        ready = {share.root: Fraction(0)}
        for path in share.broadcast.edges:
            free[path] = ready[path[-1]] = max(ready[path[0]], free[path]) + Fraction(1, chunks)
        last = max(last, *ready.values())
    return last


def test_b20_two_chunks_cut_three_hops_by_a_third() -> None:
    forest = plan("optimal", "chain:4", "broadcast")
    assert tree_depth(forest.shares[0].broadcast or pytest.fail("no tree")) == 3
    assert finish(forest, 1) == 3
    assert finish(forest, 2) == 2
    assert finish(forest, 100) == Fraction(100 + 3 - 1, 100)


@pytest.mark.parametrize("machine", MACHINES)
def test_b24_there_are_46_and_14_settings(machine: str) -> None:
    assert (len(settings(machine)), len(settings(machine, connected=False))) == MACHINES[machine]
