"""Stores, named by URL, in which rank 0 publishes the address and the token that connect the ranks of a job.

| URL                    | kind             | for                                                            |
|------------------------|------------------|----------------------------------------------------------------|
| `file:///directory`    | `FileStore`      | ranks of one host: a file per key, in a directory of mode 0700 |
| `tcp://host:port`      | `TcpStore`       | any ranks: rank 0 serves                                       |
| `torch://host:port`    | `TorchStore`     | torch's own store, which rank 0 serves                         |
| `torchrun://host:port` | `TorchStore`     | torch's own store, which torchrun's agent serves               |
| `mpi://`               | `TcpStore`       | ranks of an MPI job: rank 0 serves, MPI broadcasts its address |

`TorchStore` also wraps a store that the caller made. Keys are text, values are bytes. Setting a key again replaces its
value; a reader sees the old value or the new one, never a part of either. A wait polls, with growing pauses up to
20 ms, so a store needs no way to wake readers.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
import socketserver
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from fcntl import ioctl
from hashlib import sha256
from importlib import import_module
from io import BufferedIOBase
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    LaunchError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
    UnsupportedError,
)
from blinkccl.private_files import private_directory, write_at_once
from blinkccl.runtime.environment import prepare
from blinkccl.runtime.peer_info import package_version

#: Limits far above the needs of ranks, which bound the input of strangers.
MAX_KEY_BYTES = 1 << 10
MAX_VALUE_BYTES = 1 << 20
#: Limits of a server: bytes of all values, threads of its process, and seconds of a pause in a request.
MAX_TABLE_BYTES = 1 << 28
MAX_THREADS = 512
REQUEST_S = 5.0
ANSWER_S = 30.0  # a caller's timeout
#: The prefix of the protocol's name in every version.
_FAMILY = "BLINKST"
MAGIC = f"{_FAMILY}4"
#: Seconds for which rank 0 still serves its error after it gave up, and between its checks for another rank 0 there.
FAREWELL_S = 1.0
LOOK_S = 0.5
#: Seconds for which a rank tries one of rank 0's addresses, or retries a request that the server dropped.
REACH_S = 2.0
_SIOCGIFADDR = 0x8915


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


class Store(ABC):
    """A few small values by name, which all ranks of a job can read.

    CommunicationError if the store itself is lost, ValueError for a key or a value beyond the limits above.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Set ``key`` to ``value``, and replace an earlier value."""

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """The value of ``key`` at this moment, or None."""

    def host(self) -> str | None:
        """The host at which ranks of several hosts reach the store; None if it serves one host only."""
        return None

    # Rank 0 learns the callers of a store that it serves itself, and answers late ones. Other stores do nothing.

    def check_callers(self) -> None:
        """Raise PlanMismatchError if a caller has another version, or claims to be rank 0 as well."""
        return

    def all_came(self) -> None:
        """Record that all ranks have met; a later rank 0 gets an error and does not fail this job."""
        return

    def give_up(self, error: CommunicationError, size: int) -> None:
        """Send ``error`` to those of ``size`` ranks that come for the first time, for at most about a second."""
        return


def check(key: str, value: bytes = b"") -> bytes:
    """Encode ``key``; ValueError if it is empty, or if key or value exceed the limits of all stores."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, got {len(encoded)}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
    return encoded


