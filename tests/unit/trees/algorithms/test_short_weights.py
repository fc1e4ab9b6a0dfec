"""Short weights: multiples of 1/q of a block, q at most 64, for at most a hundredth of the rate; proofs stay."""

from dataclasses import replace
from fractions import Fraction
from math import lcm

import pytest

from blinkccl.trees.algorithms.refine import LONGEST_WEIGHT, shortened
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.equal_trees import LOSS
from support.planned import asked, assert_sound, plan, planned

#: Jobs with longer exact weights, for which the default may lose rate.
LONG = (
    ("2x dgx-a100", "allgather", None, "fast"),
    ("2x dgx-a100", "reduce_scatter", None, "fast"),
    ("2x mi250", "allgather", None, "fast"),
    ("2x mi300x", "broadcast", None, "fast"),
    ("2x mi300x", "allgather", "0-2+0-2", "fast"),
    ("dgx-1v", "allreduce", None, "all"),
    ("dgx-a100", "reduce", None, "all"),
)


def common_denominator(forest: Forest) -> int:
    """The common denominator of all weights, as parts of a block."""
    blocks = 1 if forest.collective.root is not None else len(forest.ranks)
    return lcm(*((share.weight * blocks).denominator for share in forest.shares))


@pytest.mark.parametrize(("spec", "name", "gpus", "links"), LONG)
def test_weights_are_short_and_a_hundredth_is_lost_at_most(spec: str, name: str, gpus: str | None, links: str) -> None:
    exact = plan("optimal", spec, gpus, name, links=links, objective="exact")
    short = plan("optimal", spec, gpus, name, links=links)
    assert exact.longest_weight > LONGEST_WEIGHT
    assert common_denominator(short) <= LONGEST_WEIGHT
    assert exact.bound == short.bound
    assert short.rate >= exact.rate * (1 - LOSS)
    assert short.optimal == (short.rate == short.bound)


def test_blocks_of_equivalent_ranks_get_the_same_weights() -> None:
    """Every rank's block is cut into the same parts, so a symmetric plan stays symmetric."""
    forest = plan("optimal", "2x dgx-a100", None, "allgather")
    parts = {tuple(sorted(share.weight for share in forest.shares if share.block == rank)) for rank in forest.ranks}
    assert len(parts) == 1


def test_short_weights_are_not_changed() -> None:
    forest = planned("optimal", asked("dgx-1v", "allgather"))
    assert forest.longest_weight <= LONGEST_WEIGHT
    assert shortened(forest) is forest


def test_the_same_tree_twice_may_have_any_parts() -> None:
    (share,) = plan("optimal", "ring:2", None, "broadcast").shares
    parts = (Fraction(1, 128), Fraction(127, 128))
    long = plan("optimal", "ring:2", None, "broadcast")
    long = replace(long, shares=tuple(replace(share, weight=part, slice=i) for i, part in enumerate(parts)))
    short = shortened(long)
    assert short.longest_weight == 1
    assert short.rate == long.rate
    assert_sound(short)


def test_weights_that_cannot_be_shortened_are_kept() -> None:
    """Each of 71 other ranks forwards 1/71, and no 64 of such trees fill the switch."""
    forest = plan("optimal", "gb200-nvl72", None, "broadcast")
    assert forest.longest_weight == 71
    assert forest.optimal
