"""Who moves the bytes of a process group: what we ask of them, and which one a group gets.

A group whose ranks can share memory gets a :class:`blinkccl.runtime.host_group.HostGroup`. One that spans hosts
gets plans over gloo's send and receive (:class:`SpanningTransport`). That is decided per
group, from what its ranks say in the store about where they are: environment variables of launchers describe the
whole job, and a group may lie across its hosts in another way.
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import cache, partial
from threading import Lock, Thread
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.errors import CommunicationError, DeadlineError, RendezvousTimeout
from blinkccl.runtime.peer_info import own_peer_info
from blinkccl.runtime.plan_cache import PlanCache
from blinkccl.runtime.plans import planned
from blinkccl.runtime.store import TorchStore
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec

logger = logging.getLogger(__name__)


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


def open_transport(store: Any, rank: int, size: int, global_ranks: list[int], timeout_s: float) -> Transport:
    """The transport of a new group; all its ranks call this, and wait ``timeout_s`` for each other (RendezvousTimeout).

    ``store`` is torch's, of this group alone; ``global_ranks`` are empty for the world itself.
    """
    hosts = _hosts(store, rank, size, timeout_s)
    if len(set(hosts)) == 1:
        from blinkccl.runtime.host_group import HostGroup

        return HostGroup(TorchStore(store), rank, size, prefix="blink", deadline_s=timeout_s)
    if rank == 0:
        _say_once()
    return SpanningTransport(store, rank, hosts, global_ranks, timeout_s)


def open_for(store: Any, rank: int, size: int, global_ranks: list[int], timeout_s: float) -> Transport:
    """The same, but later where torch makes the group for another device: then CPU tensors may be others'."""
    opened = partial(open_transport, store, rank, size, global_ranks, timeout_s)
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


#: Networks want larger messages than shared memory.
CHUNK_BYTES = 1 << 20
#: Of the network's interfaces, against a clique's 25 GB/s.
NETWORK = "10Gbps"


class SpanningTransport:
    """A group that spans hosts: our plans over two process groups of gloo, one for collectives and one for messages.

    Planned on the hosts as they are: all ranks of a host reach each other, and hosts meet at one network switch, each
    through one interface, whose rate is taken to be much the lower: only the ratio counts. No faster than gloo at its
    best; it serves so that a program need not care where its ranks are. ``hosts`` names each rank's host.
    """

    def __init__(self, store: Any, rank: int, hosts: list[str], global_ranks: list[int], timeout_s: float) -> None:
        self.rank, self.size = rank, len(hosts)
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._global_ranks = global_ranks or list(range(self.size))
        self._collectives = _gloo("collectives", store, rank, self.size, timeout_s)
        self._messages = _gloo("messages", store, rank, self.size, timeout_s)
        self._executions: dict[Collective, TorchP2P] = {}
        self._counts: Counter[str] = Counter()
        self._counting = Lock()
        distributed_c10d._world.pg_group_ranks[self._collectives] = {
            global_rank: index for index, global_rank in enumerate(self._global_ranks)
        }

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        collective = call.among(self.size)
        seconds = self._timeout_s if deadline_s is None else deadline_s
        execution = self._executions.get(collective)
        if execution is None:
            execution = TorchP2P(self._program(collective), self._collectives, deadline_s=seconds)
            self._executions[collective] = execution
        self._count(call.collective, call.elements * element_type(call.dtype).itemsize)
        inputs, outputs = collective.input_blocks(self.rank), collective.output_blocks(self.rank)
        kind = getattr(torch, call.dtype)
        execution.run(
            call if collective.reduces else call._replace(op="sum"),
            _at(send, call.elements * inputs, kind) if send and inputs else None,
            _at(recv, call.elements * outputs, kind) if recv and outputs else None,
            scale=scale,
            chunk_bytes=CHUNK_BYTES,
            deadline_s=seconds,
        )

    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        work = self._messages.send([_at(address, nbytes, torch.uint8)], dst, tag + 1)  # AllToAll's own tag is -1
        self._count("sends", nbytes)
        future: Future[None] = Future()
        self._wait(work, future, f"send {nbytes} bytes to rank {dst}", lambda: None, deadline_s)
        return future

    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """Gloo ends the process if a message is longer."""
        buffer = [_at(address, nbytes, torch.uint8)]
        if src is None:
            work = self._messages.recv_anysource(buffer, tag + 1)
        else:
            work = self._messages.recv(buffer, src, tag + 1)
        self._count("receives", nbytes)
        future: Future[int] = Future()
        what = f"receive {nbytes} bytes from {'any rank' if src is None else f'rank {src}'}"
        self._wait(work, future, what, lambda: work._source_rank() if src is None else src, deadline_s)
        return future

    def stats(self) -> Counter[str]:
        """Calls by collective and messages, all ``spanning_…``."""
        return self._counts

    def close(self) -> None:
        """Forgets the group; messages that nobody sends any more fail with their timeout."""
        distributed_c10d._world.pg_group_ranks.pop(self._collectives, None)
        self._executions.clear()

    def abort(self) -> None:
        """Ends at once; the others see the connection break."""
        for group in (self._collectives, self._messages):
            group.abort()

    def _program(self, collective: Collective) -> Program:
        """The plan of ``collective`` on these hosts; every rank makes the same."""
        names = list(dict.fromkeys(self._hosts))
        widest = max(2, *(self._hosts.count(name) for name in names))
        topology = parse_spec(f"{len(names)}x clique:{widest} @ {NETWORK}")
        used: Counter[str] = Counter()
        vertices = []
        for host in self._hosts:
            vertices.append(names.index(host) * widest + used[host])
            used[host] += 1
        return planned(topology, collective, tuple(vertices), "optimal", PlanCache())

    def _wait(
        self, work: Any, future: Future[Any], what: str, result: Callable[[], Any], deadline_s: float | None
    ) -> None:
        """Completes ``future`` when ``work`` ends. Gloo calls nobody back, so a thread waits per message."""
        future.set_running_or_notify_cancel()

        def wait() -> None:
            try:
                work.wait(timedelta(seconds=self._timeout_s if deadline_s is None else deadline_s))
                value = result()
            except RuntimeError as error:
                future.set_exception(_explained(error, f"rank {self.rank} could not {what}"))
            else:
                future.set_result(value)

        Thread(target=wait, name="blink-message", daemon=True).start()

    def _count(self, name: str, nbytes: int) -> None:
        with self._counting:
            self._counts[f"spanning_{name}"] += 1
            self._counts["spanning_bytes"] += nbytes


def _gloo(name: str, store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """A process group of gloo that torch's books need not know."""
    prefixed = dist.PrefixStore(f"blink/spanning/{name}/", store)
    group = dist.ProcessGroup(prefixed, rank, size)
    backend = dist.ProcessGroupGloo(prefixed, rank, size, timedelta(seconds=timeout_s))
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def _at(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """The ``count`` elements at ``address``, which stays the caller's."""
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address), dtype=dtype)


def _explained(error: RuntimeError, what: str) -> CommunicationError:
    reason = " ".join(str(error).split())
    late = "timed out" in reason.lower() or "timeout" in reason.lower()
    return (DeadlineError if late else CommunicationError)(f"{what}: {reason}")
