"""Who moves the bytes of a process group: what we ask of them, and which one a group gets.

A group whose ranks can share memory gets a :class:`blinkccl.runtime.host_group.HostGroup`. One that spans hosts
gets the same plans over gloo's send and receive (:mod:`~blinkccl.torch_backend.spanning`). That is decided per
group, from what its ranks say in the store about where they are: environment variables of launchers describe the
whole job, and a group may lie across its hosts in another way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import cache, partial
from threading import Lock
from typing import Any, Protocol

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import RendezvousTimeout
from blinkccl.runtime.peer_info import own_peer_info
from blinkccl.runtime.store import TorchStore

logger = logging.getLogger(__name__)


class Transport(Protocol):
    """Collectives and messages on flat memory; all numbers are bytes, elements or addresses.

    In place is ``send == recv``, for AllGather ``send == recv + rank * block``, for ReduceScatter
    ``recv == send + rank * block``. A buffer that a rank does not have is None.
    """

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Runs a collective in this thread; never called by two threads at once."""

    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        """Sends a message, independently of collectives."""

    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """Receives one, from anybody where ``src`` is None; the result is the source rank."""

    def stats(self) -> Mapping[str, int]:
        """What ran here: calls and bytes by name."""

    def close(self) -> None:
        """Ends it on this rank; messages that are wanted still fail."""

    def abort(self) -> None:
        """Ends it for the whole group: peers that wait for this rank fail."""


def open_transport(store: Any, rank: int, size: int, global_ranks: list[int], timeout_s: float) -> Transport:
    """The transport of a new group; all its ranks call this.

    Parameters
    ----------
    store
        torch's store, of this group alone.
    global_ranks
        The group's ranks in the world; empty for the world itself.
    timeout_s
        How long to wait for the other ranks.

    Raises
    ------
    RendezvousTimeout
        If a rank does not come.
    """
    hosts = _hosts(store, rank, size, timeout_s)
    if len(set(hosts)) == 1:
        from blinkccl.runtime.host_group import HostGroup

        return HostGroup(TorchStore(store), rank, size, prefix="blink", deadline_s=timeout_s)
    from blinkccl.torch_backend.spanning import SpanningTransport

    if rank == 0:
        _say_once()
    return SpanningTransport(store, rank, hosts, global_ranks, timeout_s)


def open_for(store: Any, rank: int, size: int, global_ranks: list[int], timeout_s: float) -> Transport:
    """The same, but later where torch makes the group for another device: then CPU tensors may be others'.

    Parameters
    ----------
    store
        torch's for this group and the device that the group is made for: it tells which that is.
    """
    opened = partial(open_transport, store, rank, size, global_ranks, timeout_s)
    return Deferred(opened) if _is_for(store, rank, "cuda") else opened()


class Deferred:
    """A transport that is opened by its first call, a collective: until then nobody knows whether it is needed.

    Parameters
    ----------
    opened
        Opens it; all ranks come.
    """

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


@cache
def _say_once() -> None:
    logger.warning("a process group spans hosts: backend blink runs such groups over gloo's send and receive")


def _hosts(store: Any, rank: int, size: int, timeout_s: float) -> list[str]:
    """For each rank a text that is equal for ranks that can share memory."""
    keys = [f"blink/host/{peer}" for peer in range(size)]
    store.set(keys[rank], json.dumps(own_peer_info(rank, size).host))
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        present = [peer for peer, key in enumerate(keys) if store.check([key])]
        missing = sorted(set(range(size)) - set(present))
        message = f"rank {rank} waited {timeout_s:g} s in torch's store for its group to form"
        raise RendezvousTimeout(missing, present, message) from error
    return [store.get(key).decode() for key in keys]
