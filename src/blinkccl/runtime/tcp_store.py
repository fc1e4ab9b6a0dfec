"""A store behind a port: rank 0 serves, any rank of any host may ask.

One thread serves all connections; nothing a stranger sends can stop it: a connection that does not greet in
time, or sends what is no request, is closed, and so is whoever exceeds a limit. Nobody proves who he is here:
on a network that others share, take another way to meet.

On the wire, all integers big-endian:

    greeting   "BLINKST1", from the client and then from the server
    request    operation (1 byte: S set, P peek, D delete), length of key (u16), length of value (u32), key, value
    answer     status (1 byte: + there it is, - nothing is there), length of value (u32), value

A client asks one thing at a time: what comes before it has read its answer is no request. So a connection
costs the server one request or one answer of memory, whatever is sent.

:class:`Requests` says what the bytes mean, without a socket; :class:`_Server` moves bytes.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from blinkccl.errors import CommunicationError, LaunchError, PeerLostError, RendezvousTimeout
from blinkccl.runtime.store_contract import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Pauses,
    Store,
    check_key,
    check_value,
)

GREETING = b"BLINKST1"
#: What all keys together may hold.
MAX_TABLE_BYTES = 1 << 28
MAX_CONNECTIONS = 4096
GREETING_S = 5.0
ANSWER_S = 30.0

_REQUEST = struct.Struct("!cHI")
_ANSWER = struct.Struct("!cI")
_SET, _PEEK, _DELETE = b"S", b"P", b"D"
_FOUND, _NOTHING = b"+", b"-"


class NotARequestError(Exception):
    """What a client sent is no request, or goes beyond a limit."""


class Table:
    """Keys and values, with a limit on all of them together; used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0

    def set(self, key: bytes, value: bytes) -> None:
        """Replaces the value of ``key``; NotARequestError if all would then be larger than the limit."""
        with self._lock:
            old = self._values.get(key)
            held = self._bytes + len(value) + len(key) - (len(old) + len(key) if old is not None else 0)
            if held > MAX_TABLE_BYTES:
                raise NotARequestError(f"the store is full: it holds {MAX_TABLE_BYTES} bytes at most")
            self._values[key] = value
            self._bytes = held

    def peek(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._values.get(key)

    def delete(self, key: bytes) -> None:
        with self._lock:
            value = self._values.pop(key, None)
            self._bytes -= 0 if value is None else len(value) + len(key)


class Requests:
    """One client's bytes, and what to answer: a state machine without a socket."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._pending = bytearray()
        self.greeted = False

    def feed(self, received: bytes) -> bytes:
        """What to answer now that these bytes have come; nothing while a request is not complete.

        Raises
        ------
        NotARequestError
            If this is no client of ours, or it asks for more than a limit allows.
        """
        self._pending += received
        if not self.greeted:
            return self._greet()
        if len(self._pending) < _REQUEST.size:
            return b""
        operation, key_bytes, value_bytes = _REQUEST.unpack_from(self._pending)
        if not 1 <= key_bytes <= MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES:
            raise NotARequestError("a length beyond the limits")
        value_at = _REQUEST.size + key_bytes
        left = value_at + value_bytes - len(self._pending)
        if left > 0:
            return b""
        if left < 0:
            raise NotARequestError("a second request before the answer to the first")
        key, value = bytes(self._pending[_REQUEST.size : value_at]), bytes(self._pending[value_at:])
        self._pending.clear()
        return self._answer(operation, key, value)

    def _greet(self) -> bytes:
        if not GREETING.startswith(self._pending):
            raise NotARequestError("no greeting")
        if len(self._pending) < len(GREETING):
            return b""
        self._pending.clear()
        self.greeted = True
        return GREETING

    def _answer(self, operation: bytes, key: bytes, value: bytes) -> bytes:
        if operation == _PEEK:
            found = self._table.peek(key)
            return _ANSWER.pack(_NOTHING, 0) if found is None else _ANSWER.pack(_FOUND, len(found)) + found
        if operation == _SET:
            self._table.set(key, value)
        elif operation == _DELETE:
            self._table.delete(key)
        else:
            raise NotARequestError(f"no operation {operation!r}")
        return _ANSWER.pack(_FOUND, 0)


class TcpStore(Store):
    """The store that rank 0 serves at ``host``:``port``.

    Parameters
    ----------
    host, port
        Where rank 0 is reached. Port 0 takes a free one, which ``port`` then tells.
    server
        Whether this process serves. It does so, from a thread of its own, until it ends, also after
        :meth:`close`: others may still have to read.
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
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._socket: socket.socket | None = None
        self.port = port
        if server:
            self._table = Table()
            self._server = _Server(host, port, self._table)
            self.port = self._server.port
        else:
            self._socket = _connect(host, port, deadline)

    def __str__(self) -> str:
        return f"tcp://{self._host}:{self.port}"

    def set(self, key: str, value: bytes) -> None:
        encoded = check_key(key)
        if self._table is not None:
            try:
                self._table.set(encoded, bytes(check_value(value)))
            except NotARequestError as error:
                raise CommunicationError(f"{self}: {error}") from error
        else:
            self._ask(_SET, encoded, check_value(value))

    def peek(self, key: str) -> bytes | None:
        encoded = check_key(key)
        return self._table.peek(encoded) if self._table is not None else self._ask(_PEEK, encoded)

    def delete(self, key: str) -> None:
        encoded = check_key(key)
        if self._table is not None:
            self._table.delete(encoded)
        else:
            self._ask(_DELETE, encoded)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._table is not None and self._process == os.getpid():
            self._server.stop_listening()

    def _ask(self, operation: bytes, key: bytes, value: bytes = b"") -> bytes | None:
        if self._process != os.getpid():
            raise CommunicationError(f"{self} was opened before this process was forked; open it again here")
        assert self._socket is not None  # whoever serves does not ask
        with self._lock:
            try:
                self._socket.sendall(_REQUEST.pack(operation, len(key), len(value)) + key + value)
                status, length = _ANSWER.unpack(_receive(self._socket, _ANSWER.size))
                found = _receive(self._socket, length)
            except OSError as error:
                self._socket.close()  # an answer that comes later would be taken for the next one's
                raise PeerLostError(0, f"it served {self}, which is closed or has not answered: {error}") from error
        return found if status == _FOUND else None


@dataclass
class _Client:
    """A connection of the server: what it asks, what it is still to be told, and till when it must greet."""

    requests: Requests
    greet_by: float
    unread: bytearray = field(default_factory=bytearray)


class _Server:
    """Serves a table to all who ask, from one thread."""

    def __init__(self, host: str, port: int, table: Table) -> None:
        self._table = table
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wanted = True
        threading.Thread(target=self._serve, name="blink-store", daemon=True).start()

    def stop_listening(self) -> None:
        """Takes no more connections; those that are there are served on."""
        self._wanted = False

    def _serve(self) -> None:
        """Runs until nobody is to be served any more."""
        clients: dict[socket.socket, _Client] = {}
        while self._wanted or clients:
            # Not woken for stop_listening: it has no hurry.
            for key, events in self._selector.select(timeout=0.2):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept(clients)
                elif not self._attend(connection, clients[connection], events):
                    self._drop(connection, clients)
            if not self._wanted and self._listener.fileno() >= 0:
                self._selector.unregister(self._listener)
                self._listener.close()
            now = time.monotonic()
            for connection in [c for c, row in clients.items() if not row.requests.greeted and row.greet_by < now]:
                self._drop(connection, clients)
        self._listener.close()
        self._selector.close()

    def _accept(self, clients: dict[socket.socket, _Client]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are too many open files: others are served on
            time.sleep(0.001)
            return
        if len(clients) >= MAX_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients[connection] = _Client(Requests(self._table), time.monotonic() + GREETING_S)
        self._selector.register(connection, selectors.EVENT_READ)

    def _attend(self, connection: socket.socket, client: _Client, events: int) -> bool:
        """Moves bytes both ways; False if the connection is over."""
        try:
            with suppress(BlockingIOError):  # it reads slowly
                if events & selectors.EVENT_READ:
                    received = connection.recv(1 << 16)
                    if not received or client.unread:  # it has hung up, or asks on without reading
                        return False
                    client.unread += client.requests.feed(received)
                if client.unread:
                    del client.unread[: connection.send(client.unread)]
        except (OSError, NotARequestError):
            return False
        self._selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unread else 0))
        return True

    def _drop(self, connection: socket.socket, clients: dict[socket.socket, _Client]) -> None:
        del clients[connection]
        self._selector.unregister(connection)
        connection.close()


