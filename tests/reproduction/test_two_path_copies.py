"""The multi-path UCX article's copies over two paths, against formulas worked out by hand."""

from fractions import Fraction

import pytest

from blinkccl.cost.baselines.candidate import ChunkedPlan
from blinkccl.cost.simulate.calibration import Calibration
from blinkccl.schedule.lower import lower
from reproduction.claim import Context
from reproduction.multipath import copy_of
from support.timed import calibration_of, link_class

MIB = 2**20
MIST = calibration_of(link_class("nvlink", 25.0, 25.0), link_class("smp", 32.0, 32.0))
CEDAR = calibration_of(link_class("nvlink", 25.0, 25.0), link_class("pcie", 12.0, 10.0), link_class("smp", 10.0, 10.0))


def copied(
    machine: str, costs: Calibration, part: Fraction | None = None, streams: int = 8, window: int = 1
) -> ChunkedPlan:
    return copy_of(Context({machine: costs}), machine, part, streams, window)


def test_copies_down_and_up_overlap_with_several_chunks() -> None:
    """A part h of S through the host, k chunks: h·S/b for the way down and one chunk more for the way up."""
    size, part = 64 * MIB, Fraction(1, 2)
    for streams in (1, 2, 8):
        at = copied("mist", MIST, part, streams).at(size)
        assert at.seconds == pytest.approx(size / 2 / 75e9 * (1 + 1 / streams), rel=1e-5)


def test_without_a_part_for_the_host_a_copy_is_direct() -> None:
    at = copied("mist", MIST, Fraction(0)).at(64 * MIB)
    assert at.algbw_gb_per_s == pytest.approx(75, rel=1e-6)


@pytest.mark.parametrize(("machine", "conditions"), [("mist", MIST), ("cedar", CEDAR)])
@pytest.mark.parametrize("streams", [1, 8])
def test_the_split_chosen_is_faster_than_those_beside_it(machine: str, conditions: Calibration, streams: int) -> None:
    chosen = copied(machine, conditions, None, streams)
    host = chosen.forest.shares[-1].weight * streams
    best = chosen.at(512 * MIB).seconds
    for other in (host * Fraction(9, 10), host * Fraction(11, 10)):
        assert copied(machine, conditions, other, streams).at(512 * MIB).seconds > best


def test_a_window_fills_both_paths() -> None:
    rates = [copied("cedar", CEDAR, None, window=window).at(64 * MIB).algbw_gb_per_s for window in (1, 4, 64)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(60, rel=0.01)
    assert rates[-1] <= 60


def test_what_goes_through_the_host_is_stored_there() -> None:
    plan = copied("mist", MIST)
    assert sum(share.weight for share in plan.forest.shares) == 1
    assert {share.broadcast.edges for share in plan.forest.shares if share.broadcast} == {((0, 1),), ((0, 4, 1),)}
    assert {(queue.path, queue.home) for queue in lower(plan.forest).queues} == {((0, 1), 1), ((0, 4, 1), 4)}
