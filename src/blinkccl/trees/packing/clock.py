"""The clock of a search: whatever may take long looks at it, and ends where its time is up.

A clock is set around a search (:meth:`Clock.running`) and found by what runs inside, in this thread alone. A listener
hears now and then what is known. Where there is no clock there is no limit. Results are never remembered half done: the
end is an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from math import inf
from time import monotonic

from blinkccl.errors import TimeUpError

#: Seconds between two words to the listener.
SAY_EVERY_S = 0.2


class Clock:
    """``seconds`` until time is up (None: never); ``listener`` is called with the clock while there is work."""

    def __init__(
        self,
        seconds: float | None = None,
        listener: Callable[[Clock], None] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._now, self._listener = now, listener
        self._end = inf if seconds is None else now() + seconds
        self._next_word = now()
        #: S per unit of time that nothing passes, and what part of a proved rate trees have; None: not yet.
        self.bound: Fraction | None = None
        self.part: Fraction | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left; none below 0."""
        return max(0.0, self._end - self._now())

    def look(self) -> None:
        """TimeUpError where no time is left; else a word to the listener, if one is due."""
        now = self._now()
        if now >= self._end:
            raise TimeUpError("the time of a search is up")
        if self._listener is not None and now >= self._next_word:
            self._next_word = now + SAY_EVERY_S
            self._listener(self)

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """The clock that everything inside looks at."""
        token = _CLOCK.set(self)
        try:
            yield self
        finally:
            _CLOCK.reset(token)


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)


def look() -> None:
    """TimeUpError where the time of the search around is up."""
    clock = _CLOCK.get()
    if clock is not None:
        clock.look()


def left_s() -> float:
    """Seconds that the search around has left; infinite without a clock."""
    clock = _CLOCK.get()
    return inf if clock is None else clock.left_s


def bounded(rate: Fraction) -> None:
    """Nothing moves S faster than this: so much is proved."""
    clock = _CLOCK.get()
    if clock is not None and (clock.bound is None or rate < clock.bound):
        clock.bound = rate


def reached(part: Fraction) -> None:
    """Some trees reach so much of a proved rate."""
    clock = _CLOCK.get()
    if clock is not None and (clock.part is None or part > clock.part):
        clock.part = part
