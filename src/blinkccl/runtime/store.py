"""Stores: where rank 0 publishes the address and the token at which the ranks of a job meet, named by URL.

| URL                    | kind             | for                                                            |
|------------------------|------------------|----------------------------------------------------------------|
| `file:///directory`    | `FileStore`      | ranks of one host: a file per key, in a directory of mode 0700 |
| `tcp://host:port`      | `TcpStore`       | any ranks: rank 0 serves                                       |
| `torch://host:port`    | `TorchStore`     | torch's own store, which rank 0 serves                         |
| `torchrun://host:port` | `TorchStore`     | torch's own store, which torchrun's agent serves               |
| `mpi://`               | `TcpStore`       | ranks of an MPI job: rank 0 serves, and MPI says where         |

A store of torch that somebody else made is one, too. Keys are text, values bytes. Setting a key again replaces
its value; a reader sees the old value or the new one, never a part of either. Waiting is looking again, with growing
pauses up to 20 ms: no store needs to know how to wake anybody.
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

#: Limits that no honest rank comes near, and that keep a stranger's garbage small.
MAX_KEY_BYTES = 1 << 10
MAX_VALUE_BYTES = 1 << 20
#: What all values of a server may hold, how many threads its process may have, and how long a pause in a request is.
MAX_TABLE_BYTES = 1 << 28
MAX_THREADS = 512
REQUEST_S = 5.0
ANSWER_S = 30.0
#: Every version's protocol has a name that begins so.
_FAMILY = "BLINKST"
MAGIC = f"{_FAMILY}4"
#: How long rank 0 goes on serving to say why it gave up, and how often it looks whether another serves in its place.
FAREWELL_S = 1.0
LOOK_S = 0.5
#: How long one of rank 0's addresses is tried.
REACH_S = 2.0
_SIOCGIFADDR = 0x8915


class Pauses:
    """Pauses that grow: a wait that ends soon costs little time, one that lasts costs little work."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next_s = 0.0005

    def pause(self) -> bool:
        """Sleeps, but not past the deadline; False if the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next_s, left))
        self._next_s = min(self._next_s * 1.5, 0.02)
        return True


class Store(ABC):
    """A few small values by name, which all ranks of a job can read.

    CommunicationError where the store itself is lost, ValueError for a key or a value beyond the limits above.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Puts ``value`` under ``key``, in place of what was there."""

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """What is under ``key`` now; None: nothing."""

    def host(self) -> str | None:
        """The host at which ranks of several hosts reach it; None: only ranks of one host do."""
        return None

    # Of a store that rank 0 serves itself, rank 0 learns who comes, and tells those that come late. Elsewhere nothing.

    def check_callers(self) -> None:
        """PlanMismatchError if somebody came who shows that ranks differ in version, or that there are two ranks 0."""
        return

    def all_came(self) -> None:
        """The ranks have met: whoever is another rank 0 from now on is a stranger, and told so."""
        return

    def give_up(self, error: CommunicationError, size: int) -> None:
        """Tells those of ``size`` ranks that come for the first time why there will be no group; takes a second."""
        return


def check(key: str, value: bytes = b"") -> bytes:
    """``key`` in bytes; ValueError if it is empty, or either is longer than any store takes."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, got {len(encoded)}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
    return encoded


class MemoryStore(Store):
    """For a rank that is alone in its job, and meets nobody."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def __str__(self) -> str:
        return "this process's memory"

    def set(self, key: str, value: bytes) -> None:
        self._values[check(key, value)] = value

    def peek(self, key: str) -> bytes | None:
        return self._values.get(check(key))


class FileStore(Store):
    """A store in ``directory``, which is made (mode 0700) if it is not there.

    The directory is this user's alone, so nobody else can answer in a rank's place: LaunchError if it cannot be made,
    is a link or no directory, or others may get in.
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
        name = "k" + quote(key, safe="")  # no name begins with a dot, so none is another's unfinished file
        return self.directory / (name if len(name) <= 200 else "h" + sha256(encoded).hexdigest())


