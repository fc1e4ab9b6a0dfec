"""The libraries of native code that were built with this package: where they are, and whether they fit it.

``headers.py`` reads what they share with Python: the C headers in ``include/``.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
from functools import cache
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import Functions, abi


def find_library(name: str, override: str) -> Path | None:
    """The file of ``name``: what the environment variable ``override`` names, or what is installed with the package.

    None where it is not built (:func:`absent`).
    """
    named = os.environ.get(override)
    if named:
        return Path(named)
    path = _installed(name)
    return path if path.is_file() else None


def library_file(name: str, override: str) -> Path:
    """The file of ``name`` as :func:`find_library` finds it; an UnsupportedError where there is none."""
    path = find_library(name, override)
    if path is None:
        raise UnsupportedError(absent(name))
    return path


#: Those that are built on every system but Windows; the others need Linux and the GNU C library.
_PORTABLE = ("libblink_packing.so", "libblink_simulate.so")


def absent(name: str) -> str:
    """Why this installation has no file ``name``, and what to do: a sentence without full stop."""
    here = _system()
    if here == _GLIBC or (name in _PORTABLE and here != "win32"):
        return f"this installation has no {name}, which each on {here} has: reinstall blink-ccl"
    where = "everywhere but on Windows" if name in _PORTABLE else f"on {_GLIBC}"
    return f"this installation has no {name}: it is built {where}, and this is {here}"


_GLIBC = "Linux with the GNU C library"


def _system() -> str:
    if sys.platform != "linux":
        return sys.platform
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        return "Linux with another C library"
    return _GLIBC


@cache
def _installed(name: str) -> Path:
    """Where it is, if it is there. Kept: a simulation asks, and there are thousands of them."""
    from importlib.resources import files  # only here: it costs milliseconds that few commands need pay

    return Path(str(files("blinkccl").joinpath("_native").joinpath(name)))


def open_library(path: Path, functions: Functions, version: str) -> c.CDLL:
    """The library with the types of its functions declared; they release the GIL.

    It must have all ``functions``, of which ``version`` tells the headers that it was compiled with: an
    UnsupportedError if these are not this package's.
    """
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    tell = getattr(library, version)
    tell.restype = c.c_uint32  # whether or not these functions are of the header that declares it
    found: int = tell()
    if found != abi():
        raise UnsupportedError(
            f"{path} was compiled with other headers than this package has (ABI {found:08x}, expected {abi():08x}); "
            "reinstall blink-ccl, or run make native"
        )
    return library
