"""Claims of the seed papers that are graph mathematics, by their row in the table of claims.

B is Blink (MLSys 2020), P its poster, R the notes on rings. Where a claim does not hold, the test says what
does hold instead.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import combinations, permutations
from math import exp, floor, log

import networkx as nx
import numpy as np
import pytest
from machines import nvlinks, plan, request, ring_allreduce, rings, settings

from blinkccl.algorithms.cycles import max_disjoint_cycles
from blinkccl.algorithms.rank_network import rank_network_of
from blinkccl.forest.model import Forest, link_use, tree_depth
from blinkccl.packing.maxflow import broadcast_rate
from blinkccl.packing.mwu import pack_multiplicative
from blinkccl.packing.network import Network
from blinkccl.packing.oracles import out_tree_oracle
from blinkccl.packing.undirected import strength, undirected_widths

MACHINES = {"dgx-1v": (46, 53), "dgx-1p": (14, 17)}
#: What the paper's Fig 14 counts a PCIe ring as, in NVLink lanes (10–12 of 20–25 GB/s).
PCIE_LANES = Fraction(1, 2)


def network(machine: str, gpus: tuple[int, ...]) -> Network:
    asked = request(machine, "allreduce", gpus)
    return rank_network_of(asked.network, asked.ranks).network


def tau(machine: str, gpus: tuple[int, ...]) -> Fraction:
    found = network(machine, gpus)
    return strength(found.n, undirected_widths(found))[0]


@pytest.mark.parametrize(("gpus", "count", "rate"), [((0, 1, 3), 2, 2), ((0, 1, 4), 0, 1)])
def test_b2_three_gpus_have_two_rings_or_none(gpus: tuple[int, ...], count: int, rate: int) -> None:
    assert rings("dgx-1p", gpus) == count
    assert plan("optimal", "dgx-1p", "broadcast", gpus).rate == rate


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
        found = network(machine, gpus)
        graph.add_edges_from((u, v, {"capacity": c}) for u, v, c in found.arcs)
        least = min(nx.maximum_flow_value(graph, 0, t) for t in range(1, found.n))
        assert {broadcast_rate(found, root)[0] for root in range(found.n)} == {least}
        assert plan("optimal", machine, "broadcast", gpus, root=found.n - 1).rate == least


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1, 20)], ids=str)
def test_b11_multiplicative_weights_come_within_epsilon(epsilon: Fraction) -> None:
    found = network("dgx-1v", tuple(range(8)))
    packing = pack_multiplicative(found.capacity, out_tree_oracle(found, [0]), epsilon)
    assert (1 - epsilon) * 6 <= packing.rate <= 6
    assert len(packing.columns) > 6, "many trees, which is why the paper minimises"


def test_b13_six_trees_are_the_minimum_only_for_whole_lanes() -> None:
    paper = plan("blink", "dgx-1v", "broadcast")
    assert [share.weight * paper.rate for share in paper.shares] == [1] * 6
    assert float(1000 * paper.shares[0].weight) == pytest.approx(166, abs=1)
    widths = sorted(data["weight"] for *_, data in nvlinks("dgx-1v").edges(0, data=True))
    assert widths == [1, 1, 2, 2], "four links leave the root, and all of them must be full"


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


def test_b15_reduce_and_broadcast_share_undirected_trees() -> None:
    """24/7 with undirected trees; half of the directed 6 is 7/8 of what rings get, and less elsewhere."""
    assert plan("optimal", "dgx-1v", "allreduce").rate == Fraction(24, 7)
    assert ring_allreduce(Fraction(rings("dgx-1v", tuple(range(8)))), 8) == Fraction(24, 7)
    halves = [
        Fraction(broadcast_rate(network("dgx-1v", gpus), 0)[0], 2) / ring_allreduce(Fraction(count), len(gpus))
        for gpus in settings("dgx-1v")
        if (count := rings("dgx-1v", gpus))
    ]
    assert halves[-1] == Fraction(7, 8)
    assert min(halves) == Fraction(2, 3)


def finish(forest: Forest, chunks: int) -> Fraction:
    """When the last chunk arrives: a link carries one chunk at a time, a rank forwards what it has in full.

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


