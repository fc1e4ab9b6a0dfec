"""Execution of a Program over TCP: one connection per queue, or two if the queue is staged.

A program has sites, and legs between them (:mod:`blinkccl.engines.sites`). A site executes the roles of each channel in
the order of their ticks. It also forwards, in order, the messages of queues that are staged there. :func:`run` has all
sites in this process, with connections on the loopback device; the laboratory (:mod:`blinkccl.apps.lab`) has one
process per site.

**Depth of a queue.** A sender holds up to ``slots`` messages that the system has not accepted yet. A queue thus holds
at least its slots, and liveness needs no more. The two buffers of the connection hold a few more chunks
(``buffer_bytes``) and keep the link busy while a site does other work. They are small, so trees that share a link get
it by their weights. TCP's flow control slows fast senders: there are no credits.

**Distance between channels.** A channel may be a few ticks ahead of the others of its rank (``_TICKS_AHEAD``). In the
strict order of ticks one late message delays all trees: an AllReduce of eight trees on 6 GPUs of a DGX-1P reached 72 %
of its plan. Without an order between channels, some trees run ahead and the others use the links later: a broadcast on
a DGX-1V reached 87 %. With two ticks it is 97 % and 96 %. The strict order stays possible, so liveness is the same.

A site has one thread and no locks. Generators do the work and yield the connections that they wait for; the loop
resumes them when epoll reports these ready. A message is received into an array of its own when a role needs it, and
sent from the array that the role computed.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fcntl import ioctl
from math import inf
from termios import TIOCOUTQ
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.buffers import Arithmetic, RankBuffers, check_roles, execute, filled, role_views
from blinkccl.engines.sites import Connections, Leg, Sites, listen, prepare
from blinkccl.errors import CommunicationError, PeerLostError, StalledError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Role

Array = NDArray[Any]
#: The most ticks by which a channel may be ahead of the others of its rank.
_TICKS_AHEAD = 2
#: Size of a connection's buffers; small, so queues are about as deep as on a network.
_LOOPBACK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stall:
    """A wait that passed the deadline: for the next message of ``leg``, or for delivery of ``undelivered`` bytes."""

    leg: Leg
    undelivered: int
    words: str


class _End(ABC):
    """One end of a leg's connection. ``body`` waits for it; ``execution`` is the role and chunk of the message."""

    #: The epoll events to wait for.
    events: ClassVar[int]

    def __init__(self, site: Site, leg: Leg, connection: socket.socket) -> None:
        self.site, self.leg, self.socket = site, leg, connection
        self.body: _Body | None = None
        self.execution: tuple[Role, int] | None = None
        self.is_armed = False
        connection.setblocking(False)

    @property
    @abstractmethod
    def is_blocked(self) -> bool:
        """True if a body that yields this end has to wait."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The site's wait at this end, as a sentence for errors."""

    def _message(self) -> tuple[str, str]:
        if self.execution is None:
            return "its messages", ""
        role, chunk = self.execution
        return f"chunk {chunk} of channel {role.channel}", f" ({role.stage} of share {role.share})"


class _Inlet(_End):
    """The receiver's end."""

    events = select.EPOLLIN
    is_blocked = True

    def __init__(self, site: Site, leg: Leg, connection: socket.socket) -> None:
        super().__init__(site, leg, connection)
        self._arriving: Array | None = None
        self._rest = memoryview(b"")

    def take(self, length: int, storage: np.dtype[Any]) -> Array | None:
        """Return the next message, of ``length`` elements, or None if it is not complete."""
        if self._arriving is None:
            self._arriving = np.empty(length, storage)
            self._rest = self._arriving.view(np.uint8).data
        while self._rest:
            try:
                got = self.socket.recv_into(self._rest)
            except BlockingIOError:
                # Wake up for the complete message, not for every packet; earlier if buffers are full.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(self._rest))
                return None
            except OSError as error:
                raise _lost(self, error) from error
            if not got:
                raise _lost(self, ConnectionResetError(0, "the connection was closed"))
            self._rest = self._rest[got:]
        message, self._arriving = self._arriving, None
        return message

    @property
    def words(self) -> str:
        message, share = self._message()
        sender = self.site.sites.name(self.leg.path[0])
        return f"{self.site.name} waits for {message} from {sender} over {self.leg.way}{share}"


