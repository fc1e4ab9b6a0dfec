"""The interface of a group of ranks, on one host or on several.

Calls are ordered: all ranks make the same calls in the same order. A submitted call runs on the group's own thread, and
later calls wait for it, so the order is that in which this process made them.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import RLock
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.engines.host import NativeOp, native_scale
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import CommunicationError, UsageError
from blinkccl.runtime.bootstrap import Bootstrap
from blinkccl.runtime.hosts import NOWHERE, Place
from blinkccl.runtime.peer_info import PeerInfo
from blinkccl.runtime.serial_executor import SerialExecutor
from blinkccl.runtime.timeouts import microseconds

#: Most prepared calls in the cache; the oldest is dropped first.
_KEPT_CALLS = 1024
#: Room for the address of a bootstrap, with its token.
_WORD_BYTES = 256

_Result = TypeVar("_Result")
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class PreparedCall(Protocol):
    """A call that can run repeatedly; ``scales``: each rank supplies a factor."""

    call: CollectiveCall
    scales: bool

    def run(self, send: int | None, recv: int | None, timeout_us: int, scale: float | None = None) -> None:
        """Execute the call on raw addresses."""

    def close(self) -> None:
        """Release the call; it is not used afterwards."""


class Group(ABC):
    """One rank's end of a group that met in ``bootstrap``; errors and threads name it by ``prefix``.

    ``deadline_s`` is the timeout of every call without its own.
    """

    place: Place = NOWHERE

    def __init__(self, bootstrap: Bootstrap, rank: int, prefix: str, deadline_s: float) -> None:
        self.peers: Sequence[PeerInfo] = bootstrap.peers
        #: The address of rank 0 for ranks of other hosts; None if all ranks met on one host.
        self.host = bootstrap.host
        self.rank, self.size, self.prefix, self.timeout_s = rank, len(bootstrap.peers), prefix, deadline_s
        self._timeout_us = microseconds(deadline_s)
        self._calls: dict[CollectiveCall, PreparedCall] = {}
        self._executor = SerialExecutor(f"blink-{prefix}")
        self._pid, self._closed = os.getpid(), False
        #: "order" where every element is summed in one order (:mod:`~blinkccl.runtime.deterministic`), else "".
        self.deterministic = bootstrap.peers[rank].deterministic

    def _open(self) -> None:
        """Register the group, so that a process that exits normally leaves it in order."""
        _groups.add(self)

    # ---- collectives

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Run a collective on raw addresses, the same on all ranks; return when the caller may reuse the buffers.

        ``send`` and ``recv`` are None if the collective has no such buffer on this rank; in place as in nccl.h.
        Raises CommunicationError, or a subclass, if a peer was lost, made a different call, or timed out: the group can
        then no longer be used. Raises UnsupportedError or UsageError for an invalid call, before anything happens.
        """
        self._run(self._calls.get(call) or self._keep(call), send, recv, scale, deadline_s)

    @property
    def lock(self) -> RLock:
        """Held while a call runs; the group closes only between calls."""
        return self._executor.lock

    def submit(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> Future[None]:
        """Start :meth:`run` and return at once; the future is done when the caller may reuse the buffers."""
        prepared = self._calls.get(call) or self._keep(call)
        timeout_us = self._timeout_us if deadline_s is None else microseconds(deadline_s)
        factor = _factor(prepared, scale)
        return self._executor.submit(lambda: prepared.run(send, recv, timeout_us, factor))

    def exchange(self, word: bytes) -> list[bytes]:
        """The words of all ranks, by rank: at most :data:`_WORD_BYTES`, without zeros at the end; all ranks call it."""
        mine = np.frombuffer(word.ljust(_WORD_BYTES, b"\0"), np.uint8)
        rows = np.empty((self.size, _WORD_BYTES), np.uint8)
        call = CollectiveCall("allgather", "uint8", _WORD_BYTES)
        self.run(call, int(mine.ctypes.data), int(rows.ctypes.data))
        return [row.tobytes().rstrip(b"\0") for row in rows]

    def barrier(self, deadline_s: float | None = None) -> None:
        """Return when every rank has called it."""
        self.run(BARRIER, _BARRIER_AT, _BARRIER_AT, deadline_s=deadline_s)

    def result(self, future: Future[_Result]) -> _Result:
        """Wait for a submitted call; if a signal (Ctrl-C) ends the wait, the group ends too, on all ranks."""
        try:
            return future.result()
        except BaseException as error:
            if not future.done():
                self.abort(f"rank {self.rank} was interrupted by {type(error).__name__}")
                wait([future])  # the call may use the caller's buffers, and the caller stops waiting
            raise

    @abstractmethod
    def share_core(self, threads: int) -> None:
        """Yield the core early in waits, because the program computes with ``threads`` that need it.

        Large calls use as many. By default waits spin for some 100 µs, since a rank that yields a core shared with
        another program loses it for milliseconds.
        """

    @abstractmethod
    def time(
        self,
        call: CollectiveCall | NativeOp,
        send: int | None,
        recv: int | None,
        iterations: int = 1,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """Seconds of each of ``iterations`` calls (or operations of :meth:`prepare`), each after a barrier.

        With ``with_barrier`` the times include the barrier.
        """

    @abstractmethod
    def prepare(
        self, plan: HostPlan, count: int, dtype: str, op: str, chunk_bytes: int, cross_memory: bool = False
    ) -> NativeOp:
        """Make an operation of any Program; run it with :meth:`run_prepared` on all ranks."""

    def run_prepared(self, prepared: NativeOp, send: int | None, recv: int | None, scale: float | None = None) -> None:
        """Run an operation of :meth:`prepare`."""
        self._check_open()
        self._run(prepared, send, recv, scale, None)

    def _run(
        self,
        prepared: PreparedCall,
        send: int | None,
        recv: int | None,
        scale: float | None,
        deadline_s: float | None,
    ) -> None:
        timeout_us = self._timeout_us if deadline_s is None else microseconds(deadline_s)
        if scale is not None or prepared.scales:
            scale = _factor(prepared, scale)
        if self._executor.idle:
            with self._executor.lock:
                prepared.run(send, recv, timeout_us, scale)
        else:
            self.result(self._executor.submit(lambda: prepared.run(send, recv, timeout_us, scale)))

    def _keep(self, call: CollectiveCall) -> PreparedCall:
        self._check_open()
        if call.elements < 0:
            raise UsageError(f"{call.collective}: count must be at least 0, got {call.elements}")
        prepared = self._prepare(call)
        while len(self._calls) >= _KEPT_CALLS:
            self._calls.pop(next(iter(self._calls)), None)  # freed after its last run
        self._calls[call] = prepared
        return prepared

    @abstractmethod
    def _prepare(self, call: CollectiveCall) -> PreparedCall:
        """Prepare a call; UnsupportedError or UsageError if it is invalid."""

    # ---- point to point

    @abstractmethod
    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        """Send bytes; the future is done when the caller may reuse the buffer. FIFO per destination and tag."""

    @abstractmethod
    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """Receive at most ``nbytes`` from ``src``, or (None) from any rank; the future's result is the source."""

    # ---- the group itself

    @abstractmethod
    def watch(self, ranks: Sequence[int]) -> Callable[[], None]:
        """A function for use while a group of these ranks forms: it raises PeerLostError if one of them has ended."""

    @abstractmethod
    def report_lost(self, rank: int) -> None:
        """Report to all ranks that the process of ``rank`` has ended: their calls raise PeerLostError."""

    @abstractmethod
    def memory_bytes(self) -> dict[str, int]:
        """Address space, mostly unused, of the ranks' shared memory and of the process's ``heap``."""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters since the group was made."""

    @abstractmethod
    def abort(self, why: str = "abort() was called") -> None:
        """End the group for all ranks: their waits raise CommunicationError with ``why``."""

    def close(self) -> None:
        """Leave the group in order, after the current calls.

        Others may finish calls without this rank. Raises CommunicationError in a signal handler during a call.
        """
        if self._closed or os.getpid() != self._pid:
            return  # a forked child's copy: the parent is the rank
        self._stop()
        self._closed = True
        self._executor.close()
        with self._executor.lock:
            for prepared in self._calls.values():
                prepared.close()
            self._calls.clear()
            self._leave()

    def _stop(self) -> None:
        """End point to point; current calls may still finish."""
        return

    @abstractmethod
    def _leave(self) -> None:
        """Release everything; no call is running any more."""

    def _forget(self) -> None:
        self._calls = {}

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise CommunicationError(
                f"group {self.prefix!r} was made in process {self._pid}; a forked child has no rank in it"
            )
        if self._closed:
            raise CommunicationError(f"rank {self.rank}'s group {self.prefix!r} is closed")


#: A barrier is the smallest call that no rank can finish before all have begun. Its word stays 0.
BARRIER = CollectiveCall("allreduce", "int32", 1, "bor")
_BARRIER_WORD = np.zeros(1, np.int32)
_BARRIER_AT = int(_BARRIER_WORD.ctypes.data)


def _factor(prepared: PreparedCall, scale: float | None) -> float | None:
    if not prepared.scales:
        if scale is not None and prepared.call.reduces:
            raise UsageError(f"{prepared.call} takes no scale, got {scale}; only premul_sum has one")
        return None
    if scale is None:
        raise UsageError(f"{prepared.call} needs this rank's scale")
    return native_scale(element_type(prepared.call.dtype).scalar(scale))


@atexit.register
def _close_all() -> None:
    """Leave all groups in order when the process exits; after an exception abort those in a call, to wait for no rank.

    Otherwise others learn of an exception from the end of this process, so a launcher does not name them as its cause.
    """
    error = getattr(sys, "last_type", None)
    for group in list(_groups):
        with suppress(CommunicationError):
            if error is not None and group._executor.busy:
                group.abort(f"rank {group.rank} ended with {error.__name__}")
            elif error is None:
                group.close()


def _forget_all() -> None:
    """Discard prepared calls and locks in a forked child, which has no rank and lacks the parent's threads."""
    for group in list(_groups):
        group._forget()
    _groups.clear()


os.register_at_fork(after_in_child=_forget_all)
