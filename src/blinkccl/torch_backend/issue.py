"""When a call runs: at once in the caller's thread, or in the background; always in the order of issue.

The transport keeps that order: a call that runs in the caller's thread comes after what was submitted before it.
What is issued between ``start_coalescing`` and ``end_coalescing`` goes to the background, and the latter's ``Work``
waits for all of it. While a profiler runs all calls go to the background, where their records begin and end.

No lock is held while a call runs or a message is posted: another thread may have to send what our peers wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist
from torch import Tensor

from blinkccl.errors import BlinkError, CommunicationError
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.memory import Memory
from blinkccl.torch_backend.transport import Transport
from blinkccl.torch_backend.work import AllWork, DoneWork, PendingWork


@dataclass(slots=True)
class Step:
    """One collective on flat memory: the arguments of :meth:`Transport.run_raw`."""

    name: str
    send: int | None
    recv: int | None
    count: int
    dtype: str = "uint8"
    op: str = "sum"
    root: int = 0
    scale: float | None = None


@dataclass(slots=True)
class Message:
    """One message: ``peer`` is its destination, or its source (None: anybody) where ``receives``."""

    receives: bool
    address: int
    nbytes: int
    peer: int | None
    tag: int


@dataclass(slots=True)
class Request:
    """One call of torch's.

    Parameters
    ----------
    title
        Its name in profiles and messages, as torch's own backends have it.
    result
        The tensors that it writes.
    memory
        What its addresses point into.
    steps, messages
        What is to be run: steps in this order, or messages all at once.
    shown
        The tensors whose shapes a profile records.
    """

    title: str
    result: list[Tensor]
    memory: Memory
    steps: list[Step] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    shown: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        # All ranks agree on what is empty; and the memory of an empty tensor may have no address.
        self.steps = [step for step in self.steps if step.count]


class Issuer:
    """Issues the calls of one group to its transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._submitting = Lock()
        self._coalesced: list[dist.Work] | None = None

    def run_now(self, name: str, send: int, recv: int, count: int, dtype: str, timeout_s: float) -> bool:
        """Runs one collective, a sum if it reduces, in this thread; False if it is to go to the background.

        The short way for small calls: no objects are made.
        """
        if self._coalesced is not None or profiler._is_profiler_enabled:
            return False
        try:
            self._transport.run_raw(name, send, recv, count, dtype, "sum", 0, None, timeout_s)
        except BlinkError as error:
            raise for_torch(error, name) from error
        return True

    def issue(self, request: Request, asynchronous: bool, timeout_s: float) -> dist.Work:
        """Runs ``request``, or lets it run in the background; messages always do.

        Raises
        ------
        DistBackendError
            What ended the call, if it is not asynchronous.
        """
        coalesced = self._coalesced
        if not asynchronous and coalesced is None and not request.messages and not profiler._is_profiler_enabled:
            self._run(request, timeout_s)
            done = DoneWork()
            done.tensors = request.result
            return done
        work = self._start(request, timeout_s)
        if coalesced is not None:
            coalesced.append(work)
        elif not asynchronous:
            work.wait()
        return work

    def start_coalescing(self) -> None:
        """Collects what is issued from now on. Never raises: torch would then swallow the group's calls for ever."""
        self._coalesced = []

    def end_coalescing(self) -> dist.Work:
        """All that was issued since, as one."""
        works, self._coalesced = self._coalesced or [], None
        return AllWork(works)

    def _run(self, request: Request, timeout_s: float) -> None:
        try:
            for step in request.steps:
                self._transport.run_raw(
                    step.name, step.send, step.recv, step.count, step.dtype, step.op, step.root, step.scale, timeout_s
                )
        except BlinkError as error:
            request.memory.finish(succeeded=False)
            raise for_torch(error, request.title) from error
        request.memory.finish(succeeded=True)

    def _start(self, request: Request, timeout_s: float) -> PendingWork:
        work = PendingWork(request.result, request.title)
        ending = _Ending(request, work, len(request.steps) + len(request.messages))
        try:
            with self._submitting:  # the steps of one call stay together
                for step in request.steps:
                    self._submit(step, timeout_s).add_done_callback(ending)
            for message in request.messages:
                self._post(message, timeout_s).add_done_callback(ending)
        except BlinkError as error:
            raise for_torch(error, request.title) from error
        return work

    def _submit(self, step: Step, timeout_s: float) -> Future[None]:
        return self._transport.submit_raw(
            step.name, step.send, step.recv, step.count, step.dtype, step.op, step.root, step.scale, timeout_s
        )

    def _post(self, message: Message, timeout_s: float) -> Future[Any]:
        if message.receives:
            return self._transport.irecv_raw(message.address, message.nbytes, message.peer, message.tag, timeout_s)
        assert message.peer is not None  # only a receive may leave it open
        return self._transport.isend_raw(message.address, message.nbytes, message.peer, message.tag, timeout_s)


class _Ending:
    """Ends a work when all its parts have ended."""

    def __init__(self, request: Request, work: PendingWork, parts: int) -> None:
        self._request = request
        self._work = work
        self._left = parts
        self._lock = Lock()
        self._error: Exception | None = None
        self._source: int | None = None
        self._record = torch._C._profiler._RecordFunctionFast(f"blink:{request.title}", list(request.shown))
        self._record.__enter__()
        if not parts:
            self._end()

    def __call__(self, part: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            error = _error_of(part, self._request.title)
            if error is not None:
                self._error = self._error or error
            else:
                self._source = part.result()
            if self._left:
                return
        self._end()

    def _end(self) -> None:
        try:
            self._request.memory.finish(succeeded=self._error is None)
            self._record.__exit__(None, None, None)
        except Exception as error:  # whatever it is, who waits must hear of it
            self._error = error
        self._work.end(self._error, self._source)


def _error_of(part: Future[Any], call: str) -> Exception | None:
    try:
        error = part.exception()
    except CancelledError:
        return for_torch(CommunicationError("the process group was destroyed before this call had run"))
    if isinstance(error, BlinkError):
        return for_torch(error, call)
    return error if error is None or isinstance(error, Exception) else CommunicationError(repr(error))
