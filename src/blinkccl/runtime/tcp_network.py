"""Messages between hosts over TCP connections of our own, moved by the thread that waits for one.

Gloo's loop has a thread of its own, which is woken for every message, asks whether the receiver is ready, and tries
again without pause while another thread holds the connection's lock. On a host with fewer cores than ranks that is
time of the thread that it waits for.
"""

from __future__ import annotations

import ctypes as c
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec

from blinkccl.errors import CommunicationError, DeadlineError

#: What precedes a message: its tag, and how many bytes it has.
_HEADER = struct.Struct("<QQ")
_TOKEN_BYTES = 16
#: What a connection begins with: the token of the rank that it leads to, and whose it is.
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
#: So long may somebody who connected take to say a hello; it is at once there, unless it is no rank.
_HELLO_S = 1.0


class _Message:
    """One way, until nothing is left of ``parts``: its header and its bytes."""

    __slots__ = ("expected", "header", "left", "nbytes", "network", "parts", "peer")

    def __init__(self, network: TcpNetwork, peer: int, address: int, nbytes: int, tag: int, sent: bool) -> None:
        self.network, self.peer, self.nbytes = network, peer, nbytes
        self.expected = _HEADER.pack(tag, nbytes)
        self.header = bytearray(self.expected if sent else _HEADER.size)
        self.parts = [memoryview(self.header)]
        if nbytes:
            self.parts.append(memoryview((c.c_char * nbytes).from_address(address)).cast("B"))
        self.left = _HEADER.size + nbytes

    def moved(self, nbytes: int) -> None:
        """So many of its bytes more have been moved."""
        self.left -= nbytes
        while nbytes:
            part = self.parts[0]
            if nbytes < len(part):
                self.parts[0] = part[nbytes:]
                return
            nbytes -= len(part)
            del self.parts[0]

    def wait(self, timeout_s: float) -> int:
        """See :class:`~blinkccl.runtime.network.Pending`."""
        return self.network.wait(self, timeout_s)


