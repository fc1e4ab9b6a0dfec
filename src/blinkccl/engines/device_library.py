"""The library that runs generated code on this CPU, and what ``native/include/blink/call.h`` declares of its calls."""

from __future__ import annotations

import ctypes as c
from functools import lru_cache

from blinkccl.codegen.device_files import host_library
from blinkccl.errors import UnsupportedError
from blinkccl.native import open_library
from blinkccl.native.headers import Functions, header

HEADER = header("call.h")
SCALE_GIVEN = HEADER.constants["kScaleGiven"]


@HEADER.layout("Connection")
class ConnectionEnd(c.Structure):
    """``blink::Connection``: one end of a connection."""


@HEADER.layout("Status")
class LaunchStatus(c.Structure):
    """``blink::Status``: why a launch ended early."""


@HEADER.layout("Call")
class LaunchCall(c.Structure):
    """``blink::Call``: the argument of a kernel."""


_FUNCTIONS: Functions = {
    "blink_launch": (c.c_int, [c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_double]),
    "blink_device_abi": (c.c_uint32, []),
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
    return open_library(host_library(), _FUNCTIONS, "blink_device_abi")


def launch(entry: int, calls: c.Array[LaunchCall], blocks: int, timeout_s: float) -> None:
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
