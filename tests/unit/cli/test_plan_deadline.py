"""``blink plan --deadline``: what it says where it ended the search, what it refuses, and the named error."""

from __future__ import annotations

import msgspec
import pytest

from blinkccl import plan
from blinkccl.algorithms import bounds, deadline, optimal_trees
from blinkccl.cli.plan import _known
from blinkccl.errors import TimeUpError
from blinkccl.packing import clock
from blinkccl.packing.clock import Clock
from support.planned import asked

JOB = ("plan", "allgather", "--topo", "mi250")


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search ends at once."""

    def end(request: object) -> None:
        raise TimeUpError("now")

    monkeypatch.setattr(deadline, "plan", end)


def test_with_time_nothing_is_said_of_it(blink):
    assert blink(*JOB, "--deadline", "600", "--json").out.replace(" ", "").count("ended_after_s") == 0
    assert "deadline" not in blink(*JOB, "--deadline", "600").out


def test_an_ended_search_says_so_and_its_plan_is_sound(blink, no_time, tmp_path):
    ended = blink(*JOB, "--deadline", "60", "-o", tmp_path / "plan.json")
    assert ended.code == 0
    assert "deadline the search ended after 60 s: more time may find a faster plan" in ended.out
    assert "% of the bound" in ended.out
    assert blink("check", tmp_path / "plan.json").code == 0
    assert msgspec.json.decode(blink(*JOB, "--deadline", "60", "--json").out)["ended_after_s"] == 60


def test_from_python(no_time):
    found = plan("allgather", "mi250", deadline=60)
    assert found.ended_after_s == 60
    assert found.check().ok
    assert plan("allgather", "dgx-1v", gpus="0,1", deadline=60).ended_after_s == 60
    with pytest.raises(Exception, match="a deadline is for the optimum"):
        plan("allgather", "mi250", deadline=60, algo="ring")


def test_no_plan_in_time_is_a_timeout(blink):
    ended = blink("plan", "allgather", "--topo", "16x dgx-a100", "--deadline", "1e-6")
    assert ended.code == 4
    assert "has no plan after 1e-06 s" in ended.err
    assert "give more" in ended.err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_what_is_no_time_is_refused(blink, seconds):
    ended = blink(*JOB, "--deadline", seconds)
    assert ended.code == 2
    assert "deadline" in ended.err


@pytest.mark.parametrize("given", [["--algo", "ring"], ["--size", "1M"], ["--trade-off"]])
def test_what_has_no_deadline_is_refused(blink, given):
    ended = blink(*JOB, "--deadline", "5", *given)
    assert ended.code == 2
    assert "out" in ended.err


def test_a_search_tells_its_bound_and_how_near_it_is(monkeypatch):
    monkeypatch.setattr(clock, "SAY_EVERY_S", 0)
    request = asked("2x dgx-a100", "allgather", "0-7+0-6")
    heard: list[str] = []

    def listener(known: Clock) -> None:
        heard.append(_known(known, request))

    bounds.allgather_bottleneck.cache_clear()  # other tests may have searched the same
    optimal_trees.every_root.cache_clear()
    deadline.plan_within(request, 600, listener)
    assert heard[0] == "planning"
    assert any(text.startswith("planning: bound 328.1 GB/s") for text in heard)
