"""Runs a Program over TCP: a connection per queue, or two where it is staged.

A program has sites, and legs between them (:mod:`blinkccl.engines.sites`). A site executes the roles of each channel in
the order of their ticks, and passes on, in their order, the messages of queues that are staged there. Where sites run
does not matter here: :func:`run` has all of them in this process and connections on the loopback device, the laboratory
(:mod:`blinkccl.apps.lab`) has a process per site.

**How deep a queue is.** A sender holds up to ``slots`` messages that the system has not taken yet, so a queue holds at
least its slots, which is all that liveness needs. What lies in the two buffers of the connection comes on top, and
keeps the link busy while a site does something else; it is a few chunks only (``buffer_bytes``), so that trees which
share a link get it by their weights. TCP's own flow control holds back who is too fast: there are no credits.

**How far trees drift apart.** A channel may be a few ticks ahead of the others of its rank (``_TICKS_AHEAD``). In the
strict order of ticks one late message holds up all trees: an AllReduce of eight trees on 6 GPUs of a DGX-1P got 72 % of
its plan. With no order between channels some trees run ahead and leave links to others for later: 87 % of a broadcast
on a DGX-1V. With two ticks it is 97 and 96 %. Liveness is that of the strict order, which stays possible.

One thread per site and no locks: what has to wait for a connection is a generator, which the loop resumes when the
system says that the connection can go on. A message is received when a role asks for it, straight into an array of its
own, and sent from the array that the role computed.
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
#: How many ticks a channel may be ahead of the others of its rank.
_TICKS_AHEAD = 2
#: Small, so that queues are about as deep as they would be elsewhere.
_LOOPBACK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stall:
    """What a site waited for when it gave up: the next message of ``leg``, or that ``undelivered`` bytes get there."""

    leg: Leg
    undelivered: int
    words: str


class _End(ABC):
    """One end of a leg's connection. ``body`` waits for it, and ``what`` is the role and chunk that it is for."""

    #: Of which the system is to tell.
    events: ClassVar[int]

    def __init__(self, site: Site, leg: Leg, connection: socket.socket) -> None:
        self.site, self.leg, self.socket = site, leg, connection
        self.body: _Body | None = None
        self.what: tuple[Role, int] | None = None
        self.is_armed = False
        connection.setblocking(False)

    @property
    @abstractmethod
    def is_blocked(self) -> bool:
        """Whether a body that yields it has to wait."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What the site waits for here."""

    def _message(self) -> tuple[str, str]:
        if self.what is None:
            return "its messages", ""
        role, chunk = self.what
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
        """The next message, of ``length`` elements; None if it is not all here."""
        if self._arriving is None:
            self._arriving = np.empty(length, storage)
            self._rest = self._arriving.view(np.uint8).data
        while self._rest:
            try:
                got = self.socket.recv_into(self._rest)
            except BlockingIOError:
                # To be woken up when all is here and not for every packet; earlier where buffers are full.
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
    """The sender's end, with the messages that the system has not taken."""

    events = select.EPOLLOUT

    def __init__(self, site: Site, leg: Leg, connection: socket.socket) -> None:
        super().__init__(site, leg, connection)
        self._pending: deque[memoryview] = deque()

    @property
    def is_blocked(self) -> bool:
        return len(self._pending) >= self.leg.slots

    def put(self, value: Array) -> bool:
        """Sends a message, or as much as goes; whether something is left to be sent."""
        self._pending.append(value.view(np.uint8).data)
        return self.flush() if len(self._pending) == 1 else False  # else it is being waited for already

    def flush(self) -> bool:
        """Sends what goes; whether something is left."""
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
    """A call, sized: what all sites of it share."""

    bound: Bound
    values: Arithmetic

    @classmethod
    def of(cls, program: Program, call: CollectiveCall, scales: Sequence[float] | None, chunk_bytes: int) -> Work:
        """Refuses programs, types and operations that do not fit, before anything is sent."""
        values = Arithmetic.of(program.collective, call, scales)
        check_roles(program, relays=True)
        return cls(bind(program, call.elements, values.dtype.itemsize, chunk_bytes, even_chunks=True), values)


class _Pace:
    """Keeps the channels of a rank within some ticks of each other.

    Without it a tree that meets no other would run ahead, and leave links to those that do, later and alone. In the
    strict order of ticks, one message that is late would hold up all trees.
    """

    def __init__(self, channels: int) -> None:
        self._ticks: list[float] = [0] * channels
        self._waiting: list[_Body] = []
        self._ready: deque[_Body] = deque()

    def reach(self, channel: int, tick: float) -> None:
        """This channel is at this tick."""
        if tick > self._ticks[channel]:
            self._ticks[channel] = tick
            self._ready.extend(self._waiting)
            self._waiting.clear()

    def is_ahead(self, channel: int) -> bool:
        return self._ticks[channel] > min(self._ticks) + _TICKS_AHEAD

    def wait(self, body: _Body, ready: deque[_Body]) -> None:
        """``body`` goes on, by way of ``ready``, when another channel has reached a later tick."""
        self._waiting.append(body)
        self._ready = ready


