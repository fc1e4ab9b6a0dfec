"""Stores: where rank 0 publishes the address and the token at which the ranks of a job meet, named by URL.

| URL                    | kind             | for                                                            |
|------------------------|------------------|----------------------------------------------------------------|
| `file:///directory`    | `FileStore`      | ranks of one host: a file per key, in a directory of mode 0700 |
| `tcp://host:port`      | `TcpStore`       | any ranks: rank 0 serves                                       |
| `torch://host:port`    | `TorchTcpStore`  | torch's own store, which rank 0 serves                         |
| `torchrun://host:port` | `TorchTcpStore`  | torch's own store, which torchrun's agent serves               |

and `TorchStore` for a store of torch that somebody else made. Keys are text, values bytes. Setting a key again replaces
its value; a reader sees the old value or the new one, never a part of either. Waiting is looking again, with growing
pauses up to 20 ms: no store needs to know how to wake anybody.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    LaunchError,
    PeerLostError,
    RendezvousTimeout,
    UnsupportedError,
)
from blinkccl.private_files import private_directory, write_at_once
from blinkccl.runtime.job_directory import prepare

#: Limits that no honest rank comes near, and that keep a stranger's garbage small.
MAX_KEY_BYTES = 1 << 10
MAX_VALUE_BYTES = 1 << 20
#: What all values of a server may hold, how many connections it serves at a time, and how long one may take.
MAX_TABLE_BYTES = 1 << 28
MAX_CONNECTIONS = 512
REQUEST_S = 5.0
ANSWER_S = 30.0
MAGIC = b"BLINKST2"
_REQUEST = struct.Struct("!8scHI")
_ANSWER = struct.Struct("!8scI")


class Pauses:
    """Pauses that grow: a wait that ends soon costs little time, one that lasts costs little work."""

    def __init__(self, deadline: float, first_s: float = 0.0005, longest_s: float = 0.02) -> None:
        self._deadline = deadline
        self._next_s = first_s
        self._longest_s = longest_s

    def pause(self) -> bool:
        """Sleeps, but not past the deadline; False if the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next_s, left))
        self._next_s = min(self._next_s * 1.5, self._longest_s)
        return True


class Store(ABC):
    """A few small values by name, which all ranks of a job can read.

    Every method raises CommunicationError where the store itself is lost, and ValueError for a key or a value
    beyond the limits above.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Puts ``value`` under ``key``, in place of what was there."""

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """What is under ``key`` now; None: nothing."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and connections; what was set stays for the other ranks. May be called twice."""

    def host(self) -> str | None:
        """The host at which ranks of several hosts reach it; None: only ranks of one host do."""
        return None

    def get(self, key: str, deadline: float) -> bytes:
        """What is under ``key``, as soon as something is.

        Raises
        ------
        DeadlineError
            If nothing is there at ``deadline`` (``time.monotonic()``).
        """
        pauses = Pauses(deadline)
        while (value := self.peek(key)) is None:
            if not pauses.pause():
                raise DeadlineError(f"waited past the deadline for key {key!r} in {self}: no rank has set it")
        return value


def check_key(key: str) -> bytes:
    """``key`` in bytes; ValueError if it is empty or longer than any store takes."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, got {len(encoded)}")
    return encoded


def check_value(value: bytes) -> bytes:
    """``value``; ValueError if it is longer than any store takes."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
    return value


