"""Rotations are automorphisms, one per rank, closed under composition; none where there are none."""

from __future__ import annotations

import pytest

from blinkccl.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.algorithms.symmetry import rotations
from support.planned import asked


def view(spec: str, gpus: str | None = None) -> RankNetwork:
    request = asked(spec, "allgather", gpus)
    return rank_network_of(request.network, request.ranks)


@pytest.mark.parametrize(
    "spec",
    ["ring:6", "oneway:5", "clique:4", "star:5", "dgx-a100", "dgx-2", "2x dgx-a100 @ 200Gbps", "4x star:3 @ 100Gbps"],
)
def test_rotations_are_a_group_of_automorphisms(spec: str) -> None:
    found = view(spec)
    network, group = found.network, rotations(found)
    assert group is not None
    assert [move[0] for move in group] == list(range(network.terminals))
    for move in group:
        assert sorted(move) == list(range(network.n))
        assert {(move[u], move[v]): c for u, v, c in network.arcs} == network.capacity
        for other in group:
            assert tuple(move[other[v]] for v in range(network.n)) in group


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ("dgx-1v", None),
        ("chain:4", None),
        ("random:6:seed=1", None),
        ("2x dgx-a100 @ 200Gbps", "0,1,2+0,1"),
        ("2x dgx-a100 @ 200Gbps", "0,8,1,9"),
        ("2x dgx-1v @ 40Gbps", None),
    ],
)
def test_where_ranks_differ_there_are_none(spec: str, gpus: str | None) -> None:
    assert rotations(view(spec, gpus)) is None


def test_equal_parts_of_servers_rotate_too() -> None:
    group = rotations(view("2x dgx-a100 @ 200Gbps", "0,2,5+1,2,7"))
    assert group is not None
    assert len(group) == 6
