"""The poster's protocols: its rates (facts P1, P4), its four primitives on any allocation, its refusals."""

from fractions import Fraction
from itertools import combinations, product

import pytest

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.trees.algorithms.internal_broadcast import SERVED
from support.planned import plan


@pytest.mark.parametrize(
    ("gpus", "rate", "chunks"), [("0-3", "2", 4), ("4-7", "2", 4), ("0,1,2,4,5,6", "3/2", 3), (None, "2", 4)]
)
def test_allreduce_on_a_dgx_1p(gpus: str | None, rate: str, chunks: int) -> None:
    """Fact P4; on 8 GPUs the rate is below that of NCCL's rings, 16/7."""
    forest = plan("internal_broadcast", "dgx-1p", gpus, "allreduce")
    assert forest.rate == Fraction(rate)
    assert [share.weight for share in forest.shares] == [Fraction(1, chunks)] * chunks


@pytest.mark.parametrize(("spec", "gpus"), [("clique:4", None), ("dgx-1p", "0-3"), ("cedar", None)])
def test_three_forwarding_trees_broadcast_among_four(spec: str, gpus: str | None) -> None:
    """Fact P1: n/3b; from A to B, then from B to C and D."""
    forest = plan("internal_broadcast", spec, gpus, "broadcast", root=1)
    assert forest.rate == 3
    assert forest.optimal
    assert [share.weight for share in forest.shares] == [Fraction(1, 3)] * 3
    for share in forest.shares:
        assert share.broadcast is not None
        hub = share.broadcast.edges[0][-1]
        assert [path[0] for path in share.broadcast.edges] == [1, hub, hub]


def test_a_share_of_two_groups_is_two_stars_joined_by_partners() -> None:
    forest = plan("internal_broadcast", "dgx-1p", None, "allreduce")
    assert [share.root for share in forest.shares] == [0, 1, 2, 3]
    second = forest.shares[1]
    assert second.broadcast is not None
    assert second.broadcast.edges == ((1, 5), (1, 2), (1, 3), (1, 0), (5, 6), (5, 7), (5, 4))
    assert second.reduce == second.broadcast.reversed()


def test_loads_equal_the_posters_exchange() -> None:
    """The load of a link is 2/m of S inside a group, and 1/m in each direction between partners."""
    forest = plan("internal_broadcast", "dgx-1p", None, "allreduce")
    for (u, v), load in forest.link_load.items():
        inside = u // 4 == v // 4
        assert load / forest.rate == (Fraction(1, 2) if inside else Fraction(1, 4))


@pytest.mark.parametrize(
    ("spec", "gpus", "collective", "rate"),
    [
        ("dgx-1p", "0-4", "allreduce", "1"),
        ("dgx-1v", "0-4", "allreduce", "2"),
        ("dgx-1p", "0-6", "allreduce", "3/2"),
        ("dgx-1v", "1,4,5,6", "allreduce", "3/2"),
        ("dgx-1v", "0-4", "allgather", "5/2"),
        ("dgx-1p", None, "allgather", "4"),
        ("dgx-1p", None, "broadcast", "3"),
        ("dgx-1p", None, "gather", "4"),
        ("mist", None, "allreduce", "32"),
        ("dgx-2", None, "allreduce", "8/15"),
    ],
)
def test_rates_of_unequal_groups_and_other_machines(spec: str, gpus: str | None, collective: str, rate: str) -> None:
    assert plan("internal_broadcast", spec, gpus, collective).rate == Fraction(rate)


def test_every_allocation_of_a_dgx_1_joined_by_nvlink_has_a_plan() -> None:
    served = 0
    some = [gpus for size in range(3, 8) for gpus in list(combinations(range(8), size))[::5]]
    for gpus, collective in product(some, SERVED):
        try:
            forest = plan("internal_broadcast", "dgx-1v", ",".join(map(str, gpus)), collective, root=2)
        except TopologyError:
            continue
        served += 1
        assert all(share.weight.denominator <= 12 * len(gpus) for share in forest.shares)
    assert served > 100


@pytest.mark.parametrize("spec", ["torus:2x4", "ring:6", "chain:4", "hypercube:3", "2x cedar @ 100Gbps", "pcie-8gpu"])
@pytest.mark.parametrize("collective", SERVED)
def test_any_number_of_groups(spec: str, collective: str) -> None:
    forest = plan("internal_broadcast", spec, None, collective, root=2)
    assert forest.rate > 0


def test_gather_leads_only_to_the_root() -> None:
    forest = plan("internal_broadcast", "dgx-1p", None, "gather", root=2)
    for share in forest.shares:
        if share.broadcast is None:
            assert share.block == 2
            continue
        ends = [path[-1] for path in share.broadcast.edges]
        assert ends[-1] == 2
        assert [path[0] for path in share.broadcast.edges] == [share.block, *ends[:-1]]


def test_links_that_lead_one_way_join_no_groups() -> None:
    with pytest.raises(UnsupportedError, match="no hop joins the fully connected groups of 0,1,2,3"):
        plan("internal_broadcast", "oneway:4", None, "allreduce")
