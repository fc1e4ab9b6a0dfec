"""A group of ranks on several hosts: made, watched, and used as a :class:`HostGroup` is.

What a call does is in :mod:`~blinkccl.runtime.three_phases`; here is who takes part, what failed, and messages.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import operation
from blinkccl.engines.host import NativeOp
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
    UnsupportedError,
    UsageError,
    ranks_text,
)
from blinkccl.runtime import hierarchy
from blinkccl.runtime.bootstrap import Bootstrap
from blinkccl.runtime.deterministic import wish
from blinkccl.runtime.group import Group, PreparedCall
from blinkccl.runtime.heap import process_heap
from blinkccl.runtime.hierarchy import Hosts, NetworkCost
from blinkccl.runtime.host_group import HostGroup, meet
from blinkccl.runtime.monitor import VERDICT_S, Monitor
from blinkccl.runtime.network import Network, Pending, interface_bytes_per_s, is_rate_given, opener
from blinkccl.runtime.peer_info import same_host
from blinkccl.runtime.store import Store
from blinkccl.runtime.three_phases import Execution, PhasedCall, ThreePhases, shared_window
from blinkccl.runtime.timeouts import default_timeout_s

#: For the calibration: round trips, and what is sent to measure the rate.
_ROUND_TRIPS = 5
_PROBE_BYTES = 256 << 10


class SpanningGroup(Group):
    """One rank's end of a group on several hosts; used as :class:`HostGroup` is, and with its errors.

    ``bootstrap`` has made the ranks meet, and becomes this group's. ``deadline_s`` is for making the group, and for
    calls that name none.
    """

    def __init__(self, store: Store, bootstrap: Bootstrap, rank: int, *, prefix: str, deadline_s: float) -> None:
        super().__init__(store, rank, len(bootstrap.peers), prefix, deadline_s)
        self.peers = bootstrap.peers
        self.deterministic = bootstrap.peers[rank].deterministic
        self.hosts = Hosts.of([peer.host for peer in bootstrap.peers])
        self._local: HostGroup | None = None
        self._networks: list[Network] = []
        self._begun = 0
        self._counts: Counter[str] = Counter()
        self._outstanding: set[Future[Any]] = set()
        self._waiting: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._monitor = Monitor(bootstrap, rank, self._fail)
        try:
            self._make(time.monotonic() + deadline_s)
        except BaseException as error:
            raised = error if isinstance(error, BlinkError) else CommunicationError(f"{type(error).__name__}: {error}")
            cause = self._monitor.settle(raised, tell=True)
            self.close()
            if cause is raised:
                raise
            raise cause from error
        self._open()

    def _make(self, deadline: float) -> None:
        host = self.hosts.host_of[self.rank]
        members = self.hosts.members[host]
        where, place, look = f"{self.prefix}/host/{host}", members.index(self.rank), self._monitor.check
        left_s = max(0.1, deadline - time.monotonic())
        with _told_of_all(members):
            met = meet(self.store, where, place, len(members), deadline, look, self.deterministic)
            self._local = HostGroup(
                self.store, place, len(members), prefix=where, deadline_s=left_s, look=look, bootstrap=met
            )
            self._local.share_core(long_waits=True)
            window = shared_window(self.store, f"{where}/window", place, len(members), deadline, look)

        def exchange(mine: bytes) -> list[bytes]:
            return self._monitor.agree(mine, deadline)

        def connect() -> None:
            assert self._local is not None
            opened = opener(self.store, self.rank, self.hosts, self.timeout_s, exchange)
            for name, all_pairs in (("collectives", False), ("messages", True)):
                self._networks.append(opened(f"{self.prefix}/spanning/{name}", all_pairs))
            self._phases = ThreePhases(self.hosts, self.rank, self._local, window, self._networks[0])
            self.cost = self._calibrated(exchange, deadline)

        self._guarded(connect, deadline)

    def _calibrated(self, exchange: Callable[[bytes], list[bytes]], deadline: float) -> NetworkCost:
        """Connects to all partners, and measures what a message and a byte cost between the first two hosts."""
        left_s = max(0.1, deadline - time.monotonic())
        partners = hierarchy.partners(self.hosts, self.rank)
        word = np.zeros(len(partners) + 1, np.uint8)
        at = int(word.ctypes.data)
        greetings = [self._networks[0].receive(at + 1 + i, 1, peer, 0) for i, peer in enumerate(partners)]
        greetings += [self._networks[0].send(at, 1, peer, 0) for peer in partners]
        for peer, greeting in zip(partners * 2, greetings, strict=True):
            try:
                greeting.wait(left_s)
            except CommunicationError as error:
                raise type(error)(f"rank {self.rank} and rank {peer} could not connect: {error}") from error
        given = exchange(msgspec.msgpack.encode(interface_bytes_per_s(self.store.host() or "127.0.0.1")))
        rate = min(msgspec.msgpack.decode(each, type=float) for each in given)
        measured = exchange(msgspec.msgpack.encode(self._measured(left_s)))
        message_s, probed = msgspec.msgpack.decode(measured[self.hosts.members[0][0]], type=tuple[float, float])
        return NetworkCost(message_s, rate if is_rate_given() else min(rate, probed))

    def _measured(self, left_s: float) -> tuple[float, float]:
        first, second = (members[0] for members in self.hosts.members[:2])
        if self.rank not in (first, second):
            return 0.0, 0.0
        other = second if self.rank == first else first
        data = np.zeros(_PROBE_BYTES, np.uint8)
        times = []
        for nbytes in (*[1] * _ROUND_TRIPS, _PROBE_BYTES):
            began = time.perf_counter()
            for sends in (True, False) if self.rank == first else (False, True):
                move = self._networks[0].send if sends else self._networks[0].receive
                size = nbytes if sends == (self.rank == first) else 1
                move(int(data.ctypes.data), size, other, 0).wait(left_s)
            times.append(time.perf_counter() - began)
        message_s = min(times[:_ROUND_TRIPS]) / 2
        return message_s, _PROBE_BYTES / max(1e-9, times[-1] - 2 * message_s)

    def _guarded(self, work: Callable[[], None], deadline: float) -> None:
        """Does what may wait in a library that cannot be called back; a failure elsewhere and the deadline end it."""
        done: Future[None] = Future()

        def do() -> None:
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=do, name="blink-connect", daemon=True).start()
        while True:
            try:
                return done.result(0.05)
            except NotYet:
                self._monitor.check()
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"rank {self.rank} was not connected to the ranks of other hosts by the deadline"
                    ) from None

    # ---- collectives

    def time(
        self,
        call: CollectiveCall | NativeOp,
        send: int | None,
        recv: int | None,
        iterations: int = 1,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """As :meth:`Group.time` says; the loop is in Python."""
        assert isinstance(call, CollectiveCall), "nothing else is ever prepared here"
        times = np.zeros(iterations)
        for i in range(iterations):
            began = time.perf_counter()
            self.barrier()
            if not with_barrier:
                began = time.perf_counter()
            self.run(call, send, recv)
            times[i] = time.perf_counter() - began
        return times

    def prepare(
        self, plan: HostPlan, count: int, dtype: str, op: str, chunk_bytes: int, cross_memory: bool = False
    ) -> NoReturn:
        """UnsupportedError: programs of one's own run on one host."""
        raise UnsupportedError(
            f"a program of {len(plan.program.ranks)} ranks runs on one host; these are on {len(self.hosts.members)}"
        )

    def _prepare(self, call: CollectiveCall) -> PreparedCall:
        return _SpanningCall(self, PhasedCall.of(call, self.hosts, self.rank, self.cost))

    def _carry_out(
        self, prepared: PhasedCall, send: int | None, recv: int | None, scale: float | None, seconds: float
    ) -> None:
        self._monitor.check()
        with self._lock:
            self._begun += 1
            self._counts[f"spanning_{prepared.call.collective}"] += 1
            self._counts["spanning_bytes"] += prepared.call.elements * prepared.row.itemsize
        self._monitor.begin(self._begun, prepared.said)
        if not prepared.call.elements:
            return
        try:
            Execution(self._phases, prepared, send, recv, scale, time.monotonic() + seconds).run()
        except CommunicationError as error:
            raise self._explained(error, prepared.said, seconds) from error

    def _explained(self, error: CommunicationError, said: str, seconds: float) -> BlinkError:
        """The group's first cause, where this rank saw ``error``."""
        where = f"call {self._begun} ({said})"
        if isinstance(error, DeadlineError) and not self._monitor.left:
            behind = self._monitor.behind()
            who = f"{ranks_text(behind)} had not come to it" if behind else str(error)
            late = DeadlineError(f"{where}: rank {self.rank} waited past the deadline of {seconds:g} s; {who}")
            return self._monitor.settle(late, tell=True)
        cause = self._monitor.settle(error, tell=False)  # also of calls that differ it has the better words
        if self._monitor.left and self._monitor.cause is None:  # in order, but too early: what broke followed from that
            return PeerLostError(min(self._monitor.left), f"it closed its communicator during {where}")
        if isinstance(cause, PeerLostError):
            pid = self.peers[cause.rank].pid
            return PeerLostError(cause.rank, f"its process ended, or its host is gone, during {where}", pid)
        return cause

    # ---- point to point

    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        """See :meth:`HostGroup.isend`."""
        self._count("sends", nbytes)
        what = f"send {nbytes} bytes to rank {dst}"
        return self._message(what, lambda: self._networks[1].send(address, nbytes, dst, tag + 1), deadline_s, True)

    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """See :meth:`HostGroup.irecv`; over gloo a longer message ends the process."""
        self._count("receives", nbytes)
        what = f"receive {nbytes} bytes from {'any rank' if src is None else f'rank {src}'}"
        return self._message(what, lambda: self._networks[1].receive(address, nbytes, src, tag + 1), deadline_s, False)

    def _message(self, what: str, post: Callable[[], Pending], deadline_s: float | None, silent: bool) -> Future[Any]:
        """Networks call nobody back, so a thread waits per message."""
        self._check_open()
        self._monitor.check()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._outstanding.add(future)
        future.add_done_callback(self._outstanding.discard)
        pending = post()

        def wait() -> None:
            try:
                source = pending.wait(self.timeout_s if deadline_s is None else deadline_s)
            except CommunicationError as error:
                told = self._monitor.settle(
                    type(error)(f"rank {self.rank} could not {what}: {error}"), tell=isinstance(error, DeadlineError)
                )
                with suppress(InvalidStateError):
                    future.set_exception(told)
            else:
                with suppress(InvalidStateError):
                    future.set_result(None if silent else source)

        thread = threading.Thread(target=wait, name="blink-message", daemon=True)
        self._waiting = [each for each in self._waiting if each.is_alive()] + [thread]
        thread.start()
        return future

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

    def share_core(self) -> None:
        """Its waits do so from the first call on: the network wants the core, too."""

    def report_lost(self, rank: int) -> None:
        """The monitor tells everybody by itself."""

    def memory_bytes(self) -> dict[str, int]:
        """See :meth:`HostGroup.memory_bytes`; ``window`` is address space that the ranks of a host share."""
        heap = process_heap()
        local = {"heap": heap.size, "heap_used": heap.used} if self._local is None else self._local.memory_bytes()
        return {**local, "window": len(self._phases.window)}

    def stats(self) -> dict[str, int]:
        """Calls by collective, and bytes, all ``spanning_…``, beside the counters of this host's group."""
        with self._lock:
            counts = dict(self._counts)
        return counts if self._local is None or self._closed else {**self._local.stats(), **counts}

    def abort(self, why: str = "abort() was called") -> None:
        """Ends the group for all ranks: whatever they wait for raises CommunicationError with ``why``."""
        if not self._closed:
            self._check_open()
            self._monitor.settle(CommunicationError(why), tell=True)

    def _leave(self) -> None:
        self._monitor.close()
        wanted = list(self._outstanding)
        for future in wanted:
            with suppress(InvalidStateError):
                future.set_exception(CommunicationError(f"rank {self.rank} closed its group before a message came"))
        if wanted:
            self._networks[1].abort()
        for thread in self._waiting:
            thread.join(VERDICT_S)
        for network in self._networks:
            network.close()
        if self._local is not None:
            self._local.close()

    def _fail(self, cause: BlinkError) -> None:
        """In the monitor's thread: ends all that this rank waits for."""
        for network in self._networks:
            network.abort()
        if self._local is not None:
            with suppress(CommunicationError):
                self._local.abort(str(cause))
        for future in list(self._outstanding):
            with suppress(InvalidStateError):
                future.set_exception(cause)

    def _count(self, name: str, nbytes: int) -> None:
        with self._lock:
            self._counts[f"spanning_{name}"] += 1
            self._counts["spanning_bytes"] += nbytes


