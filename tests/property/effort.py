"""How many examples? Half of what there is, as a merge waits for them; all with BLINK_ALL_TESTS=1."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """``count``, or half of it."""
    return count if os.environ.get("BLINK_ALL_TESTS") else -(-count // 2)