class TcpStore(Store):
    """The store that rank 0 serves at ``host``:``port``, for any rank of any host.

    A connection is one request and its answer, and has a thread and a few seconds: nothing that a stranger sends, or
    does not send, can stop the server. Nobody proves who he is here: on a network that others share, take another way
    to meet. Each is a line of words, and as many bytes as its last word says:

        request    BLINKST4, the rank, who that is, S (set), P (peek) or I (is it you?), the key in hexadecimal, bytes
        answer     BLINKST4, + (there it is), - (nothing is there), ! (ranks differ) or x (it has given up), bytes

    What stays in all versions: that a name tells them apart, the next two words of a request, and the answer "!" with
    a sentence.

    Port 0 takes a free one, which ``port`` then tells. A server serves until :meth:`close` or the end of its process;
    LaunchError if it cannot. Others try to reach it until ``deadline`` (``time.monotonic()``): RendezvousTimeout if
    nobody answers, CommunicationError if what answers is no store, PlanMismatchError if it is another version's.
    """

    def __init__(self, host: str, port: int, *, rank: int, deadline: float) -> None:
        self._host = host
        self.port = port
        self._process = os.getpid()
        self._server: _Server | None = None
        who = f"process {os.getpid()} on {platform.node()} with version {package_version()}"
        self._caller = f"{rank} {quote(who)}"
        self._next_look = 0.0
        if rank == 0:
            self._server = self._serving(who)
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
                        f"nobody serves a store at {host}:{port}, where rank 0 should ({error}); is rank 0 "
                        "running, and is this its host?",
                    ) from error

    def _serving(self, who: str) -> _Server:
        place = os.getpid(), self._host, self.port
        if (server := _servers.get(place)) is not None:  # of a job of this process before
            server.begin()
            return server
        try:
            server = _Server(self._host, self.port, who)
            if self.port:
                _servers[place] = server
            threading.Thread(target=server.serve_forever, args=(0.2,), name="blink-store", daemon=True).start()
            return server
        except OSError as error:
            with suppress(OSError, CommunicationError):
                self._ask("I", b"?", b"", LOOK_S)  # if it is a rank 0, its job shall know of this one
            raise LaunchError(
                f"rank 0 cannot serve the store at {self._host}:{self.port}: {error}; BLINK_STORE=tcp://HOST:PORT "
                "names the host of rank 0 and a free port there (is torch.distributed, another job, or another rank 0 "
                "using it?)"
            ) from error

    def __str__(self) -> str:
        return f"tcp://[{self._host}]:{self.port}" if ":" in self._host else f"tcp://{self._host}:{self.port}"

    def set(self, key: str, value: bytes) -> None:
        self._request("S", check(key, value), value)

    def peek(self, key: str) -> bytes | None:
        return self._request("P", check(key), b"")

    def close(self) -> None:
        """Serves no longer; may be called twice."""
        server, self._server = self._server, None
        if server is not None and self._process == os.getpid():
            _servers.pop((self._process, self._host, self.port), None)
            server.shutdown()
            server.server_close()

    def serves_at(self, address: str) -> None:
        """Others reach this server, which listens at all of its host's addresses, at this one."""
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
        with suppress(OSError):  # not every host reaches itself at an address of its own
            self._ask("I", self._server.secret, b"", LOOK_S)
        self._next_look = time.monotonic() + LOOK_S

    def all_came(self) -> None:
        if self._server is not None:
            self._server.have_met = True

    def give_up(self, error: CommunicationError, size: int) -> None:
        server = self._server
        if server is None or server.have_met:  # the job goes on, whatever became of one of its groups
            return
        server.farewell = ("!" if isinstance(error, PlanMismatchError) else "x"), str(error).encode()
        end = time.monotonic() + (0.0 if isinstance(error, DeadlineError) else FAREWELL_S)
        while time.monotonic() < end and len(server.came) < size - 1:
            time.sleep(0.02)
        time.sleep(0.1)  # who came is told before the process ends

    def _request(self, operation: str, key: bytes, value: bytes) -> bytes | None:
        if self._server is not None:
            return self._server.answer(operation, key.hex(), value)
        pauses = Pauses(time.monotonic() + REACH_S)
        while True:
            try:
                return self._ask(operation, key, value, ANSWER_S)
            except OSError as error:
                # A crowd of strangers was sent away, and this rank with it: a server that has ended refuses.
                if isinstance(error, ConnectionResetError | _HungUpError) and pauses.pause():
                    continue
                raise PeerLostError(0, f"it served {self}, which is closed or has not answered: {error}") from error

    def _ask(self, operation: str, key: bytes, value: bytes, timeout_s: float) -> bytes | None:
        with socket.create_connection((self._host, self.port), timeout_s) as connection:
            connection.sendall(f"{MAGIC} {self._caller} {operation} {key.hex()} {len(value)}\n".encode() + value)
            with connection.makefile("rb") as answer:
                try:
                    (magic, status, length) = words = _words(answer)
                    if status != "!" and magic != MAGIC:
                        raise ValueError(f"expected {MAGIC!r}, got {' '.join(words)[:20]!r}")
                    found = _content(answer, length)
                except ValueError as error:
                    raise CommunicationError(
                        f"what listens at {self._host}:{self.port} is no store of this version of Blink ({error}); "
                        "give the job a port of its own in BLINK_STORE"
                    ) from None
        if status == "!":
            raise PlanMismatchError(found.decode(errors="replace"))
        if status == "x":
            raise CommunicationError(f"rank 0, which serves {self}, says: {found.decode(errors='replace')}")
        return found if status == "+" else None