def _listen(host: str, port: int) -> socket.socket:
    """Listens to this host alone where ``host`` says so, else to all.

    Not to ``host``'s own address only: many hosts' files give their own name as 127.0.1.1.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        local = host == "localhost" or host == "::1" or host.startswith("127.")
        any_address = "::" if family == socket.AF_INET6 else "0.0.0.0"
        return socket.create_server((host if local else any_address, port), family=family, backlog=1024)
    except OSError as error:
        raise LaunchError(
            f"rank 0 cannot serve the store at {host}:{port}: {error}; BLINK_STORE=tcp://HOST:PORT names the host "
            "of rank 0 and a free port there (is torch.distributed or another job using it?)"
        ) from error


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Rank 0 may come later than we do: asks again until the deadline."""
    pauses = Pauses(deadline)
    while True:
        try:
            return _greet(socket.create_connection((host, port), max(0.05, deadline - time.monotonic())), host, port)
        except OSError as error:
            if not pauses.pause():
                raise RendezvousTimeout(
                    [0],
                    [],
                    f"nobody serves a store at {host}:{port}, where rank 0 should ({error}); is rank 0 "
                    "running, and is this its host?",
                ) from error


def _greet(connection: socket.socket, host: str, port: int) -> socket.socket:
    """A connection to a store of ours; raises if it is something else, OSError if it hangs up or is silent."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(GREETING)
        answer = _receive(connection, len(GREETING))
        connection.settimeout(ANSWER_S)
    except OSError:
        connection.close()
        raise
    if answer != GREETING:
        connection.close()
        raise CommunicationError(
            f"what listens at {host}:{port} is no store of this version of Blink: expected {GREETING!r}, got "
            f"{answer!r}; give the job a port of its own in BLINK_STORE"
        )
    return connection


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        part = connection.recv(min(length - len(received), 1 << 16))
        if not part:
            raise ConnectionError("hung up")
        received += part
    return bytes(received)
