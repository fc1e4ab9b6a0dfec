"""How long a wait may last: from the environment, and for native code."""

from __future__ import annotations

import math

import pytest

from blinkccl.errors import LaunchError, UsageError
from blinkccl.runtime.timeouts import DEFAULT_TIMEOUT_S, default_timeout_s, microseconds


@pytest.mark.parametrize(("text", "seconds"), [(None, DEFAULT_TIMEOUT_S), ("", 300.0), ("7", 7.0), ("0.25", 0.25),
                                               ("1e3", 1000.0)])  # fmt: skip
def test_the_environment_may_say(monkeypatch: pytest.MonkeyPatch, text: str | None, seconds: float) -> None:
    if text is None:
        monkeypatch.delenv("BLINK_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("BLINK_TIMEOUT", text)
    assert default_timeout_s() == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "five", "5 s", "0x10"])
def test_what_is_no_positive_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BLINK_TIMEOUT", text)
    with pytest.raises(LaunchError, match=f"BLINK_TIMEOUT='{text}': expected a positive number of seconds"):
        default_timeout_s()


@pytest.mark.parametrize(("seconds", "expected"), [(1, 1_000_000), (0.5, 500_000), (1e-9, 1), (1e30, 10**15)])
def test_microseconds_are_at_least_one_and_fit_into_64_bits(seconds: float, expected: int) -> None:
    assert microseconds(seconds) == expected


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_deadlines_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="a deadline must be a positive number of seconds"):
        microseconds(seconds)
