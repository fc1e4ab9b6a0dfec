"""The cache of compiled code, by the hash of all inputs, kept for later processes.

The key covers the text, the headers, the flags and the compiler's version. Cached code is loaded into this process or
onto a GPU, so it is used only from a directory that no other user can write.
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
#: The largest size of a cached file; longer ones are ignored.
MAX_FILE_BYTES = 64 << 20
COMPILE_DEADLINE_S = 120.0
_SUFFIXES = (".so", ".cubin", ".fatbin", ".peer")
#: For the owner only; some files are executable code.
_MODE = 0o700

_log = logging.getLogger(__name__)


class Compiler(Protocol):
    """Compiles text to one file with the suffix ``suffix``; ``include`` contains ``blink/``."""

    @property
    def suffix(self) -> str: ...

    @property
    def include(self) -> Path: ...

    def fingerprint(self) -> str:
        """Return the inputs besides text and headers: version, flags, targets."""

    def compile(self, text: str, deadline_s: float) -> bytes:
        """Return the compiled code; InternalError if the text does not compile, UnsupportedError after the timeout."""


def build(text: str, compiler: Compiler, deadline_s: float = COMPILE_DEADLINE_S) -> Path:
    """Return the file of ``text`` compiled by ``compiler``, from the cache if its key is there.

    Processes may compile the same text at the same time. If the cache directory cannot be used, a temporary directory
    of this process takes its place, with a warning.
    """
    name = _key(text, compiler) + compiler.suffix
    directory = _directory()
    cached = _usable(directory / name)
    if cached is not None:
        return cached
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
    """The cache's directory, or a temporary one if it is missing or other users can write it."""
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
    with suppress(OSError):  # the time of last use
        os.utime(path)
    return path


@lru_cache(maxsize=1)
def _temporary() -> Path:
    path = tempfile.mkdtemp(prefix="blink-builds-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@lru_cache(maxsize=16)
def _note(what: str, why: str) -> None:
    """Warn once per directory and reason."""
    _log.warning("the cache of compiled code %s cannot be used (%s); this process compiles anew", what, why)
