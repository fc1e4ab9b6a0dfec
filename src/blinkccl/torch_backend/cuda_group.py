"""A process group's calls on CUDA tensors: which stream, after what, and what is enqueued there.

As NCCL's backend does it. With ``async_op=False`` a call goes to the caller's current stream. With ``async_op=True`` it
goes to a stream of the group, which first waits for the current one; the tensors' memory is kept from other use until
that stream is past the call. ``work.wait()`` lets the then current stream wait.

The group of GPUs behind it is made by the first call on a device, which is the same call on all ranks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.errors import BlinkError, CommunicationError, UnsupportedError
from blinkccl.runtime.gpu_group import GpuGroup, open_gpu_group
from blinkccl.torch_backend.call_table import CallTable
from blinkccl.torch_backend.cuda_calls import CudaCallTable
from blinkccl.torch_backend.cuda_runtime import CudaRuntime
from blinkccl.torch_backend.cuda_work import CudaWork, Watch
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.issue import TorchCall
from blinkccl.torch_backend.plain import plain_in
from blinkccl.torch_backend.work import Coalescing


class SingleRankEngine:
    """What :class:`blinkccl.runtime.gpu_group.GpuGroup` is for two ranks and more."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._calls = 0

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> None:
        """Copies the block, where it is not in place."""
        if call.op == "premul_sum":
            raise UnsupportedError(
                f"{call.collective} with PREMUL_SUM in a group of one rank: multiply the tensor instead"
            )
        self._calls += 1
        if send is not None and recv is not None and send != recv:
            self._runtime.copy_bytes(recv, send, call.elements * DTYPES[call.dtype].itemsize, stream)

    def message(self, sends: bool, address: int, nbytes: int, peer: int, stream: int | None = None) -> None:
        """There is nobody."""
        raise UnsupportedError(f"a group of one rank has no rank {peer} to exchange messages with")

    def error(self) -> BlinkError | None:
        return None

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is held."""

    def stats(self) -> dict[str, int]:
        return {"gpu_alone": self._calls}


#: Messages that are one after the other: the peer, and whether they come from it.
MessageLine = tuple[int, bool]
#: What runs calls on a device.
GpuEngine = GpuGroup | SingleRankEngine
#: Makes the engine of a group's n-th device: (n, the device's number, seconds to wait for the others).
OpenEngine = Callable[[int, int, float], GpuEngine]


def opener(store: Any, rank: int, size: int, runtime: CudaRuntime) -> OpenEngine:
    """How the ranks of one process group, who share ``store``, make their engines."""

    def open_engine(number: int, device: int, timeout_s: float) -> GpuEngine:
        if size == 1:
            return SingleRankEngine(runtime)
        prefix = f"blink/cuda/{number}"
        return open_gpu_group(store, rank, size, device, prefix=prefix, deadline_s=timeout_s)

    return open_engine


@dataclass
class _OnDevice:
    """What a group has on one device. ``error`` is what has ended it."""

    device: torch.device
    engine: GpuEngine
    stream: Any
    table: CudaCallTable
    watch: Watch
    error: BlinkError | None = None
    message_streams: dict[MessageLine, Any] = field(default_factory=dict)

    def look(self) -> BlinkError | None:
        """Why the group has failed; None: it has not."""
        if self.error is None:
            self.error = self.engine.error()
        return self.error


class _Deferring:
    """Stands in for a table of calls: notes the call that is made of it, its tensors made plain there and then."""

    def __getattr__(self, name: str) -> Callable[..., Callable[[CallTable], TorchCall]]:
        def noted(*arguments: Any) -> Callable[[CallTable], TorchCall]:
            bare = [plain_in(argument) for argument in arguments]

            def build(table: CallTable) -> TorchCall:
                call: TorchCall = getattr(table, name)(*bare)
                return call

            return build

        return noted


def _on_plain_tensors(build: Callable[[Any], Any]) -> Callable[[CallTable], TorchCall]:
    """The same call, of tensors that have memory of their own; UnsupportedError: one has none.

    What a functional collective has yet to give is waited for by the stream that is current: the caller's. A wrapper is
    refused while no other rank waits for this one to make its engine.
    """
    deferred: Callable[[CallTable], TorchCall] = build(_Deferring())
    return deferred


class CudaGroup(Coalescing):
    """The calls of one process group on CUDA tensors."""

    def __init__(self, rank: int, size: int, open_engine: OpenEngine, runtime: CudaRuntime | None = None) -> None:
        self._rank = rank
        self._size = size
        self._open_engine = open_engine
        self._runtime = runtime or CudaRuntime()
        self._lock = threading.RLock()  # all ranks enqueue in one order, whatever their threads do
        self._devices: dict[torch.device, _OnDevice] = {}
        self._closed = False

    def issue(
        self,
        device: torch.device,
        build: Callable[[CallTable], TorchCall],
        asynchronous: bool,
        timeout_s: float,
        line: MessageLine | None = None,
    ) -> dist.Work:
        """Enqueues the call that ``build`` makes; DistBackendError, which is one of ours too, if that fails.

        ``line``: it is a message, which waits for no calls but those of its line; it is asynchronous.
        """
        try:
            build = _on_plain_tensors(build)
            with self._lock:
                on = self._on(self._runtime.device(device), timeout_s)
                stream = on.stream if asynchronous else None
                if line is not None:
                    stream = self._message_stream(on, line)
                work = self._issue(on, build, stream, timeout_s)
                if self._coalesced is not None:
                    self._coalesced.append(work)
        except BlinkError as error:
            raise for_torch(error) from error
        return work

    def stats(self) -> dict[str, int]:
        """What ran here: calls and bytes by name."""
        total: Counter[str] = Counter()
        for on in self._devices.values():
            total.update(on.engine.stats())
        return dict(total)

    def close(self) -> None:
        """Ends the group on this rank when what was enqueued has run."""
        with self._lock:
            self._closed = True
            devices = list(self._devices.values())
        for on in devices:
            on.watch.close()
            on.engine.close()

    def abort(self) -> None:
        """Ends the group: kernels that wait give up, here and on all other ranks."""
        for on in list(self._devices.values()):  # without the lock: who holds it may be the one that waits
            self._end(on, CommunicationError(f"rank {self._rank} has aborted the group"))
        self.close()

    def _on(self, device: torch.device, timeout_s: float) -> _OnDevice:
        if self._closed:
            raise CommunicationError("the group is closed")
        found = self._devices.get(device)
        return self._made(device, timeout_s) if found is None else found

    def _made(self, device: torch.device, timeout_s: float) -> _OnDevice:
        runtime = self._runtime
        if runtime.capturing():
            raise UnsupportedError(
                f"the first call of a group on {device} is being captured into a graph, and it has to plan and to "
                "allocate: make one call before the capture, as with NCCL"
            )
        engine = self._open_engine(len(self._devices), runtime.number(device), timeout_s)

        def fail(error: BlinkError) -> None:
            self._end(made, error)

        table = CudaCallTable(self._rank, self._size, runtime, device)
        watch = Watch(runtime, engine.error, fail)
        made = self._devices[device] = _OnDevice(device, engine, runtime.new_stream(device), table, watch)
        return made

    def _message_stream(self, on: _OnDevice, line: MessageLine) -> Any:
        if self._runtime.capturing():
            raise UnsupportedError(
                "messages between GPUs are moved by copy engines, which serve no graphs: send them outside of captures"
            )
        if line not in on.message_streams:
            on.message_streams[line] = self._runtime.new_stream(on.device)
        return on.message_streams[line]

    def _end(self, on: _OnDevice, error: BlinkError) -> None:
        if on.error is None:
            on.error = error
        on.engine.abort()

    def _issue(self, on: _OnDevice, build: Callable[[CallTable], TorchCall], apart: Any, timeout_s: float) -> dist.Work:
        """On the stream ``apart``, after what the current one holds; None: on that one."""
        if on.error is not None:
            raise on.error
        runtime = self._runtime
        stream = current = runtime.current_stream(on.device)
        if apart is not None:
            stream = apart
            runtime.wait_event(stream, runtime.record(current))
        on.table.foreign = apart
        captured = runtime.capturing()
        with nullcontext() if apart is None else runtime.on(stream):
            call = self._enqueue(on, build, runtime.handle(stream))
            event = runtime.record(stream)
        if not captured:
            on.watch.add(event, call.title, timeout_s)
        return CudaWork(runtime, on.device, call.title, call.result, stream, event, on.look, captured=captured)

    def _enqueue(self, on: _OnDevice, build: Callable[[CallTable], TorchCall], handle: int) -> TorchCall:
        call = build(on.table)
        if not profiler._is_profiler_enabled:
            return self._run(on, call, handle)
        with torch._C._profiler._RecordFunctionFast(f"blink:{call.title}", list(call.shown)):
            return self._run(on, call, handle)

    def _run(self, on: _OnDevice, call: TorchCall, handle: int) -> TorchCall:
        for each in call.calls:
            if each.call.elements:
                on.engine.run(each.call, each.send, each.recv, each.scale, handle)
        for one in call.messages:
            if one.nbytes and one.peer is not None:
                on.engine.message(not one.receives, one.address, one.nbytes, one.peer, handle)
        call.memory.finish(succeeded=True)
        return call
