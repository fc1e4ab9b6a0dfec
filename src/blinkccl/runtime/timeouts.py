"""How long a wait may last: BLINK_TIMEOUT seconds, where a call does not say."""

from __future__ import annotations

import math
import os

from blinkccl.errors import LaunchError, UsageError

DEFAULT_TIMEOUT_S = 300.0
_VARIABLE = "BLINK_TIMEOUT"


def default_timeout_s() -> float:
    """Seconds, from the environment, or 300; LaunchError if the environment's value is no positive number."""
    return positive_number(_VARIABLE, "seconds") or DEFAULT_TIMEOUT_S


def positive_number(variable: str, unit: str) -> float | None:
    """What this variable of the environment says; None: it is not set; LaunchError if it says something else."""
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
    """For native code; UsageError if it is no positive number."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"a deadline must be a positive number of seconds, got {seconds}")
    return max(1, int(min(seconds, 1e9) * 1e6))
