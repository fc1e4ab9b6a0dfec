"""Where are the libraries of native code that were built with this package, and do they fit it?"""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from blinkccl.errors import UnsupportedError

#: Function → (result, arguments).
Functions = Mapping[str, tuple[type | None, list[type]]]


def find_library(name: str, override: str) -> Path | None:
    """The file of ``name``: what the environment variable ``override`` names, or what is installed with the package.

    None where the package was installed without a compiler.
    """
    named = os.environ.get(override)
    if named:
        return Path(named)
    path = Path(str(files("blinkccl").joinpath("_native").joinpath(name)))
    return path if path.is_file() else None


def open_library(path: Path, functions: Functions, version: str, wanted: int) -> c.CDLL:
    """The library with the types of its functions declared; they release the GIL.

    Parameters
    ----------
    version, wanted
        The function that tells the ABI version, and what it must be.

    Raises
    ------
    UnsupportedError
        If the library cannot be opened, lacks a function, or is of another version.
    """
    try:
        library = c.CDLL(str(path))
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"{path} cannot be used: {error}; reinstall blink-ccl") from None
    found: int = getattr(library, version)()
    if found != wanted:
        raise UnsupportedError(f"{path} is of ABI version {found}, this package needs {wanted}; reinstall blink-ccl")
    return library