class _HungUpError(ConnectionError):
    """The other end has closed the connection, in order and too early."""


def _words(file: BufferedIOBase) -> list[str]:
    """The words of a line, of which the first names a version; ValueError: it is none."""
    line = file.readline(2 * MAX_KEY_BYTES + 512)
    if not line:
        raise _HungUpError("hung up")
    words = line.decode(errors="replace").split()
    if not words or not words[0].startswith(_FAMILY):
        raise ValueError(f"expected {MAGIC!r}, got {line[:20]!r}")
    return words


def _content(file: BufferedIOBase, length: str) -> bytes:
    """As many bytes as a line's last word says; ValueError: it says no number, or too high a one."""
    if not re.fullmatch("[0-9]{1,7}", length) or int(length) > MAX_VALUE_BYTES:
        raise ValueError(f"expected at most {MAX_VALUE_BYTES} bytes, got {length[:20]!r}")
    content = file.read(int(length))
    if len(content) < int(length):
        raise _HungUpError("hung up")
    return content


class _Server(socketserver.ThreadingTCPServer):
    """Keys and values in memory, with limits; ``who`` is rank 0."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, who: str) -> None:
        self.secret = secrets.token_bytes(16)
        self._who = who
        self.begin()
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        any_address = "::" if self.address_family == socket.AF_INET6 else "0.0.0.0"
        # Not the host's own address only: many hosts' files give their own name as 127.0.1.1.
        super().__init__((host if is_local(host) else any_address, port), _Handler)

    def begin(self) -> None:
        """The ranks of a job are yet to come."""
        #: What a caller has shown: that the ranks cannot be one job.
        self.problem = ""
        self.have_met = False
        #: Who has asked for something, and what all are told since rank 0 has given up.
        self.came: set[str] = set()
        self.farewell: tuple[str, bytes] | None = None

    def answer(self, operation: str, key: str, value: bytes) -> bytes | None:
        """Sets or peeks; CommunicationError beyond the limit of all values together."""
        with self._lock:
            if operation == "P":
                return self._values.get(key)
            held = sum(map(len, self._values.values())) - len(self._values.get(key, b""))
            if held + len(value) > MAX_TABLE_BYTES:
                raise CommunicationError(f"the store is full: it holds {MAX_TABLE_BYTES} bytes at most")
            self._values[key] = value
            return b""

    def refused(self, words: Sequence[str]) -> str:
        """Why whoever asks with this line is no rank of this job; "": it is one."""
        magic, rank, who = words[0], words[1][:10], unquote(words[2])[:300]
        found = ""
        if magic != MAGIC:
            found = (
                f"ranks disagree on version: rank 0 ({self._who}) speaks {MAGIC} with the store, rank {rank} ({who}) "
                f"{magic[:20]}; install the same version on all hosts"
            )
        elif rank == "0" and words[3:5] != ["I", self.secret.hex()]:
            found = (
                f"rank 0 is claimed by {self._who} and by {who}; expected one process per rank: look at BLINK_RANK or "
                "what the launcher sets, and give jobs side by side ports of their own in BLINK_STORE"
            )
        if not self.have_met:
            self.problem = self.problem or found
            if rank.isdecimal() and 0 < int(rank) < 1 << 16:  # what strangers say takes no memory
                self.came.add(rank)
        return found

    def verify_request(self, request: object, client_address: object) -> bool:
        """Who comes while all threads are taken is sent away, and may come again."""
        return threading.active_count() < MAX_THREADS

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever sends what is no request is sent away, and nothing else happens."""


