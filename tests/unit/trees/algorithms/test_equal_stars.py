"""Stars at every rank, the shallowest and best balanced forest, if all pairs of ranks have the same capacity."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.trees.algorithms.bounds import certificate_for
from support.examples import examples
from support.planned import asked, plan, planned


@pytest.mark.parametrize(
    ("spec", "gpus"), [("dgx-1v", "0,3"), ("dgx-1v", "0,1"), ("dgx-1p", "0-3"), ("cedar", None), ("clique:7", None)]
)
@pytest.mark.parametrize("objective", ["shallow", "least-depth"])
def test_pairs_with_equal_links_share_the_work_equally(spec, gpus, objective):
    forest = plan("optimal", spec, gpus, "allreduce", objective=objective)
    ranks = len(forest.ranks)
    assert forest.optimal
    assert forest.depth == 1
    assert sorted(share.root for share in forest.shares) == sorted(forest.ranks)
    assert {share.weight for share in forest.shares} == {Fraction(1, ranks)}


def test_the_objective_of_few_trees_has_no_stars():
    assert len(plan("optimal", "clique:6", None, "allreduce", objective="fewest-trees").shares) < 6


def test_one_narrow_pair_is_enough_for_other_trees():
    """Stars at GPUs 0 to 3 of a DGX-1V would fill only the narrow links."""
    forest = plan("optimal", "dgx-1v", "0-3", "allreduce")
    assert forest.optimal
    assert forest.depth > 1


@given(st.integers(2, 7), st.data())
@examples(40)
def test_the_rate_is_the_bound_with_stars_or_without(ranks, data):
    spec = data.draw(st.sampled_from([f"clique:{ranks}", f"random:{max(3, ranks)}:seed={ranks}"]))
    request = asked(spec)
    forest = planned("optimal", request)
    assert forest.rate == certificate_for(request.collective, request.ranks, request.network).bound
