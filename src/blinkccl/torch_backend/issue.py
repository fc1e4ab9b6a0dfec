"""Scheduling of calls: in the caller's thread, in steps or in the background, always in the order of issue.

A call with ``async_op=False`` runs in the caller's thread if the group's queue is empty. Otherwise it is queued and
awaited. A small call with ``async_op=True`` runs in steps: it sends its messages where it is made, and receives the
others' where it is awaited, so no thread wakes another. It goes to the background if a later step has to send, if the
next call is issued before its end, or if a future is to complete by itself. So no rank waits for a step that waits for
another group's call. Larger calls with ``async_op=True`` go to the background at once, beside computations.

Calls between ``start_coalescing`` and ``end_coalescing`` are as with ``async_op=True``, and the latter's ``Work`` waits
for all of them. In profiles a call in the background lasts as long as its issue.

Messages are not part of the order, and posting one never waits: another thread may have to send a message that our
peers need while a collective runs in this one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

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
from blinkccl.torch_backend.eager import eager
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.memory import Memory, Scratch
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


#: An operation, its input and its output.
_Step = tuple[NativeOp, int | None, int | None]


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


_NO_TIME = timedelta(0)
#: Longest wait of a call in steps for other ranks, before a thread is woken to wait: as long as this takes.
_PATIENCE_US = 50
#: Longest wait for other ranks before an object for the call's progress is made: as long as this takes.
_BRIEFLY_US = 16
#: Memory of calls that need no scratch memory.
_IN_PLACE = Memory(Scratch())


class ShortCall(NamedTuple):
    """A call on plain memory, and its operation if it is small and may run in steps."""

    title: str
    call: CollectiveCall
    op: NativeOp | None


class Issuer:
    """Issuer of the calls of one group to its transport."""

    def __init__(self, transport: Group) -> None:
        self.transport = transport
        self.executor = SerialExecutor("blink-torch", transport.lock)
        self._coalesced: list[dist.Work] | None = None
        self._alone = transport.size == 1  # no call waits for another rank
        self._pid = os.getpid()

    def start_coalescing(self) -> None:
        """Collect calls from now on. Never raises, because torch would then discard all later calls of the group."""
        self._coalesced = []

    def end_coalescing(self) -> dist.Work:
        """The collected calls as one."""
        works, self._coalesced = self._coalesced or [], None
        return AllWork(works)

    def shortly(
        self, short: ShortCall, send: int, recv: int, held: tuple[Tensor, ...], asynchronous: bool, timeout_s: float
    ) -> dist.Work | None:
        """Run or begin a call on plain memory with few objects; None: it has to go the long way.

        ``held`` are its result and its input.
        """
        executor = self.executor
        if self._coalesced is not None or not executor.idle:
            return None
        title, call, op = short
        if asynchronous and not self._alone:
            if op is None or not executor.lock.acquire(False):
                return None
            try:
                if executor.by_steps:
                    return None
                if not op.start(send, recv, microseconds(timeout_s), _BRIEFLY_US):
                    return self._late(title, (op, send, recv), held, timeout_s)
            except BlinkError as error:
                failed = PendingWork([held[0]], title)
                failed.end(for_torch(error, title))
                return failed
            finally:
                executor.lock.release()
        else:
            try:
                with executor.lock:
                    if executor.by_steps:
                        executor.finish_steps()
                    self.transport.run(call, send, recv, None, timeout_s)
            except BlinkError as error:
                raise for_torch(error, title) from error
        done = DoneWork()
        done.tensors = [held[0]]
        return done

    def stats(self) -> dict[str, int]:
        """The counters of the transport, and ``thread_wakes``: calls that were left to the group's thread."""
        return {**self.transport.stats(), "thread_wakes": self.executor.wakes}

    def issue(self, call: TorchCall, asynchronous: bool, timeout_s: float) -> dist.Work:
        """Run ``call``, or begin it, as all messages. DistBackendError if it fails at once."""
        if profiler._is_profiler_enabled:
            with torch._C._profiler._RecordFunctionFast(f"blink:{call.title}", list(call.shown)):
                return self._issue(call, asynchronous, timeout_s)
        return self._issue(call, asynchronous, timeout_s)

    def short(self, title: str, call: CollectiveCall) -> ShortCall:
        """``call`` for :meth:`shortly`."""
        op = self.transport.native_op(call) if isinstance(self.transport, HostGroup) else None
        return ShortCall(title, call, op if op is not None and op.inline else None)

    def start(self, call: TorchCall, timeout_s: float) -> SteppedWork | None:
        """Begin ``call``, of any size, in steps; it continues only where it is awaited. None: impossible now."""
        steps = None if self._coalesced is not None or profiler._is_profiler_enabled else self._steps(call)
        if steps is None:
            return None
        work = SteppedWork(call, steps, self, timeout_s)
        self.executor.start(work)
        return work

    def _late(self, title: str, step: _Step, held: tuple[Tensor, ...], timeout_s: float) -> SteppedWork:
        """The rest of a call in one step whose peers are late; the caller holds the lock."""
        call = TorchCall(title, [held[0]], _IN_PLACE, shown=held)
        work = SteppedWork(call, [step], self, timeout_s)
        work.begun = True
        self.executor.adopt(work)
        if not work.only_receives:
            self.executor.hand_over()
        return work

    def close(self) -> None:
        """Run the queued calls, and refuse new ones. A forked child's copy has none."""
        if os.getpid() == self._pid:
            self.executor.close()

    def _issue(self, call: TorchCall, asynchronous: bool, timeout_s: float) -> dist.Work:
        coalesced, executor = self._coalesced, self.executor
        at_once = self._alone or (not asynchronous and coalesced is None)
        if at_once and call.message is None and executor.idle:
            with executor.lock:
                executor.finish_steps()
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
            call.run(self.transport, timeout_s)
        except BlinkError as error:
            call.memory.finish(succeeded=False)
            raise for_torch(error, call.title) from error
        call.memory.finish(succeeded=True)

    def _start(self, call: TorchCall, timeout_s: float) -> PendingWork:
        work = self._by_steps(call, timeout_s)
        if work is not None:
            return work
        work = PendingWork(call.result, call.title)
        try:
            if call.message is not None:
                self._post(call.message, timeout_s).add_done_callback(partial(_end_message, call, work))
            else:
                future = self.executor.submit(lambda: self._run(call, timeout_s))
                future.add_done_callback(lambda ended: work.end(ended.exception()))
        except BlinkError as error:
            raise for_torch(error, call.title) from error
        return work

    def _by_steps(self, call: TorchCall, timeout_s: float) -> PendingWork | None:
        """Begin a small call in steps; None if it is not small, or if another call is in progress."""
        executor = self.executor
        if not call.calls or not executor.idle:
            return None
        executor.go_on(_PATIENCE_US)
        steps = None if executor.by_steps else self._steps(call, small=True)
        if steps is None:
            return None
        work = SteppedWork(call, steps, self, timeout_s)
        executor.start(work)
        if not work.ended and not work.only_receives:
            executor.go_on(_PATIENCE_US)
            if not work.ended and not work.only_receives:
                executor.hand_over()
        return work

    def _steps(self, call: TorchCall, small: bool = False) -> list[_Step] | None:
        """The operations of ``call``; None if they cannot run in steps, or (``small``) move many bytes."""
        if not isinstance(self.transport, HostGroup):
            return None
        steps = []
        for each in call.calls:
            if not each.call.elements:
                continue
            op = self.transport.native_op(each.call)
            if op is None or each.scale is not None or (small and not op.inline):
                return None
            steps.append((op, each.send, each.recv))
        return steps

    def _post(self, message: Message, timeout_s: float) -> Future[Any]:
        if message.receives:
            return self.transport.irecv(message.address, message.nbytes, message.peer, message.tag, timeout_s)
        assert message.peer is not None  # only a receive may leave it open
        return self.transport.isend(message.address, message.nbytes, message.peer, message.tag, timeout_s)


