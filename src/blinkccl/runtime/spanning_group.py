"""A group of ranks on several hosts: collectives in three phases, chunk by chunk, so that the phases overlap.

:mod:`~blinkccl.runtime.hierarchy` decides, this moves. The ranks of a host are a :class:`HostGroup`, which combines
what they give (phase 1) and orders their steps; their window is one piece of memory. Between hosts its parts travel
over a :class:`~blinkccl.runtime.network.Network` while the next chunk is being combined. Sums are folded in the order
of hosts, on all hosts alike: so all ranks get the same bits, in every run.
"""

from __future__ import annotations

import atexit
import ctypes as c
import mmap
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import OPS, DType, Operation, element_type, fold, operation, scalars
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
from blinkccl.runtime.bootstrap import Bootstrap, join
from blinkccl.runtime.heap import memory_file, process_heap
from blinkccl.runtime.hierarchy import WINDOW_BYTES, Hosts, NetworkCost, Plan
from blinkccl.runtime.host_group import HostGroup, meet
from blinkccl.runtime.monitor import VERDICT_S, Monitor
from blinkccl.runtime.network import Network, Pending, interface_bytes_per_s, is_rate_given, opener
from blinkccl.runtime.peer_info import same_host
from blinkccl.runtime.serial_executor import SerialExecutor
from blinkccl.runtime.store import Store
from blinkccl.runtime.timeouts import default_timeout_s

Array = NDArray[Any]
_Result = TypeVar("_Result")
#: A chunk has so many rounds at most, and is entered before the one before it has left.
_SLOTS = 4
#: Waits for the network end so long after those inside a host, which know better who is missing.
_SLACK_S = 0.5
#: For the calibration: round trips, and what is sent to measure the rate.
_ROUND_TRIPS = 5
_PROBE_BYTES = 256 << 10
_KEPT_CALLS = 1024
_groups: weakref.WeakSet[SpanningGroup] = weakref.WeakSet()


@dataclass(slots=True)
class _Prepared:
    """A call, as every execution of it needs it."""

    call: CollectiveCall
    row: DType
    plan: Plan
    reduces: bool
    blocks: int
    said: str
    tag: int
    #: What combines the sums of hosts, what ends an average, and the operation inside a host.
    combines: Operation
    divisor: int
    op: str
    #: Calls inside a host, where few bytes go by its first rank.
    inside: CollectiveCall
    outside: CollectiveCall


