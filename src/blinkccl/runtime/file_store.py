"""A store in a directory: a file per key, for ranks of one host.

A key's file is written under another name and then renamed, which is atomic: readers see all of a value or
nothing of it. The directory is this user's alone, so nobody else can answer in a rank's place.
"""

from __future__ import annotations

import os
import secrets
import stat
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from blinkccl.errors import CommunicationError, LaunchError
from blinkccl.runtime.store_contract import Store, check_key, check_value


class FileStore(Store):
    """A store in ``directory``, which is made (mode 0700) if it is not there.

    Raises
    ------
    LaunchError
        If it cannot be made, is a link or no directory, or others than this user may get in.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = private_directory(Path(directory))

    def __str__(self) -> str:
        return f"directory {self.directory}"

    def set(self, key: str, value: bytes) -> None:
        path = self._path(key)
        written = path.with_name(f".{secrets.token_hex(8)}")
        try:
            with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(check_value(value))
            os.replace(written, path)
        except OSError as error:
            written.unlink(missing_ok=True)
            raise CommunicationError(f"cannot write key {key!r} in {self}: {error}") from error

    def peek(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommunicationError(f"cannot read key {key!r} in {self}: {error}") from error

    def delete(self, key: str) -> None:
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise CommunicationError(f"cannot delete key {key!r} in {self}: {error}") from error

    def close(self) -> None:
        """Nothing is open between calls."""

    def _path(self, key: str) -> Path:
        encoded = check_key(key)
        name = "k" + quote(key, safe="")  # no name begins with a dot, so none is another's unfinished file
        return self.directory / (name if len(name) <= 200 else "h" + sha256(encoded).hexdigest())


def private_directory(path: Path) -> Path:
    """``path``, made with its parents if it is not there, and seen to be this user's alone.

    Raises
    ------
    LaunchError
        With the reason, and what to do.
    """
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
            f"directory {path}: expected mode 0700, got {stat.S_IMODE(row.st_mode):04o}: others could answer in a "
            f"rank's place; chmod 700 {path}, or name a directory that does not exist yet"
        )
    return path