@eager
class SteppedWork(PendingWork):
    """A call in steps, which advance where the work is looked at or awaited."""

    def __init__(self, call: TorchCall, steps: list[_Step], issuer: Issuer, timeout_s: float) -> None:
        super().__init__(call.result, call.title)
        self._call, self._steps, self._transport, self._executor = call, steps, issuer.transport, issuer.executor
        self._timeout_us = microseconds(timeout_s)
        self.begun = False  # the first of the steps

    @property
    def only_receives(self) -> bool:
        """True if no other rank waits for the next step."""
        steps = self._steps  # another thread may end the call
        return self.begun and len(steps) == 1 and steps[0][0].only_receives

    def go_on(self, patience_us: int | None) -> None:
        """Continue as :class:`~blinkccl.runtime.serial_executor.Steps`; never raises."""
        error: BaseException | None = None
        try:
            while self._steps:
                if not self._advance(*self._steps[0], patience_us):
                    return
                self._steps, self.begun = self._steps[1:], False
            self._call.memory.finish(succeeded=True)
        except BaseException as raised:  # also from a signal handler: half a call has no result
            error = raised
            self._call.memory.finish(succeeded=False)
            if isinstance(raised, BlinkError):
                error = for_torch(raised, self._call.title)
                error.__cause__ = raised
            elif self._steps:
                self._transport.abort(f"a call in steps ended with {type(raised).__name__}")
        self._steps = []
        self.end(error)

    def _advance(self, op: NativeOp, send: int | None, recv: int | None, patience_us: int | None) -> bool:
        """Continue the first of the steps; True if it has ended."""
        if not self.begun:
            self.begun = True
            if op.start(send, recv, self._timeout_us):
                return True
            if patience_us == 0:
                return False
        return op.finish() if patience_us is None else op.step(patience_us)

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Wait as :meth:`PendingWork.wait`, and receive what is still missing."""
        if not self.ended:
            if timeout > _NO_TIME:
                self._executor.hand_over()
            else:
                self._executor.finish(self)
        return super().wait(timeout)

    def is_completed(self) -> bool:
        if not self.ended:
            self._executor.go_on()
        return self.ended

    def get_future(self) -> Any:
        future = super().get_future()
        if not self.ended:
            self._executor.hand_over()
        return future


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
