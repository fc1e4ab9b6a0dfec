"""Plans of fewer hops: sound and within a hundredth of the bound, for every collective with trees; and exceptions."""

import pytest

from blinkccl.trees.algorithms import optimal_trees, refine
from blinkccl.trees.algorithms.optimal import PLANS
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.algorithms.refine import LONGEST_WEIGHT
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.equal_trees import LOSS
from support.planned import asked, planned

#: Jobs, the depth of their first optimum, and the depth of their plan.
DEEP = (
    ("mi250", "allreduce", None, 7, 4),
    ("2x dgx-a100", "allreduce", "0-7+0-6", 4, 2),
    ("2x dgx-1v @ 100Gbps", "allgather", None, 5, 2),
    ("2x dgx-a100", "reduce_scatter", "0-3+0-4", 3, 2),
)


@pytest.mark.parametrize(("spec", "name", "gpus", "before", "after"), DEEP)
def test_deep_plans_of_all_to_all_are_made_shallower(
    spec: str, name: str, gpus: str | None, before: int, after: int
) -> None:
    request = asked(spec, name, gpus)
    assert PLANS[name](request, rank_network_of(request.network, request.ranks)).depth == before
    forest = planned("optimal", request)
    assert forest.depth == after
    assert forest.longest_weight <= LONGEST_WEIGHT
    assert forest.rate >= forest.bound * (1 - LOSS)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_trees_of_one_root_are_made_shallower_for_least_depth_only(name: str) -> None:
    plain, least = (
        planned("optimal", asked("2x dgx-1v @ 100Gbps", name, root=3, objective=objective))
        for objective in ("shallow", "least-depth")
    )
    assert (plain.depth, least.depth) == (4, 3)
    assert least.rate >= plain.bound * (1 - LOSS)


def test_the_least_depth_is_searched_through_switches() -> None:
    forest = planned("optimal", asked("pcie-8gpu", "broadcast", objective="least-depth"))
    assert forest.depth == 3


@pytest.mark.parametrize("spec", ["dgx-1v", "torus:4x4", "dgx-a100", "2x dgx-a100 @ 200Gbps"])
def test_shallow_plans_are_not_searched(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "_mix", lambda *_: pytest.fail("searched"))
    assert planned("optimal", asked(spec, "allgather")).depth <= 4


@pytest.mark.parametrize(("spec", "begun"), [("2x dgx-a100", "shallow"), ("dgx-1v", "least-depth")])
def test_through_switches_the_search_begins_with_the_default(
    spec: str, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other objectives have no equal trees, and on 16 servers with 5 GPUs on one of them columns took a minute."""
    asked_for = []

    def spy(request: Request, view: RankNetwork) -> Forest:
        asked_for.append(request.objective)
        return optimal_trees.all_to_all(request, view)

    monkeypatch.setitem(PLANS, "allgather", spy)
    planned("optimal", asked(spec, "allgather", objective="least-depth"))
    assert asked_for == [begun]


@pytest.mark.parametrize("objective", ["shallow", "least-depth"])
def test_many_unlike_links_are_not_searched(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "MOST_LINKS", 0)
    assert planned("optimal", asked("mi250", "allreduce", objective=objective)).depth == 7


def test_plans_on_one_way_links_are_not_searched() -> None:
    request = asked("oneway:5", "allreduce", objective="least-depth")
    assert planned("optimal", request).rate == planned("optimal", asked("oneway:5", "allreduce")).rate
