"""How long a wait may last: BLINK_TIMEOUT seconds, where a call does not say."""

from __future__ import annotations

import math
import os

from blinkccl.errors import LaunchError, UsageError

DEFAULT_TIMEOUT_S = 300.0
_VARIABLE = "BLINK_TIMEOUT"


def default_timeout_s() -> float:
    """Seconds, from the environment, or 300; LaunchError if the environment's value is no positive number."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise LaunchError(f"{_VARIABLE}={text!r}: expected a positive number of seconds")
    return value


def microseconds(seconds: float) -> int:
    """For native code; UsageError if it is no positive number."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"a deadline must be a positive number of seconds, got {seconds}")
    return max(1, int(min(seconds, 1e9) * 1e6))
