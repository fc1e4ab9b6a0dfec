"""The part of CUDA's driver API that measurements and tests on one GPU need, by ctypes, without toolkit or PyTorch."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.codegen.build import build
from blinkccl.nccl.images import compiler_for

_NON_BLOCKING, _NO_TIMING = 1, 2
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
#: Resources of a kernel: name on pages → attribute of the driver.
_NEEDS = {"registers": 4, "local_bytes": 3, "shared_bytes": 1}


class CudaError(Exception):
    """A failed call of the driver, or no driver or GPU; the message states which."""


class Cuda:
    """The primary context of one GPU, current in the creating thread; other threads call :meth:`bind`.

    Raises
    ------
    CudaError
        If there is no driver, or no such GPU.
    """

    def __init__(self, ordinal: int = 0) -> None:
        try:
            self._library = c.CDLL(os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no NVIDIA driver: {error}") from None
        self._ordinal = ordinal
        self._call("cuInit", 0)
        count, self._device, self._context = c.c_int(), c.c_int(), c.c_void_p()
        self._call("cuDeviceGetCount", c.byref(count))
        if count.value <= ordinal:
            raise CudaError(f"the driver has {count.value} GPUs, expected more than {ordinal}")
        self._call("cuDeviceGet", c.byref(self._device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", c.byref(self._context), self._device)
        self.bind()

    def bind(self) -> None:
        """Make the context current in this thread."""
        self._call("cuCtxSetCurrent", self._context)

    @property
    def name(self) -> str:
        text = c.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    @property
    def driver(self) -> tuple[int, int]:
        """The CUDA version of the driver."""
        version = c.c_int()
        self._call("cuDriverGetVersion", c.byref(version))
        return version.value // 1000, version.value % 1000 // 10

    @property
    def architecture(self) -> str:
        """The compute capability in the form ``sm_90``."""
        return f"sm_{self._attribute(_MAJOR)}{self._attribute(_MINOR)}"

    @property
    def multiprocessors(self) -> int:
        return self._attribute(_MULTIPROCESSORS)

    # Memory

    def empty(self, nbytes: int) -> int:
        """Allocate memory and return its address."""
        address = c.c_uint64()
        self._call("cuMemAlloc_v2", c.byref(address), c.c_size_t(max(nbytes, 1)))
        return address.value

    def put(self, values: NDArray[Any]) -> int:
        """Allocate memory with these values and return its address."""
        flat = np.ascontiguousarray(values)
        address = self.empty(flat.nbytes)
        self.write(address, flat)
        return address

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Write contiguous values; they are on the GPU on return. Does not wait for our streams."""
        if values.nbytes:
            self._call(
                "cuMemcpyHtoD_v2", c.c_uint64(address), c.c_void_p(values.ctypes.data), c.c_size_t(values.nbytes)
            )
            # A copy from pageable memory may return before the bytes have arrived, and non-blocking streams do not wait
            # for the legacy stream.
            self._call("cuStreamSynchronize", c.c_void_p(0))

    def get(self, address: int, count: int, dtype: Any) -> NDArray[Any]:
        """The elements at ``address``; waits for no stream, in particular of other ranks."""
        values = np.empty(count, dtype)
        if values.nbytes:
            self._call(
                "cuMemcpyDtoH_v2", c.c_void_p(values.ctypes.data), c.c_uint64(address), c.c_size_t(values.nbytes)
            )
        return values

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self._call("cuMemFree_v2", c.c_uint64(address))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy device to device, on the stream."""
        self._call(
            "cuMemcpyDtoDAsync_v2", c.c_uint64(target), c.c_uint64(source), c.c_size_t(nbytes), c.c_void_p(stream)
        )

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Set every byte, on the stream."""
        self._call("cuMemsetD8Async", c.c_uint64(address), c.c_ubyte(byte), c.c_size_t(nbytes), c.c_void_p(stream))

    # Streams, events, graphs

    def stream(self) -> int:
        made = c.c_void_p()
        self._call("cuStreamCreate", c.byref(made), _NON_BLOCKING)
        return int(made.value or 0)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c.c_void_p(stream))

    def event(self, timing: bool = True) -> int:
        made = c.c_void_p()
        self._call("cuEventCreate", c.byref(made), 0 if timing else _NO_TIMING)
        return int(made.value or 0)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", c.c_void_p(event), c.c_void_p(stream))

    def wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", c.c_void_p(stream), c.c_void_p(event), 0)

    def elapsed_s(self, first: int, second: int) -> float:
        """Seconds between two events, after waiting for the second."""
        milliseconds = c.c_float()
        self._call("cuEventSynchronize", c.c_void_p(second))
        self._call("cuEventElapsedTime", c.byref(milliseconds), c.c_void_p(first), c.c_void_p(second))
        return milliseconds.value / 1e3

    def begin_capture(self, stream: int, mode: int = 2) -> None:
        """Begin a capture; ``mode`` 2: relaxed, for all threads."""
        self._call("cuStreamBeginCapture_v2", c.c_void_p(stream), mode)

    def end_capture(self, stream: int) -> int:
        """The captured graph, ready to launch."""
        graph, executable = c.c_void_p(), c.c_void_p()
        self._call("cuStreamEndCapture", c.c_void_p(stream), c.byref(graph))
        self._call("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_ulonglong(0))
        return int(executable.value or 0)

    def replay(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", c.c_void_p(graph), c.c_void_p(stream))

    # Code

    def compiled(self, text: str) -> bytes:
        """Compile a text for this GPU as libblink.so does, and return its code."""
        major, minor = self.driver
        return build(text, compiler_for(self.architecture, 1000 * major + 10 * minor)).read_bytes()

    def function(self, image: bytes, name: str) -> int:
        """A kernel of compiled code."""
        module, function = c.c_void_p(), c.c_void_p()
        self._call("cuModuleLoadData", c.byref(module), c.c_char_p(image))
        self._call("cuModuleGetFunction", c.byref(function), module, name.encode())
        return int(function.value or 0)

    def needs(self, function: int) -> dict[str, int]:
        """Registers and bytes of local memory per thread, and bytes of shared memory per block."""
        needs = {}
        for name, number in _NEEDS.items():
            value = c.c_int()
            self._call("cuFuncGetAttribute", c.byref(value), number, c.c_void_p(function))
            needs[name] = value.value
        return needs

    def occupancy(self, function: int, threads: int) -> int:
        """Number of blocks with this number of threads that fit on a multiprocessor."""
        blocks = c.c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", c.byref(blocks), c.c_void_p(function), threads, c.c_size_t(0)
        )
        return blocks.value

    def launch(self, function: int, blocks: int, threads: int, stream: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel; ``arguments`` are ctypes objects."""
        addresses = (c.c_void_p * len(arguments))(*(c.addressof(one) for one in arguments))
        self._call(
            "cuLaunchKernel", c.c_void_p(function), blocks, 1, 1, threads, 1, 1, 0, c.c_void_p(stream), addresses, None
        )

    def _attribute(self, number: int) -> int:
        value = c.c_int()
        self._call("cuDeviceGetAttribute", c.byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            text = c.c_char_p()
            self._library.cuGetErrorName(result, c.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else f'error {result}'}")
