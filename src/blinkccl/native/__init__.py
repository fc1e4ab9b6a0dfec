"""Paths of the native libraries built with this package, and the check that a library matches its headers.

``headers.py`` reads the C headers in ``include/``, which Python and native code share.
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
    """Return the path in the environment variable ``override``, or else that of the file ``name`` in the package.

    None if the package does not contain the file; :func:`absent` then gives the reason.
    """
    named = os.environ.get(override)
    if named:
        return Path(named)
    path = _installed(name)
    return path if path.is_file() else None


def library_file(name: str, override: str) -> Path:
    """Return the path as :func:`find_library` does; raise UnsupportedError where it returns None."""
    path = find_library(name, override)
    if path is None:
        raise UnsupportedError(absent(name))
    return path


#: Libraries built on every system but Windows; the others need Linux and the GNU C library.
_PORTABLE = ("libblink_packing.so", "libblink_simulate.so")


def absent(name: str) -> str:
    """Reason why this installation has no file ``name``, with a remedy: a sentence without full stop."""
    system = _system()
    if system == _GLIBC or (name in _PORTABLE and system != "win32"):
        return f"this installation lacks {name}, which is part of blink-ccl on {system}: reinstall blink-ccl"
    where = "everywhere but on Windows" if name in _PORTABLE else f"on {_GLIBC}"
    return f"this installation lacks {name}: it is built {where}, and this is {system}"


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
    """Path of a file of the package, present or not. Cached, because each of thousands of simulations needs it."""
    from importlib.resources import files  # imported late: the import takes milliseconds, and few commands need it

    return Path(str(files("blinkccl").joinpath("_native").joinpath(name)))


def open_library(path: Path, functions: Functions, version: str) -> c.CDLL:
    """Load the library and declare the types of its ``functions``, which release the GIL.

    The function ``version`` returns the ABI number of the headers that the library was compiled with. Raises
    UnsupportedError if a function is missing or the number differs from this package's.
    """
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    library_abi = getattr(library, version)
    library_abi.restype = c.c_uint32  # also where ``functions`` does not include it
    compiled: int = library_abi()
    if compiled != abi():
        raise UnsupportedError(
            f"{path} was compiled with other headers than this package has (ABI {compiled:08x}, expected {abi():08x}); "
            "reinstall blink-ccl, or run make native"
        )
    return library