class _Outlet(_End):
    """The sender's end, with the messages that the system has not accepted."""

    events = select.EPOLLOUT

    def __init__(self, site: Site, leg: Leg, connection: socket.socket) -> None:
        super().__init__(site, leg, connection)
        self._pending: deque[memoryview] = deque()

    @property
    def is_blocked(self) -> bool:
        return len(self._pending) >= self.leg.slots

    def put(self, value: Array) -> bool:
        """Send as much of a message as the system accepts; True if a new wait for the rest is needed."""
        self._pending.append(value.view(np.uint8).data)
        return self.flush() if len(self._pending) == 1 else False  # else the end is waiting already

    def flush(self) -> bool:
        """Send as much as the system accepts; True if bytes are left."""
        while self._pending:
            rest = self._pending[0]
            try:
                sent = self.socket.send(rest)
            except BlockingIOError:
                return True
            except OSError as error:
                raise _lost(self, error) from error
            if sent < len(rest):
                self._pending[0] = rest[sent:]
                return True
            self._pending.popleft()
        return False

    @property
    def undelivered(self) -> int:
        """Bytes that the other end has not confirmed."""
        held = struct.unpack("i", ioctl(self.socket, TIOCOUTQ, bytes(4)))[0]
        return sum(map(len, self._pending)) + int(held)

    @property
    def words(self) -> str:
        message, share = self._message()
        receiver = self.site.sites.name(self.leg.path[-1])
        return f"{self.site.name} cannot send {message} to {receiver} over {self.leg.way}{share}"


def _lost(end: _End, error: OSError) -> CommunicationError:
    """The error for a connection that broke."""
    sites, path = end.site.sites, end.leg.path
    peer = path[0] if isinstance(end, _Inlet) else path[-1]
    words = f"{end.words}: {error.strerror or error}"
    if peer in sites.program.ranks:
        return PeerLostError(sites.program.ranks.index(peer), words)
    return CommunicationError(f"{sites.name(peer)} was lost: {words}")


@dataclass(frozen=True)
class Work:
    """A call and its chunks, shared by all its sites."""

    bound: Bound
    values: Arithmetic

    @classmethod
    def of(cls, program: Program, call: CollectiveCall, scales: Sequence[float] | None, chunk_bytes: int) -> Work:
        """Check program, type and operation before anything is sent; errors of Arithmetic, check_roles and bind."""
        values = Arithmetic.of(program.collective, call, scales)
        check_roles(program, relays=True)
        return cls(bind(program, call.elements, values.dtype.itemsize, chunk_bytes, even_chunks=True), values)


class _Pace:
    """A limit on the ticks between the channels of a rank (the module says why)."""

    def __init__(self, channels: int) -> None:
        self._ticks: list[float] = [0] * channels
        self._waiting: list[_Body] = []
        self._ready: deque[_Body] = deque()

    def reach(self, channel: int, tick: float) -> None:
        """Record the tick of a channel, and make waiting bodies ready if it is a later one."""
        if tick > self._ticks[channel]:
            self._ticks[channel] = tick
            self._ready.extend(self._waiting)
            self._waiting.clear()

    def is_ahead(self, channel: int) -> bool:
        return self._ticks[channel] > min(self._ticks) + _TICKS_AHEAD

    def wait(self, body: _Body, ready: deque[_Body]) -> None:
        """Append ``body`` to ``ready`` when another channel has reached a later tick."""
        self._waiting.append(body)
        self._ready = ready


