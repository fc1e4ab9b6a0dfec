"""Paths of the headers that generated code includes, and of their library for this CPU."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native import headers, library_file

LIBRARY = "libblink_device.so"
#: The variable that names another library file, for developers of the library.
LIBRARY_OVERRIDE = "BLINK_DEVICE_LIBRARY"
#: The variable that names another directory with ``blink/context.h``.
INCLUDE_OVERRIDE = "BLINK_DEVICE_INCLUDE"


def include_directory() -> Path:
    """The directory of ``blink/context.h``: ``BLINK_DEVICE_INCLUDE``, or the package's."""
    named = os.environ.get(INCLUDE_OVERRIDE)
    path = Path(named) if named else Path(str(files("blinkccl").joinpath("_native").joinpath("device")))
    if not (path / "blink" / "context.h").is_file():
        raise UnsupportedError(
            f"{path} does not hold blink/context.h, which generated code includes; reinstall blink-ccl"
        )
    return path


def host_library() -> Path:
    """The library that runs generated code on this CPU."""
    return library_file(LIBRARY, LIBRARY_OVERRIDE)


def searched(include: Path) -> tuple[Path, Path]:
    """The include directories of compilers: ``include``, and that of the headers that Python reads as well."""
    return include, headers.DIRECTORY


@lru_cache(maxsize=8)
def headers_digest(include: Path) -> str:
    """A SHA-256 of all headers in the include directories, in hexadecimal digits."""
    digest = sha256()
    for directory in searched(include):
        for path in sorted(path for path in (directory / "blink").glob("*") if path.is_file()):
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