def speedups(machine: str) -> list[float]:
    """AllReduce by trees over AllReduce by NCCL's rings, ascending over the settings."""
    found = []
    for gpus in settings(machine):
        lanes = Fraction(rings(machine, gpus)) or PCIE_LANES
        found.append(float(tau(machine, gpus) / ring_allreduce(lanes, len(gpus))))
    return sorted(found)


def test_b23_trees_are_one_to_six_times_rings() -> None:
    found = speedups("dgx-1v")
    low, high = np.percentile(found, [5, 95])
    assert found[0] == 1
    assert low == pytest.approx(1.125)
    assert high == pytest.approx(6)
    assert found[-1] == pytest.approx(6.4)
    assert exp(sum(map(log, found)) / len(found)) == pytest.approx(2.29, abs=0.005)
    assert speedups("dgx-1p")[0] == 1


@pytest.mark.parametrize("machine", MACHINES)
def test_b24_there_are_46_and_14_settings(machine: str) -> None:
    assert (len(settings(machine)), len(settings(machine, connected=False))) == MACHINES[machine]


def test_b26_one_allocation_has_no_ring_the_other_one() -> None:
    """The paper's "one tree" for the second does not hold on V100: its broadcast and its AllReduce reach 2."""
    assert rings("dgx-1v", (1, 4, 5, 6)) == 0
    assert tau("dgx-1v", (1, 4, 5, 6)) == 2
    assert rings("dgx-1v", (2, 3, 6, 7)) == 2
    assert plan("optimal", "dgx-1v", "broadcast", (2, 3, 6, 7)).rate == 2
    assert tau("dgx-1v", (2, 3, 6, 7)) == 2


def test_p1_four_gpus_in_a_clique_have_two_rings_and_three_trees() -> None:
    clique = dict.fromkeys(permutations(range(4), 2), 1)
    assert sum(times for _, times in max_disjoint_cycles(clique, range(4))) == 2
    assert plan("optimal", "clique:4", "broadcast").rate == 3


def test_p2_six_and_seven_gpus_have_one_ring_both_ways() -> None:
    for size in (6, 7):
        assert {rings("dgx-1p", gpus) for gpus in settings("dgx-1p") if len(gpus) == size} <= {0, 2}
    assert rings("dgx-1p", (0, 1, 2, 3)) == 3, "and four have six half rings"
    assert {rings("dgx-1p", gpus) for gpus in settings("dgx-1p") if len(gpus) == 5} <= {0, 2}


def test_p3_a_ring_among_six_leaves_two_or_three_links_idle() -> None:
    six = [gpus for gpus in settings("dgx-1p") if len(gpus) == 6 and rings("dgx-1p", gpus)]
    assert {nvlinks("dgx-1p").subgraph(gpus).number_of_edges() for gpus in six} <= {8, 9}
    assert nvlinks("dgx-1p").number_of_edges() == 16


@pytest.mark.parametrize(
    ("gpus", "rate", "optimum"),
    [((0, 1, 2, 3), "2", "2"), ((0, 1, 2, 4, 5, 6), "3/2", "9/5"), (tuple(range(8)), "2", "16/7")],
)
def test_p4_the_posters_allreduce_is_below_the_optimum(gpus: tuple[int, ...], rate: str, optimum: str) -> None:
    assert plan("internal_broadcast", "dgx-1p", "allreduce", gpus).rate == Fraction(rate)
    assert plan("optimal", "dgx-1p", "allreduce", gpus).rate == Fraction(optimum)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_r1_a_ring_sends_2_times_n_minus_1_over_n_of_the_data(size: int) -> None:
    """Per rank, over all its links: 15/8 of S for 16 ranks, without B16's ceiling."""
    forest = plan("ring", f"ring:{size}", "allreduce")
    sent: dict[int, Fraction] = defaultdict(Fraction)
    for (u, _), use in link_use(forest.shares).items():
        sent[u] += use
    assert set(sent.values()) == {Fraction(2 * (size - 1), size)}
    if size == 16:
        assert float(sent[0]) == 1.875
