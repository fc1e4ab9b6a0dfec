"""One-hop trees (Blink §3.5), one-shot and flat AllReduce: stars, their rates, and refusals."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.codegen.channels import MAX_ENDS
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.choice.programs import require_branches
from blinkccl.errors import UnsupportedError
from blinkccl.proof.check import check_plan
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.optimal import plan as optimal
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.stars import _parents
from blinkccl.trees.forest.document import to_document
from support.planned import plan


@pytest.mark.parametrize("spec", ["dgx-2", "dgx-a100", "hgx-h100", "star:5"])
@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"broadcast", "reduce"}))
def test_optimal_through_one_switch(spec: str, collective: str) -> None:
    forest = plan("one_hop", spec, None, collective, root=1)
    assert forest.optimal
    assert forest.depth == 1


def test_sixteen_stars_on_dgx_2() -> None:
    """Fact B18: m GPUs have m one-hop trees with 1/m of the data each."""
    forest = plan("one_hop", "dgx-2", None, "allreduce")
    assert [share.root for share in forest.shares] == list(range(16))
    assert {share.weight for share in forest.shares} == {Fraction(1, 16)}
    assert all(len(tree.edges) == 15 for share in forest.shares for tree in share.trees())
    assert forest.algbw_gb_per_s == pytest.approx(80.0)


def test_stars_begin_with_different_leaves() -> None:
    forest = plan("one_hop", "clique:4", None, "allreduce")
    firsts = [share.broadcast.edges[0][-1] for share in forest.shares if share.broadcast is not None]
    assert sorted(firsts) == [0, 1, 2, 3]


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
@pytest.mark.parametrize("spec", ["cedar", "star:3", "clique:2", "pcie-8gpu"])
def test_every_collective_in_one_hop(collective: str, spec: str) -> None:
    forest = plan("one_hop", spec, None, collective, root=1)
    assert forest.depth == 1
    assert [share.slice for share in forest.shares] == list(range(len(forest.shares)))


def test_blocks_that_stay_have_no_edges() -> None:
    forest = plan("one_hop", "star:3", None, "alltoall")
    still = [share.block for share in forest.shares if not list(share.trees())]
    assert still == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("algorithm", ["one_hop", "one_shot", "flat"])
def test_pairs_further_apart_are_refused_by_name(algorithm: str) -> None:
    reason = rf"^{algorithm} needs every pair .* from 0 to 5 \(24 such ordered pairs\); use --links pcie"
    with pytest.raises(UnsupportedError, match=reason):
        plan(algorithm, "dgx-1v", None, "allreduce")


@pytest.mark.parametrize(("spec", "rate"), [("clique:4", "1"), ("dgx-a100", "1/7"), ("cedar", "1"), ("clique:2", "1")])
def test_one_shot_carries_the_whole_data_to_every_rank(spec: str, rate: str) -> None:
    forest = plan("one_shot", spec, None, "allreduce")
    assert {(share.slice, share.weight) for share in forest.shares} == {(0, Fraction(1))}
    assert all(share.broadcast is None for share in forest.shares)
    assert [share.root for share in forest.shares] == list(forest.ranks)
    assert forest.rate == Fraction(rate)


@pytest.mark.parametrize(
    ("spec", "gpus", "rate"),
    [("cedar", None, "2"), ("dgx-1p", "0-3", "2"), ("clique:6", None, "3"), ("dgx-a100", None, "4/7")],
)
def test_flat_is_optimal_if_all_pairs_have_equal_links(spec: str, gpus: str | None, rate: str) -> None:
    forest = plan("flat", spec, gpus, "allreduce")
    assert forest.rate == Fraction(rate)
    assert forest.optimal
    assert forest.shares == plan("one_hop", spec, gpus, "allreduce").shares


def test_flat_stays_inside_one_server() -> None:
    with pytest.raises(UnsupportedError, match=r"flat works inside one server, .* on servers 0, 1"):
        plan("flat", "2x cedar @ 100Gbps", None, "allreduce")
    assert plan("flat", "2x cedar @ 100Gbps", "4,5,6,7", "allreduce").rate == 2
    assert plan("one_hop", "2x cedar @ 100Gbps", None, "allreduce").depth == 1


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("count", [18, 33, 50, 71, 72])
def test_optimal_plans_on_a_large_switch_have_no_more_ends_than_generated_code_serves(
    collective: str, count: int
) -> None:
    """The trees of all ranks are one tree, rotated, so they carry as much as stars: the rate is still the bound."""
    topology = parse_spec("gb200-nvl72")
    forest = optimal(Request(topology, Collective(collective, count), topology.ranks[:count]))
    assert forest.optimal
    assert forest.depth == (1 if (count - 1) * (1 + (collective == "allreduce")) <= MAX_ENDS else 2)
    require_branches(forest)
    assert check_plan(to_document(forest)).violations == []


def test_few_gpus_keep_their_stars() -> None:
    topology = parse_spec("dgx-2")
    forest = optimal(Request(topology, Collective("allreduce", 16), topology.ranks))
    assert (forest.optimal, forest.depth) == (True, 1)


@given(count=st.integers(2, 300), most=st.integers(2, 40))
def test_numbers_of_few_digits_have_few_children(count: int, most: int) -> None:
    parents = _parents(count, most)
    assert all(parent < number for number, parent in enumerate(parents) if number)
    assert max(Counter(parents[1:]).values()) <= max(most, (count - 1).bit_length())
