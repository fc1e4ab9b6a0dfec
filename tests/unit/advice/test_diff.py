"""What makes two plans the same, and what is said of two that are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import blinkccl
from blinkccl.advice.diff import EQUAL, SIZES, Diff, compare
from blinkccl.advice.diff_text import diff_text
from blinkccl.api.plan import Plan
from blinkccl.errors import UsageError
from blinkccl.forest.model import Forest, Share, Tree, attained_rate, split_shares
from support.planned import plan

SMALL = (1 << 20,)
at_small = partial(compare, sizes=SMALL)


@pytest.fixture(scope="module")
def optimal() -> Forest:
    return plan("optimal", "dgx-1v", "0-3", "allreduce")


def with_shares(forest: Forest, shares: Sequence[Share]) -> Forest:
    """The forest with other shares, at the rate that its links allow them."""
    return replace(forest, shares=tuple(shares), rate=attained_rate(forest.topology, shares))


def test_the_order_of_shares_and_names_make_no_other_plan(optimal: Forest) -> None:
    turned = [replace(share, slice=i) for i, share in enumerate(optimal.shares[::-1])]
    found = at_small(optimal, replace(with_shares(optimal, turned), algorithm="by hand"))
    assert found.same
    assert (found.links, found.trees, found.apart) == ((), (), "")
    assert (found.links_alike, found.trees_alike) == (12, 3)
    assert "\n\nthe same plan: 3 shares, 75 GB/s algbw\n" in diff_text(found)


def test_edges_of_a_sum_have_no_order_and_those_of_a_parent_have(optimal: Forest) -> None:
    first = optimal.shares[0]
    up, down = first.reduce, first.broadcast
    assert up is not None
    assert down is not None
    summed = replace(first, reduce=Tree(up.root, up.edges[::-1]))
    assert at_small(optimal, with_shares(optimal, [summed, *optimal.shares[1:]])).same
    sent = replace(first, broadcast=Tree(down.root, down.edges[::-1]))
    assert not at_small(optimal, with_shares(optimal, [sent, *optimal.shares[1:]])).same


def test_other_weights_on_the_same_trees(optimal: Forest) -> None:
    weights = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
    other = [replace(share, weight=weight) for share, weight in zip(optimal.shares, weights, strict=True)]
    found = at_small(optimal, with_shares(optimal, other))
    assert not found.same
    assert found.trees_alike == 1
    assert [(one.a, one.b) for one in found.trees] == [
        ((Fraction(1, 3),), (Fraction(1, 2),)),
        ((Fraction(1, 3),), (Fraction(1, 6),)),
    ]
    assert "with other weights: weight 1/3 → 1/2, root 0\n" in diff_text(found)
    assert found.b.largest_denominator == 6


def test_a_share_in_two_parts_is_told_with_both(optimal: Forest) -> None:
    found = at_small(optimal, split_shares(optimal, 2))
    assert not found.same
    assert found.trees_alike == 0
    assert {one.b for one in found.trees} == {(Fraction(1, 6), Fraction(1, 6))}
    assert "weight 1/3 → 1/6 + 1/6, root 0\n" in diff_text(found)


def test_another_link_is_told_by_its_loads(optimal: Forest) -> None:
    machine = blinkccl.topo("dgx-1v").topology
    from blinkccl.topology.loss import without

    found = at_small(optimal, plan("optimal", without(machine, [(0, 3)]), "0-3", "allreduce"))
    gone = found.links[0]
    assert (gone.src, gone.dst, gone.kind, gone.b) == (0, 3, "nvlink", None)
    assert gone.a is not None
    assert (gone.a.load, gone.a.capacity, gone.by) == (50, 50, 50)
    assert [one.by for one in found.links] == sorted((one.by for one in found.links), reverse=True)
    assert len(found.links) + found.links_alike == len(optimal.topology.links)
    assert "GPU0 → GPU3  nvlink      50  100%       -     -\n" in diff_text(found)


def test_the_same_trees_on_a_wider_link_are_another_plan(optimal: Forest) -> None:
    topology = optimal.topology
    wider = replace(
        topology,
        links=tuple(
            replace(link, capacity=2 * link.capacity, gb_per_s=2 * link.gb_per_s) if link.src == 0 else link
            for link in topology.links
        ),
    )
    found = at_small(optimal, replace(optimal, topology=wider))
    assert not found.same
    assert found.trees == ()
    assert {one.src for one in found.links} == {0}
    assert all(one.by == 0 and one.a and one.b and 2 * one.a.capacity == one.b.capacity for one in found.links)


def test_other_ranks_of_the_machine_are_compared_and_no_tree_is_in_both() -> None:
    found = at_small(
        plan("optimal", "dgx-1v", "1,4,5,6", "allreduce"), plan("optimal", "dgx-1v", "0,1,4,6", "allreduce")
    )
    assert (found.same, found.trees_alike, len(found.trees), found.apart) == (False, 0, 3, "")
    assert diff_text(found).splitlines()[3].startswith("A is 2 times as fast for large messages")


def test_what_numbers_mean_on_two_machines() -> None:
    found = at_small(plan("optimal", "dgx-2", "0-3", "allreduce"), plan("optimal", "dgx-1v", "0-3", "allreduce"))
    assert (found.apart, found.same) == ("", False)  # Their switches do not meet in numbers.
    one, other = (
        plan("optimal", "star:4", None, "allreduce"),
        plan("optimal", "ring:5", "0,1,2,4", "allreduce", links="all", relays=True),
    )
    apart = at_small(one, other)
    assert apart.apart == "4 is a switch of star:4, and a gpu of ring:5"
    assert (apart.links, apart.trees) == ((), ())
    assert "links and trees are not compared: 4 is a switch of star:4" in diff_text(apart)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("optimal", "dgx-1v", "0-3", "broadcast"), "the collective of A is allreduce, that of B broadcast"),
        (("optimal", "dgx-1v", "0-4", "allreduce"), "the number of ranks of A is 4, that of B 5"),
    ],
)
def test_what_is_no_plan_of_the_same_job_is_refused(
    optimal: Forest, other: tuple[str, str, str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare(optimal, plan(*other))


def test_times_are_those_of_sim_and_spans_follow_from_them(optimal: Forest) -> None:
    ring = plan("ring", "dgx-1v", "0-3", "allreduce")
    found = Plan(optimal).diff(Plan(ring))
    assert isinstance(found, Diff)
    assert not isinstance(found.times, str)
    assert tuple(row.size_bytes for row in found.times.rows) == SIZES
    for row in found.times.rows:
        assert row.a.seconds == Plan(optimal).simulate(row.size_bytes).seconds
        assert row.b.seconds == Plan(ring).simulate(row.size_bytes).seconds
        ratio = row.a.seconds / row.b.seconds
        assert row.faster == ("" if abs(ratio - 1) < EQUAL else "A" if ratio < 1 else "B")
    assert [row for span in found.times.spans for row in span.rows] == list(found.times.rows)
    for span in found.times.spans:
        assert {row.faster for row in span.rows} == {span.faster}


def test_a_size_where_the_other_plan_gets_faster_is_between_those_that_were_timed(optimal: Forest) -> None:
    shallow = plan("one_hop", "dgx-1v", "0-3", "allreduce")
    found = compare(shallow, optimal)
    assert not isinstance(found.times, str)
    first, second = found.times.spans[:2]
    assert (first.faster, second.faster, found.times.spans[-1].faster) == ("A", "B", "B")
    assert first.rows[-1].size_bytes < second.from_bytes <= second.rows[0].size_bytes
    there = compare(shallow, optimal, [second.from_bytes * 9 // 10, second.from_bytes]).times
    assert not isinstance(there, str)
    assert there.rows[0].faster != "B"
    assert there.rows[1].faster == "B"


def test_what_kernels_do_not_run_is_timed_by_copies_on_both_sides() -> None:
    relayed = plan("optimal", "dgx-1v", "1,4,7", "allreduce", relays=True)
    staged = plan("optimal", "dgx-1v", "4,6,7", "allreduce")
    times = at_small(relayed, staged).times
    assert not isinstance(times, str)
    assert times.codes[0] == times.codes[1]
    assert times.codes[0].startswith("copy engines (")
