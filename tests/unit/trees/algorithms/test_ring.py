"""Rings: the counts of NCCL 2.4 on DGX-1 (Blink Figs 2 and 4, the poster), and its fall-backs."""

from fractions import Fraction
from itertools import combinations

import pytest

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.ring import SERVED, fast_rings, on_rings, rate, ring_count, rings, rings_for
from support.planned import asked, plan


def _count(spec: str, gpus: str | None) -> int:
    return ring_count(asked(spec, "allreduce", gpus))


@pytest.mark.parametrize(
    ("spec", "gpus", "count"),
    [
        ("dgx-1v", None, 6),
        ("dgx-1v", "0-3", 4),
        ("dgx-1v", "0,1,2,4,5,6", 4),
        ("dgx-1v", "0-4", 0),
        ("dgx-1v", "1,4,5,6", 0),
        ("dgx-1v", "2,3,6,7", 2),
        ("dgx-1v", "0,3", 2),
        ("dgx-1v", "0,1", 1),
        ("dgx-1p", None, 4),
        ("dgx-1p", "0,1,3,4,5,7", 2),
        ("dgx-1p", "0,1,3", 2),
        ("dgx-1p", "0,1,4", 0),
        ("dgx-1p", "0-3", 3),
        ("dgx-1p", "0,5", 0),
        ("oneway:6", None, 1),
        ("clique:8", None, 7),
        ("dgx-a100", None, 2),
        ("mist", None, 2),
        ("cedar", None, 3),
        ("2x dgx-a100", "0-3+0-3", 4),
    ],
)
def test_ring_counts(spec: str, gpus: str | None, count: int) -> None:
    assert _count(spec, gpus) == count


def test_one_two_way_ring_for_most_allocations_of_a_dgx_1p() -> None:
    """Fact P2: 6 and 7 GPUs always have one ring in both directions; 5 GPUs have that or none."""
    for size, counts in ((5, {0, 2}), (6, {2}), (7, {2})):
        numbers = {_count("dgx-1p", ",".join(map(str, gpus))) for gpus in combinations(range(8), size)}
        assert numbers == counts


def test_allocations_with_nvlink_but_no_ring() -> None:
    """NVLink joins the GPUs of 104 of the 247 allocations of 2 to 8 GPUs without an NVLink ring."""
    joined = 0
    for size in range(2, 9):
        for gpus in combinations(range(8), size):
            network, rings = fast_rings(asked("dgx-1v", "allreduce", ",".join(map(str, gpus))))
            joined += network is not None and not rings
    assert joined == 104


@pytest.mark.parametrize(
    ("spec", "gpus", "lanes"),
    [
        ("dgx-1v", None, "24/7"),
        ("dgx-1p", None, "16/7"),
        ("dgx-1p", "0-3", "2"),
        ("dgx-1v", "0-3", "8/3"),
        ("dgx-1p", "0,1,2,4,5,6", "6/5"),
        ("oneway:6", None, "3/5"),
        ("cedar", None, "2"),
    ],
)
def test_allreduce_rates(spec: str, gpus: str | None, lanes: str) -> None:
    """The rate of an AllReduce over R rings of N ranks is R·N / (2(N−1))."""
    assert plan("ring", spec, gpus, "allreduce").rate == Fraction(lanes)


@pytest.mark.parametrize(("spec", "gb_per_s"), [("dgx-2", 80.0), ("dgx-a100", 1200 / 7), ("star:5", 125 / 8)])
def test_rings_through_a_switch_fill_the_ports_in_both_directions(spec: str, gb_per_s: float) -> None:
    forest = plan("ring", spec, None, "allreduce")
    assert forest.optimal
    assert forest.algbw_gb_per_s == pytest.approx(gb_per_s)
    assert len(forest.shares) == 2 * len(forest.ranks)
    assert all(load == forest.topology.link[arc].capacity for arc, load in forest.link_load.items())


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        *(("dgx-1v", gpus) for gpus in (None, "0-3", "0-2", "0,1", "1,4,5,6", "0,6,3", "0-4", "1-7")),
        ("dgx-1p", "0-3"),
        ("dgx-a100", None),
        ("pcie-8gpu", None),
        ("2x dgx-1v @ 40Gbps", None),
        ("3x dgx-a100 @ 200Gbps", None),
        ("2x dgx-1v @ 40Gbps", "0-2+0-4"),
    ],
)
def test_the_rate_without_a_forest_is_that_of_the_forest(spec: str, gpus: str | None, collective: str) -> None:
    request = asked(spec, collective, gpus)
    network, rings = rings_for(request)
    assert rate(request, rings) == on_rings(request, "ring", network, rings).rate


