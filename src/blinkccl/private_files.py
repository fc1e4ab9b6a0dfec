"""Files shared by processes of one user, in directories that only this user can access."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from blinkccl.errors import LaunchError


def cache_directory(environ: Mapping[str, str], kind: str) -> Path | None:
    """The directory for cached files of one kind, which may not exist yet; None if there is no cache.

    It is ``kind`` in BLINK_CACHE if set (empty: no cache), else ``blink/kind`` in XDG_CACHE_HOME, else in ``~/.cache``.
    """
    if "BLINK_CACHE" in environ:
        return Path(environ["BLINK_CACHE"], kind) if environ["BLINK_CACHE"] else None
    cache = environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):  # the XDG specification requires that a relative path is ignored
        home = environ.get("HOME", "")
        cache = f"{home}/.cache" if home.startswith("/") else ""
    return Path(cache, "blink", kind) if cache else None


def private_directory(path: Path) -> Path:
    """Create ``path`` and its parents if missing; raise a LaunchError unless only this user has access."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        row = path.lstat()
    except OSError as error:
        raise LaunchError(f"directory {path}: cannot be made ({error}); name another one") from error
    if not stat.S_ISDIR(row.st_mode):
        raise LaunchError(f"directory {path}: expected a directory, got a link or a file; name another one")
    if row.st_uid != os.geteuid():
        raise LaunchError(f"directory {path}: expected owner {os.geteuid()}, got {row.st_uid}; name another one")
    if row.st_mode & 0o077:
        raise LaunchError(
            f"directory {path}: expected mode 0700, got {stat.S_IMODE(row.st_mode):04o}, with which other users could "
            f"pose as a rank; run chmod 700 {path}, or name a directory that does not exist yet"
        )
    return path


def open_trusted(path: Path, max_bytes: int) -> BinaryIO:
    """Open a cached file for reading; an OSError states why it is missing or not trusted.

    It must be a regular file, no link, of at most ``max_bytes``, owned by this user or by root: an administrator may
    have filled a cache for all users.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    row, owners = os.fstat(fd), (os.geteuid(), 0)
    if stat.S_ISREG(row.st_mode) and row.st_size <= max_bytes and row.st_uid in owners:
        return os.fdopen(fd, "rb")
    os.close(fd)
    size = f"a file of at most {max_bytes} bytes"
    raise OSError(f"expected {size if row.st_uid in owners else f'owner {owners[0]}, got {row.st_uid}'}")


def write_at_once(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write ``path`` atomically: readers see the old or the new content; an OSError leaves no temporary file."""
    written = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
        os.replace(written, path)
    except OSError:
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise


def write_or_replace(path: Path, content: bytes) -> None:
    """Write a file that the user named, completely or not at all; an OSError leaves the old content."""
    if path.exists() and not path.is_file():  # a device or a pipe must not be replaced
        path.write_bytes(content)
    else:
        write_at_once(path.resolve(), content, 0o644)


def throw_out(directory: Path, max_bytes: int, is_ours: Callable[[Path], bool]) -> None:
    """Remove the least recently used files until the files that pass ``is_ours`` take ``max_bytes`` at most.

    Unfinished files count too: their names begin with a dot.
    """
    rows = []
    for path in directory.glob("*"):
        with suppress(OSError):  # another process may have removed the file
            row = path.lstat()
            if stat.S_ISREG(row.st_mode) and (is_ours(path) or path.name.startswith(".")):
                rows.append((row.st_mtime_ns, path.name, row.st_size, path))
    total = sum(size for _, _, size, _ in rows)
    for _, _, size, path in sorted(rows):
        if total <= max_bytes:
            return
        with suppress(OSError):
            path.unlink()
        total -= size