@contextmanager
def _told_of_all(members: Sequence[int]) -> Iterator[None]:
    """Errors of a host's group name ranks as this group counts them."""
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


class _SpanningCall:
    def __init__(self, group: SpanningGroup, phased: PhasedCall) -> None:
        self._group, self._phased, self.call = group, phased, phased.call
        self.scales = phased.reduces and operation(phased.call.op).scales

    def run(self, send: int | None, recv: int | None, timeout_us: int, scale: float | None = None) -> None:
        self._group._carry_out(self._phased, send, recv, scale, timeout_us / 1e6)

    def close(self) -> None:
        """Nothing is held."""


def open_group(
    store: Store,
    rank: int,
    size: int,
    *,
    prefix: str = "blink",
    deadline_s: float | None = None,
    look: Callable[[], None] = lambda: None,
    deterministic: str | None = None,
) -> Group:
    """The group of ranks that meet in ``store``, on one host or on several; see :class:`HostGroup`."""
    wanted = wish(deterministic)
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is outside 0 … {size - 1}")
    seconds = default_timeout_s() if deadline_s is None else deadline_s
    bootstrap = meet(store, prefix, rank, size, time.monotonic() + seconds, look, wanted)
    if same_host(bootstrap.peers):
        return HostGroup(store, rank, size, prefix=prefix, deadline_s=seconds, bootstrap=bootstrap)
    return SpanningGroup(store, bootstrap, rank, prefix=prefix, deadline_s=seconds)
