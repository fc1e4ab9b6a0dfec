"""What is asked of CUDA, through torch: streams, events, memory. A seam, so that all above it can run without a GPU.

A stream and an event are whatever the runtime makes of them; nobody else looks inside.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from blinkccl.errors import CommunicationError
from blinkccl.torch_backend.memory import copy

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class CudaRuntime:
    """CUDA as torch shows it. Tests put another one in its place."""

    def device(self, device: torch.device) -> torch.device:
        """The device with its number, where none was said: the current one."""
        return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device

    def number(self, device: torch.device) -> int:
        """The device's number in this process."""
        return int(device.index)

    def current_stream(self, device: torch.device) -> Any:
        """The stream on which the caller's thread works."""
        return torch.cuda.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        """A stream of our own, which waits for no other."""
        return torch.cuda.Stream(device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes ``stream`` the current one of its device, and that the current device."""
        current: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return current

    def handle(self, stream: Any) -> int:
        """``cudaStream_t`` as a number."""
        return int(stream.cuda_stream)

    def record(self, stream: Any) -> Any:
        """An event behind all that ``stream`` has been given."""
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait_event(self, stream: Any, event: Any) -> None:
        """Lets what ``stream`` is given from now on wait for ``event``; the host goes on."""
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        """Whether ``event`` has come."""
        return bool(event.query())

    def capturing(self) -> bool:
        """Whether the current stream records a graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    def empty(self, nbytes: int, device: torch.device) -> Tensor:
        """Bytes on the device, for work on the current stream."""
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copies elements on the current stream."""
        copy(target, source)

    def copy_bytes(self, target: int, source: int, nbytes: int, handle: int | None) -> None:
        """Copies from address to address on the device, on the stream of this handle."""
        result = _driver().cuMemcpyDtoDAsync_v2(
            ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(handle)
        )
        if result:
            raise CommunicationError(f"CUDA does not copy {nbytes} bytes on the GPU: error {result}")

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """Keeps the memory of ``tensor`` from being used again before ``stream`` has got past this point."""
        tensor.record_stream(stream)

    def future(self, tensors: Sequence[Tensor], device: torch.device, stream: Any) -> Any:
        """A future that is complete; who takes its value waits, on his stream, for what ``stream`` has been given."""
        made: Any = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            made.set_result(list(tensors))
        return made

    def begin_watching(self) -> None:
        """Called by a thread that asks for events: lets it do so while another thread captures a graph."""
        mode = ctypes.c_int(_RELAXED)
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _driver() -> Any:
    """libcuda, which torch has opened already."""
    return ctypes.CDLL(os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1")
