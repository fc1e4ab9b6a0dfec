"""The host engine's native library: where it is, and what ``native/include/blink/host.h`` declares of it."""

from __future__ import annotations

import ctypes as c
from functools import lru_cache
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native import absent, find_library, open_library
from blinkccl.native.headers import header

LIBRARY = "libblink_host.so"
#: Names another library file; for people who work on it.
OVERRIDE = "BLINK_HOST_LIBRARY"

HEADER = header("host.h")
_CODES = HEADER.numbers("blink_code")
OK, DEADLINE, PEER_LOST, MISMATCH = (_CODES[name] for name in ("ok", "deadline", "peer_lost", "mismatch"))
ABORTED, INVALID, SYSTEM, INTERRUPTED = (_CODES[name] for name in ("aborted", "invalid", "system", "interrupted"))
UNSUPPORTED, AGAIN, REFUSED = (_CODES[name] for name in ("unsupported", "again", "refused"))
CALL, EXECUTION, WAIT = (HEADER.constants[f"BLINK_EVENT_{kind}"] for kind in ("CALL", "EXECUTION", "WAIT"))
MOST_EVENTS = HEADER.constants["BLINK_MOST_EVENTS"]
#: What a rank waits for, by number.
WAITS = tuple(HEADER.numbers("blink_waits", "BLINK_WAITS_"))

ptr = c.c_void_p


@HEADER.layout("blink_shape")
class Shape(c.Structure):
    """``blink_shape``: the sizes of a segment."""


@HEADER.layout("blink_error")
class Error(c.Structure):
    """``blink_error``: why a call failed."""


@HEADER.layout("blink_status")
class RankStatus(c.Structure):
    """``blink_status``: a rank as the segment shows it."""


@HEADER.layout("blink_stats")
class Stats(c.Structure):
    """``blink_stats``: what a rank has done."""


@HEADER.layout("blink_event")
class Event(c.Structure):
    """``blink_event``: what a rank did, and when."""


@HEADER.layout("blink_binding")
class Binding(c.Structure):
    """``blink_binding``: what a plan is bound to."""


@HEADER.layout("blink_python")
class Python(c.Structure):
    """``blink_python``: functions of this interpreter."""


def python_functions(handling: c.c_uint64) -> Python:
    """The addresses of this interpreter's functions; ``handling`` must live as long as the communicator."""
    names = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    return Python(*(c.cast(getattr(c.pythonapi, name), ptr).value for name in names), c.addressof(handling))


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once; its functions release the GIL.

    An UnsupportedError says why there is none: no Linux with the GNU C library, or another version.
    """
    path = find()
    if path is None:
        raise UnsupportedError(f"{absent(LIBRARY)}, or use the engine reference")
    return open_library(path, HEADER.functions, "blink_abi_version")


def find() -> Path | None:
    """The library's file: the one that ``BLINK_HOST_LIBRARY`` names, or the one installed with the package."""
    return find_library(LIBRARY, OVERRIDE)
