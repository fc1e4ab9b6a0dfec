"""Verbs, options and values that Blink no longer has: one line for each, which names its replacement."""

from __future__ import annotations

from blinkccl.errors import UsageError

#: By what a person types: ``verb``, ``verb --option``, or ``verb --option value``.
REMOVED = {
    "diff": "blink show A.json -o a.html draws a plan, blink sim A.json times it: compare what they say of both",
    "export --to msccl": "blink export --to mscclpp writes an execution plan for MSCCL++",
    "paper --html": "blink paper --markdown writes the tables; figures are no longer drawn",
    "paper --plot": "blink paper --markdown writes the tables; figures are no longer drawn",
}


def refuse_removed(typed: str) -> None:
    """Raise UsageError with the replacement where ``typed`` is a key of :data:`REMOVED`."""
    if typed in REMOVED:
        raise UsageError(f"blink {typed} was removed: {REMOVED[typed]}")
