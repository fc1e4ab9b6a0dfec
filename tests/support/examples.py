"""Settings of Hypothesis for all tests: the same examples on every machine, without a deadline per example."""

import os

from hypothesis import HealthCheck, settings

ALL_TESTS = bool(os.environ.get("BLINK_ALL_TESTS"))


def examples(count: int) -> settings:
    """Return settings with ``count`` examples, and twice as many with BLINK_ALL_TESTS=1."""
    return settings(max_examples=count * (1 + ALL_TESTS))


def load_profile() -> None:
    """Load the common settings of all tests as Hypothesis's default."""
    settings.register_profile(
        "blink", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("blink")
