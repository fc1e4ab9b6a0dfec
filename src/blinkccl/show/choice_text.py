"""What ``auto`` chose for a size, and who came next: as a sentence and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blinkccl.show.text import bytes_text, gb_per_s_text, seconds_text

if TYPE_CHECKING:
    from blinkccl.cost.choice.auto import Choice, Timed


def choice_text(choice: Choice) -> str:
    """Who is the fastest at which time, and what the runner-up takes."""
    estimate, second = choice.best.estimate, choice.runner_up
    text = f"auto: {_named(choice.best)} is the fastest at {bytes_text(estimate.size_bytes)}"
    if second is None:
        return f"{text}, and nothing else serves the job"
    lead = f"{choice.lead:.1%} longer" if choice.lead >= 0.0005 else "as long"
    return f"{text}; next {_named(second)}, {lead}"


def _named(one: Timed) -> str:
    time = f"{seconds_text(one.estimate.seconds)}, {gb_per_s_text(one.estimate.algbw_gb_per_s)}"
    return f"{one.plan.name} ({time}, {one.estimate.detail})"


def choice_document(choice: Choice) -> dict[str, Any]:
    """Of ``blink plan --json``: all that were simulated, best first, and what others take at least."""
    return {
        "size_bytes": choice.best.estimate.size_bytes,
        "measured": choice.measured is not None,
        "timed": [
            {"algorithm": one.plan.name, "seconds": one.estimate.seconds, "protocol": one.estimate.protocol or None}
            for one in choice.timed
        ],
        "at_least_seconds": choice.floors_s,
    }