class Site:
    """One vertex of a program, with connections that stay open between executions."""

    def __init__(self, sites: Sites, vertex: int, connections: Connections) -> None:
        self.sites, self.vertex, self.name = sites, vertex, sites.name(vertex)
        self.inlets = {leg.queue: _Inlet(self, leg, connections.incoming[leg.queue]) for leg in sites.incoming(vertex)}
        self.outlets = {
            leg.queue: _Outlet(self, leg, connections.outgoing[leg.queue]) for leg in sites.outgoing(vertex)
        }

    def bodies(self, work: Work, buffers: RankBuffers) -> list[_Body]:
        """Generators that do the site's part of ``work``. They yield an end that has to be served before they continue.

        An inlet is yielded while its message is incomplete. An outlet is yielded while bytes are left in it, but the
        generator waits only if the outlet is full.
        """
        program = self.sites.program
        channels: dict[int, list[Role]] = {}
        for role in program.roles:
            if program.vertices[role.rank] == self.vertex:
                channels.setdefault(role.channel, []).append(role)
        staged = [queue for queue in self.inlets if queue in self.outlets]
        pace = _Pace(len(channels))
        return [
            *(self._execute(work, buffers, roles, pace, place) for place, roles in enumerate(channels.values())),
            *(self._pass_on(work, queue) for queue in staged),
        ]

    def _execute(
        self, work: Work, buffers: RankBuffers, roles: Sequence[Role], pace: _Pace, channel: int
    ) -> Iterator[_End | _Pace]:
        """Execute this site's roles of one channel: receive, reduce, keep, send (:mod:`blinkccl.schedule.program`)."""
        views = [role_views(work.bound, buffers, role, work.values) for role in roles]
        for place, chunk, span in work.bound.executions(roles):
            role, messages = roles[place], []
            pace.reach(channel, role.offset + chunk)
            while pace.is_ahead(channel):
                yield pace
            for queue in role.receives:
                inlet = self.inlets[queue]
                inlet.execution = role, chunk
                while (message := inlet.take(span.stop - span.start, work.values.dtype.storage)) is None:
                    yield inlet
                messages.append(message)
            value = execute(role, views[place], span, messages, work.values)
            for queue in role.sends:
                yield from _put(self.outlets[queue], value, role, chunk)
        pace.reach(channel, inf)

    def _pass_on(self, work: Work, queue: int) -> Iterator[_End]:
        """Forward the messages of a queue that is staged here, in the sender's order."""
        senders = [role for role in self.sites.program.roles if queue in role.sends]
        inlet, outlet = self.inlets[queue], self.outlets[queue]
        for place, chunk, span in work.bound.executions(senders):
            inlet.execution = senders[place], chunk
            while (message := inlet.take(span.stop - span.start, work.values.dtype.storage)) is None:
                yield inlet
            yield from _put(outlet, message, senders[place], chunk)

    def stalls(self) -> list[Stall]:
        """Waits for messages that have not come, and for bytes that the receiver has not confirmed."""
        stalls = [Stall(end.leg, 0, end.words) for end in self.inlets.values() if end.body is not None]
        left = [(end, end.undelivered) for end in self.outlets.values()]
        return stalls + [Stall(end.leg, count, end.words) for end, count in left if count]


def _put(outlet: _Outlet, value: Array, role: Role, chunk: int) -> Iterator[_End]:
    while outlet.is_blocked:
        yield outlet
    outlet.execution = role, chunk
    if outlet.put(value):
        yield outlet


#: A generator that yields an end to be served before it continues, or a pace if it is ahead of its rank's channels.
_Body = Iterator["_End | _Pace"]
#: A file that may become readable while sites work, and the function to call then, which may raise.
Watch = tuple[int, Callable[[], None]]


def drive(
    sites: Sequence[Site], work: Work, buffers: RankBuffers, deadline_s: float, watch: Watch | None = None
) -> None:
    """Do the parts of these sites until all data is sent; only ranks have ``buffers``.

    StalledError after the deadline; PeerLostError (CommunicationError for a relay) if a connection breaks. The
    connections cannot be used again after an error.
    """
    with ExitStack() as stack, np.errstate(all="ignore"):  # an overflow to inf is a result
        loop = _Loop(stack.enter_context(select.epoll()), sites, time.monotonic() + deadline_s, watch)
        loop.go([body for site in sites for body in site.bodies(work, buffers)])