class _Link:
    """A connection, with the messages that wait for it in either direction, in order."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.connection = peer, connection
        self.sends: deque[_Message] = deque()
        self.receives: deque[_Message] = deque()
        self.watched = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)

    def write(self) -> None:
        while self.sends:
            message = self.sends[0]
            message.moved(self.connection.sendmsg(message.parts))
            if not message.left:
                self.sends.popleft()

    def read(self) -> None:
        while self.receives:
            message = self.receives[0]
            nbytes, *_ = self.connection.recvmsg_into(message.parts)
            if not nbytes:
                raise CommunicationError(f"rank {self.peer} closed the connection")
            message.moved(nbytes)
            if message.left <= message.nbytes and message.header != message.expected:
                _, nbytes = _HEADER.unpack(message.header)
                raise CommunicationError(
                    f"rank {self.peer} sent {nbytes} bytes of another call, expected {message.nbytes} of this one: "
                    "the ranks make different calls"
                )
            if not message.left:
                self.receives.popleft()


class TcpNetwork:
    """See :class:`~blinkccl.runtime.network.Network`; for one thread at a time, besides :meth:`abort`.

    Messages between two ranks are received in the order in which they were sent; a tag that is not the expected one is
    an error. ``connections`` lead to the peers.
    """

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self._links = {peer: _Link(peer, connection) for peer, connection in connections.items()}
        self._by_descriptor = {link.connection.fileno(): link for link in self._links.values()}
        self._poll = select.poll()
        self._ended = False

    def send(self, address: int, nbytes: int, peer: int, tag: int) -> _Message:
        link = self._links[peer]
        message = _Message(self, peer, address, nbytes, tag, True)
        link.sends.append(message)
        if len(link.sends) == 1:
            self._move(link, link.write)
        return message

    def receive(self, address: int, nbytes: int, peer: int | None, tag: int) -> _Message:
        assert peer is not None, "collectives know who sends"
        link = self._links[peer]
        message = _Message(self, peer, address, nbytes, tag, False)
        link.receives.append(message)
        self._watch(link)
        return message

    def wait(self, message: _Message, timeout_s: float) -> int:
        """Moves what can be moved, of all messages, until this one has been."""
        end = time.monotonic() + timeout_s
        while message.left:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(f"timed out after {timeout_s:g} s, with {message.left} bytes of a message to come")
            for descriptor, events in self._poll.poll(1 + left_s * 1000):
                link = self._by_descriptor[descriptor]
                if events & select.POLLOUT:
                    self._move(link, link.write)
                if events & ~select.POLLOUT:
                    self._move(link, link.read)
        return message.peer

    def abort(self) -> None:
        self._ended = True
        for link in self._links.values():
            with suppress(OSError):  # it is closed, or was never connected
                link.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended = True
        for link in self._links.values():
            link.connection.close()

    def _move(self, link: _Link, move: Callable[[], None]) -> None:
        try:
            move()
        except BlockingIOError:
            pass
        except (OSError, CommunicationError) as error:
            why = "the network was closed" if self._ended else f"the connection to rank {link.peer} broke: {error}"
            raise CommunicationError(why) from error
        self._watch(link)

    def _watch(self, link: _Link) -> None:
        wanted = (select.POLLIN if link.receives else 0) | (select.POLLOUT if link.sends else 0)
        if wanted == link.watched:
            return
        if wanted:
            self._poll.register(link.connection, wanted)
        else:
            self._poll.unregister(link.connection)
        link.watched = wanted


class _Listens(msgspec.Struct, frozen=True):
    """Where a rank can be connected to, by those who know its token."""

    address: str
    port: int
    token: bytes


def connect(
    rank: int, partners: Sequence[int], own: str, deadline: float, exchange: Callable[[bytes], list[bytes]]
) -> TcpNetwork:
    """Connected to the ``partners``, who name this rank in turn; all ranks of the group call it.

    ``own`` is this rank's address, and ``exchange`` gives everybody everybody's bytes. CommunicationError that names
    who could not be connected to.
    """
    with ExitStack() as undo:
        try:
            family, *_ = socket.getaddrinfo(own, 0, type=socket.SOCK_STREAM)[0]
            listener = undo.enter_context(socket.create_server((own, 0), family=family, backlog=len(partners) + 16))
        except OSError as error:
            raise CommunicationError(f"rank {rank} cannot listen at {own}: {error}") from error
        address, port, *_ = listener.getsockname()
        token = secrets.token_bytes(_TOKEN_BYTES)
        mine = msgspec.msgpack.encode(_Listens(address, port, token))
        places = [msgspec.msgpack.decode(word, type=_Listens) for word in exchange(mine)]
        made: dict[int, socket.socket] = {}
        for peer in partners:
            if peer > rank:
                made[peer] = undo.enter_context(_connected(rank, peer, places[peer], deadline))
        while lacking := [peer for peer in partners if peer not in made]:
            accepted = _accepted(listener, token, lacking, deadline)
            if accepted is not None:
                peer, connection = accepted
                made[peer] = undo.enter_context(connection)
        undo.pop_all()
        listener.close()
    return TcpNetwork(made)


def _connected(rank: int, peer: int, place: _Listens, deadline: float) -> socket.socket:
    try:
        connection = socket.create_connection((place.address, place.port), max(0.1, deadline - time.monotonic()))
        connection.sendall(_HELLO.pack(place.token, rank))
    except OSError as error:
        raise CommunicationError(
            f"rank {rank} could not connect to rank {peer} at {place.address}, port {place.port}: {error}"
        ) from error
    return connection


def _accepted(
    listener: socket.socket, token: bytes, lacking: Sequence[int], deadline: float
) -> tuple[int, socket.socket] | None:
    """The next of these ranks to connect; None where it is somebody else."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise DeadlineError(f"rank {lacking[0]} of another host did not connect by the deadline")
    listener.settimeout(left_s)
    with suppress(OSError, struct.error):
        connection, _ = listener.accept()
        with ExitStack() as undo:
            undo.callback(connection.close)
            given, peer = _HELLO.unpack(_hello(connection))
            if not secrets.compare_digest(given, token) or peer not in lacking:
                return None
            undo.pop_all()
            return peer, connection
    return None


def _hello(connection: socket.socket) -> bytes:
    """As much of it as comes in time."""
    end, said = time.monotonic() + _HELLO_S, b""
    while len(said) < _HELLO.size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        more = connection.recv(_HELLO.size - len(said))
        if not more:
            break
        said += more
    return said
