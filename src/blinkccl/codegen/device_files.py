"""Finds the headers that generated code includes, and their library for this CPU."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native import headers, library_file

LIBRARY = "libblink_device.so"
#: Names another library file; for people who work on it.
LIBRARY_OVERRIDE = "BLINK_DEVICE_LIBRARY"
#: Names another directory that holds ``blink/context.h``.
INCLUDE_OVERRIDE = "BLINK_DEVICE_INCLUDE"


def include_directory() -> Path:
    """The directory of ``blink/context.h``: what ``BLINK_DEVICE_INCLUDE`` names, or what came with the package."""
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
    """Where compilers look for headers: ``include``, and the directory of those that Python reads too."""
    return include, headers.DIRECTORY


@lru_cache(maxsize=8)
def headers_digest(include: Path) -> str:
    """64 hexadecimal digits over all headers that are searched: what is compiled changes with them."""
    found = sha256()
    for directory in searched(include):
        for path in sorted(path for path in (directory / "blink").glob("*") if path.is_file()):
            found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()
