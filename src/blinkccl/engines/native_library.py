"""Where is the native library, and what are its functions? ctypes declarations of ``blink_host.h``, nothing else."""

from __future__ import annotations

import ctypes as c
import sys
from functools import lru_cache
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native import Functions, find_library, open_library

ABI_VERSION = 2
LIBRARY = "libblink_host.so"
#: Names another library file; for people who work on it.
OVERRIDE = "BLINK_HOST_LIBRARY"

OK, DEADLINE, PEER_LOST, MISMATCH, ABORTED, INVALID, SYSTEM, INTERRUPTED = range(8)
WAITS = ("nothing", "call", "message", "slot", "reader", "stream")

i32, i64, u32, u64, ptr = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64, c.c_void_p


class Shape(c.Structure):
    """``blink_shape``."""

    _fields_ = [(name, i64) for name in ("ranks", "lines", "staging_bytes", "inline_bytes", "stream_bytes")]


class Error(c.Structure):
    """``blink_error``."""

    _fields_ = [
        *((name, i32) for name in ("code", "rank", "peer", "waits", "channel", "share", "stage", "left")),
        ("chunk", i64),
        ("sequence", u64),
        ("seconds_us", i64),
        ("what", u64 * 2),
        ("count", i64 * 2),
        ("text", c.c_char * 256),
    ]


class Status(c.Structure):
    """``blink_status``."""

    _fields_ = [
        *((name, i64) for name in ("pid", "joined", "left")),
        ("sequence", u64),
        ("what", u64),
        ("count", i64),
        ("finished", u64),
        ("waiting_us", i64),
        *((name, i32) for name in ("waits", "peer", "channel", "share", "stage", "padding")),
        ("chunk", i64),
    ]


class Stats(c.Structure):
    """``blink_stats``."""

    _fields_ = [
        (name, u64)
        for name in (
            "calls",
            "messages",
            "message_bytes",
            "inline_bytes",
            "staged_bytes",
            "direct_bytes",
            "pushed_bytes",
            "crossed_bytes",
            "stepwise",
            "yields",
            "sleeps",
        )
    ]


class Tables(c.Structure):
    """``blink_tables``."""

    _fields_ = [
        ("signature", u64),
        ("what", u64),
        ("count", i64),
        ("dtype", u32),
        ("op", u32),
        *(
            (name, i64)
            for name in (
                "chunk_elements",
                "shift_bytes",
                "shifts",
                "inline_messages",
                "direct_in_place",
                "push_in_place",
                "cross_memory",
                "input_bytes",
                "output_bytes",
            )
        ),
        *(
            field
            for name in ("role", "receive", "send", "ring", "reader")
            for field in ((f"{name}s", ptr), (f"{name}_count", i64))
        ),
        ("queue_count", i64),
    ]


class Python(c.Structure):
    """``blink_python``: functions of this interpreter."""

    _fields_ = [(name, ptr) for name in ("ensure", "check_signals", "fetch", "release", "handling")]


def python_functions(handling: c.c_uint64) -> Python:
    """The addresses of this interpreter's functions; ``handling`` must live as long as the communicator."""
    names = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    return Python(*(c.cast(getattr(c.pythonapi, name), ptr).value for name in names), c.addressof(handling))


_FUNCTIONS: Functions = {
    "blink_abi_version": (u32, []),
    "blink_host_version": (c.c_char_p, []),
    "blink_isa_name": (c.c_char_p, []),
    "blink_segment_bytes": (u64, [ptr]),
    "blink_segment_format": (c.c_int, [ptr, u64, ptr, c.c_char_p, i32]),
    "blink_attach": (ptr, [ptr, u64, i32, c.c_char_p, c.c_int, ptr]),
    "blink_detach": (None, [ptr]),
    "blink_abort": (None, [ptr, c.c_char_p]),
    "blink_set_heap": (c.c_int, [ptr, i32, ptr, c.c_int, u64]),
    "blink_set_python": (None, [ptr, ptr]),
    "blink_take_raised": (None, [ptr, ptr]),
    "blink_can_cross": (c.c_int, [ptr]),
    "blink_get_stats": (None, [ptr, ptr]),
    "blink_last_error": (None, [ptr, ptr]),
    "blink_describe": (c.c_int, [ptr, u64, ptr, i32]),
    "blink_describe_failure": (c.c_int, [ptr, u64, ptr]),
    "blink_op_create": (ptr, [ptr, ptr]),
    "blink_op_destroy": (None, [ptr]),
    "blink_op_run": (c.c_int, [ptr, ptr, ptr, c.c_int, c.c_double, i64]),
    "blink_op_time": (c.c_int, [ptr, ptr, ptr, ptr, i64, i64, ptr]),
    "blink_stream_write": (i64, [ptr, i32, ptr, i64, i64]),
    "blink_stream_read": (i64, [ptr, i32, ptr, i64, i64]),
    "blink_stream_show": (None, [ptr, i32, i64, i64]),
    "blink_combine": (c.c_int, [u32, u32, ptr, c.c_int, ptr, c.c_int, c.c_size_t, c.c_int, c.c_double, u32]),
}


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once; its functions release the GIL.

    Raises
    ------
    UnsupportedError
        If there is none for this machine (a source install without a compiler, or no Linux), or it is of
        another version than this package.
    """
    if sys.platform != "linux":
        raise UnsupportedError(f"the host engine needs Linux's shared memory; this is {sys.platform}: use threads")
    path = find()
    if path is None:
        raise UnsupportedError(
            "this installation has no native library: it was installed from source where no C++17 compiler was "
            "found; install one (Debian: apt install g++) and reinstall, or use the engine threads"
        )
    return open_library(path, _FUNCTIONS, "blink_abi_version", ABI_VERSION)


def find() -> Path | None:
    """The library's file: the one that ``BLINK_HOST_LIBRARY`` names, or the one installed with the package."""
    return find_library(LIBRARY, OVERRIDE)


def available() -> bool:
    """Whether the host engine can run here."""
    try:
        load()
    except UnsupportedError:
        return False
    return True
