"""The cache of compiled code, by the hash of all that it depends on, kept for the next process.

The key is the text, the headers, the flags and the compiler's own version. What lies in the cache is loaded into this
process or onto a GPU, so it is taken only from a directory that is this user's alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from blinkccl.codegen.device_files import headers_digest
from blinkccl.errors import LaunchError
from blinkccl.private_files import cache_directory, open_trusted, private_directory, throw_out, write_at_once

MAX_BYTES = 256 << 20
#: A longer file is none of ours.
MAX_FILE_BYTES = 64 << 20
COMPILE_DEADLINE_S = 120.0
_SUFFIXES = (".so", ".cubin", ".fatbin", ".peer")
#: For its owner alone; some of it is programs.
_MODE = 0o700

_log = logging.getLogger(__name__)


class Compiler(Protocol):
    """Turns text into one file of code, whose name ends with ``suffix``; finds ``blink/`` in ``include``."""

    @property
    def suffix(self) -> str: ...

    @property
    def include(self) -> Path: ...

    def fingerprint(self) -> str:
        """What its output depends on besides text and headers: version, flags, targets."""

    def compile(self, text: str, deadline_s: float) -> bytes:
        """The compiled code; InternalError where the text does not compile, UnsupportedError after the deadline."""


def build(text: str, compiler: Compiler, deadline_s: float = COMPILE_DEADLINE_S) -> Path:
    """The file of ``text`` compiled by ``compiler``; only if the cache has it not, under its key.

    Processes that compile the same at the same time all succeed. Where the cache directory cannot be used, a temporary
    directory of this process takes its place, and a note says so.
    """
    name = _key(text, compiler) + compiler.suffix
    directory = _directory()
    found = _usable(directory / name)
    if found is not None:
        return found
    content = compiler.compile(text, deadline_s)
    try:
        write_at_once(directory / name, content, _MODE)
    except OSError as error:
        _note(str(directory), str(error))
        directory = _temporary()
        write_at_once(directory / name, content, _MODE)
    else:
        throw_out(directory, MAX_BYTES, lambda path: path.suffix in _SUFFIXES)
    return directory / name


def _key(text: str, compiler: Compiler) -> str:
    parts = [text, headers_digest(compiler.include), compiler.fingerprint(), compiler.suffix]
    return sha256("\0".join(parts).encode()).hexdigest()


def _directory() -> Path:
    """The cache's directory, or a temporary one where there is none or it is not this user's alone."""
    directory = cache_directory(os.environ, "builds")
    if directory is None:
        return _temporary()
    try:
        return private_directory(directory)
    except LaunchError as error:
        _note(str(directory), str(error))
        return _temporary()


def _usable(path: Path) -> Path | None:
    try:
        open_trusted(path, MAX_FILE_BYTES).close()
    except OSError as error:
        if error.errno is None:
            _note(str(path), str(error))
        return None
    with suppress(OSError):  # it was used just now
        os.utime(path)
    return path


@lru_cache(maxsize=1)
def _temporary() -> Path:
    path = tempfile.mkdtemp(prefix="blink-builds-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@lru_cache(maxsize=16)
def _note(what: str, why: str) -> None:
    """Once for each kind of trouble."""
    _log.warning("the cache of compiled code %s cannot be used (%s); this process compiles for itself", what, why)