def test_half_rings_of_a_quad() -> None:
    quad = rings(asked("dgx-1p", "allreduce", "0-3").network, (0, 1, 2, 3))
    assert [ring.capacity for ring in quad] == [Fraction(1, 2)] * 6
    mixed = rings(asked("dgx-1v", "allreduce", "0-3").network, (0, 1, 2, 3))
    assert sum(ring.capacity for ring in mixed) == 4
    assert all(ring.capacity.denominator == 1 for ring in mixed)


def test_allreduce_goes_up_and_down_in_the_direction_of_the_ring() -> None:
    forest = plan("ring", "oneway:4", None, "allreduce")
    assert [share.root for share in forest.shares] == [0, 1, 2, 3]
    assert {share.weight for share in forest.shares} == {Fraction(1, 4)}
    first = forest.shares[0]
    assert first.reduce is not None
    assert first.broadcast is not None
    assert first.reduce.edges == ((1, 2), (2, 3), (3, 0))
    assert first.broadcast.edges == ((0, 1), (1, 2), (2, 3))


def test_weights_follow_the_capacity_of_each_ring() -> None:
    forest = plan("ring", "dgx-1v", None, "broadcast", root=3)
    capacities = [ring.capacity for ring in rings_for(asked("dgx-1v", "broadcast", None))[1]]
    assert [share.weight for share in forest.shares] == [c / 6 for c in capacities]


@pytest.mark.parametrize("gpus", ["1,4,5,6", "0-4", "0,5", "0,1,4", "6,1,5,4"])
def test_without_an_nvlink_ring_it_falls_back_to_one_pcie_ring(gpus: str) -> None:
    forest = plan("ring", "dgx-1v", gpus, "allreduce")
    assert {link.kind for link in forest.topology.links} <= {"pcie", "smp"}
    assert len(forest.shares) == len(forest.ranks)
    assert forest.algbw_gb_per_s < 12


def test_order_of_the_fallback_ring() -> None:
    by_rank = rings_for(asked("dgx-1v", "allreduce", "6,0,1,4,2,5,3"))
    assert by_rank[1][0].order != (6, 0, 1, 4, 2, 5, 3), "seven GPUs have an NVLink ring"
    assert rings_for(asked("dgx-1v", "allreduce", "1,4,6,5"))[1][0].order == (1, 4, 6, 5)
    assert rings_for(asked("dgx-1v", "allreduce", "0,6,3,7", links="pcie"))[1][0].order == (0, 3, 6, 7)
    assert rings_for(asked("dgx-1v", "allreduce", "0,6,3"))[1][0].order == (0, 3, 6)


def test_pcie_is_used_for_every_choice_of_links() -> None:
    for links in ("fast", "all"):
        assert plan("ring", "dgx-1v", None, "allreduce", links=links).rate == Fraction(24, 7)
    slow = plan("ring", "dgx-1v", None, "allreduce", links="pcie").topology
    assert {x.kind for x in slow.links} == {"pcie", "smp"}
    assert plan("ring", "pcie-8gpu", None, "broadcast").optimal
    assert ring_count(asked("pcie-8gpu", "broadcast", None)) == 0


def test_relays_are_not_used() -> None:
    relayed = plan("ring", "dgx-1v", "1,4,5,6", "allreduce", relays=True)
    assert relayed.shares == plan("ring", "dgx-1v", "1,4,5,6", "allreduce").shares


def test_several_servers_are_lines_joined_by_the_network() -> None:
    assert plan("ring", "2x dgx-1v @ 40Gbps", None, "broadcast").rate == 1
    forest = plan("ring", "2x dgx-1v @ 40Gbps", None, "allreduce")
    assert forest.algbw_gb_per_s == pytest.approx(5 * 16 / 30)
    many = plan("ring", "2x dgx-a100", "0-3+0-3", "allgather")
    assert many.algbw_gb_per_s == pytest.approx(4 * 25 * 8 / 7), "each of the four NICs per server is filled"


@pytest.mark.parametrize("collective", SERVED)
def test_a_ring_of_four_is_three_hops_deep(collective: str) -> None:
    forest = plan("ring", "dgx-1v", "0-3", collective, root=2)
    assert forest.depth == 3
    assert sum(share.weight for share in forest.shares) == 1


def test_a_chain_without_pcie_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no NVLink ring .* exists, and there is no ring over PCIe"):
        ALGORITHMS["ring"].plan(asked("chain:4", "allreduce", None))
