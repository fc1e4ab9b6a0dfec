"""The time limit of a search: long computations check it and end when the time is up.

A clock is set around a search (:meth:`Clock.running`) and applies to all code inside it, in this thread only. A
listener is called from time to time with the progress. Without a clock there is no limit. The end is an exception, so
no cache ever keeps a partial result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from math import inf
from time import monotonic

from blinkccl.errors import TimeUpError

#: Seconds between two calls of the listener.
SAY_EVERY_S = 0.2


class Clock:
    """A limit of ``seconds`` (None: no limit). ``listener`` is called with the clock during the work."""

    def __init__(
        self,
        seconds: float | None = None,
        listener: Callable[[Clock], None] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._now, self._listener = now, listener
        self._end = inf if seconds is None else now() + seconds
        self._next_word = now()
        #: Proved bound in S per unit of time, and the fraction of a proved rate that trees reach; None if unknown yet.
        self.bound: Fraction | None = None
        self.part: Fraction | None = None

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - self._now())

    def look(self) -> None:
        """Raise TimeUpError if no time is left; else call the listener if due."""
        now = self._now()
        if now >= self._end:
            raise TimeUpError("the search has no time left")
        if self._listener is not None and now >= self._next_word:
            self._next_word = now + SAY_EVERY_S
            self._listener(self)

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Set this clock for all code inside the ``with`` block."""
        token = _CLOCK.set(self)
        try:
            yield self
        finally:
            _CLOCK.reset(token)


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)


def look() -> None:
    """Raise TimeUpError if the time of the surrounding search is up."""
    clock = _CLOCK.get()
    if clock is not None:
        clock.look()


def left_s() -> float:
    """Seconds left for the surrounding search; infinite without a clock."""
    clock = _CLOCK.get()
    return inf if clock is None else clock.left_s


def bounded(rate: Fraction) -> None:
    """Tell the clock a proved bound on the rate, in S per unit of time."""
    clock = _CLOCK.get()
    if clock is not None and (clock.bound is None or rate < clock.bound):
        clock.bound = rate


def reached(part: Fraction) -> None:
    """Tell the clock the fraction of a proved rate that some trees reach."""
    clock = _CLOCK.get()
    if clock is not None and (clock.part is None or part > clock.part):
        clock.part = part
