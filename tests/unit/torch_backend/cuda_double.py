"""CUDA for torch's backend where there is no GPU: the test double of the driver, whose memory CPU tensors can lie in.

Streams of the double run by themselves, late and out of order by a seed, so a missing wait gives wrong numbers.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from blinkccl.torch_backend.cuda_runtime import CudaRuntime

_HOST_FUNCTION = c.CFUNCTYPE(None, c.c_void_p)
_NON_BLOCKING, _NO_TIMING, _NOT_READY = 1, 2, 600


class DoubleRuntime(CudaRuntime):
    """Device ``ordinal`` of the double that ``BLINK_CUDA_LIB`` names; a tensor on the CPU counts as one on it."""

    def __init__(self, ordinal: int) -> None:
        self._cuda = c.CDLL(os.environ["BLINK_CUDA_LIB"])
        self._ordinal = ordinal
        self._context = c.c_void_p()
        self._here = threading.local()
        self._kept: list[Tensor] = []  # what a caching allocator would keep for a stream
        self.kept_for: list[Any] = []
        self._functions: list[Any] = []
        device = c.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", c.byref(device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", c.byref(self._context), device)
        self._bind()
        self.user_stream = self.new_stream(None)

    # Memory that tests put numbers into

    def tensor(self, values: Tensor) -> Tensor:
        """Device memory with these values, as a contiguous CPU tensor."""
        made = self.empty(max(values.nbytes, 1), torch.device("cpu"))[: values.nbytes]
        made = made.view(values.dtype).view(values.shape)
        made.copy_(values)
        return made

    def fill_on(self, stream: Any, tensor: Tensor, value: int) -> None:
        """Sets every byte, when the stream gets there."""
        address, nbytes = c.c_uint64(tensor.data_ptr()), c.c_size_t(tensor.nbytes)
        self._call("cuMemsetD8Async", address, c.c_ubyte(value), nbytes, stream)

    def delay_on(self, stream: Any, seconds: float) -> None:
        """Holds the stream up when it gets there."""
        pause = _HOST_FUNCTION(lambda _: time.sleep(seconds))
        self._functions.append(pause)
        self._call("cuLaunchHostFunc", stream, pause, None)

    def copied_on(self, stream: Any, tensor: Tensor) -> Tensor:
        """What the tensor holds when the stream gets there; read after :meth:`finish`."""
        made = self.empty(tensor.nbytes, torch.device("cpu"))
        made = made.view(tensor.dtype).view(tensor.shape)
        self.copy_bytes(made.data_ptr(), tensor.data_ptr(), tensor.nbytes, self.handle(stream))
        return made

    def finish(self, stream: Any) -> None:
        """Waits in the host."""
        self._call("cuStreamSynchronize", stream)

    # What the backend asks for

    def device(self, device: torch.device) -> torch.device:
        return device

    def number(self, device: torch.device) -> int:
        return self._ordinal

    def current_stream(self, device: Any) -> Any:
        return getattr(self._here, "stream", self.user_stream)

    def new_stream(self, device: Any) -> Any:
        made = c.c_void_p()
        self._call("cuStreamCreate", c.byref(made), _NON_BLOCKING)
        return made

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self._here.stream = self.current_stream(None), stream
        try:
            yield
        finally:
            self._here.stream = before

    def handle(self, stream: Any) -> int:
        return int(stream.value)

    def record(self, stream: Any) -> Any:
        made = c.c_void_p()
        self._call("cuEventCreate", c.byref(made), _NO_TIMING)
        self._call("cuEventRecord", made, stream)
        return made

    def wait_event(self, stream: Any, event: Any) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def done(self, event: Any) -> bool:
        result = self._cuda.cuEventQuery(event)
        assert result in (0, _NOT_READY), result
        return int(result) == 0

    def capturing(self) -> bool:
        state = c.c_int()
        self._call("cuStreamIsCapturing", self.current_stream(None), c.byref(state))
        return state.value == 1

    def empty(self, nbytes: int, device: torch.device) -> Tensor:
        address = c.c_uint64()
        self._call("cuMemAlloc_v2", c.byref(address), c.c_size_t(max(nbytes, 1)))
        made = torch.frombuffer((c.c_uint8 * max(nbytes, 1)).from_address(address.value), dtype=torch.uint8)
        self._kept.append(made)
        return made[:nbytes]

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.finish(self.current_stream(None))  # strided copies are no business of a driver: the host makes them
        super().copy(target, source)

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        self._kept.append(tensor)
        self.kept_for.append((tensor.data_ptr(), stream.value))

    def future(self, tensors: Sequence[Tensor], device: torch.device, stream: Any) -> Any:
        self.finish(stream)  # a CPU future knows no streams
        made: Any = torch.futures.Future()
        made.set_result(list(tensors))
        return made

    def begin_watching(self) -> None:
        self._bind()
        super().begin_watching()

    # Graphs

    def capture(self, stream: Any) -> None:
        self._call("cuStreamBeginCapture_v2", stream, 0)

    def captured(self, stream: Any) -> Any:
        graph, executable = c.c_void_p(), c.c_void_p()
        self._call("cuStreamEndCapture", stream, c.byref(graph))
        self._call("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_ulonglong(0))
        return executable

    def replay(self, graph: Any, stream: Any) -> None:
        self._call("cuGraphLaunch", graph, stream)

    def _bind(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: error {result} of the driver's double")