class _Loop:
    """Resumes bodies when the connections that they wait for are ready."""

    def __init__(self, poll: select.epoll, sites: Sequence[Site], deadline: float, watch: Watch | None) -> None:
        self._poll, self._sites, self._deadline, self._watch = poll, sites, deadline, watch
        self._ends: dict[int, _End] = {}
        #: The number of ends that epoll watches.
        self._armed = 0
        if watch is not None:
            poll.register(watch[0], select.EPOLLIN)

    def go(self, bodies: Sequence[_Body]) -> None:
        ready = deque(bodies)
        while ready or self._armed:
            while ready:
                body = ready.popleft()
                end = next(body, None)
                if end is None:
                    continue
                if isinstance(end, _Pace):
                    end.wait(body, ready)
                    continue
                self._arm(end)
                if end.is_blocked:
                    end.body = body
                else:
                    ready.appendleft(body)
            ready.extend(self._served())

    def _arm(self, end: _End) -> None:
        if end.is_armed:
            return
        end.is_armed = True
        self._armed += 1
        number = end.socket.fileno()
        if number not in self._ends:
            self._ends[number] = end
            self._poll.register(number, end.events | select.EPOLLONESHOT)
        else:
            self._poll.modify(number, end.events | select.EPOLLONESHOT)

    def _served(self) -> Iterator[_Body]:
        """Wait for the armed ends, if any; yield the bodies that can continue."""
        left = self._deadline - time.monotonic()
        events = self._poll.poll(max(0.0, left)) if self._armed else []
        if left <= 0 and self._armed:
            raise self._stalled()
        for number, _ in events:
            if self._watch is not None and number == self._watch[0]:
                self._watch[1]()
                continue
            end = self._ends[number]
            end.is_armed = False
            self._armed -= 1
            if isinstance(end, _Outlet) and end.flush():
                self._arm(end)
            if end.body is not None and not (isinstance(end, _Outlet) and end.is_blocked):
                body, end.body = end.body, None
                yield body

    def _stalled(self) -> StalledError:
        stalls = [stall for site in self._sites for stall in site.stalls()]
        more = f"; and {len(stalls) - 3} more" if len(stalls) > 3 else ""
        return StalledError(
            f"past the deadline: {'; '.join(stall.words for stall in stalls[:3])}{more}; check that every rank runs, "
            "with the same call and chunk_bytes, that every link is up, and that the deadline suits the size",
            stalls,
        )


def run(
    program: Program,
    inputs: Sequence[Array | None],
    call: CollectiveCall,
    *,
    scales: Sequence[float] | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
) -> list[Array | None]:
    """Run a collective once, all sites in this thread; see :class:`blinkccl.engines.registry.RunProgram`."""
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    work = Work.of(program, call, scales, chunk_bytes)
    sites = Sites(program)
    with ExitStack() as stack:
        connections = _on_loopback(sites, stack)
        drive([Site(sites, vertex, connections[vertex]) for vertex in sites.vertices], work, buffers, deadline_s)
    return list(buffers.outputs)


def _on_loopback(sites: Sites, stack: ExitStack) -> dict[int, Connections]:
    """Every site's connections, all in this process; ``stack`` closes them."""
    pairs: dict[int, tuple[dict[int, socket.socket], dict[int, socket.socket]]] = {v: ({}, {}) for v in sites.vertices}
    with listen("127.0.0.1") as listener:
        for leg in sites.legs:
            sender = stack.enter_context(socket.create_connection(listener.getsockname()))
            receiver = stack.enter_context(listener.accept()[0])
            pairs[leg.path[0]][0][leg.queue] = prepare(sender, _LOOPBACK_BYTES)
            pairs[leg.path[-1]][1][leg.queue] = prepare(receiver, _LOOPBACK_BYTES)
    return {vertex: Connections(*pair) for vertex, pair in pairs.items()}
