"""Collectives of ranks with GPUs on trees, without NCCL: through ``libblink.so``'s own plain C interface.

The library plans, loads generated code and enqueues it on the stream that it is given (``blink/gpu_comm.h``).
Here are its types for :mod:`ctypes`, its numbers for our names, its results as our errors. What a rank's GPU memory
holds is the caller's business: this file sees addresses and streams.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import secrets
import sys
import threading
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.errors import BlinkError, CommunicationError, DeadlineError, InternalError, UnsupportedError
from blinkccl.native import absent, find_library
from blinkccl.native.headers import header
from blinkccl.runtime.bootstrap import join
from blinkccl.runtime.peer_info import same_host
from blinkccl.runtime.store import Store, TorchStore

LIBRARY = "libblink.so"
#: Names another library file; for people who work on it.
LIBRARY_OVERRIDE = "BLINK_LIBRARY"

_TYPES = header("types.h")
COLLECTIVES = tuple(name for name in _TYPES.numbers("blink_collective") if name != "sendrecv")
REDUCING = ("reduce", "allreduce", "reduce_scatter")
_NCCL_TYPES = _TYPES.numbers("blink_nccl_dtype", "BLINK_NCCL_")
#: ``ncclDataType_t`` of our names; a bool is a byte that is 0 or 1.
DTYPE_NUMBERS = {**_NCCL_TYPES, "bool": _NCCL_TYPES["uint8"]}
#: ``ncclRedOp_t``.
OP_NUMBERS = _TYPES.numbers("blink_nccl_op", "BLINK_NCCL_")
#: The same on bytes that are 0 or 1: "or" and "and".
_BOOL_OPS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}

_SUCCESS, _INVALID_USAGE, _REMOTE, _TIMEOUT = 0, 5, 6, 8
_RESULTS = {
    1: "a CUDA call failed",
    2: "a call to the system failed",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "another rank failed, has gone, or aborted; or a kernel gave up waiting for one",
    8: "timed out",
}
_SEE = "NCCL_DEBUG=WARN shows libblink.so's own words"
_WHY_BYTES = 4096


@lru_cache(maxsize=4)
def gpu_library(path: Path | None = None) -> Any:
    """``libblink.so`` with the types of its functions declared; they release the GIL.

    ``path`` None: what ``BLINK_LIBRARY`` names, or the package's. UnsupportedError if it is not there, or is none.
    """
    path = path or find_library(LIBRARY, LIBRARY_OVERRIDE)
    if path is None:
        raise UnsupportedError(absent(LIBRARY))
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in header("gpu_comm.h").functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    return library


class GpuGroup:
    """One rank's part in a group of GPUs. Calls may come from any thread; all ranks make the same, in one order.

    ``key`` is any text that no other group has, the same on all ``size`` ≥ 2 ranks. ``device`` is the GPU's number in
    this process; ``algorithm`` one for everything, "" the best at each size. UnsupportedError, on all ranks, if they
    cannot run on trees, in the library's words; planning may take ``BLINK_PLAN_TIMEOUT``.
    """

    def __init__(self, key: str, rank: int, size: int, device: int, algorithm: str = "", library: Any = None) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._library = gpu_library() if library is None else library
        self._lock = threading.Lock()
        self._comm = c.c_void_p()
        self._counts: Counter[str] = Counter()
        # The planner is this package's: "python3" on PATH may be one that does not have it.
        os.environ.setdefault("BLINK_PYTHON", sys.executable)
        why = c.create_string_buffer(_WHY_BYTES)
        result = self._library.blink_shim_comm_create(
            c.byref(self._comm), key.encode(), size, rank, device, algorithm.encode(), why, _WHY_BYTES
        )
        if result != _SUCCESS:
            said = why.value.decode(errors="replace") or _RESULTS.get(result, f"result {result}")
            raise UnsupportedError(f"rank {rank} of {size} on GPU {device} cannot run on trees: {said}")

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> None:
        """Enqueues a collective on ``stream`` (CUDA's handle; None: the default stream), and returns at once.

        ``call`` is one of :data:`COLLECTIVES`, of any type where nothing is reduced. ``send`` and ``recv`` are
        addresses on this rank's GPU, None for a buffer that it does not have; in place as in nccl.h. The factor of a
        premul_sum is rounded to its type: the interface takes an element, as NCCL's does.

        UnsupportedError if a GPU has no such type or operation, or no program serves this size: nothing was enqueued.
        CommunicationError if a kernel has given up, this group was aborted or closed, or CUDA fails.
        """
        name = call.collective
        number, operation = _numbers(name, call.dtype, call.op)
        at_root = call.root if name in ("broadcast", "reduce", "gather", "scatter") else -1
        with self._lock:
            comm = self._open()
            element = _element(call.dtype, scale) if operation == OP_NUMBERS["premul_sum"] else None
            result = self._library.blink_shim_comm_run(
                comm, COLLECTIVES.index(name), send, recv, call.elements, number, operation, element, at_root, stream
            )
            if result == _INVALID_USAGE:
                raise UnsupportedError(
                    f"no program of the plan serves {name} of {call.elements} x {call.dtype}"
                    + (f" ({call.op})" if name in REDUCING else f" from root {call.root}" if at_root >= 0 else "")
                    + f" on {self.size} ranks; with NCCL_DEBUG=INFO libblink.so says why"
                )
            self._check(result, name)
            self._counts[f"gpu_{name}"] += 1
            self._counts["gpu_bytes"] += call.elements * DTYPES[call.dtype].itemsize

    def message(self, sends: bool, address: int, nbytes: int, peer: int, stream: int | None = None) -> None:
        """Enqueues one end of a message of ``nbytes``, which both ends say alike, to or from rank ``peer``.

        On ``stream`` as :meth:`run`, with its errors; it waits for no other call of the group. All messages to one rank
        are on one stream, and all from one, and arrive in order.
        """
        name = "send" if sends else "recv"
        with self._lock:
            result = self._library.blink_shim_comm_message(self._open(), int(sends), address, nbytes, peer, stream)
            if result == _INVALID_USAGE:
                raise UnsupportedError(
                    f"no path of the plan serves {name} of {nbytes} bytes {'to' if sends else 'from'} rank {peer}; "
                    "with NCCL_DEBUG=INFO libblink.so says why"
                )
            self._check(result, name)
            self._counts[f"gpu_{name}"] += 1
            self._counts["gpu_bytes"] += nbytes

    def error(self) -> BlinkError | None:
        """Why a kernel gave up, which all other ranks have been told; None: none did. Never asks CUDA."""
        with self._lock:
            if not self._comm:
                return None
            result = self._library.blink_shim_comm_error(self._comm)
        return None if result == _SUCCESS else self._error(result, "a collective")

    def abort(self) -> None:
        """Kernels that wait give up, here and on all other ranks. Waits until those here have."""
        with self._lock:
            if self._comm:
                self._library.blink_shim_comm_abort(self._comm)

    def close(self) -> None:
        """Ends this rank's part when what was enqueued has ended. May be called twice."""
        with self._lock:
            comm, self._comm = self._comm, c.c_void_p()
            if comm:
                self._library.blink_shim_comm_destroy(comm)

    def stats(self) -> dict[str, int]:
        """Calls by name, and the bytes of one block of each."""
        return dict(self._counts)

    def _open(self) -> Any:
        if not self._comm:
            raise CommunicationError("the group of GPUs is closed")
        return self._comm

    def _check(self, result: int, name: str) -> None:
        if result != _SUCCESS:
            raise self._error(result, name)

    def _error(self, result: int, name: str) -> BlinkError:
        text = f"rank {self.rank} of {self.size}, GPU {self.device}: {name}: {_RESULTS.get(result, f'result {result}')}"
        kind = DeadlineError if result == _TIMEOUT else InternalError if result in (3, 4) else CommunicationError
        return kind(f"{text}; {_SEE}")


def _numbers(name: str, dtype: str, op: str) -> tuple[int, int]:
    """The numbers of a type and an operation; the latter's is any where nothing is reduced."""
    number = DTYPE_NUMBERS.get(dtype)
    if number is None:
        raise UnsupportedError(f"GPUs do not reduce {dtype}; they do {', '.join(DTYPE_NUMBERS)}")
    if name not in REDUCING:
        return number, 0
    served = _BOOL_OPS if dtype == "bool" else OP_NUMBERS
    if op not in served:
        raise UnsupportedError(f"GPUs have no {op} of {dtype}; they have {', '.join(served)}")
    return number, OP_NUMBERS[_BOOL_OPS[op] if dtype == "bool" else op]


def _element(dtype: str, scale: float | None) -> Any:
    """The factor as an element in memory."""
    if scale is None:
        raise UnsupportedError("premul_sum needs its factor")
    kind = DTYPES[dtype]
    with np.errstate(over="ignore"):
        element = np.asarray(kind.scalar(scale)).astype(kind.storage).tobytes()
    return c.create_string_buffer(element, len(element))


def open_gpu_group(store: Any, rank: int, size: int, device: int, *, prefix: str, deadline_s: float) -> GpuGroup:
    """A group of GPUs of one host, one per rank; all ranks call this, each with its ``device`` as CUDA counts it.

    ``store`` is ours or one of torch's; ``prefix``, ``deadline_s`` (planning has its own) and errors are as those of
    :func:`blinkccl.runtime.bootstrap.join`; UnsupportedError, on all ranks, if one of them cannot run on trees.
    """
    payload = json.dumps({"key": secrets.token_hex(16), "refused": _refusal()}).encode()
    ours = store if isinstance(store, Store) else TorchStore(store)
    with join(ours, prefix, rank, size, payload, time.monotonic() + deadline_s) as bootstrap:
        peers = bootstrap.peers
    if not same_host(peers):
        hosts = ", ".join(f"rank {peer.rank}: {peer.hostname}" for peer in peers)
        raise UnsupportedError(
            f"trees serve the GPUs of one host, these ranks are on several ({hosts}); use NCCL there"
        )
    told = [json.loads(peer.payload) for peer in peers]
    for peer, words in enumerate(told):
        if words["refused"]:
            raise UnsupportedError(f"rank {peer}: {words['refused']}")
    return GpuGroup(f"blink-gpu-group/{told[0]['key']}", rank, size, device)


def _refusal() -> str:
    """Why this process cannot take part, as far as it can see; the others are told instead of waiting for it."""
    try:
        gpu_library()
    except UnsupportedError as error:
        return error.reason
    return ""
