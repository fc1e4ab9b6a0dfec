"""Errors, by who must act: the caller, another rank, or us.

Examples
--------
>>> import blinkccl
>>> try:
...     blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 99])
... except blinkccl.errors.TopologyError as error:
...     print(error)
GPU 99 is not in dgx-1v; it has 0-7
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class BlinkError(Exception):
    """Root of every error this package raises on purpose.

    A message says what is wrong, where (file and line, or rank, channel and op), what was expected
    against what was got, and what to do next.

    Examples
    --------
    >>> import blinkccl
    >>> try:
    ...     blinkccl.plan("allreduce", "dgx-1v", algo="fastest")
    ... except blinkccl.BlinkError as error:
    ...     print(f"{type(error).__name__}: {error}")
    UsageError: unknown algorithm 'fastest'; expected one of auto, optimal, ...
    """


class UsageError(BlinkError):
    """What the caller asked for makes no sense: an unknown name, or a count, root or buffer that does not fit."""


class TopologyError(BlinkError):
    """A topology, a specification of one, or an allocation on one is unreadable or inconsistent."""


class PackingError(BlinkError):
    """A packing problem has no answer: parts that no link joins, a demand that does not fit, a bad capacity."""


class ScheduleError(BlinkError):
    """A plan, forest or program cannot be read or cannot be run."""


class VerificationError(ScheduleError):
    """A readable program is invalid: it is wrong, incomplete, overloaded or deadlocks.

    ``violations`` has a sentence for each, naming rank, channel and step.
    """

    def __init__(self, violations: list[str]) -> None:
        if isinstance(violations, str):
            raise TypeError("violations are a list of sentences, got one text")
        self.violations = violations
        shown = "\n".join(f"  - {text}" for text in violations[:10])
        more = f"\n  … and {len(violations) - 10} more" if len(violations) > 10 else ""
        super().__init__(f"the program is invalid in {len(violations)} place(s):\n{shown}{more}")

    def __reduce__(self) -> tuple[type[VerificationError], tuple[list[str]]]:
        return type(self), (self.violations,)


class UnsupportedError(BlinkError):
    """This algorithm, engine or format cannot serve this request, for the reason given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class LimitError(UnsupportedError):
    """A plan is too large for the format that it is to be written in: fewer chunks or other trees may fit."""


class TimeUpError(BlinkError):
    """Planning took as long as it may, and has no plan yet: the message says what it has, and how long would do."""


class LaunchError(BlinkError):
    """The environment does not say, or says wrongly, which rank of how many this process is."""


class CommunicationError(BlinkError):
    """Another rank did not do its part."""


class DeadlineError(CommunicationError):
    """A wait passed its deadline; the message says which rank waited for which chunk from whom."""


class StalledError(DeadlineError):
    """Messages over TCP did not come or go until the deadline.

    ``stalls`` are all :class:`blinkccl.engines.sockets.Stall` of who gave up.
    """

    def __init__(self, message: str, stalls: Iterable[Any]) -> None:
        self.message = message
        self.stalls = tuple(stalls)
        super().__init__(message)

    def __reduce__(self) -> tuple[type[StalledError], tuple[str, tuple[Any, ...]]]:
        return type(self), (self.message, self.stalls)


class RendezvousTimeout(DeadlineError):
    """Ranks did not come in time: ``missing`` are those that are not there, ``present`` those that are, rising."""

    def __init__(self, missing: Iterable[int], present: Iterable[int], message: str) -> None:
        self.missing = tuple(sorted(missing))
        self.present = tuple(sorted(present))
        self.message = message
        super().__init__(f"missing {ranks_text(self.missing)}, present {ranks_text(self.present)}: {message}")

    def __reduce__(self) -> tuple[type[RendezvousTimeout], tuple[tuple[int, ...], tuple[int, ...], str]]:
        return type(self), (self.missing, self.present, self.message)


class PeerLostError(CommunicationError):
    """A rank that was there is gone: its process ended, or it hung up.

    ``rank`` is as the group counts; ``pid`` is its process, where that is known; ``message`` a sentence without a full
    stop that says what was going on.
    """

    def __init__(self, rank: int, message: str = "", pid: int | None = None) -> None:
        if not isinstance(rank, int):  # torch's DataLoader makes a worker's error anew, of its text alone
            raise TypeError(f"a lost rank is a number, got {rank!r}")
        self.rank = rank
        self.message = message
        self.pid = pid
        process = f" (process {pid})" if pid is not None else ""
        what = message or "its process ended or hung up"
        super().__init__(f"rank {rank}{process} was lost: {what}; its own output says why")

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[int, str, int | None]]:
        return type(self), (self.rank, self.message, self.pid)


class PlanMismatchError(CommunicationError):
    """Ranks of one job want different things, or the same rank; the message says both sides."""


class InternalError(BlinkError):
    """Our own mistake: a solver or an engine gave an answer that the exact re-check refuses."""


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """`` (did you mean 'dgx-1v'?)`` where one of ``known`` is near, whatever its case and signs between words; else "".

    Examples
    --------
    >>> did_you_mean("DGX_1V", ["dgx-1p", "dgx-1v"])
    " (did you mean 'dgx-1v'?)"
    """
    from difflib import get_close_matches  # only here: what is right need not wait for it

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name.lower()))

    names = {letters(name): name for name in reversed(list(known))}
    close = get_close_matches(letters(text[:100]), names, 1)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def ranks_text(ranks: Sequence[int]) -> str:
    """These ranks, in words."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:16])) + (f" … ({len(ranks)} in all)" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
