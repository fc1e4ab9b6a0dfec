"""``blink plan --timeout``: the same plan in time, TimeUpError after it, and refused values."""

import pytest

from blinkccl import plan
from blinkccl.api.plan import plan_of
from blinkccl.cli.plan import _known
from blinkccl.errors import TimeUpError
from blinkccl.trees.algorithms import bounds, optimal_trees
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.clock import Clock
from support.planned import asked

JOB = ("plan", "allgather", "--topo", "mi250")


@pytest.mark.parametrize(
    "more", [[], ["--algo", "ring"], ["--topo", "mist", "--size", "1M"], ["--deterministic", "order"]]
)
def test_with_time_it_is_the_plan_without_a_limit(blink, more):
    assert blink(*JOB, *more, "--timeout", "600").out == blink(*JOB, *more).out


def test_no_plan_in_time_is_a_timeout(blink):
    ended = blink("plan", "allgather", "--topo", "16x dgx-a100", "--timeout", "1e-6")
    assert ended.code == 4
    assert "allgather among 128 ranks of 16x dgx-a100 has no plan after 1e-06 s, and no bound" in ended.err
    assert "give a longer timeout" in ended.err


def test_the_error_has_the_bound_that_is_known(monkeypatch):
    monkeypatch.setattr(clock, "SAY_EVERY_S", 0)
    request = asked("2x dgx-a100", "allgather", "0-7+0-6")

    def listener(known: Clock) -> None:
        if known.bound is not None:
            raise TimeUpError("now")

    bounds.allgather_bottleneck.cache_clear()  # Other tests may have filled these caches.
    optimal_trees.every_root.cache_clear()
    with pytest.raises(
        TimeUpError, match=r"has no plan after 600 s, but a bound of 328\.1 GB/s: give a longer timeout"
    ):
        plan_of(request, timeout_s=600, listener=listener)


def test_from_python():
    assert plan("allgather", "mi250", timeout=600).check().ok
    with pytest.raises(TimeUpError, match="has no plan after 1e-06 s"):
        plan("allgather", "16x dgx-a100", timeout=1e-6)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_an_invalid_timeout_is_refused(blink, seconds):
    ended = blink(*JOB, "--timeout", seconds)
    assert ended.code == 2
    assert "timeout" in ended.err


def test_a_search_tells_its_bound_and_how_near_it_is(monkeypatch):
    monkeypatch.setattr(clock, "SAY_EVERY_S", 0)
    request = asked("2x dgx-a100", "allgather", "0-7+0-6")
    heard: list[str] = []

    def listener(known: Clock) -> None:
        heard.append(_known(known, request))

    bounds.allgather_bottleneck.cache_clear()  # Other tests may have filled these caches.
    optimal_trees.every_root.cache_clear()
    plan_of(request, timeout_s=600, listener=listener)
    assert heard[0] == "planning"
    assert any(text.startswith("planning: bound 328.1 GB/s") for text in heard)