#: What this process serves, by its number, host and port: a job that is begun anew finds it there.
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
                found = self.server.answer(operation, key, value)
            except CommunicationError as error:
                self._say("x", str(error).encode())
            else:
                self._say("-" if found is None else "+", found or b"")

    def _say(self, status: str, content: bytes) -> None:
        self.wfile.write(f"{MAGIC} {status} {len(content)}\n".encode() + content)


class TorchStore(Store):
    """A store of torch, or a prefix of one, which stays the caller's; its own time-out bounds each call."""

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
            raise CommunicationError(f"{self} failed; has the process that serves it ended? {error}") from error


def _torch_tcp_store(host: str, port: int, server: bool, deadline: float) -> TorchStore:
    """torch's TCPStore, which torchrun's agent serves; imports torch, which is installed there.

    Where nobody else serves it rank 0 does, and shares the port with ``init_process_group("env://")``.
    """
    try:
        torch_distributed = import_module("torch.distributed")
    except ImportError as error:
        raise UnsupportedError(
            f"the ranks were told to meet in torch's store at {host}:{port}, but torch cannot be imported "
            f"({error}); install torch, or set BLINK_STORE=tcp://HOST:PORT or file:///directory for all ranks"
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
    """The store that ``url`` names (the module's table); where the ranks serve it themselves, rank 0 does.

    LaunchError if the URL is none of these, its directory is not this user's alone or may not be made, or its port is
    taken; RendezvousTimeout if nobody serves there at ``deadline``; UnsupportedError if torch cannot be imported.
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
    """Rank 0 serves at the first of its addresses that all ranks reach; through mpi4py, which starts MPI."""
    try:
        world = import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"the ranks of this MPI job are on several hosts, and only MPI could tell them where to meet ({error}): "
            "pip install mpi4py on all hosts, or set BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free "
            "port there (mpirun -x BLINK_STORE=… hands it on)"
        ) from None
    found = [address for address in own_addresses().values() if not is_local(address)]
    server = TcpStore(found[0] if found else "127.0.0.1", 0, rank=0, deadline=deadline) if world.rank == 0 else None
    addresses, port = world.bcast((found, server.port) if server is not None else None)
    stores = {} if server is not None else _reached(addresses, port, world.rank, deadline)
    reached = world.allgather(list(addresses if server is not None else stores))
    best = next((address for address in addresses if all(address in each for each in reached)), None)
    if best is None:
        raise LaunchError(
            f"not all ranks reach rank 0 at one of its addresses ({', '.join(addresses) or 'it has none'}), port "
            f"{port}; set BLINK_STORE=tcp://HOST:PORT with an address that all reach"
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
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                row = ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(row[20:24])
    return found


def is_local(host: str) -> bool:
    """Whether ``host`` is this host's name for itself alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _check_place(url: str, directory: Path) -> None:
    """Refuses to make a directory that a mistyped path may name: below the root, or below one that is not there."""
    above = directory.parent
    if directory.exists() or (above.is_dir() and above != Path("/")):
        return
    raise LaunchError(
        f"store {url!r}: there is no directory {directory}, and none is made "
        + ("directly below the root" if above == Path("/") else f"where there is no {above}")
        + f"; make it for this job with mkdir -p -m 700 {directory}, or name one below a directory that is there"
    )


def _address(url: str, rest: str) -> tuple[str, int]:
    """Host and port; a host with colons (IPv6) stands in brackets."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,5})/?", rest)
    port = int(match[3]) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise LaunchError(f"store {url!r}: expected {url.partition(':')[0]}://HOST:PORT, PORT from 1 to 65535")
    return match[1] or match[2], port
