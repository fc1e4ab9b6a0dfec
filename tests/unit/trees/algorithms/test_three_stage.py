"""Hierarchical AllReduce over socket leaders: Mist and Cedar, sockets elsewhere, refusals."""

from fractions import Fraction

import pytest

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms import three_stage
from blinkccl.trees.algorithms.three_stage import sockets
from support.planned import asked, plan


@pytest.mark.parametrize(
    ("spec", "gpus", "groups"),
    [
        ("mist", None, ((0, 1), (2, 3))),
        ("cedar", None, ((0, 1), (2, 3))),
        ("mist", "3,0,2", ((3, 2), (0,))),
        ("dgx-1v", "1,4,5,6", ((1,), (4, 5, 6))),
        ("clique:4", None, ()),
        ("cedar", "2,3", ((2, 3),)),
    ],
)
def test_sockets(spec: str, gpus: str | None, groups: tuple[tuple[int, ...], ...]) -> None:
    request = asked(spec, "allreduce", gpus)
    assert sockets(request.topology, request.ranks) == groups


def test_mist_fills_the_bus_between_its_sockets() -> None:
    forest = plan("three_stage", "mist", None, "allreduce")
    assert forest.optimal
    assert forest.algbw_gb_per_s == pytest.approx(32.0)
    first, second = forest.shares
    assert (first.weight, second.weight) == (Fraction(1, 2), Fraction(1, 2))
    assert first.broadcast is not None
    assert [(path[0], path[-1]) for path in first.broadcast.edges] == [(0, 2), (0, 1), (2, 3)]
    assert second.root == 2


def test_cedar_leaves_most_links_between_its_sockets_idle() -> None:
    forest = plan("three_stage", "cedar", None, "allreduce")
    assert forest.rate == 1
    assert forest.bound == 2
    across = [arc for arc in forest.link_load if arc[0] // 2 != arc[1] // 2]
    assert across == [(0, 2), (2, 0)] or sorted(across) == [(0, 2), (2, 0)]


def test_leaders_are_the_gpus_that_join_the_sockets() -> None:
    forest = plan("three_stage", "dgx-1p", "1,2,4,5", "allreduce")
    assert [share.root for share in forest.shares] == [1, 5]


def test_between_servers_each_part_is_reduced_among_the_leaders_that_have_it() -> None:
    """On two nodes S leaves and enters each node once, on four nodes 1.5 S."""
    for nodes, gb_per_s in ((2, 12.5), (4, 12.5 / 1.5)):
        forest = plan("three_stage", f"{nodes}x mist @ 100Gbps", None, "allreduce")
        assert forest.algbw_gb_per_s == pytest.approx(gb_per_s)
        assert [share.weight for share in forest.shares] == [Fraction(1, 2 * nodes)] * (2 * nodes)
        across = {
            (path[0], path[-1])
            for share in forest.shares
            for tree in share.trees()
            for path in tree.edges
            if path[0] // 4 != path[-1] // 4
        }
        leaders = {0: range(0, 4 * nodes, 4), 1: range(2, 4 * nodes, 4)}
        assert across == {(a, b) for side in leaders.values() for a in side for b in side if a != b}


def test_servers_of_different_allocations_have_different_leaders() -> None:
    forest = plan("three_stage", "2x mist @ 100Gbps", "0,2,4,5,6,7", "allreduce")
    assert {share.root for share in forest.shares} == {0, 2, 4, 6}


@pytest.mark.parametrize(
    ("spec", "gpus", "reason"),
    [
        ("clique:4", None, "clique:4 has no host processors"),
        ("dgx-1p", "0-3", "all ranks of this job are on one host processor"),
        ("2x cedar @ 100Gbps", "0,1,4-7", "all ranks of a server are on one host processor"),
        ("mi250", None, "no choice of one leader per socket is one hop from each other"),
    ],
)
def test_reasons(spec: str, gpus: str | None, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        plan("three_stage", spec, gpus, "allreduce")


def test_servers_must_have_the_same_number_of_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test replaces ``sockets``, since no machine of the catalog has more than two."""
    apart = {(0, 1, 2, 3): ((0, 1), (2, 3)), (4, 5, 6, 7): ((4,), (5,), (6, 7))}
    monkeypatch.setattr(three_stage, "sockets", lambda _, ranks: apart[ranks])
    with pytest.raises(UnsupportedError, match="the same number of sockets on each server, but the ranks are on 2, 3"):
        plan("three_stage", "2x mist @ 100Gbps", None, "allreduce")