class MemoryStore(Store):
    """A store in this process's memory, for a job of one rank."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def __str__(self) -> str:
        return "this process's memory"

    def set(self, key: str, value: bytes) -> None:
        self._values[check(key, value)] = value

    def peek(self, key: str) -> bytes | None:
        return self._values.get(check(key))


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


class TcpStore(Store):
    """The store that rank 0 serves at ``host``:``port``, for any rank of any host.

    A connection is one request and its answer. It has a thread and a few seconds, so nothing that a stranger sends, or
    does not send, can stop the server. Callers are not authenticated: use another store on a network that you share
    with others. Request and answer are a line of words, and a body with as many bytes as the last word gives:

    - request: BLINKST4, the rank, its process, S (set), P (peek) or I (identify), the key in hexadecimal, bytes
    - answer: BLINKST4, + (value), - (no value), ! (ranks differ) or x (rank 0 gave up, or the store is full), bytes

    Fixed in all versions are the version as first word, a request's next two words, and "!" with a message as body.

    Port 0 selects a free port, and ``port`` then holds it. The server runs until :meth:`close` or the end of its
    process; LaunchError if it cannot listen. Other ranks try to connect until ``deadline`` (``time.monotonic()``):
    RendezvousTimeout without an answer, CommunicationError if the answer is not a store's, PlanMismatchError if it is
    another version's.
    """

    def __init__(self, host: str, port: int, *, rank: int, deadline: float) -> None:
        self._host = host
        self.port = port
        self._process = os.getpid()
        self._server: _Server | None = None
        process = f"process {os.getpid()} on {platform.node()} with version {package_version()}"
        self._caller = f"{rank} {quote(process)}"
        self._next_look = 0.0
        if rank == 0:
            self._server = self._serving(process)
            self.port = self._server.server_address[1]
            return
        pauses = Pauses(deadline)
        while True:
            try:
                self._ask("P", b"?", b"", max(0.05, min(ANSWER_S, deadline - time.monotonic())))
                return
            except OSError as error:
                if not pauses.pause():
                    raise RendezvousTimeout(
                        [0],
                        [],
                        f"rank 0 does not serve a store at {host}:{port} ({error}); check that rank 0 runs, and that "
                        "this is its host",
                    ) from error

    def _serving(self, process: str) -> _Server:
        place = os.getpid(), self._host, self.port
        if (server := _servers.get(place)) is not None:  # from an earlier job of this process
            server.begin()
            return server
        try:
            server = _Server(self._host, self.port, process)
            if self.port:
                _servers[place] = server
            threading.Thread(target=server.serve_forever, args=(0.2,), name="blink-store", daemon=True).start()
            return server
        except OSError as error:
            with suppress(OSError, CommunicationError):
                self._ask("I", b"?", b"", LOOK_S)  # if another rank 0 listens there, its job learns of this one
            raise LaunchError(
                f"rank 0 cannot serve the store at {self._host}:{self.port}: {error}; set BLINK_STORE=tcp://HOST:PORT "
                "to the host of rank 0 and a free port there (torch.distributed, another job or another rank 0 may "
                "use this one)"
            ) from error

    def __str__(self) -> str:
        return f"tcp://[{self._host}]:{self.port}" if ":" in self._host else f"tcp://{self._host}:{self.port}"

    def set(self, key: str, value: bytes) -> None:
        self._request("S", check(key, value), value)

    def peek(self, key: str) -> bytes | None:
        return self._request("P", check(key), b"")

    def close(self) -> None:
        """Stop the server; may be called twice."""
        server, self._server = self._server, None
        if server is not None and self._process == os.getpid():
            _servers.pop((self._process, self._host, self.port), None)
            server.shutdown()
            server.server_close()

    def serves_at(self, address: str) -> None:
        """Set the address at which other ranks reach this server; it listens at all of its host's addresses."""
        self._host = address

    def host(self) -> str | None:
        return None if is_local(self._host) else self._host

    def check_callers(self) -> None:
        if self._server is None:
            return
        if self._server.problem:
            raise PlanMismatchError(self._server.problem)
        if is_local(self._host) or time.monotonic() < self._next_look:
            return
        with suppress(OSError):  # some hosts cannot connect to their own address
            self._ask("I", self._server.secret, b"", LOOK_S)
        self._next_look = time.monotonic() + LOOK_S

    def all_came(self) -> None:
        if self._server is not None:
            self._server.have_met = True

    def give_up(self, error: CommunicationError, size: int) -> None:
        server = self._server
        if server is None or server.have_met:  # the job continues after one of its groups failed
            return
        server.farewell = ("!" if isinstance(error, PlanMismatchError) else "x"), str(error).encode()
        end = time.monotonic() + (0.0 if isinstance(error, DeadlineError) else FAREWELL_S)
        while time.monotonic() < end and len(server.came) < size - 1:
            time.sleep(0.02)
        time.sleep(0.1)  # answers are sent before the process ends

    def _request(self, operation: str, key: bytes, value: bytes) -> bytes | None:
        if self._server is not None:
            return self._server.answer(operation, key.hex(), value)
        pauses = Pauses(time.monotonic() + REACH_S)
        while True:
            try:
                return self._ask(operation, key, value, ANSWER_S)
            except OSError as error:
                # A server with too many callers closes connections, a server that has ended refuses them.
                if isinstance(error, ConnectionResetError | _HungUpError) and pauses.pause():
                    continue
                raise PeerLostError(0, f"its store {self} is closed or does not answer: {error}") from error

    def _ask(self, operation: str, key: bytes, value: bytes, timeout_s: float) -> bytes | None:
        with socket.create_connection((self._host, self.port), timeout_s) as connection:
            connection.sendall(f"{MAGIC} {self._caller} {operation} {key.hex()} {len(value)}\n".encode() + value)
            with connection.makefile("rb") as answer:
                try:
                    (magic, status, length) = words = _words(answer)
                    if status != "!" and magic != MAGIC:
                        raise ValueError(f"expected {MAGIC!r}, got {' '.join(words)[:20]!r}")
                    body = _content(answer, length)
                except ValueError as error:
                    raise CommunicationError(
                        f"{self._host}:{self.port} does not answer as a store of this version of Blink ({error}); "
                        "set a port in BLINK_STORE that only this job uses"
                    ) from None
        if status == "!":
            raise PlanMismatchError(body.decode(errors="replace"))
        if status == "x":
            raise CommunicationError(f"rank 0, which serves {self}, reports: {body.decode(errors='replace')}")
        return body if status == "+" else None


