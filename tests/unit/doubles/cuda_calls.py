"""The CUDA driver double as a Python process calls it: every integer goes as 64 bits, pointers as addresses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Cuda:
    """The driver that BLINK_CUDA_LIB names: ``cuda.cuMemAlloc_v2(...)`` returns the error code."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["BLINK_CUDA_LIB"])

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self.library, name)

        def call(*arguments: object) -> int:
            return int(function(*(ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments)))

        return call

    def ready(self, device: int = 0) -> int:
        """Initialises, makes the device current, returns its context."""
        expect(0, self.cuInit(0))
        context = self.out(self.cuDevicePrimaryCtxRetain, device)
        expect(0, self.cuCtxSetCurrent(context))
        return context

    def out(self, call: Callable[..., int], *arguments: object) -> int:
        """What a function writes through its first pointer."""
        value = ctypes.c_uint64()
        expect(0, call(ctypes.byref(value), *arguments))
        return value.value

    def allocate(self, count: int) -> int:
        return self.out(self.cuMemAlloc_v2, count)

    def stream(self, flags: int = 1) -> int:
        return self.out(self.cuStreamCreate, flags)

    def event(self, flags: int = 2) -> int:
        return self.out(self.cuEventCreate, flags)

    def fill(self, address: int, value: int, count: int) -> None:
        expect(0, self.cuMemsetD8Async(address, value, count, 0))
        expect(0, self.cuStreamSynchronize(0))

    def read(self, address: int, count: int) -> bytes:
        buffer = ctypes.create_string_buffer(count)
        expect(0, self.cuMemcpyDtoH_v2(buffer, address, count))
        return buffer.raw


def expect(wanted: object, seen: object) -> None:
    """An assertion that Python's -O keeps and that says both sides."""
    if wanted != seen:
        raise AssertionError(f"expected {wanted!r}, got {seen!r}")
