"""Sites of a program and their TCP connections, shared by engine ``sockets`` and the laboratory.

A program's *sites* are the vertices with work: its ranks, its relays, and the homes of staged queues. A *leg* is the
part of a queue from one site to the next. Every leg has a connection from its sender to its receiver, and the first
message on it names the leg.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from blinkccl.errors import CommunicationError, DeadlineError, PlanMismatchError
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import program_hash

#: First message of a connection, which names its leg: hash of the program, queue and half.
_HELLO = struct.Struct("!16sII")


@dataclass(frozen=True, slots=True)
class Leg:
    """The part ``half`` (0, or 1 behind its home) of a queue, from one site to another along ``path`` (vertex ids)."""

    queue: int
    half: int
    path: tuple[int, ...]
    slots: int

    @property
    def way(self) -> str:
        return " → ".join(map(str, self.path))


@dataclass(frozen=True)
class Sites:
    """The sites of a program's roles and staged queues, and the legs between them."""

    program: Program

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """Every queue's legs, in the order of the queues and of the data."""
        slots = {
            queue: self.program.channels[role.channel].slots for role in self.program.roles for queue in role.sends
        }
        return tuple(
            Leg(index, half, path, slots.get(index, 1))
            for index, queue in enumerate(self.program.queues)
            for half, path in enumerate(queue.legs)
        )

    @cached_property
    def vertices(self) -> tuple[int, ...]:
        """The vertices with work: ranks, relays, other homes of staged queues."""
        homes = sorted({queue.home for queue in self.program.queues if queue.is_staged} - {*self.program.vertices})
        return self.program.vertices + tuple(homes)

    def outgoing(self, vertex: int) -> list[Leg]:
        """The legs that begin at ``vertex``."""
        return [leg for leg in self.legs if leg.path[0] == vertex]

    def incoming(self, vertex: int) -> list[Leg]:
        """The legs that end at ``vertex``."""
        return [leg for leg in self.legs if leg.path[-1] == vertex]

    def name(self, vertex: int) -> str:
        """The site's name in messages."""
        if vertex in self.program.ranks:
            return f"rank {self.program.ranks.index(vertex)}"
        return f"the relay at vertex {vertex}"


@dataclass(frozen=True, slots=True)
class Connections:
    """A site's connections, by queue: ``outgoing``, ``incoming``, and both for a queue that is staged here."""

    outgoing: Mapping[int, socket.socket]
    incoming: Mapping[int, socket.socket]

    def close(self) -> None:
        for connection in (*self.outgoing.values(), *self.incoming.values()):
            connection.close()


def listen(host: str = "", port: int = 0) -> socket.socket:
    """The listening socket of a site."""
    return socket.create_server((host, port), backlog=4096)


def prepare(connection: socket.socket, buffer_bytes: int) -> socket.socket:
    """Set TCP_NODELAY and about ``buffer_bytes`` of send and receive buffer on a connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return connection


def connect(
    sites: Sites,
    vertex: int,
    listener: socket.socket,
    address_of: Callable[[Leg], tuple[str, int]],
    deadline_s: float,
    buffer_bytes: int,
) -> Connections:
    """Connect a site to all its peers, which do the same: out to ``address_of`` legs, in through ``listener``.

    DeadlineError with the missing legs, PlanMismatchError if a peer has another program, CommunicationError if no
    process listens or no route exists.
    """
    deadline = time.monotonic() + deadline_s
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}
    own_name, own_hash = sites.name(vertex), program_hash(sites.program).encode()
    missing = {(leg.queue, leg.half): leg for leg in sites.incoming(vertex)}
    try:
        for leg in sites.outgoing(vertex):
            outgoing[leg.queue] = _call(own_name, sites, leg, address_of(leg), deadline)
            prepare(outgoing[leg.queue], buffer_bytes).sendall(_HELLO.pack(own_hash, leg.queue, leg.half))
        while missing:
            try:
                connection, key, peer_hash = _called(listener, deadline)
            except TimeoutError:
                absent = ", ".join(f"{sites.name(leg.path[0])} over {leg.way}" for leg in missing.values())
                raise DeadlineError(f"{own_name} waited past the deadline for connections from {absent}") from None
            if peer_hash != own_hash or key not in missing:
                connection.close()
                raise PlanMismatchError(f"{own_name}: a peer has another program; start all with the same program")
            del missing[key]
            incoming[key[0]] = prepare(connection, buffer_bytes)
    except BaseException:
        Connections(outgoing, incoming).close()
        raise
    return Connections(outgoing, incoming)


def _called(listener: socket.socket, deadline: float) -> tuple[socket.socket, tuple[int, int], bytes]:
    """The next connection, its leg (queue, half), and the hash of its caller's program."""
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    connection, _ = listener.accept()
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        program, queue, half = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", 0, 0)
    except BaseException:
        connection.close()
        raise
    return connection, (queue, half), program


def _call(own_name: str, sites: Sites, leg: Leg, address: tuple[str, int], deadline: float) -> socket.socket:
    """Connect to a leg's receiver, which may begin to listen later."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection(address, max(0.001, left))
        except OSError as error:
            if left <= 0 or not isinstance(error, ConnectionRefusedError):
                kind = DeadlineError if left <= 0 or isinstance(error, TimeoutError) else CommunicationError
                peer = sites.name(leg.path[-1])
                raise kind(f"{own_name} cannot connect to {peer} over {leg.way} at {address[0]}: {error}") from error
            time.sleep(0.02)