class FileStore(Store):
    """A store in ``directory``, which is made (mode 0700) if it is not there.

    A key's file is written under another name and then renamed, which is atomic. The directory is this user's alone,
    so nobody else can answer in a rank's place.

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

    def close(self) -> None:
        """Nothing is open between calls."""

    def _path(self, key: str) -> Path:
        encoded = check_key(key)
        name = "k" + quote(key, safe="")  # no name begins with a dot, so none is another's unfinished file
        return self.directory / (name if len(name) <= 200 else "h" + sha256(encoded).hexdigest())


class TcpStore(Store):
    """The store that rank 0 serves at ``host``:``port``, for any rank of any host.

    A connection is one request and its answer, and has a thread and a few seconds: nothing that a stranger sends, or
    does not send, can stop the server. Nobody proves who he is here: on a network that others share, take another way
    to meet. On the wire, all integers big-endian:

        request    "BLINKST2", operation (1 byte: S set, P peek), length of key (u16), length of value (u32), key, value
        answer     "BLINKST2", status (1 byte: + there it is, - nothing is there), length of value (u32), value

    Parameters
    ----------
    host, port
        Where rank 0 is reached. Port 0 takes a free one, which ``port`` then tells.
    server
        Whether this process serves. It does so, from a thread of its own, until :meth:`close` or its end.
    deadline
        For reaching the server (``time.monotonic()``).

    Raises
    ------
    LaunchError
        If the port cannot be served.
    RendezvousTimeout
        If no server answers at ``deadline``.
    CommunicationError
        If what answers there is no store of ours.
    """

    def __init__(self, host: str, port: int, *, server: bool, deadline: float) -> None:
        self._host = host
        self.port = port
        self._process = os.getpid()
        self._server: _Server | None = None
        if server:
            self._server = _Server(host, port)
            self.port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.2,), name="blink-store", daemon=True).start()
            return
        pauses = Pauses(deadline)
        while True:
            try:
                self._ask(b"P", b"?", b"", max(0.05, min(ANSWER_S, deadline - time.monotonic())))
                return
            except OSError as error:
                if not pauses.pause():
                    raise RendezvousTimeout(
                        [0],
                        [],
                        f"nobody serves a store at {host}:{port}, where rank 0 should ({error}); is rank 0 "
                        "running, and is this its host?",
                    ) from error

    def __str__(self) -> str:
        return f"tcp://{self._host}:{self.port}"

    def set(self, key: str, value: bytes) -> None:
        self._request(b"S", check_key(key), bytes(check_value(value)))

    def peek(self, key: str) -> bytes | None:
        return self._request(b"P", check_key(key), b"")

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None and self._process == os.getpid():
            server.shutdown()
            server.server_close()

    def host(self) -> str | None:
        return None if is_local(self._host) else self._host

    def _request(self, operation: bytes, key: bytes, value: bytes) -> bytes | None:
        if self._server is not None:
            return self._server.answer(operation, key, value)
        try:
            return self._ask(operation, key, value, ANSWER_S)
        except OSError as error:
            raise PeerLostError(0, f"it served {self}, which is closed or has not answered: {error}") from error

    def _ask(self, operation: bytes, key: bytes, value: bytes, timeout_s: float) -> bytes | None:
        with socket.create_connection((self._host, self.port), timeout_s) as connection:
            connection.sendall(_REQUEST.pack(MAGIC, operation, len(key), len(value)) + key + value)
            magic, status, length = _ANSWER.unpack(_receive(connection, _ANSWER.size))
            if magic != MAGIC or length > MAX_VALUE_BYTES:
                raise CommunicationError(
                    f"what listens at {self._host}:{self.port} is no store of this version of Blink: expected "
                    f"{MAGIC!r}, got {magic!r}; give the job a port of its own in BLINK_STORE"
                )
            found = _receive(connection, length)
        return found if status == b"+" else None


class _Server(socketserver.ThreadingTCPServer):
    """Keys and values in memory, with limits."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int) -> None:
        self._values: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            any_address = "::" if self.address_family == socket.AF_INET6 else "0.0.0.0"
            # Not the host's own address only: many hosts' files give their own name as 127.0.1.1.
            super().__init__((host if is_local(host) else any_address, port), _Handler)
        except OSError as error:
            raise LaunchError(
                f"rank 0 cannot serve the store at {host}:{port}: {error}; BLINK_STORE=tcp://HOST:PORT names the host "
                "of rank 0 and a free port there (is torch.distributed or another job using it?)"
            ) from error

    def answer(self, operation: bytes, key: bytes, value: bytes) -> bytes | None:
        """Sets or peeks; CommunicationError beyond the limit of all values together."""
        with self._lock:
            if operation == b"P":
                return self._values.get(key)
            held = sum(map(len, self._values.values())) - len(self._values.get(key, b""))
            if held + len(value) > MAX_TABLE_BYTES:
                raise CommunicationError(f"the store is full: it holds {MAX_TABLE_BYTES} bytes at most")
            self._values[key] = value
            return b""

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever sends what is no request is sent away, and nothing else happens."""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        connection, server = self.request, self.server
        assert isinstance(server, _Server)
        connection.settimeout(REQUEST_S)
        magic, operation, key_bytes, value_bytes = _REQUEST.unpack(_receive(connection, _REQUEST.size))
        known = magic == MAGIC and operation in (b"S", b"P")
        if not known or not 1 <= key_bytes <= MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES:
            return
        key, value = _receive(connection, key_bytes), _receive(connection, value_bytes)
        found = server.answer(operation, key, value)
        connection.sendall(_ANSWER.pack(MAGIC, b"-" if found is None else b"+", len(found or b"")) + (found or b""))


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        part = connection.recv(min(length - len(received), 1 << 16))
        if not part:
            raise ConnectionError("hung up")
        received += part
    return bytes(received)


class TorchStore(Store):
    """A store of torch, or a prefix of one, looked at as ours: by ``set``, ``get`` and ``check``, which all have.

    It stays the caller's: closing this lets go of it and does no more. Its own time-out bounds each call.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __str__(self) -> str:
        return f"torch's {type(self._inner).__name__}"

    def set(self, key: str, value: bytes) -> None:
        check_key(key)
        with self._named_errors():
            self._inner.set(key, check_value(value))

    def peek(self, key: str) -> bytes | None:
        check_key(key)
        with self._named_errors():
            return bytes(self._inner.get(key)) if self._inner.check([key]) else None

    def close(self) -> None:
        self._inner = None

    def host(self) -> str | None:
        inner = self._inner
        while hasattr(inner, "underlying_store"):
            inner = inner.underlying_store
        host = getattr(inner, "host", None)
        return None if host is None or is_local(host) else str(host)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        if self._inner is None:
            raise CommunicationError("torch's store has been closed in this process; open it again")
        try:
            yield
        except RuntimeError as error:  # torch.distributed.DistError and its kinds are RuntimeErrors
            raise CommunicationError(f"{self} failed; has the process that serves it ended? {error}") from error


