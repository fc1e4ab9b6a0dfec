"""A group of ranks on several hosts, with the interface of :class:`HostGroup`.

Ranks of one host share memory, ranks of different hosts send each other messages over UCX; a Program runs on both kinds
of queue. On a stated topology, each cable between hosts is a rail: a network of its own. A thread of each rank watches
the others (:mod:`~blinkccl.runtime.monitor`) and reports the first failure.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host import NativeOp
from blinkccl.engines.host_plan import Area
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
    TopologyError,
    UnsupportedError,
    UsageError,
    ranks_text,
)
from blinkccl.runtime import timeline, ucx
from blinkccl.runtime.addresses import own_addresses, own_interfaces
from blinkccl.runtime.bootstrap import Bootstrap, join, part
from blinkccl.runtime.deterministic import wish
from blinkccl.runtime.group import BARRIER, Group, PreparedCall
from blinkccl.runtime.host_group import HostGroup, share_memory
from blinkccl.runtime.host_table import Crossing
from blinkccl.runtime.hosts import MEASURE, NOWHERE, VARIABLE, Cost, Hosts, Place, Route, busiest_part, routes, selected
from blinkccl.runtime.monitor import VERDICT_S, Monitor, lost
from blinkccl.runtime.peer_info import same_host
from blinkccl.runtime.point_to_point import PointToPoint
from blinkccl.runtime.rails import devices, for_all, interfaces_of_rails, rails_from
from blinkccl.runtime.store import Store
from blinkccl.runtime.timeouts import default_timeout_s, positive_number
from blinkccl.trees.forest.model import topology_hash

_RATE = "BLINK_NIC_GBITS"
#: Sizes in bytes and repetitions of the test messages between the first two hosts.
_PROBES = ((8, 20), (256 << 10, 10))
#: Seconds between two looks at the monitor of another group.
_LOOK_S = 0.02
#: Cost until the test messages have been measured.
_UNKNOWN = Cost(5e-5, 1e9)
_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class SpanningGroup(HostGroup):
    """One rank's end of a group on several hosts, with the calls and errors of :class:`HostGroup`.

    ``bootstrap``, in which the ranks have met, becomes this group's. ``deadline_s`` is the timeout of the creation, and
    of calls without one. ``place`` is the job's topology. TopologyError on all ranks if it does not match the hosts.
    ``look`` raises if the group that this one is a part of has lost a rank.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        rank: int,
        *,
        prefix: str,
        deadline_s: float,
        place: Place = NOWHERE,
        look: Callable[[], None] | None = None,
    ) -> None:
        Group.__init__(self, bootstrap, rank, prefix, deadline_s)
        self.hosts = Hosts.of([peer.host for peer in bootstrap.peers])
        self.place = place
        self.cost = _UNKNOWN
        self._area, self._crossing = Area(), Crossing.NEVER
        self._begun = 0
        self._made, self._look = False, look
        self._monitor = Monitor(bootstrap, rank, self._fail)
        deadline = time.monotonic() + deadline_s
        try:
            self._connect(deadline)
            self._open()
            self.barrier()
            self.cost = self._measured()
            self._endpoint.send_at_once(self.cost.bytes_at_once)
            self._endpoint.count_from_here()
            self._monitor.own = self._begun
            self._monitor.agree(b"", deadline)  # a failure of the others' first call does not end this rank's creation
        except BaseException as error:
            raised = error if isinstance(error, BlinkError) else CommunicationError(f"{type(error).__name__}: {error}")
            if isinstance(error, PeerLostError):
                raised = self._unreached(error)
            cause = self._monitor.settle(raised, tell=True)
            self.close()
            if cause is error:
                raise
            raise cause from error

    def _connect(self, deadline: float) -> None:
        host = self.hosts.host_of[self.rank]
        members = self.hosts.members[host]
        look = self._monitor.check
        with (
            _in_ranks_of_all(members),
            part(lambda word: self._monitor.agree(word, deadline), members, self.rank, deadline, look) as met,
        ):
            self._memory = share_memory(met, members, self.rank, self.size, self._area, deadline, with_bells=True)
        self._made = True
        self._endpoint = self._memory.endpoint
        self._timeline = timeline.start(self._endpoint, os.environ)
        self._streams = PointToPoint(
            self._endpoint, self.rank, self.size, self.timeout_s, self._first_cause, self._routes
        )
        rails = self._rails(deadline)
        words = self._exchanged(lambda: _Word(self._addresses(rails)), deadline)
        for rank, word in enumerate(words):
            if rank in members:
                self._endpoint.set_bell(rank, self._memory.bells[rank])
            else:
                self._endpoint.connect(rank, word.addresses[0])
        for rail, other in rails.items():
            for rank in self.hosts.members[other]:
                self._endpoint.connect(rank, words[rank].addresses[rail], rail)
        if rails and len(self.hosts.members) > 2:
            self._streams.forward()
        for rank in sorted(set(range(self.size)).difference(members)):
            try:
                self._streams.flush(rank, deadline)
            except DeadlineError as error:
                raise DeadlineError(self._no_way_to(rank)) from error

    def _routes(self, dst: int) -> tuple[Route, ...]:
        """The routes of large messages to a rank; () for the direct one alone."""
        home = self.hosts.host_of
        return () if self.hosts.stated is None or home[self.rank] == home[dst] else routes(self.hosts, self.rank, dst)

    def _rails(self, deadline: float) -> dict[int, int]:
        """The rails of this host, each with the host at its other end; afterwards ``hosts`` has the topology."""
        place, topology = self.place, self.place.topology
        mine = _Word(interfaces=own_interfaces(os.environ.get("UCX_NET_DEVICES", "")))
        if topology is not None:
            mine.topology, mine.name = topology_hash(topology), topology.name
        elif place.measure:
            mine.topology, mine.name = MEASURE, "its measured links"
        words = self._exchanged(lambda: mine, deadline)
        if len({word.topology for word in words}) > 1:
            other = next(rank for rank, word in enumerate(words) if word.topology != words[0].topology)
            each = [f"rank {rank} on {self.peers[rank].hostname} has {_named(words[rank])}" for rank in (0, other)]
            raise TopologyError(
                f"the ranks state different topologies: {' and '.join(each)}; give all ranks the same, in {VARIABLE} "
                "or blinkccl.init(topo=…)"
            )
        first = [ranks[0] for ranks in self.hosts.members]
        names = [self.peers[rank].hostname for rank in first]
        self.interfaces = [words[rank].interfaces for rank in first]
        if topology is None:
            return {}
        hosts, interfaces = self.hosts.on(topology, names, place.vertices), place.interfaces
        servers, own = [topology.vertex[hosts.ranks[rank]].server for rank in first], hosts.host_of[self.rank]
        if not place.vertices:
            interfaces = interfaces_of_rails(topology, servers, self.interfaces, names)[own]
        elif not self._plans_on(hosts):
            return {}
        self.hosts, self.place = hosts, Place(topology, hosts.ranks, interfaces)
        others = rails_from(topology, servers[own])
        return {rail: servers.index(other) for rail, other in others.items() if other in servers}

    def _addresses(self, rails: Iterable[int]) -> dict[int, bytes]:
        """This rank's address on each rail."""
        own, cables = self.hosts.host_of[self.rank], self.place.interfaces
        names = for_all(self.interfaces, own, cables.values())
        rest, library = ",".join(map(devices, names)), ucx.find()
        try:
            addresses = {0: self._endpoint.open_network(library, self._memory.bells[self.rank], rest)}
            return addresses | {rail: self._endpoint.open_rail(rail, devices(cables[rail]), True) for rail in rails}
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; {ucx.ANOTHER}") from error
        except CommunicationError as error:
            raise UnsupportedError(f"{error}; {ucx.networks_of(library)}") from error

    def _unreached(self, error: PeerLostError) -> BlinkError:
        """The cause of a connection that broke while the group was made: an ended rank, or one out of UCX's reach."""
        cause = self._monitor.settle(error, tell=False)
        if cause is not error:
            return cause
        return CommunicationError(self._no_way_to(error.rank))

    def _no_way_to(self, rank: int) -> str:
        own, other = (self.peers[each].hostname for each in (self.rank, rank))
        return (
            f"rank {self.rank} on {own} does not reach rank {rank} on {other}, which has not hung up; "
            f"{ucx.networks_of(ucx.find())}"
        )

    def _plans_on(self, hosts: Hosts) -> bool:
        """True if a part of the job has a plan on the job's topology; otherwise UCX selects its networks."""
        try:
            selected(hosts, Collective("allreduce", self.size), 1, self.cost, self._area, False)
        except BlinkError as error:
            _log.warning("group %s does not use the topology: %s", self.prefix, error)
            return False
        return True

    def _exchanged(self, word: Callable[[], _Word], deadline: float) -> list[_Word]:
        """The words of all ranks; UnsupportedError on all ranks if one cannot say its own."""
        try:
            mine = word()
        except BlinkError as error:
            mine = _Word(problem=str(error))
        words = [_Word.decode(data) for data in self._monitor.agree(mine.encode(), deadline)]
        for rank, each in enumerate(words):
            if each.problem:
                raise UnsupportedError(f"rank {rank} on {self.peers[rank].hostname}: {each.problem}")
        return words

    def _measured(self) -> Cost:
        """The least cost of messages between the first two hosts; :data:`_RATE`, if set, states the rate."""
        first, second = (members[0] for members in self.hosts.members[:2])
        word, data = np.zeros(1), np.zeros(_PROBES[-1][0], np.uint8)
        at = int(data.ctypes.data)
        seconds = []
        for nbytes, times in _PROBES:
            call = CollectiveCall("sendrecv", "uint8", nbytes, root=first, dst=second)
            took = self.time(call, at, at, times, with_barrier=True)
            word[0] = np.min(took) if self.rank == second else 0.0
            self.run(CollectiveCall("allreduce", "float64", 1, "max"), int(word.ctypes.data), int(word.ctypes.data))
            seconds.append(float(word[0]))
        message_s = max(1e-6, seconds[0] / 2)
        gbits = positive_number(_RATE, "gigabits per second")
        program = selected(self.hosts, call.among(self.size), nbytes, self.cost, self._area, False)[0].program
        carried = _PROBES[-1][0] * busiest_part(program, self.hosts)
        rate = carried / max(1e-6, seconds[-1] - seconds[0]) if gbits is None else gbits * 1e9 / 8
        word[0] = rate
        self.run(CollectiveCall("allreduce", "float64", 1, "min"), int(word.ctypes.data), int(word.ctypes.data))
        return Cost(message_s, float(word[0]))

    # ---- collectives

    def _prepare(self, call: CollectiveCall) -> PreparedCall:
        collective = call.among(self.size)
        nbytes = call.elements * element_type(call.dtype).itemsize * collective.total_blocks()
        plan, chunk_bytes = selected(self.hosts, collective, nbytes, self.cost, self._area, bool(self.deterministic))
        return _WatchedCall(self, NativeOp(self._endpoint, plan, call, chunk_bytes))

    def time(
        self,
        call: CollectiveCall | NativeOp,
        send: int | None,
        recv: int | None,
        iterations: int = 1,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """See :meth:`Group.time`; the loop is in C."""
        prepared = call if isinstance(call, NativeOp) else self._watched(call).op
        with self._executor.lock:
            return self.explained(
                str(prepared.call),
                lambda: prepared.time(
                    self._watched(BARRIER).op, send, recv, iterations, self._timeout_us, with_barrier
                ),
            )

    def run_prepared(self, prepared: NativeOp, send: int | None, recv: int | None, scale: float | None = None) -> None:
        """See :meth:`Group.run_prepared`."""
        self.explained(str(prepared.call), lambda: super(SpanningGroup, self).run_prepared(prepared, send, recv, scale))

    def _watched(self, call: CollectiveCall) -> _WatchedCall:
        prepared = self._calls.get(call) or self._keep(call)
        assert isinstance(prepared, _WatchedCall), "nothing else is ever prepared here"
        return prepared

    def explained(self, said: str, run: Callable[[], _Result], seconds: float | None = None) -> _Result:
        """Run a call and return its result; after a failure raise the group's first cause."""
        self._monitor.check()
        self._begun += 1
        self._monitor.begin(self._begun, said)
        try:
            return run()
        except CommunicationError as error:
            raise self._explained(error, said, self.timeout_s if seconds is None else seconds) from error
        except BaseException as error:
            if not isinstance(error, BlinkError):  # a signal: the others must stop waiting
                self.abort(f"rank {self.rank} was interrupted by {type(error).__name__}")
            raise

    def _explained(self, error: CommunicationError, said: str, seconds: float) -> BlinkError:
        where = f"call {self._begun - self._monitor.own} ({said})"
        if isinstance(error, DeadlineError) and not self._monitor.left:
            late = f"{where}: rank {self.rank} waited past the deadline of {seconds:g} s; "
            if silent_s := self._monitor.silent_s():
                first = f"rank 0 on {self.peers[0].hostname}"
                late = f"{error}; for {silent_s:.1f} s, {first} has not confirmed that all ranks answer"
            elif behind := self._monitor.behind():
                late += f"{ranks_text(behind)} had not come to it"
            else:
                late += str(error)
            return self._monitor.settle(DeadlineError(late), tell=True)
        cause = self._monitor.settle(error, tell=False)  # also of calls that differ it has the better words
        if self._monitor.left and self._monitor.cause is None:
            return self._cause_after_leaving(error, where)
        if isinstance(cause, PeerLostError):
            return lost(self.peers[cause.rank], f", during {where}")
        return cause

    def _cause_after_leaving(self, error: CommunicationError, where: str) -> BlinkError:
        """The cause of a failure after ranks have left in order: from then on the group is not monitored.

        If this group is a part of another, that one's monitor detects an ended rank. Otherwise the broken connection
        counts, or the rank that left too early.
        """
        left, until = self._monitor.left, time.monotonic() + VERDICT_S
        broken = error.rank if isinstance(error, PeerLostError) else min(left)
        while self._look is not None and broken not in left and time.monotonic() < until:
            try:
                self._look()
            except PeerLostError as ended:
                return PeerLostError(ended.rank, f"{ended.message}, during {where}", ended.pid)
            except CommunicationError as cause:
                return cause
            time.sleep(_LOOK_S)
        if broken in left:
            return PeerLostError(broken, f"it closed its communicator during {where}")
        before = f"its connection broke during {where}, after {ranks_text(sorted(left))} had closed the communicator"
        return PeerLostError(broken, before, self.peers[broken].pid)

    # ---- point to point

    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        """See :meth:`HostGroup.isend`."""
        self._monitor.check()
        return super().isend(address, nbytes, dst, tag, deadline_s)

    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """See :meth:`HostGroup.irecv`."""
        self._monitor.check()
        return super().irecv(address, nbytes, src, tag, deadline_s)

    def _first_cause(self, error: BaseException) -> BaseException:
        """Return the group's first cause for the error of a message."""
        if not isinstance(error, CommunicationError) or self._closed:
            return error
        return self._monitor.settle(error, tell=isinstance(error, DeadlineError))

    # ---- the group itself

    def watch(self, ranks: Sequence[int]) -> Callable[[], None]:
        """See :meth:`HostGroup.watch`."""

        def look() -> None:
            cause = self._monitor.cause
            if isinstance(cause, PeerLostError) and cause.rank in ranks:
                raise PeerLostError(ranks.index(cause.rank), cause.message, cause.pid)
            if cause is not None:
                raise CommunicationError(str(cause))

        return look

    def report_lost(self, rank: int) -> None:
        """Do nothing, because the monitor reports lost ranks itself."""

    def abort(self, why: str = "abort() was called") -> None:
        """End the group for all ranks: their waits raise CommunicationError with ``why``."""
        if not self._closed:
            self._check_open()
            self._monitor.settle(CommunicationError(why), tell=True)

    def ended_by(self, error: CommunicationError, fault: str) -> BlinkError:
        """End the group with ``fault`` for all ranks, which are in the same call; an ended rank is the better cause."""
        if isinstance(self._monitor.cause, PeerLostError):
            return error
        self.abort(fault)
        return TopologyError(fault)

    def _stop(self) -> None:
        if self._made:
            super()._stop()

    def _leave(self) -> None:
        self._monitor.close()
        if self._made:
            super()._leave()

    def _fail(self, cause: BlinkError) -> None:
        """End all waits of this rank; the monitor's thread calls it."""
        if self._made:
            with suppress(CommunicationError):
                self._endpoint.abort(str(cause))


class _Word(msgspec.Struct):
    """A rank's message to the others before they connect: its addresses by rail, or its problem."""

    addresses: dict[int, bytes] = {}
    problem: str = ""
    interfaces: dict[str, str] = {}
    topology: str = ""
    name: str = ""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> _Word:
        return msgspec.msgpack.decode(data, type=cls)


def _named(word: _Word) -> str:
    return f"{word.name} ({word.topology[:8]})" if word.topology else "none"


class _WatchedCall:
    """A prepared call that raises the group's first cause."""

    def __init__(self, group: SpanningGroup, op: NativeOp) -> None:
        self._group, self.op, self.call, self.scales = group, op, op.call, op.scales
        self._said = str(op.call)

    def run(self, send: int | None, recv: int | None, timeout_us: int, scale: float | None = None) -> None:
        self._group.explained(self._said, lambda: self.op.run(send, recv, timeout_us, scale), timeout_us / 1e6)

    def close(self) -> None:
        self.op.close()


@contextmanager
def _in_ranks_of_all(members: Sequence[int]) -> Iterator[None]:
    """Translate ranks in errors of a host's group to ranks of this group."""
    try:
        yield
    except PeerLostError as error:
        raise PeerLostError(members[error.rank], error.message, error.pid) from error
    except RendezvousTimeout as error:
        missing, present = ([members[rank] for rank in ranks] for ranks in (error.missing, error.present))
        why = "they did not meet the others of their host; if they are on two hosts that take themselves for one, give "
        raise RendezvousTimeout(missing, present, f"{why}each a name of its own in BLINK_HOSTID") from error
    except PlanMismatchError as error:
        raise PlanMismatchError(f"among {ranks_text(members)}, there counted from 0: {error}") from error


def open_group(
    store: Store,
    rank: int,
    size: int,
    *,
    prefix: str = "blink",
    deadline_s: float | None = None,
    deterministic: str | None = None,
    place: Place = NOWHERE,
) -> Group:
    """The group of ranks that meet in ``store``, on one host or on several.

    ``prefix`` distinguishes groups in one store. ``deadline_s`` (None: BLINK_TIMEOUT) is the timeout for all ranks to
    connect, and for later calls without their own. Errors as :func:`blinkccl.runtime.bootstrap.join`, and that of
    ``place``.

    Ranks of several hosts plan on the topology of ``place``; ranks of one host share memory and need none.
    """
    wanted = wish(deterministic)
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is outside 0 … {size - 1}")
    seconds = default_timeout_s() if deadline_s is None else deadline_s
    deadline = time.monotonic() + seconds
    return _group_of(
        join(store, prefix, rank, size, deadline, deterministic=wanted), rank, prefix, seconds, place, None
    )


def open_part(
    group: Group,
    members: Sequence[int],
    prefix: str,
    place: Place | None = None,
    seconds: float | None = None,
) -> Group:
    """The group of ``members`` of ``group``; all its ranks call :meth:`Group.exchange` then.

    ``place``: its topology, if it is not that of ``group``. ``seconds``: its timeout, in the same way.
    """
    hosts = {group.peers[rank].host for rank in members}
    addresses = own_addresses(group.host) if group.host is not None and len(hosts) > 1 else []
    seconds = group.timeout_s if seconds is None else seconds
    deadline, look = time.monotonic() + seconds, group.watch(members)
    met = part(group.exchange, members, group.rank, deadline, look, group.deterministic, addresses)
    return _group_of(met, members.index(group.rank), prefix, seconds, place or group.place.part(members), look)


def _group_of(
    bootstrap: Bootstrap, rank: int, prefix: str, seconds: float, place: Place, look: Callable[[], None] | None
) -> Group:
    if place.problem is not None:
        with bootstrap:
            raise place.problem
    if not same_host(bootstrap.peers):
        return SpanningGroup(bootstrap, rank, prefix=prefix, deadline_s=seconds, place=place, look=look)
    if bootstrap.host is not None:
        bootstrap = _near(bootstrap, rank, time.monotonic() + seconds)
    return HostGroup(bootstrap, rank, prefix=prefix, deadline_s=seconds)


def _near(bootstrap: Bootstrap, rank: int, deadline: float) -> Bootstrap:
    """The bootstrap, over UNIX sockets, of ranks of one host that have met over TCP."""

    def exchange(word: bytes) -> list[bytes]:
        words, _ = bootstrap.all_gather(word, deadline)
        bootstrap.begin(b"", deadline)  # a failure of one rank ends this round for all
        return words

    deterministic = bootstrap.peers[rank].deterministic
    with bootstrap:
        near = part(exchange, range(len(bootstrap.peers)), rank, deadline, bootstrap.step, deterministic, grace_s=0.0)
        bootstrap.finish()
    return near
