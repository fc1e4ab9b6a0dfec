"""The work of one rank on a command: buffers, timed runs, check; the Python counterpart of ``peers/peer.h``."""

from __future__ import annotations

import mmap
import signal
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.pattern import fill, wrong_elements
from blinkccl.bench.protocol import Command, Flag, Kind, Reply, ReplyStatus
from blinkccl.errors import BlinkError, UnsupportedError

Bytes = NDArray[np.uint8]


class Library(Protocol):
    """A measured library, on one rank."""

    #: Name and version, for the hello.
    title: str

    def allocate(self, size: int, shared: bool) -> Bytes:
        """A buffer of ``size`` > 0 bytes; UnsupportedError for ``shared`` if the library has no shared memory."""
        ...

    def time(
        self, command: Command, send: Bytes | None, recv: Bytes | None, warmup: int, iterations: int
    ) -> NDArray[np.float64]:
        """Seconds of each of ``iterations`` runs after ``warmup`` runs, with a barrier before each run.

        UnsupportedError, before anything is sent, for an unsupported collective, type, operation or placement.
        """
        ...

    def prepare(self, kind: Kind, number: int, text: str) -> None:
        """Apply a command that is neither RUN nor QUIT (:mod:`blinkccl.bench.protocol`), or raise UnsupportedError."""
        ...


def private_memory(size: int) -> Bytes:
    """Zeroed memory on page boundaries, in huge pages if the system has them, as for every peer."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class Performer:
    """The work of one rank; memory is kept between commands with KEEP."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._cache: dict[int, tuple[int, bool, Bytes]] = {}

    def perform(self, command: Command, pattern: bytes, expected: bytes) -> Reply:
        """Fill the input with ``pattern``, run, time and check; errors become replies too."""
        signal.alarm(command.deadline_s)
        try:
            if command.kind is Kind.RUN:
                return self._perform(command, pattern, expected)
            self._library.prepare(command.kind, command.count, pattern.decode())
            return Reply(ReplyStatus.OK)
        except UnsupportedError as error:
            return Reply(ReplyStatus.UNSUPPORTED, text=str(error))
        except (BlinkError, RuntimeError, OSError, ValueError) as error:
            return Reply(ReplyStatus.FAILED, text=f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
            if command.kind is Kind.RUN and not command.flags & Flag.KEEP:
                self._cache.clear()

    def _perform(self, command: Command, pattern: bytes, expected: bytes) -> Reply:
        send, recv = self._buffers(command)
        _reset(command, send, recv, pattern)
        seconds = self._library.time(command, send, recv, command.warmup, command.iterations)
        wrong = 0
        if command.flags & Flag.CHECK:
            _reset(command, send, recv, pattern)
            self._library.time(command, send, recv, 0, 1)
            if recv is not None:
                wrong = wrong_elements(recv, expected, command.out_blocks, command.itemsize)
        return Reply(ReplyStatus.OK, wrong, np.ascontiguousarray(seconds, np.float64).tobytes())

    def _buffers(self, command: Command) -> tuple[Bytes | None, Bytes | None]:
        block = command.count * command.itemsize
        in_bytes, out_bytes = command.in_blocks * block, command.out_blocks * block
        if command.flags & Flag.IN_PLACE and in_bytes and out_bytes:
            memory = self._memory(0, max(in_bytes, out_bytes), command.flags)
            first, second = command.in_at * block, command.out_at * block
            return memory[first : first + in_bytes], memory[second : second + out_bytes]
        return (
            self._memory(0, in_bytes, command.flags) if command.in_blocks else None,
            self._memory(1, out_bytes, command.flags) if command.out_blocks else None,
        )

    def _memory(self, slot: int, size: int, flags: Flag) -> Bytes:
        shared = bool(flags & Flag.SHARED)
        if slot in self._cache and self._cache[slot][:2] == (size, shared):
            return self._cache[slot][2]
        self._cache.pop(slot, None)  # Freed before the next allocation.
        memory = self._library.allocate(size, shared) if size else np.empty(0, np.uint8)
        self._cache[slot] = (size, shared, memory)
        return memory


def _reset(command: Command, send: Bytes | None, recv: Bytes | None, pattern: bytes) -> None:
    """Fill the input and clear the output, so an output of the last run cannot hide a missing one."""
    if recv is not None:
        recv.fill(0)  # Also touches the pages, so that page faults are not timed.
    if send is not None:
        fill(send, pattern, command.in_blocks, command.itemsize)


def typed(memory: Bytes | None, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """``memory`` as elements."""
    return None if memory is None else memory.view(dtype)