class _HungUpError(ConnectionError):
    """The other end closed the connection before the end of a message."""


def _words(file: BufferedIOBase) -> list[str]:
    """The words of a line; ValueError if the first one is not a version of the protocol."""
    line = file.readline(2 * MAX_KEY_BYTES + 512)
    if not line:
        raise _HungUpError("hung up")
    words = line.decode(errors="replace").split()
    if not words or not words[0].startswith(_FAMILY):
        raise ValueError(f"expected {MAGIC!r}, got {line[:20]!r}")
    return words


def _content(file: BufferedIOBase, length: str) -> bytes:
    """The body of ``length`` bytes, a line's last word; ValueError if that is no number, or above the limit."""
    if not re.fullmatch("[0-9]{1,7}", length) or int(length) > MAX_VALUE_BYTES:
        raise ValueError(f"expected at most {MAX_VALUE_BYTES} bytes, got {length[:20]!r}")
    content = file.read(int(length))
    if len(content) < int(length):
        raise _HungUpError("hung up")
    return content


class _Server(socketserver.ThreadingTCPServer):
    """Keys and values in memory, with limits; ``process`` describes rank 0 in errors."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, process: str) -> None:
        self.secret = secrets.token_bytes(16)
        self._process = process
        self.begin()
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        any_address = "::" if self.address_family == socket.AF_INET6 else "0.0.0.0"
        # All addresses, because many hosts' files resolve the host's own name to 127.0.1.1.
        super().__init__((host if is_local(host) else any_address, port), _Handler)

    def begin(self) -> None:
        """Reset the callers for a new job."""
        #: The reason why the callers cannot be ranks of one job, or "".
        self.problem = ""
        self.have_met = False
        #: Ranks that have sent a request, and the answer to all requests after rank 0 has given up.
        self.came: set[str] = set()
        self.farewell: tuple[str, bytes] | None = None

    def answer(self, operation: str, key: str, value: bytes) -> bytes | None:
        """Set or return a value; CommunicationError if all values together would exceed the limit."""
        with self._lock:
            if operation == "P":
                return self._values.get(key)
            held = sum(map(len, self._values.values())) - len(self._values.get(key, b""))
            if held + len(value) > MAX_TABLE_BYTES:
                raise CommunicationError(f"the store is full: it holds {MAX_TABLE_BYTES} bytes at most")
            self._values[key] = value
            return b""

    def refused(self, words: Sequence[str]) -> str:
        """The reason to refuse the sender of this line as a rank of this job; "" if it is one."""
        magic, rank, caller = words[0], words[1][:10], unquote(words[2])[:300]
        reason = ""
        if magic != MAGIC:
            reason = (
                f"ranks disagree on version: rank 0 ({self._process}) speaks {MAGIC} with the store, rank {rank} "
                f"({caller}) {magic[:20]}; install the same version on all hosts"
            )
        elif rank == "0" and words[3:5] != ["I", self.secret.hex()]:
            reason = (
                f"rank 0 is claimed by {self._process} and by {caller}; expected one process per rank: check "
                "BLINK_RANK or the launcher's variables, and set different ports in BLINK_STORE for jobs on one host"
            )
        if not self.have_met:
            self.problem = self.problem or reason
            if rank.isdecimal() and 0 < int(rank) < 1 << 16:  # bounds the memory that strangers can use
                self.came.add(rank)
        return reason

    def verify_request(self, request: object, client_address: object) -> bool:
        """Close connections while all threads are in use; callers may try again."""
        return threading.active_count() < MAX_THREADS

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a connection, such as an invalid request; it is closed."""


