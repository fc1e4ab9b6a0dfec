"""Where a program is executed, and the TCP connections between: what engine ``sockets`` and the laboratory agree on.

A program's *sites* are the vertices where something is done: its ranks, its relays, and the homes of staged queues. A
*leg* is the part of a queue from one site to the next; each has a connection of its own, from its sender to its
receiver, who is told which by its caller's first words.
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

#: Says which leg a connection is for: hash of the program, queue and half.
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
    """Where a program's roles and staged queues are, and the legs between."""

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
        """The vertices where something is done: ranks, relays, other homes of staged queues."""
        homes = sorted({queue.home for queue in self.program.queues if queue.is_staged} - {*self.program.vertices})
        return self.program.vertices + tuple(homes)

    def outgoing(self, vertex: int) -> list[Leg]:
        """The legs that begin at ``vertex``."""
        return [leg for leg in self.legs if leg.path[0] == vertex]

    def incoming(self, vertex: int) -> list[Leg]:
        """The legs that end at ``vertex``."""
        return [leg for leg in self.legs if leg.path[-1] == vertex]

    def name(self, vertex: int) -> str:
        """What people call the site."""
        if vertex in self.program.ranks:
            return f"rank {self.program.ranks.index(vertex)}"
        return f"the relay at vertex {vertex}"


@dataclass(frozen=True, slots=True)
class Connections:
    """A site's connections: per queue that begins or ends here, and both for one that is staged here."""

    outgoing: Mapping[int, socket.socket]
    incoming: Mapping[int, socket.socket]

    def close(self) -> None:
        for connection in (*self.outgoing.values(), *self.incoming.values()):
            connection.close()


def listen(host: str = "", port: int = 0) -> socket.socket:
    """Where a site's connections come in."""
    return socket.create_server((host, port), backlog=4096)


def prepare(connection: socket.socket, buffer_bytes: int) -> socket.socket:
    """Sets what a connection needs: no delay, and about ``buffer_bytes`` of messages in each of its two buffers."""
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
    """The connections of a site, all of whose peers do the same: out to ``address_of`` legs, in by ``listener``.

    Raises DeadlineError with the legs that are missing, PlanMismatchError where a peer has another program, and
    CommunicationError where nobody listens or no route leads there.
    """
    deadline = time.monotonic() + deadline_s
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}
    me, mine = sites.name(vertex), program_hash(sites.program).encode()
    wanted = {(leg.queue, leg.half): leg for leg in sites.incoming(vertex)}
    try:
        for leg in sites.outgoing(vertex):
            outgoing[leg.queue] = _call(me, sites, leg, address_of(leg), deadline)
            prepare(outgoing[leg.queue], buffer_bytes).sendall(_HELLO.pack(mine, leg.queue, leg.half))
        while wanted:
            try:
                connection, key, theirs = _called(listener, deadline)
            except TimeoutError:
                absent = ", ".join(f"{sites.name(leg.path[0])} over {leg.way}" for leg in wanted.values())
                raise DeadlineError(f"{me} waited past the deadline for connections from {absent}") from None
            if theirs != mine or key not in wanted:
                connection.close()
                raise PlanMismatchError(f"{me} was called by a site with another program; give all one")
            del wanted[key]
            incoming[key[0]] = prepare(connection, buffer_bytes)
    except BaseException:
        Connections(outgoing, incoming).close()
        raise
    return Connections(outgoing, incoming)


def _called(listener: socket.socket, deadline: float) -> tuple[socket.socket, tuple[int, int], bytes]:
    """The next connection, which leg it is for, by queue and half, and the hash of its caller's program."""
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    connection, _ = listener.accept()
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        said = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        program, queue, half = _HELLO.unpack(said) if len(said) == _HELLO.size else (b"", 0, 0)
    except BaseException:
        connection.close()
        raise
    return connection, (queue, half), program


def _call(me: str, sites: Sites, leg: Leg, address: tuple[str, int], deadline: float) -> socket.socket:
    """Connects to a leg's receiver, which may begin to listen later."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection(address, max(0.001, left))
        except OSError as error:
            if left <= 0 or not isinstance(error, ConnectionRefusedError):
                kind = DeadlineError if left <= 0 or isinstance(error, TimeoutError) else CommunicationError
                peer = sites.name(leg.path[-1])
                raise kind(f"{me} cannot connect to {peer} over {leg.way} at {address[0]}: {error}") from error
            time.sleep(0.02)
