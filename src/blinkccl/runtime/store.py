"""Stores, named by URL, in which rank 0 publishes the address and the token that connect the ranks of a job.

| URL                    | kind         | for                                                            |
|------------------------|--------------|----------------------------------------------------------------|
| `file:///directory`    | `FileStore`  | ranks of one host: a file per key, in a directory of mode 0700 |
| `tcp://host:port`      | `JobPort`    | any ranks: no store, since rank 0 listens there                |
| `torch://host:port`    | `TorchStore` | torch's own store, which rank 0 serves                         |
| `torchrun://host:port` | `TorchStore` | torch's own store, which torchrun's agent serves               |
| `mpi://`               | `MpiStore`   | ranks of an MPI job, which broadcasts one value                |

`TorchStore` also wraps a store that the caller made. Keys are text, values are bytes. Setting a key again replaces its
value; a reader sees the old value or the new one, never a part of either. A wait polls, with growing pauses up to
20 ms, so a store needs no way to wake readers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blinkccl.errors import CommunicationError, LaunchError, RendezvousTimeout, UnsupportedError
from blinkccl.private_files import private_directory, write_at_once
from blinkccl.runtime.addresses import is_local, own_addresses
from blinkccl.runtime.environment import prepare
from blinkccl.runtime.peer_info import HOST_ID

#: Limits far above the needs of ranks.
MAX_KEY_BYTES = 1 << 10
MAX_VALUE_BYTES = 1 << 20


class Pauses:
    """Growing pauses: a short wait ends without delay, and a long one polls rarely."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next_s = 0.0005

    def pause(self) -> bool:
        """Sleep, but not past the deadline; False if the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next_s, left))
        self._next_s = min(self._next_s * 1.5, 0.02)
        return True


class Store:
    """A few small values by name, which all ranks of a job can read; this class itself keeps nothing.

    CommunicationError if the store itself is lost, ValueError for a key or a value beyond the limits above.
    """

    def set(self, key: str, value: bytes) -> None:
        """Set ``key`` to ``value``, and replace an earlier value."""
        check(key, value)

    def peek(self, key: str) -> bytes | None:
        """The value of ``key`` at this moment, or None."""
        check(key)
        return None

    def addresses(self) -> list[str]:
        """This process's addresses for ranks of other hosts, the best first; none if the store serves one host."""
        return ["127.0.0.1"] if os.environ.get(HOST_ID) else []


def check(key: str, value: bytes = b"") -> bytes:
    """Encode ``key``; ValueError if it is empty, or if key or value exceed the limits of all stores."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, got {len(encoded)}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
    return encoded


class FileStore(Store):
    """A store in ``directory``, which is created with mode 0700 if it is missing.

    The directory is private to this user, so other users cannot act as a rank. LaunchError if it cannot be created, is
    a link or no directory, or is open to other users.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = private_directory(Path(directory))

    def __str__(self) -> str:
        return f"directory {self.directory}"

    def set(self, key: str, value: bytes) -> None:
        path = self._path(check(key, value), key)
        try:
            write_at_once(path, value)
        except OSError as error:
            raise CommunicationError(f"cannot write key {key!r} in {self}: {error}") from error

    def peek(self, key: str) -> bytes | None:
        path = self._path(check(key), key)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommunicationError(f"cannot read key {key!r} in {self}: {error}") from error

    def _path(self, encoded: bytes, key: str) -> Path:
        name = "k" + quote(key, safe="")  # unfinished files begin with a dot, keys' names do not
        return self.directory / (name if len(name) <= 200 else "h" + sha256(encoded).hexdigest())


class JobPort(Store):
    """No store: ``host``:``port``, where rank 0 itself listens, and all other ranks look for it.

    Callers are not authenticated: use a file or torch's store on a network that you share with others.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    def addresses(self) -> list[str]:
        return [self.host]


class MpiStore(Store):
    """The first value that rank 0 of an MPI job sets; mpi4py, which starts MPI, broadcasts it to all other ranks."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._key = ""
        self._value: bytes | None = None

    def __str__(self) -> str:
        return "MPI"

    def set(self, key: str, value: bytes) -> None:
        check(key, value)
        if self._world.rank == 0 and self._value is None:
            self._key, self._value = self._world.bcast((key, value))

    def peek(self, key: str) -> bytes | None:
        check(key)
        if self._world.rank != 0 and self._value is None:
            self._key, self._value = self._world.bcast(None)
        return self._value if key == self._key else None

    def addresses(self) -> list[str]:
        return own_addresses()


