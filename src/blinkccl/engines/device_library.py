"""What is a launch told, on this CPU? ctypes declarations of ``native/device/blink/call.h``, nothing else."""

from __future__ import annotations

import ctypes as c
from functools import lru_cache

from blinkccl.codegen.device_files import host_library
from blinkccl.errors import UnsupportedError
from blinkccl.native import Functions

u32, u64, ptr = c.c_uint32, c.c_uint64, c.c_void_p

RUNNING, ABORTED, TIMED_OUT = range(3)
UNSCALED, SCALE_GIVEN, SCALE_STORED = range(3)


class Connection(c.Structure):
    """``blink::Connection``."""

    _fields_ = [(name, ptr) for name in ("ring", "lines", "tail", "head", "position")]


class Status(c.Structure):
    """``blink::Status``."""

    _fields_ = [*((name, u32) for name in ("code", "connection", "sending", "channel")), ("position", u64)]


class Call(c.Structure):
    """``blink::Call``."""

    _fields_ = [
        *((name, ptr) for name in ("input", "output", "connections", "abort", "status", "scale_at")),
        *((name, u64) for name in ("scale", "count", "chunk_bytes", "timeout_ns", "slot_bytes", "line_bytes")),
        *((name, u32) for name in ("slots", "parts", "rank", "dtype", "op", "average", "scale_kind", "reserved")),
    ]


_FUNCTIONS: Functions = {
    "blink_launch": (c.c_int, [ptr, ptr, u32, u32, c.c_double]),
    "blink_device_version": (c.c_char_p, []),
}


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once; its functions release the GIL.

    Raises
    ------
    UnsupportedError
        If the package was installed without it, or it cannot be used.
    """
    path = host_library()
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    return library


def launch(entry: int, calls: c.Array[Call], blocks: int, timeout_s: float) -> None:
    """Runs ``blocks`` blocks of every rank to their ends, a thread each; ``entry`` is the kernel's address.

    After ``timeout_s`` the calls' abort words are set. How blocks ended is in the calls' statuses.

    Raises
    ------
    UnsupportedError
        If the system gives no more threads.
    """
    if load().blink_launch(entry, c.addressof(calls), len(calls), blocks, timeout_s) < 0:
        raise UnsupportedError(
            f"the system refuses {len(calls) * blocks} threads, one per rank, channel and part; lower the plan to "
            "fewer channels, or raise the limit (ulimit -u)"
        )
