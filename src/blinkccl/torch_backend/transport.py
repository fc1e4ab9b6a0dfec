"""Who moves the bytes of a process group: what we ask of them, and which one a group gets.

A group whose ranks can share memory gets a :class:`blinkccl.runtime.host_group.HostGroup`, one that spans hosts a
:class:`blinkccl.runtime.spanning_group.SpanningGroup`. That is decided per group, from what its ranks say of where they
are when they meet: environment variables of launchers describe the whole job, and a group may lie across its hosts in
another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, Protocol

from blinkccl.collectives.call import CollectiveCall
from blinkccl.runtime.store import TorchStore


class Transport(Protocol):
    """Collectives and messages on flat memory; all numbers are bytes, elements or addresses.

    In place is ``send == recv``, for AllGather ``send == recv + rank * block``, for ReduceScatter ``recv == send + rank
    * block``. A buffer that a rank does not have is None. ``run`` runs a collective in the caller's thread, never in
    two at once; messages are independent of that, and ``irecv``, from anybody where ``src`` is None, results in the
    source. ``close`` ends it on this rank, and messages that are wanted still fail; ``abort`` ends it for the whole
    group: peers that wait for this rank fail.
    """

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> None: ...
    def isend(
        self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None
    ) -> Future[None]: ...
    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]: ...
    def stats(self) -> Mapping[str, int]: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def open_transport(store: Any, rank: int, size: int, timeout_s: float) -> Transport:
    """The transport of a new group; all its ranks call this, and wait ``timeout_s`` for each other (RendezvousTimeout).

    ``store`` is torch's, of this group alone.
    """
    from blinkccl.runtime.spanning_group import open_group

    group = open_group(TorchStore(store), rank, size, deadline_s=timeout_s)
    group.share_core()  # with the threads of torch that compute
    return group


def open_for(store: Any, rank: int, size: int, timeout_s: float) -> Transport:
    """The same, but later where torch makes the group for another device: then CPU tensors may be others'."""
    opened = partial(open_transport, store, rank, size, timeout_s)
    return Deferred(opened) if _is_for(store, rank, "cuda") else opened()


class Deferred:
    """A transport that is opened by its first call, a collective: until then nobody knows whether it is needed."""

    def __init__(self, opened: Callable[[], Transport]) -> None:
        self._opened = opened
        self._transport: Transport | None = None
        self._lock = Lock()

    def run(self, *call: Any) -> None:
        self._made().run(*call)

    def isend(self, *call: Any) -> Future[None]:
        return self._made().isend(*call)

    def irecv(self, *call: Any) -> Future[int]:
        return self._made().irecv(*call)

    def stats(self) -> Mapping[str, int]:
        return {} if self._transport is None else self._transport.stats()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _made(self) -> Transport:
        with self._lock:
            if self._transport is None:
                self._transport = self._opened()
            return self._transport


def _is_for(store: Any, rank: int, device: str) -> bool:
    """Whether torch made ``store`` for this device: it does not say so, but puts it before all keys."""
    below = getattr(store, "underlying_store", None)
    if below is None:
        return False
    key = f"blink/device/{rank}"
    store.set(key, "here")
    return any(below.check([f"{device}{slashes}{key}"]) for slashes in ("/", "//"))
