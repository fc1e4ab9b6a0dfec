"""How Hypothesis draws in all tests: the same examples everywhere, however long one takes."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

ALL_TESTS = bool(os.environ.get("BLINK_ALL_TESTS"))


def examples(count: int) -> settings:
    """As many examples as a merge waits for; twice as many with BLINK_ALL_TESTS=1."""
    return settings(max_examples=count * (1 + ALL_TESTS))


def load_profile() -> None:
    """Makes what all tests have in common Hypothesis's default."""
    settings.register_profile(
        "blink", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("blink")