class SpanningGroup:
    """One rank's end of a group on several hosts; used as :class:`HostGroup` is, and with its errors.

    ``bootstrap`` has made the ranks meet, and becomes this group's. ``deadline_s`` is for making the group, and for
    calls that name none.
    """

    def __init__(self, store: Store, bootstrap: Bootstrap, rank: int, *, prefix: str, deadline_s: float) -> None:
        self.store, self.rank, self.size, self.prefix = store, rank, len(bootstrap.peers), prefix
        self.peers, self.timeout_s = bootstrap.peers, deadline_s
        self.hosts = Hosts.of([peer.host for peer in bootstrap.peers])
        self._host = self.hosts.host_of[rank]
        self._members = self.hosts.members[self._host]
        self._place = self._members.index(rank)
        self._local: HostGroup | None = None
        self._networks: list[Network] = []
        self._prepared: dict[CollectiveCall, _Prepared] = {}
        self._staging: dict[tuple[int, int], Array] = {}
        self._calls = self._rounds = self._chunks = 0
        self._counts: Counter[str] = Counter()
        self._outstanding: set[Future[Any]] = set()
        self._waiting: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._executor = SerialExecutor(f"blink-{prefix}")
        self._pid, self._closed = os.getpid(), False
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
        _groups.add(self)

    def _make(self, deadline: float) -> None:
        where = f"{self.prefix}/host/{self._host}"
        left_s = max(0.1, deadline - time.monotonic())
        size, look = len(self._members), self._monitor.check
        with _told_of_all(self._members):
            self._local = HostGroup(self.store, self._place, size, prefix=where, deadline_s=left_s, look=look)
            self._local.expect_long_waits()
            self._window = _window(self.store, f"{where}/window", self._place, size, deadline, look)
        self._window_at = int(self._window.ctypes.data)

        def exchange(mine: bytes) -> list[bytes]:
            return self._monitor.agree(mine, deadline)

        def connect() -> None:
            opened = opener(self.store, self.rank, self.hosts, self.timeout_s, exchange)
            for name, all_pairs in (("collectives", False), ("messages", True)):
                self._networks.append(opened(f"{self.prefix}/spanning/{name}", all_pairs))
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

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """See :meth:`HostGroup.run`."""
        prepared = self._prepared.get(call) or self._prepare(call)
        self._check_scale(prepared, scale)
        if self._executor.idle:
            with self._executor.lock:
                self._run(prepared, send, recv, scale, deadline_s)
        else:
            self.result(self._executor.submit(lambda: self._run(prepared, send, recv, scale, deadline_s)))

    def submit(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        deadline_s: float | None = None,
    ) -> Future[None]:
        """See :meth:`HostGroup.submit`."""
        prepared = self._prepared.get(call) or self._prepare(call)
        self._check_scale(prepared, scale)
        return self._executor.submit(lambda: self._run(prepared, send, recv, scale, deadline_s))

    def barrier(self, deadline_s: float | None = None) -> None:
        """Returns when every rank has called it."""
        word = np.zeros(1, np.int32)
        at = int(word.ctypes.data)
        self.run(CollectiveCall("allreduce", "int32", 1, "bor"), at, at, deadline_s=deadline_s)

    def time(self, call: CollectiveCall | NativeOp, send: int | None, recv: int | None, iterations: int = 1) -> Array:
        """Seconds of each of ``iterations`` calls, each after a barrier."""
        if isinstance(call, NativeOp):
            return self.run_prepared()
        times = np.zeros(iterations)
        for i in range(iterations):
            self.barrier()
            began = time.perf_counter()
            self.run(call, send, recv)
            times[i] = time.perf_counter() - began
        return times

    def prepare(self, plan: HostPlan, *_: Any) -> NoReturn:
        """UnsupportedError: programs of one's own run on one host."""
        raise UnsupportedError(
            f"a program of {len(plan.program.ranks)} ranks runs on one host; these are on {len(self.hosts.members)}"
        )

    def run_prepared(self, *_: Any) -> NoReturn:
        """Nothing is ever prepared here."""
        raise UnsupportedError("programs of one's own run on one host")

    def result(self, future: Future[_Result]) -> _Result:
        """Waits for what was submitted; where a signal (Ctrl-C) ends the wait, the group ends too, on all ranks."""
        try:
            return future.result()
        except BaseException as error:
            if not future.done():
                self.abort(f"rank {self.rank} was interrupted by {type(error).__name__}")
            raise

    def _prepare(self, call: CollectiveCall) -> _Prepared:
        self._check_open()
        row, chosen = element_type(call.dtype), operation(call.op)
        if call.elements < 0:
            raise UsageError(f"{call.collective}: count must be at least 0, got {call.elements}")
        collective = call.among(self.size)
        if collective.reduces:
            row.combine(chosen)  # refuses what the type does not have
        count = max(1, call.elements)
        blocks = hierarchy.window_blocks(collective)
        if blocks * row.itemsize > WINDOW_BYTES:
            raise UnsupportedError(f"{call.collective} over several hosts serves fewer ranks than {self.size}")
        plan = hierarchy.plan(self.hosts, collective, self.rank, count, row.itemsize, self.cost)
        said = f"{call}, {call.root} to {call.dst}" if call.collective == "sendrecv" else str(call)
        averages = collective.reduces and chosen.averages
        op = chosen.base if averages else call.op
        prepared = _Prepared(
            call,
            row,
            plan,
            collective.reduces,
            blocks,
            said,
            crc32(said.encode()) & 0xFFFF,
            OPS[chosen.base],
            self.size if averages else 1,
            op,
            CollectiveCall("reduce", call.dtype, call.elements, op),
            CollectiveCall("broadcast", "uint8", call.elements * row.itemsize),
        )
        while len(self._prepared) >= _KEPT_CALLS:
            self._prepared.pop(next(iter(self._prepared)), None)
        self._prepared[call] = prepared
        return prepared

    def _check_scale(self, prepared: _Prepared, scale: float | None) -> None:
        if prepared.reduces and (scale is not None or prepared.op == "premul_sum"):
            scales = None if scale is None else [scale] * self.size
            scalars(operation(prepared.call.op), prepared.row, scales, self.size)

    def _run(
        self, prepared: _Prepared, send: int | None, recv: int | None, scale: float | None, deadline_s: float | None
    ) -> None:
        self._check_open()
        self._monitor.check()
        seconds = self.timeout_s if deadline_s is None else deadline_s
        with self._lock:
            self._calls += 1
            self._counts[f"spanning_{prepared.call.collective}"] += 1
            self._counts["spanning_bytes"] += prepared.call.elements * prepared.row.itemsize
        self._monitor.begin(self._calls, prepared.said)
        if not prepared.call.elements:
            return
        execution = _Execution(self, prepared, send, recv, scale, time.monotonic() + seconds)
        try:
            execution.run_by_first() if prepared.plan.by_first else execution.run()
        except CommunicationError as error:
            raise self._explained(error, prepared.said, seconds) from error

    def _explained(self, error: CommunicationError, said: str, seconds: float) -> BlinkError:
        """The group's first cause, where this rank saw ``error``."""
        where = f"call {self._calls} ({said})"
        if self._monitor.left:  # in order, but too early: what else broke followed from that
            return PeerLostError(min(self._monitor.left), f"it closed its communicator during {where}")
        if isinstance(error, DeadlineError):
            behind = self._monitor.behind()
            who = f"{ranks_text(behind)} had not come to it" if behind else str(error)
            late = DeadlineError(f"{where}: rank {self.rank} waited past the deadline of {seconds:g} s; {who}")
            return self._monitor.settle(late, tell=True)
        cause = self._monitor.settle(error, tell=False)  # also of calls that differ it has the better words
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

    def report_lost(self, rank: int) -> None:
        """The monitor tells everybody by itself."""

    def memory_bytes(self) -> dict[str, int]:
        """See :meth:`HostGroup.memory_bytes`; ``window`` is address space that the ranks of a host share."""
        heap = process_heap()
        local = {"heap": heap.size, "heap_used": heap.used} if self._local is None else self._local.memory_bytes()
        return {**local, "window": len(self._window)}

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

    def close(self) -> None:
        """Leaves the group, in order, when the calls under way have ended."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._executor.close()
        with self._executor.lock:
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

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise CommunicationError(
                f"group {self.prefix!r} was made in process {self._pid}; a forked child has no rank in it"
            )
        if self._closed:
            raise CommunicationError(f"rank {self.rank}'s group {self.prefix!r} is closed")

    # ---- what executions use

    def at_home(
        self, call: CollectiveCall, send: int | None, recv: int | None, scale: float | None, left_s: float
    ) -> None:
        """A collective among the ranks of this host."""
        assert self._local is not None
        try:
            self._local.run(call, send, recv, scale, max(0.001, left_s))
        except PeerLostError as error:
            raise PeerLostError(self._members[error.rank], error.message, error.pid) from error

    def meet_at_home(self, left_s: float) -> None:
        """Returns when all ranks of this host have come so far, and see what the others have written."""
        if len(self._members) > 1:
            assert self._local is not None
            try:
                self._local.barrier(max(0.001, left_s))
            except PeerLostError as error:
                raise PeerLostError(self._members[error.rank], error.message, error.pid) from error

    def staging(self, slot: int, host: int, nbytes: int) -> Array:
        """Memory for what comes from another host; kept, also while a call that failed may still write there."""
        found = self._staging.get((slot, host))
        if found is None or len(found) < nbytes:
            found = self._staging[slot, host] = np.empty(nbytes, np.uint8)
        return found


@dataclass(slots=True)
class _Flight:
    """A chunk between hosts: the messages of its present round."""

    sends: list[Pending] = field(default_factory=list)
    receives: list[Pending] = field(default_factory=list)


class _Execution:
    """One rank in one call."""

    def __init__(
        self,
        group: SpanningGroup,
        prepared: _Prepared,
        send: int | None,
        recv: int | None,
        scale: float | None,
        deadline: float,
    ) -> None:
        self._group, self._prepared, self._call, self._plan = group, prepared, prepared.call, prepared.plan
        self._row, self._item = prepared.row, prepared.row.itemsize
        self._reduces, self._blocks = prepared.reduces, prepared.blocks
        self._send, self._recv, self._scale, self._deadline = send, recv, scale, deadline
        self._chunks = -(-prepared.call.elements // prepared.plan.chunk)
        self._flights: dict[int, _Flight] = {}
        #: Chunks of all calls take their slots in turns: others of this host may still read what the last call left.
        self._first = group._chunks
        group._chunks += self._chunks

    def run(self) -> None:
        """The chunks, as a pipeline: in each tick one is entered, and those before it go a stage further."""
        stages = len(next(iter(self._plan.rounds.values())))
        for tick in range(self._chunks + stages):
            if tick < self._chunks:
                self._enter(tick)
                self._start(tick, 0)
            for stage in range(1, stages + 1):
                chunk = tick - stage
                if 0 <= chunk < self._chunks:
                    self._finish(chunk, stage - 1)
                    if stage < stages:
                        self._start(chunk, stage)
                    else:
                        self._leave(chunk)

    def run_by_first(self) -> None:
        """Few bytes: two calls inside the host, and between them messages of its first rank."""
        group, prepared = self._group, self._prepared
        first, stages = group._place == 0, len(self._plan.rounds[self._call.elements])
        window = self._at(0) if first else None
        group.at_home(prepared.inside, self._send, window, self._scale, self._left_s())
        for stage in range(stages if first else 0):
            self._start(0, stage)
            self._finish(0, stage)
        group._rounds += 0 if first else stages
        group.at_home(prepared.outside, window, self._recv, None, self._left_s())

    def _count(self, chunk: int) -> int:
        """Elements of a block in this chunk."""
        return min(self._plan.chunk, self._call.elements - chunk * self._plan.chunk)

    def _at(self, chunk: int, element: int = 0) -> int:
        """Where an element of this chunk's window is."""
        return self._group._window_at + self._slot(chunk) * WINDOW_BYTES + element * self._item

    def _slot(self, chunk: int) -> int:
        return (self._first + chunk) % _SLOTS

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    # ---- inside the host

    def _enter(self, chunk: int) -> None:
        """Phase 1: what this host's ranks give stands in the window."""
        count, first = self._count(chunk), chunk * self._plan.chunk
        if self._reduces:
            self._combine(chunk, count, first)
        else:
            for block, place in self._plan.into:
                assert self._send is not None
                source = self._send + (block * self._call.elements + first) * self._item
                c.memmove(self._at(chunk, place * count), source, count * self._item)
        self._group.meet_at_home(self._left_s())

    def _combine(self, chunk: int, count: int, first: int) -> None:
        assert self._send is not None
        source = self._send + first * self._item
        total = self._blocks * count
        if self._blocks > 1:
            source = self._in_order(count, first)
        op = self._prepared.op
        ranks, place = len(self._group._members), self._group._place
        part, rest = divmod(total, ranks)
        if part:
            call = CollectiveCall("reduce_scatter", self._call.dtype, part, op)
            self._group.at_home(call, source, self._at(chunk, place * part), self._scale, self._left_s())
        if rest:
            call = CollectiveCall("reduce", self._call.dtype, rest, op, ranks - 1)
            target = self._at(chunk, part * ranks) if place == ranks - 1 else None
            self._group.at_home(call, source + part * ranks * self._item, target, self._scale, self._left_s())

    def _in_order(self, count: int, first: int) -> int:
        """The chunk of every block, one after the other, as the window has them."""
        assert self._send is not None
        hosts = self._group.hosts
        order = [rank for members in hosts.members for rank in members]
        if count == self._call.elements and order == sorted(order):
            return self._send
        scratch = self._group.staging(-1, 0, len(order) * count * self._item)
        at = int(scratch.ctypes.data)
        for place, rank in enumerate(order):
            source = self._send + (rank * self._call.elements + first) * self._item
            c.memmove(at + place * count * self._item, source, count * self._item)
        return at

    def _leave(self, chunk: int) -> None:
        """Phase 3: every rank takes its results out of the window."""
        self._group.meet_at_home(self._left_s())
        count, first = self._count(chunk), chunk * self._plan.chunk
        if self._recv is None:
            return
        for place, block in self._plan.out:
            target = self._recv + (block * self._call.elements + first) * self._item
            c.memmove(target, self._at(chunk, place * count), count * self._item)

    # ---- between hosts

    def _start(self, chunk: int, stage: int) -> None:
        """Posts the messages of a round."""
        group = self._group
        group._rounds += 1  # the same on all ranks, which all make the same calls
        # A message tells its call, so that those of calls that differ never meet, and its round.
        network, tag = group._networks[0], self._prepared.tag << 15 | 1 + group._rounds % 32767
        todo = self._plan.rounds[self._count(chunk)][stage]
        flight = self._flights[chunk] = _Flight()
        if todo.fold is not None:
            nbytes = (todo.fold.stop - todo.fold.start) * self._item
            for host, parts in todo.fold.parts:
                at = int(group.staging(self._slot(chunk), host, nbytes).ctypes.data)
                for part in parts:
                    place = at + (part.start - todo.fold.start) * self._item
                    size = (part.stop - part.start) * self._item
                    flight.receives.append(network.receive(place, size, part.giver, tag))
        for piece in todo.receives:
            size = (piece.stop - piece.start) * self._item
            flight.receives.append(network.receive(self._at(chunk, piece.start), size, piece.giver, tag))
        for piece in todo.sends:
            size = (piece.stop - piece.start) * self._item
            flight.sends.append(network.send(self._at(chunk, piece.start), size, piece.taker, tag))

    def _finish(self, chunk: int, stage: int) -> None:
        """Waits for the messages of a round, and combines what came."""
        flight = self._flights.pop(chunk)
        for pending in (*flight.receives, *flight.sends):
            pending.wait(self._left_s() + _SLACK_S)
        work, prepared = self._plan.rounds[self._count(chunk)][stage].fold, self._prepared
        if work is None:
            return
        count = work.stop - work.start
        own = self._elements(chunk, work.start, count)
        operands = {self._group._host: own}
        for host, _ in work.parts:
            came = self._group.staging(self._slot(chunk), host, count * self._item)
            operands[host] = came[: count * self._item].view(self._row.storage)
        ordered = [operands[host] for host in sorted(operands)]
        with np.errstate(all="ignore"):  # an overflow to inf is a result
            own[:] = fold(self._row, prepared.combines, ordered, divisor=prepared.divisor)

    def _elements(self, chunk: int, first: int, count: int) -> Array:
        """A part of this chunk's window."""
        start = self._slot(chunk) * WINDOW_BYTES + first * self._item
        return self._group._window[start : start + count * self._item].view(self._row.storage)


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


