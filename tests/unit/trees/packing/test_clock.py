"""The clock of a search: work inside it ends when time is up, and no partial result is cached."""

from fractions import Fraction

import pytest

from blinkccl.errors import TimeUpError
from blinkccl.trees.algorithms.optimal import plan
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.clock import Clock
from support.planned import asked


class Ticks:
    """A time source that advances by a second per call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_clock_ends_the_work_inside_it_and_no_other() -> None:
    clock.look()
    ticking = Clock(3, now=Ticks())  # created at 1, so it ends at 4; the next call gave the time of the first report
    with ticking.running():
        clock.look()
        with pytest.raises(TimeUpError):
            clock.look()
        assert clock.left_s() == 0
    clock.look()


def test_a_clock_keeps_the_best_part_and_the_least_bound() -> None:
    with Clock().running() as one:
        clock.reached(Fraction(1, 2))
        clock.reached(Fraction(1, 3))
        clock.bounded(Fraction(5))
        clock.bounded(Fraction(7))
    clock.reached(Fraction(1))
    assert (one.part, one.bound) == (Fraction(1, 2), Fraction(5))


def test_no_partial_result_is_cached() -> None:
    """The same request is complete after a first search that ran out of time."""
    request = asked("random:10:seed=5", "allgather")
    looks = 0

    def end(clock: Clock) -> None:
        nonlocal looks
        looks += 1
        raise TimeUpError("now")

    with pytest.raises(TimeUpError), Clock(600, end).running():
        plan(request)
    assert looks
    assert plan(request).optimal