class TorchStore(Store):
    """A store of torch, or a PrefixStore. The caller keeps it, and its own timeout bounds each call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __str__(self) -> str:
        return f"torch's {type(self.inner).__name__}"

    def set(self, key: str, value: bytes) -> None:
        check(key, value)
        with self._named_errors():
            self.inner.set(key, value)

    def peek(self, key: str) -> bytes | None:
        check(key)
        with self._named_errors():
            return bytes(self.inner.get(key)) if self.inner.check([key]) else None

    def addresses(self) -> list[str]:
        inner = self.inner
        while hasattr(inner, "underlying_store"):
            inner = inner.underlying_store
        host = getattr(inner, "host", None)
        return super().addresses() if host is None or is_local(host) else own_addresses(str(host))

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed.DistError and its kinds are RuntimeErrors
            raise CommunicationError(f"{self} failed ({error}); check that the process that serves it runs") from error


def _torch_tcp_store(host: str, port: int, server: bool, deadline: float) -> TorchStore:
    """Connect to torch's TCPStore of torchrun's agent, or serve one at rank 0 if ``server`` is set.

    A served store shares its port with ``init_process_group("env://")``. Errors as in :func:`open_store`.
    """
    try:
        torch_distributed = import_module("torch.distributed")
    except ImportError as error:
        raise UnsupportedError(
            f"torch cannot be imported ({error}), but the ranks' store at {host}:{port} is torch's; "
            "install torch, or set BLINK_STORE=tcp://HOST:PORT or file:///directory for all ranks"
        ) from error
    left = timedelta(seconds=max(0.1, deadline - time.monotonic()))
    try:
        return TorchStore(
            torch_distributed.TCPStore(host, port, None, server, left, wait_for_workers=False, multi_tenant=True)
        )
    except RuntimeError as error:
        if server:
            raise LaunchError(f"rank 0 cannot serve torch's store at {host}:{port}: {error}") from error
        raise RendezvousTimeout(
            [0], [], f"torch's store at {host}:{port} did not answer within {left.total_seconds():.1f} s"
        ) from error


def open_store(url: str, rank: int, deadline: float) -> Store:
    """Open the store of this URL (the module has a table); rank 0 serves torch's, if no agent does.

    LaunchError for other URLs, or a directory that is open to other users or cannot be created; RendezvousTimeout if
    torch's store does not answer by ``deadline``; UnsupportedError if torch cannot be imported.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/"):
            raise LaunchError(f"store {url!r}: expected file:///absolute/directory, with three slashes")
        directory = Path(rest)
        prepare(directory, os.environ, rank)
        _check_place(url, directory)
        return FileStore(directory)
    if scheme == "mpi":
        return _mpi_store()
    if scheme not in ("tcp", "torch", "torchrun"):
        raise LaunchError(f"store {url!r}: expected file:///directory, tcp://host:port, torch://host:port or mpi://")
    host, port = _address(url, rest)
    if scheme == "tcp":
        return JobPort(host, port)
    return _torch_tcp_store(host, port, scheme == "torch" and rank == 0, deadline)


def _mpi_store() -> MpiStore:
    try:
        return MpiStore(import_module("mpi4py.MPI").COMM_WORLD)
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"the ranks of this MPI job are on several hosts and need mpi4py to learn the address of rank 0 ({error}): "
            "pip install mpi4py on all hosts, or set BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free "
            "port there (mpirun -x BLINK_STORE=… passes it to all ranks)"
        ) from None


def _check_place(url: str, directory: Path) -> None:
    """Refuse to create a directory directly below the root or below a missing one: its path may be mistyped."""
    above = directory.parent
    if directory.exists() or (above.is_dir() and above != Path("/")):
        return
    raise LaunchError(
        f"store {url!r}: directory {directory} does not exist and is not created, because "
        + ("it is directly below the root" if above == Path("/") else f"{above} does not exist")
        + f"; make it for this job with mkdir -p -m 700 {directory}, or use one below an existing directory"
    )


def _address(url: str, rest: str) -> tuple[str, int]:
    """Host and port; a host with colons (IPv6) is written in brackets."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,5})/?", rest)
    port = int(match[3]) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise LaunchError(f"store {url!r}: expected {url.partition(':')[0]}://HOST:PORT, PORT from 1 to 65535")
    return match[1] or match[2], port
