"""Scheduling of calls: in the caller's thread or in the background, always in the order of issue.

A call with ``async_op=False`` runs in the caller's thread if the group's queue is empty. Otherwise it is queued and
awaited. Calls between ``start_coalescing`` and ``end_coalescing`` go to the background, and the latter's ``Work`` waits
for all of them. In profiles a call in the background lasts as long as its issue.

Messages are not part of the order, and posting one never waits: another thread may have to send a message that our
peers need while a collective runs in this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist
from torch import Tensor

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.host import NativeOp
from blinkccl.errors import BlinkError
from blinkccl.runtime.group import Group
from blinkccl.runtime.host_group import HostGroup
from blinkccl.runtime.serial_executor import SerialExecutor
from blinkccl.runtime.timeouts import microseconds
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.memory import Memory
from blinkccl.torch_backend.work import AllWork, DoneWork, PendingWork


@dataclass(slots=True)
class AddressedCall:
    """One collective on flat memory: the arguments of :meth:`Group.run`."""

    call: CollectiveCall
    send: int | None
    recv: int | None
    scale: float | None = None

    def run(self, transport: Group, timeout_s: float) -> None:
        """Run the collective to its end."""
        if self.call.elements:  # all ranks agree on emptiness, and the memory of an empty tensor has no address
            transport.run(self.call, self.send, self.recv, self.scale, timeout_s)


def moved(name: str, send: int | None, recv: int | None, nbytes: int, root: int = 0) -> AddressedCall:
    """A collective that only moves data, in bytes."""
    return AddressedCall(CollectiveCall(name, "uint8", nbytes, "sum", root), send, recv)


@dataclass(slots=True)
class Message:
    """One message: ``peer`` is its destination, or its source (None: any rank) if it ``receives``."""

    receives: bool
    address: int
    nbytes: int
    peer: int | None
    tag: int


@dataclass(slots=True)
class TorchCall:
    """One call of torch's: ``calls`` to run in this order, or a ``message`` to send or receive.

    ``title`` is its name in profiles and messages, as in torch's own backends; ``result`` are the tensors that it
    writes; ``shown`` those whose shapes a profile records.
    """

    title: str
    result: list[Tensor]
    memory: Memory
    calls: list[AddressedCall] = field(default_factory=list)
    message: Message | None = None
    shown: Sequence[Tensor] = ()

    def run(self, transport: Group, timeout_s: float) -> None:
        """Run the calls to their end."""
        for call in self.calls:
            call.run(transport, timeout_s)


class Issuer:
    """Issuer of the calls of one group to its transport."""

    def __init__(self, transport: Group) -> None:
        self._transport = transport
        self._executor = SerialExecutor("blink-torch")
        self._coalesced: list[dist.Work] | None = None

    def start_coalescing(self) -> None:
        """Collect calls from now on. Never raises, because torch would then discard all later calls of the group."""
        self._coalesced = []

    def end_coalescing(self) -> dist.Work:
        """The collected calls as one."""
        works, self._coalesced = self._coalesced or [], None
        return AllWork(works)

    def run_now(self, call: CollectiveCall, address: int, timeout_s: float) -> bool:
        """Run an AllReduce in place in this thread without making objects; False if that is impossible now."""
        executor = self._executor
        if not self.directly or not executor.idle:
            return False
        try:
            with executor.lock:
                self._transport.run(call, address, address, None, timeout_s)
        except BlinkError as error:
            raise for_torch(error, "all_reduce") from error
        return True

    def by_steps(self, call: CollectiveCall, address: int, timeout_s: float) -> InPlaceBySteps | None:
        """A repeatable AllReduce in place, in its caller's thread; None: the transport has no such call."""
        transport = self._transport
        op = transport.native_op(call) if isinstance(transport, HostGroup) else None
        return None if op is None else InPlaceBySteps(self, self._executor, op, address, microseconds(timeout_s))

    @property
    def directly(self) -> bool:
        """True if a call may ignore profiles and coalescing."""
        return self._coalesced is None and not profiler._is_profiler_enabled

    def issue(self, call: TorchCall, asynchronous: bool, timeout_s: float) -> dist.Work:
        """Run ``call``, or queue it for the background, as for all messages. DistBackendError if it fails at once."""
        if profiler._is_profiler_enabled:
            with torch._C._profiler._RecordFunctionFast(f"blink:{call.title}", list(call.shown)):
                return self._issue(call, asynchronous, timeout_s)
        return self._issue(call, asynchronous, timeout_s)

    def close(self) -> None:
        """Run the queued calls, and refuse new ones."""
        self._executor.close()

    def _issue(self, call: TorchCall, asynchronous: bool, timeout_s: float) -> dist.Work:
        coalesced = self._coalesced
        if not asynchronous and coalesced is None and call.message is None and self._executor.idle:
            with self._executor.lock:
                self._run(call, timeout_s)
            done = DoneWork()
            done.tensors = call.result
            return done
        work = self._start(call, timeout_s)
        if coalesced is not None:
            coalesced.append(work)
        elif not asynchronous:
            work.wait()
        return work

    def _run(self, call: TorchCall, timeout_s: float) -> None:
        try:
            call.run(self._transport, timeout_s)
        except BlinkError as error:
            call.memory.finish(succeeded=False)
            raise for_torch(error, call.title) from error
        call.memory.finish(succeeded=True)

    def _start(self, call: TorchCall, timeout_s: float) -> PendingWork:
        work = PendingWork(call.result, call.title)
        try:
            if call.message is not None:
                self._post(call.message, timeout_s).add_done_callback(partial(_end_message, call, work))
            else:
                future = self._executor.submit(lambda: self._run(call, timeout_s))
                future.add_done_callback(lambda ended: work.end(ended.exception()))
        except BlinkError as error:
            raise for_torch(error, call.title) from error
        return work

    def _post(self, message: Message, timeout_s: float) -> Future[Any]:
        if message.receives:
            return self._transport.irecv(message.address, message.nbytes, message.peer, message.tag, timeout_s)
        assert message.peer is not None  # only a receive may leave it open
        return self._transport.isend(message.address, message.nbytes, message.peer, message.tag, timeout_s)