class Site:
    """What one vertex does in a program, over its connections, which stay open from one execution to the next."""

    def __init__(self, sites: Sites, vertex: int, connections: Connections) -> None:
        self.sites, self.vertex, self.name = sites, vertex, sites.name(vertex)
        self.inlets = {leg.queue: _Inlet(self, leg, connections.incoming[leg.queue]) for leg in sites.incoming(vertex)}
        self.outlets = {
            leg.queue: _Outlet(self, leg, connections.outgoing[leg.queue]) for leg in sites.outgoing(vertex)
        }

    def bodies(self, work: Work, buffers: RankBuffers) -> list[_Body]:
        """Generators that do the site's part of ``work``. They yield an end that is to be served before they go on.

        That is an inlet whose message is not all here, or an outlet in which something is left, which they wait for
        only if it is full.
        """
        program = self.sites.program
        here = [role for role in program.roles if program.vertices[role.rank] == self.vertex]
        channels: dict[int, list[Role]] = {}
        for role in here:
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
        """The roles of one channel here: receive, combine, keep, send, as :mod:`blinkccl.schedule.program` says."""
        views = [role_views(work.bound, buffers, role, work.values) for role in roles]
        for place, chunk, span in work.bound.executions(roles):
            role, messages = roles[place], []
            pace.reach(channel, role.offset + chunk)
            while pace.is_ahead(channel):
                yield pace
            for queue in role.receives:
                inlet = self.inlets[queue]
                inlet.what = role, chunk
                while (message := inlet.take(span.stop - span.start, work.values.dtype.storage)) is None:
                    yield inlet
                messages.append(message)
            value = execute(role, views[place], span, messages, work.values)
            for queue in role.sends:
                yield from _put(self.outlets[queue], value, role, chunk)
        pace.reach(channel, inf)

    def _pass_on(self, work: Work, queue: int) -> Iterator[_End]:
        """The messages of a queue that is staged here, in the order in which its sender puts them in."""
        senders = [role for role in self.sites.program.roles if queue in role.sends]
        inlet, outlet = self.inlets[queue], self.outlets[queue]
        for place, chunk, span in work.bound.executions(senders):
            inlet.what = senders[place], chunk
            while (message := inlet.take(span.stop - span.start, work.values.dtype.storage)) is None:
                yield inlet
            yield from _put(outlet, message, senders[place], chunk)

    def stalls(self) -> list[Stall]:
        """What has not come, and what has not been confirmed by who gets it."""
        stalls = [Stall(end.leg, 0, end.words) for end in self.inlets.values() if end.body is not None]
        left = [(end, end.undelivered) for end in self.outlets.values()]
        return stalls + [Stall(end.leg, count, end.words) for end, count in left if count]


def _put(outlet: _Outlet, value: Array, role: Role, chunk: int) -> Iterator[_End]:
    while outlet.is_blocked:
        yield outlet
    outlet.what = role, chunk
    if outlet.put(value):
        yield outlet


#: What yields ends that are to be served before it goes on, or that others of its rank are to catch up with it.
_Body = Iterator["_End | _Pace"]
#: A file that may become readable while sites work, and what to do then, which may raise.
Watch = tuple[int, Callable[[], None]]


def drive(
    sites: Sequence[Site], work: Work, buffers: RankBuffers, deadline_s: float, watch: Watch | None = None
) -> None:
    """Does the parts of these sites, of which only ranks have ``buffers``, until all is done and sent.

    Raises StalledError at the deadline, and PeerLostError (CommunicationError for a relay) when a connection breaks;
    the connections are of no use then.
    """
    with ExitStack() as stack, np.errstate(all="ignore"):  # an overflow to inf is a result
        loop = _Loop(stack.enter_context(select.epoll()), sites, time.monotonic() + deadline_s, watch)
        loop.go([body for site in sites for body in site.bodies(work, buffers)])


class _Loop:
    """Resumes bodies when the connections that they wait for can go on."""

    def __init__(self, poll: select.epoll, sites: Sequence[Site], deadline: float, watch: Watch | None) -> None:
        self._poll, self._sites, self._deadline, self._watch = poll, sites, deadline, watch
        self._ends: dict[int, _End] = {}
        #: How many ends there are of which the system is to say when they can go on.
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
        """Waits, if something is armed, and returns the bodies that can go on."""
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
            f"past the deadline: {'; '.join(stall.words for stall in stalls[:3])}{more}. Are all ranks there, with the "
            "same call and chunk_bytes, is every link up, and is the deadline long enough for this size?",
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
    """Runs a collective once, all sites in this thread; see :class:`blinkccl.engines.registry.RunProgram`."""
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    work = Work.of(program, call, scales, chunk_bytes)
    sites = Sites(program)
    with ExitStack() as stack:
        connections = _on_loopback(sites, stack)
        drive([Site(sites, vertex, connections[vertex]) for vertex in sites.vertices], work, buffers, deadline_s)
    return list(buffers.outputs)


def _on_loopback(sites: Sites, stack: ExitStack) -> dict[int, Connections]:
    """Every site's connections, all in this process; ``stack`` closes them."""
    found: dict[int, tuple[dict[int, socket.socket], dict[int, socket.socket]]] = {v: ({}, {}) for v in sites.vertices}
    with listen("127.0.0.1") as listener:
        for leg in sites.legs:
            sender = stack.enter_context(socket.create_connection(listener.getsockname()))
            receiver = stack.enter_context(listener.accept()[0])
            found[leg.path[0]][0][leg.queue] = prepare(sender, _LOOPBACK_BYTES)
            found[leg.path[-1]][1][leg.queue] = prepare(receiver, _LOOPBACK_BYTES)
    return {vertex: Connections(*both) for vertex, both in found.items()}
