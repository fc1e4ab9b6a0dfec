"""A store in a directory: a file per key, for ranks of one host.

A key's file is written under another name and then renamed, which is atomic: readers see all of a value or
nothing of it. The directory is this user's alone, so nobody else can answer in a rank's place.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from blinkccl.errors import CommunicationError
from blinkccl.private_files import private_directory, write_at_once
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
        try:
            write_at_once(path, check_value(value))
        except OSError as error:
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
