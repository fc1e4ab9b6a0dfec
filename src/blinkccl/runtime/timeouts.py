"""Timeouts: BLINK_TIMEOUT seconds for calls that have none of their own."""

from __future__ import annotations

import math
import os

from blinkccl.errors import LaunchError, UsageError

DEFAULT_TIMEOUT_S = 300.0
_VARIABLE = "BLINK_TIMEOUT"


def default_timeout_s() -> float:
    """Timeout in seconds, from the environment, or 300; LaunchError if the environment's value is not positive."""
    return positive_number(_VARIABLE, "seconds") or DEFAULT_TIMEOUT_S


def positive_number(variable: str, unit: str) -> float | None:
    """Read a positive number from this environment variable; None if it is not set; LaunchError for other values."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise LaunchError(f"{variable}={text!r}: expected a positive number of {unit}")
    return value


def microseconds(seconds: float) -> int:
    """Convert to microseconds for native code; UsageError unless ``seconds`` is positive and finite."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"a timeout must be a positive number of seconds, got {seconds}")
    return max(1, int(min(seconds, 1e9) * 1e6))
