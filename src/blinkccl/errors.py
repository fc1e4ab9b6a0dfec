"""Errors, classified by their cause: the caller, another rank, or a mistake in Blink.

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


class BlinkError(Exception):
    """Base class of every error that this package raises on purpose.

    A message states the fault, its place (file and line, or rank, channel and op), the values expected and got, and the
    next step.

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
    """An invalid argument: an unknown name, or a count, root or buffer that does not fit."""


class TopologyError(BlinkError):
    """An unreadable or inconsistent topology, specification of a topology, or allocation of GPUs."""


class PackingError(BlinkError):
    """A packing problem without a solution: disconnected parts, a demand that does not fit, or a bad capacity."""


class ScheduleError(BlinkError):
    """A plan, forest or program that cannot be read or run."""


class VerificationError(ScheduleError):
    """A readable program that is invalid: its result is wrong or incomplete, its links are overloaded, or it deadlocks.

    ``violations`` has one sentence per violation, with its rank, channel and step.
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
    """A request that this algorithm, engine or format does not support, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class LimitError(UnsupportedError):
    """A plan that is too large for its export format; fewer chunks or other trees may fit."""


class TimeUpError(BlinkError):
    """Planning reached its time limit without a plan; the message states the progress and a sufficient limit."""


class LaunchError(BlinkError):
    """A missing or wrong rank or world size in the environment of this process."""


class CommunicationError(BlinkError):
    """Failed communication with another rank."""


class DeadlineError(CommunicationError):
    """A wait that passed its deadline; the message names the waiting rank, its peer and the chunk."""


class StalledError(DeadlineError):
    """A link that delivered too little before the deadline; the message names it and the data held back."""


class RendezvousTimeout(DeadlineError):
    """Ranks that did not join before the timeout: ``missing``, and those that did: ``present``, both ascending."""

    def __init__(self, missing: Iterable[int], present: Iterable[int], message: str) -> None:
        self.missing = tuple(sorted(missing))
        self.present = tuple(sorted(present))
        self.message = message
        super().__init__(f"missing {ranks_text(self.missing)}, present {ranks_text(self.present)}: {message}")

    def __reduce__(self) -> tuple[type[RendezvousTimeout], tuple[tuple[int, ...], tuple[int, ...], str]]:
        return type(self), (self.missing, self.present, self.message)


class PeerLostError(CommunicationError):
    """The loss of a connected rank: its process ended, or it closed the connection.

    ``rank`` is its number in the group; ``pid`` is its process, if known; ``message`` describes the operation in
    progress, without a full stop.
    """

    def __init__(self, rank: int, message: str = "", pid: int | None = None) -> None:
        if not isinstance(rank, int):  # torch's DataLoader constructs a worker's error again from its text alone
            raise TypeError(f"a lost rank is a number, got {rank!r}")
        self.rank = rank
        self.message = message
        self.pid = pid
        process = f" (process {pid})" if pid is not None else ""
        event = message or "its process ended or hung up"
        super().__init__(f"rank {rank}{process} was lost: {event}; its own output says why")

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[int, str, int | None]]:
        return type(self), (self.rank, self.message, self.pid)


class PlanMismatchError(CommunicationError):
    """Ranks of one job that disagree, or that claim the same rank number; the message states both sides."""


class InternalError(BlinkError):
    """A mistake in Blink: the exact check refuses the result of a solver or an engine."""


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """`` (did you mean 'dgx-1v'?)`` if ``text`` resembles a name of ``known``, ignoring case and punctuation; else "".

    Examples
    --------
    >>> did_you_mean("DGX_1V", ["dgx-1p", "dgx-1v"])
    " (did you mean 'dgx-1v'?)"
    """
    from difflib import get_close_matches  # imported here, since valid input does not need it

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name.lower()))

    names = {letters(name): name for name in reversed(list(known))}
    close = get_close_matches(letters(text[:100]), names, 1)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def ranks_text(ranks: Sequence[int]) -> str:
    """The ranks as text for messages; of more than 16, the first 16 and their number."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:16])) + (f" … ({len(ranks)} in all)" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
