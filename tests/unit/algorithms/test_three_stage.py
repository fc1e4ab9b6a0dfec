"""Hierarchical AllReduce over socket leaders: Mist and Cedar, sockets elsewhere, refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinkccl.algorithms.three_stage import sockets
from blinkccl.errors import UnsupportedError
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


def test_leaders_are_chosen_where_the_sockets_are_joined() -> None:
    forest = plan("three_stage", "dgx-1p", "1,2,4,5", "allreduce")
    assert [share.root for share in forest.shares] == [1, 5]


@pytest.mark.parametrize(
    ("spec", "gpus", "reason"),
    [
        ("clique:4", None, "clique:4 says nothing of host processors"),
        ("dgx-1p", "0-3", "all ranks of this job hang on one host processor"),
        ("2x cedar @ 100Gbps", None, "works inside one server"),
        ("mi250", None, "no choice of one leader per socket is one hop from each other"),
    ],
)
def test_reasons(spec: str, gpus: str | None, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        plan("three_stage", spec, gpus, "allreduce")
