"""Errors, by who must act: the caller, another rank, or us (DESIGN §4)."""

from __future__ import annotations


class BlinkError(Exception):
    """Root of every error this package raises on purpose.

    A message says what is wrong, where (file and line, or rank, channel and op), what was expected
    against what was got, and what to do next.
    """


class TopologyError(BlinkError):
    """A topology, a specification of one, or an allocation on one is unreadable or inconsistent."""


class PackingError(BlinkError):
    """A packing problem has no answer: a root outside the set, parts that no link joins, a bad capacity."""


class ScheduleError(BlinkError):
    """A plan, forest or program cannot be read or cannot be bound to these buffers."""


class LawError(ScheduleError):
    """A readable program breaks the law: it is wrong, incomplete, overloaded or deadlocks.

    Parameters
    ----------
    violations
        One sentence per violation, each naming rank, channel and step.
    """

    def __init__(self, violations: list[str]) -> None:
        self.violations = violations
        shown = "\n".join(f"  - {text}" for text in violations[:10])
        more = f"\n  … and {len(violations) - 10} more" if len(violations) > 10 else ""
        super().__init__(f"the program breaks the law in {len(violations)} place(s):\n{shown}{more}")


class UnsupportedError(BlinkError):
    """This algorithm, engine or format cannot serve this request, for the reason given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class CommunicationError(BlinkError):
    """Another rank did not do its part."""


class DeadlineError(CommunicationError):
    """A wait passed its deadline; the message says which rank waited for which chunk from whom."""


class InternalError(BlinkError):
    """Our own mistake: a solver or an engine gave an answer that the exact re-check refuses."""
