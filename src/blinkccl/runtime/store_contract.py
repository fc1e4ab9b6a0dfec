"""What is a store? Where ranks leave words for each other before they share anything else, key by key.

Keys are text, values bytes. Setting a key again replaces its value; a reader sees the old value or the new one,
never a part of either. A store says nothing about order between keys. Waiting is looking again, with growing
pauses up to 20 ms: no store needs to know how to wake anybody.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from blinkccl.errors import DeadlineError

#: Limits that no honest rank comes near, and that keep a stranger's garbage small.
MAX_KEY_BYTES = 1 << 10
MAX_VALUE_BYTES = 1 << 22


class Pauses:
    """Pauses that grow: a wait that ends soon costs little time, one that lasts costs little work."""

    def __init__(self, deadline: float, first_s: float = 0.0005, longest_s: float = 0.02) -> None:
        self._deadline = deadline
        self._next_s = first_s
        self._longest_s = longest_s

    def pause(self) -> bool:
        """Sleeps, but not past the deadline; False if the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next_s, left))
        self._next_s = min(self._next_s * 1.5, self._longest_s)
        return True


class Store(ABC):
    """What ranks leave for each other.

    Every method raises CommunicationError where the store itself is lost, and ValueError for a key or a value
    beyond the limits above.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Puts ``value`` under ``key``, in place of what was there."""

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """What is under ``key`` now; None: nothing."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Takes away what is under ``key``, if anything is."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and connections; what was set stays for the other ranks. May be called twice."""

    def get(self, key: str, deadline: float) -> bytes:
        """What is under ``key``, as soon as something is.

        Raises
        ------
        DeadlineError
            If nothing is there at ``deadline`` (``time.monotonic()``).
        """
        pauses = Pauses(deadline)
        while (value := self.peek(key)) is None:
            if not pauses.pause():
                raise DeadlineError(f"waited past the deadline for key {key!r} in {self}: no rank has set it")
        return value


def check_key(key: str) -> bytes:
    """``key`` in bytes; ValueError if it is empty or longer than any store takes."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, got {len(encoded)}")
    return encoded


def check_value(value: bytes) -> bytes:
    """``value``; ValueError if it is longer than any store takes."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
    return value