class InPlaceBySteps:
    """A repeatable call by steps, of one group; it is in progress until it ``ended``.

    The owner of its memory is kept alive until then. The timeout counts from the first wait.
    """

    __slots__ = ("_address", "_begun", "_error", "_executor", "_held", "_issuer", "_op", "_timeout_us", "ended")

    def __init__(self, issuer: Issuer, executor: SerialExecutor, op: NativeOp, address: int, timeout_us: int) -> None:
        self._issuer, self._executor, self._op = issuer, executor, op
        self._address, self._timeout_us = address, timeout_us
        self._begun, self.ended = False, True
        self._error: BaseException | None = None
        self._held: object = None

    def start(self, held: object) -> bool:
        """Begin the call; False if that is impossible now."""
        if not self._issuer.directly:
            return False
        if not self.ended:  # the backward pass that began it did not end
            self.finish()
        self._begun, self.ended, self._error, self._held = False, False, None, held
        self._executor.start(self)
        return True

    def go_on(self, wait: bool) -> None:
        """Continue as far as possible without waiting, or (``wait``) to the end; never raises."""
        try:
            if not self._begun:
                self._op.start(self._address, self._address, self._timeout_us)
                self._begun = True
            if wait:
                self._op.finish()
            elif not self._op.step():
                return
        except BaseException as error:  # also from a signal handler: half a call has no result
            self._error = error
            self._op.endpoint.abort(f"a call that was made by steps ended with {type(error).__name__}")
        self.ended, self._held = True, None

    def finish(self) -> None:
        """Wait for the end; raises DistBackendError."""
        if not self.ended:
            self._executor.finish(self)
        if self._error is not None:
            raise for_torch(self._error, "all_reduce") if isinstance(self._error, BlinkError) else self._error


def _end_message(call: TorchCall, work: PendingWork, message: Future[Any]) -> None:
    """End the work of a message that has ended."""
    error = message.exception()
    source = message.result() if error is None else None
    if isinstance(error, BlinkError):
        error = for_torch(error, call.title)
    try:
        call.memory.finish(succeeded=error is None)
    except Exception as failed:  # the waiting thread must get any error
        error = failed
    work.end(error, source)
