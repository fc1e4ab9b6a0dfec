"""Fully connected groups: as few as possible, deterministic, and a tree of partner links."""

import pytest

from blinkccl.trees.algorithms.internal_broadcast import PARTITION_LIMIT, Grouping, fewest_cliques, groupings
from blinkccl.trees.algorithms.shapes import by_server, line_up, transit_paths
from support.planned import asked


def _groupings(spec: str, gpus: str | None, links: str = "fast") -> list[Grouping]:
    request = asked(spec, "allreduce", gpus, links=links)
    return groupings(request.network, transit_paths(request.network, request.ranks), request.ranks)


def test_halves_of_a_dgx_1() -> None:
    (only,) = _groupings("dgx-1p", None)
    assert only.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert only.crossings[0, 1] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert only.crossings[1, 0] == ((4, 0), (5, 1), (6, 2), (7, 3))


def test_every_minimum_partition_is_offered() -> None:
    groups = [grouping.groups for grouping in _groupings("dgx-1p", "0,4,5,6")]
    assert groups == [((0, 4), (5, 6)), ((0,), (4, 5, 6))]


@pytest.mark.parametrize(
    ("spec", "gpus", "links", "groups"),
    [
        ("cedar", None, "fast", ((0, 1, 2, 3),)),
        ("mist", None, "fast", ((0, 1), (2, 3))),
        ("dgx-a100", "0-4", "fast", ((0, 1, 2, 3, 4),)),
        ("2x dgx-a100", "0,1+0,1", "fast", ((0, 1), (8, 9))),
        ("dgx-1v", None, "pcie", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ],
)
def test_groups_are_joined_by_links_and_switches_of_one_server(
    spec: str, gpus: str | None, links: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    assert _groupings(spec, gpus, links)[0].groups == groups


def test_groups_on_a_network_switch_form_a_line() -> None:
    crossings = _groupings("4x dgx-a100", "0,1+0,1+0,1+0,1")[0].crossings
    assert sorted(crossings) == [(0, 1), (0, 2), (1, 0), (1, 3), (2, 0), (3, 1)]


def test_links_and_members_are_listed_from_the_source_of_the_data() -> None:
    (grouping,) = _groupings("dgx-1p", "0,1,2,5,6,7")
    assert grouping.groups == ((0, 1, 2), (5, 6, 7))
    assert grouping.partners_first(0) == (1, 2, 0)
    assert grouping.links_away(1) == {(1, 0): ((5, 1), (6, 2))}
    assert grouping.home(6) == 1


def test_first_fit_is_not_enough() -> None:
    """The search tries 0-1 first, but {0, 2, 3} and {1, 4} is the smaller cover."""
    edges = {(0, 1), (0, 2), (0, 3), (2, 3), (1, 4)}
    cliques = fewest_cliques(range(5), lambda u, v: (min(u, v), max(u, v)) in edges)
    assert cliques == [((0, 2, 3), (1, 4))]


def test_number_of_partitions_is_limited() -> None:
    cycle = fewest_cliques(range(19), lambda u, v: abs(u - v) in (1, 18))
    assert len(cycle) == PARTITION_LIMIT
    assert all(len(groups) == 10 for groups in cycle)


def test_servers_and_lines() -> None:
    request = asked("2x dgx-1v @ 40Gbps", "allreduce", "0,1,2+5,4,1")
    assert by_server(request.topology, request.ranks) == ((0, 1, 2), (13, 12, 9))
    paths = transit_paths(request.network, request.ranks)
    assert line_up(request.network, paths, (13, 12, 9), start=12) == (12, 13, 9)
    assert line_up(request.network, paths, (13, 12, 9), start=13) is None, "1 is joined to 5 only"
