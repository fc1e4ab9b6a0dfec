"""Three-phase and hybrid forests: right, valid, and never faster than the optimum on the whole network."""

from dataclasses import replace
from fractions import Fraction
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.hybrid import hybrid_split
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import laid_over
from blinkccl.trees.algorithms.three_phase import LocalTree, cut_trees
from blinkccl.trees.forest.model import Forest, Tree
from blinkccl.trees.packing.equal_trees import LOSS
from support.examples import examples
from support.planned import asked, assert_sound, plan_or_reason

seldom = examples(30)
CLUSTERS = [
    ("2x dgx-1v @ 40Gbps", "0,1,2+0,3,4,5,6"),
    ("2x dgx-1v @ 400Gbps", "0,1,2+0,3,4,5,6"),
    ("2x dgx-1v @ 40Gbps", "3+0-6"),
    ("3x dgx-1v @ 40Gbps", "0,1+2,3+0-3"),
    ("2x dgx-a100", None),
    ("3x dgx-a100", "0+0-2+0,1"),
]
FAMILIES = ("chain:4", "ring:4", "clique:4", "star:4", "random:5:seed=1", "random:5:seed=7", "random:4:seed=2:directed")


def gb_per_s(forest: Forest) -> Fraction:
    return forest.rate * exact_unit(forest.topology)


def assert_right_and_not_faster(forest: Forest, best: Forest) -> None:
    assert_sound(forest)
    assert violations(lower(forest), forest.topology) == []
    assert gb_per_s(forest) <= best.bound * exact_unit(best.topology)
    assert gb_per_s(forest) * (1 - LOSS) <= gb_per_s(best)  # short weights may cost a hundredth


@pytest.mark.parametrize(("spec", "gpus"), CLUSTERS)
def test_three_phases_are_not_faster_than_the_optimum(spec: str, gpus: str | None) -> None:
    request = asked(spec, "allreduce", gpus)
    assert_right_and_not_faster(ALGORITHMS["three_phase"].plan(request), ALGORITHMS["optimal"].plan(request))


@st.composite
def clusters(draw: st.DrawFn) -> Request:
    """2 or 3 servers of one kind, with any GPUs of each."""
    family = draw(st.sampled_from(FAMILIES))
    size = int(family.split(":")[1])
    servers = draw(st.integers(2, 3))
    chosen = [draw(st.sets(st.integers(0, size - 1), min_size=1)) for _ in range(servers)]
    gpus = "+".join(",".join(map(str, sorted(members))) for members in chosen)
    return asked(f"{servers}x {family} @ {draw(st.sampled_from((40, 200, 600)))}Gbps", "allreduce", gpus)


@seldom
@given(clusters())
def test_three_phases_on_random_clusters_are_not_faster_than_the_optimum(request: Request) -> None:
    forest = plan_or_reason("three_phase", request)
    if isinstance(forest, str):
        assert "only over the network" in forest
    else:
        assert_right_and_not_faster(forest, ALGORITHMS["optimal"].plan(request))


@seldom
@given(
    st.sampled_from(["dgx-1v", "dgx-1p", "cedar", "mi250", "pcie-4gpu-nvlink-pairs"]),
    st.sets(st.integers(0, 7), min_size=2, max_size=5),
    st.sampled_from(sorted(COLLECTIVES)),
)
def test_hybrids_do_not_beat_one_forest_over_both_classes(spec: str, chosen: set[int], name: str) -> None:
    topology, _ = load(spec, None)
    gpus = sorted({rank % len(topology.ranks) for rank in chosen} | {0, 1})
    request = asked(spec, name, ",".join(map(str, gpus)), root=1)
    forest = plan_or_reason("hybrid", request)
    if isinstance(forest, str):
        with pytest.raises(TopologyError, match="--links fast leaves"):
            assert request.network is None, forest
    else:
        assert_right_and_not_faster(forest, ALGORITHMS["optimal"].plan(replace(request, links="all")))


parts = st.lists(st.integers(1, 12), min_size=1, max_size=6).map(
    lambda sizes: sorted((Fraction(size, sum(sizes)) for size in sizes), reverse=True)
)


def trees_of(weights: list[Fraction]) -> list[LocalTree]:
    """Stars of three ranks, with roots 0, 1, 2 in turn."""
    stars = [Tree(i, tuple((i, j) for j in range(3) if j != i)) for i in range(3)]
    return [LocalTree(w, stars[i % 3].reversed(), stars[i % 3]) for i, w in enumerate(weights)]


@seldom
@given(st.lists(parts, min_size=1, max_size=4))
def test_overlaid_cuts_leave_every_server_its_weights(servers: list[list[Fraction]]) -> None:
    columns = [trees_of(weights) for weights in servers]
    cuts = list(laid_over(columns, attrgetter("weight")))
    assert len(cuts) <= sum(map(len, columns)) - len(columns) + 1
    for i, column in enumerate(columns):
        pieces = [(weight, trees[i]) for weight, trees in cuts]
        for tree in column:
            count = sum(other == tree for other in column)
            assert sum((w for w, other in pieces if other == tree), Fraction(0)) == count * tree.weight


@seldom
@given(parts, st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_cut_trees_load_every_link_out_in_proportion_to_its_width(weights: list[Fraction], widths: list[int]) -> None:
    placed = cut_trees(trees_of(weights), dict(enumerate(widths)))
    assert len(placed) < len(weights) + 3
    for rank, width in enumerate(widths):
        rooted = sum((tree.weight for tree in placed if tree.root == rank), Fraction(0))
        assert rooted == Fraction(width, sum(widths))


rate = st.fractions(Fraction(1, 10), 200, max_denominator=20)


@seldom
@given(st.integers(0, 10**9), rate, rate, st.fractions(0, Fraction(1, 50), max_denominator=10**6), st.fractions(0, 1))
def test_no_other_split_is_faster(
    total: int, pcie: Fraction, nvlink: Fraction, t_dpa_s: Fraction, other: Fraction
) -> None:
    split = hybrid_split(total, pcie, nvlink, t_dpa_s)
    assert split.pcie_bytes + split.nvlink_bytes == total
    assert 0 <= split.pcie_bytes <= total
    over_pcie = t_dpa_s + other * total / (pcie * 10**9) if other else Fraction(0)
    assert split.seconds <= max(over_pcie, (1 - other) * total / (nvlink * 10**9))
    if split.pcie_bytes:
        assert split.seconds == t_dpa_s + split.pcie_bytes / (pcie * 10**9)
