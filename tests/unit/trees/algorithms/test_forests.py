"""Forests from drafts: order of hops, numbers of slices, vertex ids, and no rate above its proof."""

from fractions import Fraction

import pytest

from blinkccl.errors import InternalError
from blinkccl.trees.algorithms.forests import Draft, forest_of
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.forest.model import Cut, Share, Tree
from blinkccl.trees.packing.network import breadth_first
from support.planned import asked

HALF = Fraction(1, 2)


def test_hops_come_breadth_first_with_children_ascending() -> None:
    assert breadth_first(2, [(0, 3), (2, 9, 0), (2, 1), (1, 4)]) == ((2, 9, 0), (2, 1), (0, 3), (1, 4))


def test_drafts_in_positions_become_shares_in_vertex_ids() -> None:
    request = asked("dgx-1v", "allgather", "6,4")
    view = rank_network_of(request.network, request.ranks)
    drafts = [Draft(0, HALF, 0, None, ((0, 1),)), Draft(1, HALF, 1, None, ((1, 0),))]
    forest = forest_of(request, view, "by hand", drafts, Cut((6,), Fraction(1), HALF))
    assert forest.shares == (
        Share(HALF, 0, 6, 6, None, Tree(6, ((6, 4),))),
        Share(HALF, 1, 4, 4, None, Tree(4, ((4, 6),))),
    )
    assert forest.rate == forest.bound == 2
    assert (forest.algorithm, forest.ranks) == ("by hand", (6, 4))


def test_a_rate_above_the_proof_is_an_internal_error() -> None:
    request = asked("dgx-1v", "broadcast", "6,4")
    view = rank_network_of(request.network, request.ranks)
    with pytest.raises(InternalError, match="by hand reaches 1, more than the proved bound 1/2"):
        forest_of(
            request, view, "by hand", [Draft(None, Fraction(1), 0, None, ((0, 1),))], Cut((6,), HALF, Fraction(1))
        )
