"""The paper's algorithm: near its own optimum, through one root, few trees, and refusals with reasons."""

from fractions import Fraction

import pytest
from reference import IN_LANES

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms import blink
from blinkccl.trees.algorithms.blink import DRAFTS, one_root_optimum
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.undirected import most_central
from support.planned import asked, planned

#: A spread of the 60 allocations: small, large, unpaired, without a ring.
SPREAD = [*IN_LANES, ("dgx-1v", "1,4,5,6"), ("dgx-1v", "2,3,6,7"), ("dgx-1v", "0,1,2,3,4,5,6"), ("dgx-1p", "0,1,4")]


def network_of(request: Request) -> FlowNetwork:
    return rank_network_of(request.network, request.ranks).network


@pytest.mark.parametrize("name", DRAFTS)
def test_all_data_passes_one_root(name: str) -> None:
    request = asked("dgx-1v", name, "0,1,2,4,5,6", root=3)
    forest = planned("blink", request)
    if name in ("gather", "scatter"):
        ends = {share.broadcast.edges[-1][-1] if name == "gather" else share.broadcast.edges[0][0]
                for share in forest.shares if share.broadcast is not None and share.broadcast.edges}  # fmt: skip
        assert ends == {4}
    else:
        assert len({share.root for share in forest.shares}) == 1


def test_allreduce_uses_each_tree_up_and_down() -> None:
    forest = planned("blink", asked("dgx-1v", "allreduce"))
    for share in forest.shares:
        assert share.reduce is not None
        assert share.broadcast is not None
        assert {path[::-1] for path in share.reduce.edges} == set(share.broadcast.edges)
    assert forest.rate > Fraction(6, 2), "a directed packing used for both phases would reach half of the broadcast"


def test_the_papers_six_trees_of_one_lane() -> None:
    forest = planned("blink", asked("dgx-1v", "broadcast"))
    assert forest.rate == 6
    assert [share.weight for share in forest.shares] == [Fraction(1, 6)] * 6


@pytest.mark.parametrize("threshold", [Fraction(1, 20), Fraction(3, 10), Fraction(1, 2)], ids=str)
def test_the_threshold_limits_the_loss_of_rate(threshold: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = len(blink.plan(asked("dgx-1v", "allreduce")).shares)
    monkeypatch.setattr(blink, "THRESHOLD", threshold)
    for name, optimum in (("broadcast", Fraction(6)), ("allreduce", Fraction(24, 7))):
        assert blink.plan(asked("dgx-1v", name)).rate >= (1 - threshold) * optimum
    assert len(blink.plan(asked("dgx-1v", "allreduce")).shares) <= trees


def test_one_root_costs_allgather_at_most_half_of_its_rate() -> None:
    """The optimum is 48/7, and 16/3 through one root."""
    network = network_of(asked("dgx-1v", "allgather"))
    assert one_root_optimum(network, 0) * 8 == Fraction(16, 3)
    for spec, gpus in SPREAD:
        network = network_of(asked(spec, "allgather", gpus))
        best = allgather_rate(network)[0]
        assert best / 2 <= one_root_optimum(network, most_central(network)) <= best


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - set(DRAFTS)))
def test_collectives_without_trees_in_the_paper_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"blink does not support {name}, only .*--algo optimal"):
        planned("blink", asked("dgx-1v", name))


def test_allreduce_alone_is_refused_on_one_way_links() -> None:
    with pytest.raises(UnsupportedError, match=r"every link needs the same capacity in both.*--algo optimal"):
        planned("blink", asked("oneway:4", "allreduce"))
    for name in sorted(set(DRAFTS) - {"allreduce"}):
        planned("blink", asked("oneway:4", name, root=2))


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("spec", ["dgx-a100", "2x dgx-1v @ 40Gbps"])
def test_switches_are_supported(spec: str, name: str) -> None:
    gpus = "0-3" if spec == "dgx-a100" else "0,1+2,3"
    planned("blink", asked(spec, name, gpus, root=1))


def test_a_coarser_epsilon_keeps_its_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blink, "EPSILON", Fraction(1, 2))
    monkeypatch.setattr(blink, "THRESHOLD", Fraction(0))
    assert blink.plan(asked("dgx-1v", "broadcast")).rate >= 3
