"""Plans by a deadline: complete where there is time, certified where there is not, and a named error without any."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinkccl.algorithms import deadline
from blinkccl.algorithms.deadline import plan_within, simple_s
from blinkccl.algorithms.optimal import plan
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TimeUpError
from blinkccl.packing import clock
from blinkccl.packing.clock import Clock
from support.native_code import needs_native_code
from support.planned import asked, assert_sound

MACHINES = (
    ("dgx-1v", "1,4,5,6"),
    ("mi250", "0-5"),
    ("2x dgx-a100", "0,1+0-2"),
    ("2x dgx-1v @ 100Gbps", None),
    ("oneway:5", None),
    ("chain:4", None),
    ("random:9:seed=2:directed", None),
)


class Ticks:
    """A clock that every look moves on by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search ends at once, without anything."""

    def no_time(request: object) -> None:
        raise TimeUpError("now")

    monkeypatch.setattr(deadline, "plan", no_time)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(("spec", "gpus"), MACHINES)
def test_a_search_without_time_leaves_a_certified_forest(ended: None, spec: str, gpus: str | None, name: str) -> None:
    request = asked(spec, name, gpus, root=1)
    found = plan_within(request, 60)
    assert not found.complete
    assert_sound(found.forest)
    best = plan(request)
    assert found.forest.rate <= best.bound
    assert found.forest.bound >= best.rate


@needs_native_code
@pytest.mark.parametrize(
    ("spec", "name", "part"),
    [
        ("2x mi250", "broadcast", Fraction(1, 2)),  # a star sends all over one NIC: 1/120
        ("2x mi250", "reduce", Fraction(1, 2)),
        ("2x mi250", "allgather", Fraction(1, 2)),
        ("2x mi250", "allreduce", Fraction(1, 2)),
        ("random:12:seed=4:directed", "allreduce", Fraction(2, 5)),  # trees up that are not those down
    ],
)
def test_what_is_left_is_equal_trees_of_a_fair_rate(ended: None, spec: str, name: str, part: Fraction) -> None:
    forest = plan_within(asked(spec, name), 60).forest
    assert_sound(forest)
    assert forest.rate >= part * forest.bound


@pytest.mark.parametrize("name", COLLECTIVES)
def test_with_time_it_is_the_plan_without_a_deadline(name: str) -> None:
    request = asked("dgx-1v", name, "1,4,5,6")
    found = plan_within(request, 600)
    assert found.complete
    assert found.forest == plan(request)


@needs_native_code
def test_the_best_trees_of_a_search_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for equal trees of 12 unequal ranks ends after its first try: nearer to the bound than by any tree."""
    request = asked("2x dgx-a100", "allreduce", "0-6+0-4")
    kept: list[Clock] = []
    monkeypatch.setattr(clock, "SAY_EVERY_S", 0)

    def listener(heard: Clock) -> None:
        kept.append(heard)
        if heard.best is not None:
            raise TimeUpError("now")

    found = plan_within(request, 600, listener)
    assert kept
    assert not found.complete
    assert_sound(found.forest)
    assert found.forest.rate / found.forest.bound == kept[-1].part


def test_no_time_at_all_is_a_named_error() -> None:
    request = asked("16x dgx-a100", "allgather")
    with pytest.raises(
        TimeUpError, match=r"allgather among 128 ranks of 16x dgx-a100 has no plan after 1e-06 s.*give more"
    ):
        plan_within(request, 1e-6)


def test_less_than_half_is_kept_back() -> None:
    assert simple_s(asked("dgx-1v", "broadcast")) < simple_s(asked("dgx-1v", "allgather")) < 1


def test_a_clock_ends_what_looks_at_it_and_nothing_else() -> None:
    clock.look()
    ticking = Clock(3, now=Ticks())  # made at 1, so that it ends at 4; a second was for the next word
    with ticking.running():
        clock.look()
        with pytest.raises(TimeUpError):
            clock.look()
        assert clock.left_s() == 0
    clock.look()


def test_a_clock_keeps_the_best_and_the_least_bound() -> None:
    with Clock().running() as one:
        clock.keep("some", Fraction(1, 2))
        clock.keep("worse", Fraction(1, 3))
        clock.bounded(Fraction(5))
        clock.bounded(Fraction(7))
    clock.keep("nobody", Fraction(1))
    assert (one.best, one.part, one.bound) == ("some", Fraction(1, 2), Fraction(5))


def test_nothing_half_done_is_remembered() -> None:
    """What is asked again after an end is found whole."""
    request = asked("random:10:seed=5", "allgather")
    looks = 0

    def end(heard: Clock) -> None:
        nonlocal looks
        looks += 1
        raise TimeUpError("now")

    assert not plan_within(request, 600, end).complete
    assert looks
    assert plan(request).optimal
