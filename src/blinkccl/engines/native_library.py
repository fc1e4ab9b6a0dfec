"""The host engine's native library: its file, and the declarations of ``src/blinkccl/native/include/blink/host.h``."""

from __future__ import annotations

import ctypes as c
from functools import lru_cache
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native import absent, find_library, open_library
from blinkccl.native.headers import header

LIBRARY = "libblink_host.so"
#: Variable that names another library file, for development.
OVERRIDE = "BLINK_HOST_LIBRARY"

HEADER = header("host.h")
_CODES = HEADER.numbers("blink_code")
OK, DEADLINE, PEER_LOST, MISMATCH = (_CODES[name] for name in ("ok", "deadline", "peer_lost", "mismatch"))
ABORTED, INVALID, SYSTEM, INTERRUPTED = (_CODES[name] for name in ("aborted", "invalid", "system", "interrupted"))
UNSUPPORTED, AGAIN, REFUSED = (_CODES[name] for name in ("unsupported", "again", "refused"))
CALL, EXECUTION, WAIT = (HEADER.constants[f"BLINK_EVENT_{kind}"] for kind in ("CALL", "EXECUTION", "WAIT"))
MOST_EVENTS = HEADER.constants["BLINK_MOST_EVENTS"]
MOST_THREADS = HEADER.constants["BLINK_MOST_THREADS"]
MOST_HOPS = HEADER.constants["BLINK_MOST_HOPS"]
#: Kinds of waits of a rank, by number.
WAITS = tuple(HEADER.numbers("blink_waits", "BLINK_WAITS_"))

ptr = c.c_void_p


@HEADER.layout("blink_shape")
class Shape(c.Structure):
    """``blink_shape``: the sizes of a segment."""


@HEADER.layout("blink_error")
class Error(c.Structure):
    """``blink_error``: the error of a call."""


@HEADER.layout("blink_status")
class RankStatus(c.Structure):
    """``blink_status``: the status of a rank in the segment."""


@HEADER.layout("blink_stats")
class Stats(c.Structure):
    """``blink_stats``: the counters of a rank."""


@HEADER.layout("blink_event")
class Event(c.Structure):
    """``blink_event``: a recorded event of a rank, with its times."""


@HEADER.layout("blink_binding")
class Binding(c.Structure):
    """``blink_binding``: sizes, type and operation of a bound plan."""


@HEADER.layout("blink_python")
class Python(c.Structure):
    """``blink_python``: addresses of functions of this interpreter."""


def python_functions(handling: c.c_uint64) -> Python:
    """The addresses of this interpreter's functions; ``handling`` must live as long as the communicator."""
    names = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    return Python(*(c.cast(getattr(c.pythonapi, name), ptr).value for name in names), c.addressof(handling))


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once; its functions release the GIL.

    UnsupportedError with the reason if it is missing: no Linux with the GNU C library, or another version.
    """
    path = find()
    if path is None:
        raise UnsupportedError(absent(LIBRARY))
    return open_library(path, HEADER.functions, "blink_abi_version")


def find() -> Path | None:
    """The library's file: that of ``BLINK_HOST_LIBRARY``, or the one installed with the package."""
    return find_library(LIBRARY, OVERRIDE)
