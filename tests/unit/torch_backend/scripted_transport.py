"""A transport that does what a test tells it: it notes calls, holds them up, fills memory, fails."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import Future
from typing import Any

from blinkccl.errors import BlinkError


class Scripted:
    """Notes what it is asked for.

    Collectives wait while :attr:`free` is clear; messages end with :meth:`end`.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[str] = []
        self.messages: list[Future[Any]] = []
        self.free = threading.Event()
        self.free.set()
        self.fails: BlinkError | None = None
        self.fill = 0  # what collectives on bytes write

    def run(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.threads.append(threading.current_thread().name)
        assert self.free.wait(20)
        if self.fails is not None:
            raise self.fails
        call, _, recv = arguments[:3]
        if self.fill and recv and call.dtype == "uint8":
            ctypes.memset(recv, self.fill, call.elements)

    def isend(self, *arguments: Any) -> Future[None]:
        return self._later("isend", *arguments)

    def irecv(self, *arguments: Any) -> Future[int]:
        return self._later("irecv", *arguments)

    def stats(self) -> dict[str, int]:
        return {"calls": len(self.calls)}

    def close(self) -> None:
        self.free.set()

    abort = close

    def end(self, result: object = None, error: Exception | None = None) -> None:
        """Ends the oldest message."""
        future = self.messages.pop(0)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def names(self) -> list[str]:
        """The collectives that were run."""
        return [call[0].collective for call in self.calls]

    def _later(self, *call: Any) -> Future[Any]:
        self.calls.append(call)
        self.messages.append(Future())
        return self.messages[-1]
