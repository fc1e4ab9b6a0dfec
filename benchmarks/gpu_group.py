"""Ranks on GPUs through ``libblink.so``'s plain C interface, without NCCL, which needs a GPU for each rank.

The library plans, loads generated code and enqueues it on the given stream (``blink/gpu_comm.h``), as under NCCL
programs. This module has its types for :mod:`ctypes`, its numbers for our names, and its results as errors.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
import threading
from functools import lru_cache
from typing import Any

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.native import library_file
from blinkccl.native.headers import header

LIBRARY = "libblink.so"
#: Environment variable with the path of another library file, for developers.
LIBRARY_OVERRIDE = "BLINK_LIBRARY"

_TYPES = header("types.h")
COLLECTIVES = tuple(name for name in _TYPES.numbers("blink_collective") if name != "sendrecv")
REDUCING = ("reduce", "allreduce", "reduce_scatter")
#: ``ncclDataType_t`` and ``ncclRedOp_t`` by our names.
DTYPE_NUMBERS = _TYPES.numbers("blink_nccl_dtype", "BLINK_NCCL_")
OP_NUMBERS = _TYPES.numbers("blink_nccl_op", "BLINK_NCCL_")

_WHY_BYTES = 4096


@lru_cache(maxsize=1)
def gpu_library() -> Any:
    """The library that ``BLINK_LIBRARY`` names, or the package's, with declared functions, which release the GIL.

    UnsupportedError if the file is missing or is no such library.
    """
    path = library_file(LIBRARY, LIBRARY_OVERRIDE)
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in header("gpu_comm.h").functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    return library


class GpuGroup:
    """One rank's part in a group of GPUs. Calls may come from any thread; all ranks make the same calls in one order.

    ``key`` is a text that no other group has, the same on all ``size`` ≥ 2 ranks. ``device`` is the GPU's number in
    this process. UnsupportedError, on all ranks, with the library's message, if they cannot run on trees; planning may
    take ``BLINK_PLAN_TIMEOUT``.
    """

    def __init__(self, key: str, rank: int, size: int, device: int) -> None:
        self.rank, self.size = rank, size
        self._library = gpu_library()
        self._lock = threading.Lock()
        self._comm = c.c_void_p()
        # The planner is that of this package, because "python3" on PATH may lack it.
        os.environ.setdefault("BLINK_PYTHON", sys.executable)
        why = c.create_string_buffer(_WHY_BYTES)
        result = self._library.blink_shim_comm_create(
            c.byref(self._comm), key.encode(), size, rank, device, why, _WHY_BYTES
        )
        if result:
            message = why.value.decode(errors="replace") or f"result {result}"
            raise UnsupportedError(f"rank {rank} of {size} on GPU {device} cannot run on trees: {message}")

    def run(self, call: CollectiveCall, send: int | None, recv: int | None, stream: int) -> None:
        """Enqueue a collective on ``stream`` (CUDA's handle), without waiting for it.

        ``call`` is one of :data:`COLLECTIVES`. ``send`` and ``recv`` are addresses on this rank's GPU, None for a
        missing buffer; in place as in nccl.h. CommunicationError if no program serves it, or a kernel gave up:
        NCCL_DEBUG=INFO shows the library's message.
        """
        name = call.collective
        at_root = call.root if name in ("broadcast", "reduce", "gather", "scatter") else -1
        numbers = DTYPE_NUMBERS[call.dtype], OP_NUMBERS[call.op]
        with self._lock:
            if not self._comm:
                raise CommunicationError("the group of GPUs is closed")
            result = self._library.blink_shim_comm_run(
                self._comm, COLLECTIVES.index(name), send, recv, call.elements, *numbers, at_root, stream
            )
        self._check(result, name)

    def check(self) -> None:
        """Raise CommunicationError if a kernel gave up, which all other ranks have learned. Does not call CUDA."""
        with self._lock:
            result = self._library.blink_shim_comm_error(self._comm) if self._comm else 0
        self._check(result, "a collective")

    def close(self) -> None:
        """Leave the group after the enqueued work. May be called twice."""
        with self._lock:
            comm, self._comm = self._comm, c.c_void_p()
            if comm:
                self._library.blink_shim_comm_destroy(comm)

    def _check(self, result: int, name: str) -> None:
        if result:
            raise CommunicationError(f"rank {self.rank} of {self.size}: {name}: ncclResult_t {result}")