#: Servers by process id, host and port, for later jobs of the same process.
_servers: dict[tuple[int, str, int], _Server] = {}


class _Handler(socketserver.StreamRequestHandler):
    timeout = REQUEST_S

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        words = _words(self.rfile)
        if problem := self.server.refused(words):
            self._say("!", problem.encode())
            return
        _, _, _, operation, key, length = words
        value = _content(self.rfile, length)
        if self.server.farewell is not None:
            self._say(*self.server.farewell)
        elif operation == "I":
            self._say("+", b"")
        elif operation in ("S", "P"):
            try:
                content = self.server.answer(operation, key, value)
            except CommunicationError as error:
                self._say("x", str(error).encode())
            else:
                self._say("-" if content is None else "+", content or b"")

    def _say(self, status: str, content: bytes) -> None:
        self.wfile.write(f"{MAGIC} {status} {len(content)}\n".encode() + content)


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

    def host(self) -> str | None:
        inner = self.inner
        while hasattr(inner, "underlying_store"):
            inner = inner.underlying_store
        host = getattr(inner, "host", None)
        return None if host is None or is_local(host) else str(host)

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
    """Open the store of this URL (the module has a table), which rank 0 serves if the ranks serve it themselves.

    LaunchError for other URLs, a directory that is open to other users or cannot be created, or a port in use;
    RendezvousTimeout if no store answers by ``deadline``; UnsupportedError if torch cannot be imported.
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
        return _mpi_store(deadline)
    if scheme not in ("tcp", "torch", "torchrun"):
        raise LaunchError(f"store {url!r}: expected file:///directory, tcp://host:port, torch://host:port or mpi://")
    host, port = _address(url, rest)
    if scheme == "tcp":
        return TcpStore(host, port, rank=rank, deadline=deadline)
    return _torch_tcp_store(host, port, scheme == "torch" and rank == 0, deadline)


def _mpi_store(deadline: float) -> TcpStore:
    """A store at the first address of rank 0 that all ranks reach; mpi4py, which starts MPI, broadcasts it."""
    try:
        world = import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"the ranks of this MPI job are on several hosts and need mpi4py to learn the address of rank 0 ({error}): "
            "pip install mpi4py on all hosts, or set BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free "
            "port there (mpirun -x BLINK_STORE=… passes it to all ranks)"
        ) from None
    own = [address for address in own_addresses().values() if not is_local(address)]
    server = TcpStore(own[0] if own else "127.0.0.1", 0, rank=0, deadline=deadline) if world.rank == 0 else None
    addresses, port = world.bcast((own, server.port) if server is not None else None)
    stores = {} if server is not None else _reached(addresses, port, world.rank, deadline)
    reached = world.allgather(list(addresses if server is not None else stores))
    best = next((address for address in addresses if all(address in each for each in reached)), None)
    if best is None:
        raise LaunchError(
            f"no address of rank 0 ({', '.join(addresses) or 'it has none'}), port {port}, is reachable from all "
            "ranks; set BLINK_STORE=tcp://HOST:PORT with an address that all reach"
        )
    if server is None:
        return stores[best]
    server.serves_at(best)
    return server


def _reached(addresses: Sequence[str], port: int, rank: int, deadline: float) -> dict[str, TcpStore]:
    stores = {}
    for address in addresses:
        with suppress(RendezvousTimeout, CommunicationError):
            until = min(deadline, time.monotonic() + REACH_S)
            stores[address] = TcpStore(address, port, rank=rank, deadline=until)
    return stores


def own_addresses() -> dict[str, str]:
    """This host's IPv4 addresses by interface."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                row = ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses[name] = socket.inet_ntoa(row[20:24])
    return addresses


def is_local(host: str) -> bool:
    """True if ``host`` is a loopback name or address."""
    return host in ("localhost", "::1") or host.startswith("127.")


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