def _window(
    store: Store, prefix: str, place: int, size: int, deadline: float, look: Callable[[], None]
) -> NDArray[np.uint8]:
    """Memory that the ranks of a host share: as many windows as a call may have chunks under way."""
    length = _SLOTS * WINDOW_BYTES
    with join(store, prefix, place, size, b"", deadline, look) as bootstrap:
        own = [memory_file("blink-window", length)] if place == 0 else []
        _, files = bootstrap.all_gather(b"", deadline, own)
        mapped = mmap.mmap(files[0][0], length)
        for fd in (*own, *files[0]):
            os.close(fd)
    return np.frombuffer(mapped, np.uint8)


def open_group(
    store: Store,
    rank: int,
    size: int,
    *,
    prefix: str = "blink",
    deadline_s: float | None = None,
    look: Callable[[], None] = lambda: None,
) -> HostGroup | SpanningGroup:
    """The group of ranks that meet in ``store``, on one host or on several; see :class:`HostGroup`."""
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is outside 0 … {size - 1}")
    seconds = default_timeout_s() if deadline_s is None else deadline_s
    bootstrap = meet(store, prefix, rank, size, time.monotonic() + seconds, look)
    if same_host(bootstrap.peers):
        return HostGroup(store, rank, size, prefix=prefix, deadline_s=seconds, bootstrap=bootstrap)
    return SpanningGroup(store, bootstrap, rank, prefix=prefix, deadline_s=seconds)


@atexit.register
def _close_all() -> None:
    """A process that ends in order leaves its groups in order."""
    for group in list(_groups):
        with suppress(CommunicationError):
            group.close()