class TorchTcpStore(TorchStore):
    """torch's TCPStore, which torchrun's agent serves; imports torch, which is installed there.

    Where nobody else serves it rank 0 does, and shares the port with ``init_process_group("env://")``.

    Raises
    ------
    UnsupportedError
        If torch cannot be imported.
    LaunchError
        If rank 0 cannot serve at this port.
    RendezvousTimeout
        If nobody serves at ``deadline``.
    """

    def __init__(self, host: str, port: int, *, server: bool, deadline: float) -> None:
        try:
            torch_distributed = import_module("torch.distributed")
        except ImportError as error:
            raise UnsupportedError(
                f"the ranks were told to meet in torch's store at {host}:{port}, but torch cannot be imported "
                f"({error}); install torch, or set BLINK_STORE=tcp://HOST:PORT or file:///directory for all ranks"
            ) from error
        left = timedelta(seconds=max(0.1, deadline - time.monotonic()))
        try:
            inner = torch_distributed.TCPStore(
                host, port, None, server, left, wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            if server:
                raise LaunchError(f"rank 0 cannot serve torch's store at {host}:{port}: {error}") from error
            raise RendezvousTimeout(
                [0], [], f"torch's store at {host}:{port} did not answer within {left.total_seconds():.1f} s"
            ) from error
        super().__init__(inner)


def open_store(url: str, rank: int, deadline: float) -> Store:
    """The store that ``url`` names; where the ranks serve it themselves, rank 0 does.

    Parameters
    ----------
    url
        See the module's table.
    rank
        This process's.
    deadline
        A reading of ``time.monotonic()``, for reaching the server.

    Raises
    ------
    LaunchError
        If the URL is none of these, its directory is not this user's alone, or its port is taken.
    RendezvousTimeout
        If nobody serves there in time.
    UnsupportedError
        If it is torch's, and torch cannot be imported.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/"):
            raise LaunchError(f"store {url!r}: expected file:///absolute/directory, with three slashes")
        prepare(Path(rest), os.environ, rank)
        return FileStore(rest)
    if scheme not in ("tcp", "torch", "torchrun"):
        raise LaunchError(f"store {url!r}: expected file:///directory, tcp://host:port or torch://host:port")
    host, port = _address(url, rest)
    if scheme == "tcp":
        return TcpStore(host, port, server=rank == 0, deadline=deadline)
    return TorchTcpStore(host, port, server=scheme == "torch" and rank == 0, deadline=deadline)


def is_local(host: str) -> bool:
    """Whether ``host`` is this host's name for itself alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _address(url: str, rest: str) -> tuple[str, int]:
    """Host and port; a host with colons (IPv6) stands in brackets."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,5})/?", rest)
    port = int(match[3]) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise LaunchError(f"store {url!r}: expected {url.partition(':')[0]}://HOST:PORT, PORT from 1 to 65535")
    return match[1] or match[2], port
