"""A group of ranks on one host that share memory: its creation, its calls on raw addresses, and its end."""

from __future__ import annotations

import ctypes as c
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type, fold, operation
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host import (
    STREAM_BYTES,
    Endpoint,
    NativeOp,
    failure_of,
    format_segment,
    segment_bytes,
    shape_of,
    statuses,
)
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.engines.native_library import MOST_THREADS, Shape
from blinkccl.errors import CommunicationError, LaunchError, PeerLostError, ScheduleError, UnsupportedError, UsageError
from blinkccl.runtime import timeline
from blinkccl.runtime.bootstrap import Bootstrap
from blinkccl.runtime.deterministic import check_program
from blinkccl.runtime.group import BARRIER, Group, PreparedCall
from blinkccl.runtime.heap import memory_file, process_heap
from blinkccl.runtime.host_table import Crossing, HostTable, agreed, built_in, table_for, wished_crossing
from blinkccl.runtime.peer_info import PeerInfo, alive
from blinkccl.runtime.plans import host_plan
from blinkccl.runtime.point_to_point import PointToPoint
from blinkccl.runtime.timeouts import positive_number
from blinkccl.trees.algorithms.tables import Way

_log = logging.getLogger(__name__)
#: A heap per rank and the segment are as many descriptors as one message can carry.
MAX_RANKS = 250
_THREADS = "BLINK_THREADS"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory that the ranks of a host share: the mapped segment, the descriptors that keep it, and the heaps.

    ``bells`` are eventfds by rank, which wake a rank that sleeps on its network. ``ranks`` share the memory.
    """

    mapped: mmap.mmap
    address: int
    descriptors: list[int]
    endpoint: Endpoint
    bells: dict[int, int]
    ranks: int

    def set_threads(self, threads: int) -> None:
        """Share large calls among BLINK_THREADS; by default ``threads``, but at most this rank's part of the cores."""
        most = max(1, len(os.sched_getaffinity(0)) // self.ranks)
        stated = positive_number(_THREADS, "threads")
        if stated is not None and (not stated.is_integer() or stated > MOST_THREADS):
            raise LaunchError(f"{_THREADS}={os.environ[_THREADS]!r}: expected a whole number from 1 to {MOST_THREADS}")
        self.endpoint.set_threads(int(stated or min(threads, most)))

    def close(self) -> None:
        self.endpoint.close()
        _close_all_files(self.descriptors)
        with suppress(BufferError):
            self.mapped.close()


class HostGroup(Group):
    """One rank's end of a group on one host, whose ranks have met in ``bootstrap``, which this closes.

    ``deadline_s`` is the timeout of the creation, and of later calls without their own. Errors are those of
    :func:`blinkccl.runtime.bootstrap.join`; also UnsupportedError on several hosts.
    """

    def __init__(self, bootstrap: Bootstrap, rank: int, *, prefix: str, deadline_s: float) -> None:
        super().__init__(bootstrap, rank, prefix, deadline_s)
        self._area = Area()
        self._crossing, self._table = Crossing.NEVER, built_in(self.size)
        with bootstrap:
            self._make(bootstrap, time.monotonic() + deadline_s, wished_crossing(), table_for(self.size))

    def _make(self, bootstrap: Bootstrap, deadline: float, wanted: Crossing, table: HostTable) -> None:
        if self.size > MAX_RANKS:
            raise UnsupportedError(f"at most {MAX_RANKS} ranks of one host can share memory, got {self.size}")
        self._memory = share_memory(bootstrap, range(self.size), self.rank, self.size, self._area, deadline)
        self._endpoint = self._memory.endpoint
        self._streams = PointToPoint(self._endpoint, self.rank, self.size, self.timeout_s)
        self._timeline = timeline.start(self._endpoint, os.environ)
        self._open()
        try:
            self.barrier()
            if self.size > 1:
                self._crossing, self._table = agreed(self, wanted, table)
                self._endpoint.count_from_here()
        except BaseException as error:
            cause = bootstrap.fail(error)  # before the others detect that this rank has left
            self.close()
            if cause is not error:
                raise cause from error
            raise

    # ---- collectives

    def time(
        self,
        call: CollectiveCall | NativeOp,
        send: int | None,
        recv: int | None,
        iterations: int = 1,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """Time calls as :meth:`Group.time` does; the loop is in C."""
        prepared = call if isinstance(call, NativeOp) else self._calls.get(call) or self._keep(call)
        barrier = self._calls.get(BARRIER) or self._keep(BARRIER)
        if not isinstance(prepared, NativeOp) or not isinstance(barrier, NativeOp):
            raise UnsupportedError("a group of one rank cannot be timed: its calls need no communication")
        with self._executor.lock:
            return prepared.time(barrier, send, recv, iterations, self._timeout_us, with_barrier)

    def native_op(self, call: CollectiveCall) -> NativeOp | None:
        """The operation for ``call``, to be run in steps without other calls in between; None: it is not native."""
        prepared = self._calls.get(call) or self._keep(call)
        return prepared if isinstance(prepared, NativeOp) else None

    def _prepare(self, call: CollectiveCall) -> PreparedCall:
        if self.size == 1:
            return _SingleRankOp(call)
        return chosen_op(self._endpoint, call, self._table, self._crossing, self._area, bool(self.deterministic))

    def share_core(self, threads: int) -> None:
        """Wait as :meth:`Group.share_core` says, and share large calls among the threads."""
        self._endpoint.share_core(False)
        self._memory.set_threads(threads)

    def can_cross(self) -> bool:
        """True if this rank may copy from every other rank's own memory; none of them may have left."""
        self._check_open()
        return self._endpoint.can_cross()

    def prepare(
        self, plan: HostPlan, count: int, dtype: str, op: str, chunk_bytes: int, cross_memory: bool = False
    ) -> NativeOp:
        """Make an operation of any Program; run it with :meth:`run_prepared` on all ranks."""
        self._check_open()
        if len(plan.program.ranks) != self.size:
            raise UsageError(f"the program is for {len(plan.program.ranks)} ranks, but this group has {self.size}")
        call = CollectiveCall.of(plan.program.collective, dtype, count, op)
        if self.deterministic:
            check_program(plan.program)
        return NativeOp(self._endpoint, plan, call, chunk_bytes, cross_memory)

    def prepare_choice(self, ways: Sequence[Way], count: int, dtype: str, op: str, like: Collective) -> NativeOp:
        """Make an operation of the first way, with the others as its variants; used as that of :meth:`prepare`."""
        self._check_open()
        allowed = [way for way in ways if self._crossing is not Crossing.NEVER or not way.copied]
        if not allowed:
            raise UnsupportedError("the system denies these ranks cross-memory copies")
        return _bound(self._endpoint, CollectiveCall.of(like, dtype, count, op), allowed, like, self._area)

    # ---- point to point

    def isend(self, address: int, nbytes: int, dst: int, tag: int = 0, deadline_s: float | None = None) -> Future[None]:
        """Send bytes; the future is done when the caller may reuse the buffer. FIFO per destination and tag."""
        self._check_open()
        return self._streams.send(address, nbytes, dst, tag, deadline_s)

    def irecv(
        self, address: int, nbytes: int, src: int | None, tag: int = 0, deadline_s: float | None = None
    ) -> Future[int]:
        """Receive at most ``nbytes`` from ``src``, or (None) from any rank; the future's result is the source."""
        self._check_open()
        return self._streams.receive(address, nbytes, src, tag, deadline_s)

    @property
    def endpoint(self) -> Endpoint:
        """This rank's end of the shared memory; CommunicationError if the group is closed."""
        self._check_open()
        return self._endpoint

    # ---- the group itself

    def watch(self, ranks: Sequence[int]) -> Callable[[], None]:
        """A function for use while a group of these ranks forms: it raises PeerLostError if one of them has ended."""

        def look() -> None:
            ended = [rank for rank in ranks if rank != self.rank and alive(self.peers[rank]) is False]
            if not ended:
                return
            # A rank that ended because of another rank's end has left this group in order, or has reported it before.
            address, size = self._memory.address, len(self._memory.mapped)
            cause, rows = failure_of(address, size), statuses(address, size)
            killed = [rank for rank in ended if not rows[rank].left] or ended
            reported = cause.rank if isinstance(cause, PeerLostError) and cause.rank in ended else None
            lost = killed[0] if reported is None else reported
            raise PeerLostError(ranks.index(lost), "its process ended while the group was made", self.peers[lost].pid)

        return look

    def report_lost(self, rank: int) -> None:
        """Report to all ranks that the process of ``rank`` has ended: their calls raise PeerLostError."""
        self._endpoint.report_lost(rank)

    def memory_bytes(self) -> dict[str, int]:
        """Address space, mostly unused: of the group's ``segment``, ``per_rank``, and of the process's ``heap``."""
        heap = process_heap()
        return {
            "segment": len(self._memory.mapped),
            "per_rank": len(self._memory.mapped) // self.size,
            "heap": heap.size,
            "heap_used": heap.used,
        }

    def stats(self) -> dict[str, int]:
        """Counters since the group was made: calls, waits, messages, and their bytes by transfer method."""
        self._check_open()
        return {**self._endpoint.stats(), **self._streams.stats()}

    def abort(self, why: str = "abort() was called") -> None:
        """End the group for all ranks: their waits raise CommunicationError with ``why``."""
        if not self._closed:
            self._check_open()
            self._endpoint.abort(why)

    def _forget(self) -> None:
        super()._forget()
        self._endpoint.forget()

    def _stop(self) -> None:
        _ = self._endpoint.handle
        self._streams.close()

    def _leave(self) -> None:
        if self._timeline is not None:
            timeline.write(self._timeline, self._endpoint, self.prefix)
        self._memory.close()


def chosen_op(
    endpoint: Endpoint,
    call: CollectiveCall,
    table: HostTable,
    crossing: Crossing,
    area: Area,
    in_rank_order: bool = False,
) -> NativeOp:
    """The operation for ``call``, with its variants; ``in_rank_order``: each program is proved to sum in that order."""
    collective = call.among(table.world_size)
    nbytes = call.elements * element_type(call.dtype).itemsize * collective.total_blocks()
    # Scaled contributions are not in any buffer.
    allowed = Crossing.NEVER if operation(call.op).scales else crossing
    try:
        ways = table.choose(call.collective, nbytes, allowed)
        return _bound(endpoint, call, ways, collective, area, in_rank_order)
    except (UnsupportedError, ScheduleError) as error:
        if not table.source:
            raise
        # Every rank has the same rows, so every rank gets the same error.
        _log.warning("%s: %s; the built-in table serves this call: run blink tune --again", table.source, error)
    ways = built_in(table.world_size).choose(call.collective, nbytes, allowed)
    return _bound(endpoint, call, ways, collective, area, in_rank_order)


def _bound(
    endpoint: Endpoint,
    call: CollectiveCall,
    ways: Sequence[Way],
    collective: Collective,
    area: Area,
    in_rank_order: bool = False,
) -> NativeOp:
    plans = [host_plan(collective, way.algorithm, way.inline, area) for way in ways]
    for plan in plans if in_rank_order else ():
        check_program(plan.program)
    first, *variants = [
        NativeOp(endpoint, plan, call, way.chunk_bytes, way.copied) for plan, way in zip(plans, ways, strict=True)
    ]
    for variant in variants:
        first.add_variant(variant)
    return first


def share_memory(
    bootstrap: Bootstrap,
    members: Sequence[int],
    rank: int,
    size: int,
    area: Area,
    deadline: float,
    with_bells: bool = False,
) -> HostMemory:
    """Map the new segment of the first of ``members``, and the heaps of all of them.

    ``members`` are the ranks of this host among the ``size`` of a group, in the order in which ``bootstrap`` has them.
    """
    peers, place = bootstrap.peers, members.index(rank)
    token = peers[0].token
    shape = shape_of(size, area, STREAM_BYTES)
    length = segment_bytes(shape)
    with ExitStack() as undo:
        own = [process_heap().fd]
        if with_bells:
            own.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            undo.callback(os.close, own[-1])
        if place == 0:
            own.append(_new_segment(length, shape, token))
            undo.callback(os.close, own[-1])
        _, files = bootstrap.all_gather(b"", deadline, own)
        undo.pop_all()
    with ExitStack() as undo:
        # Before the segment is locked, because closing a second descriptor of a file releases its locks.
        _close_all_files(files[place])
        files[place] = own
        descriptors = [fd for of_rank in files for fd in of_rank if fd != own[0]]
        undo.callback(_close_all_files, descriptors)
        segment = files[0][-1]
        mapped = _mapped(segment, length, rank)
        undo.callback(mapped.close)
        address = c.addressof((c.c_char * 1).from_buffer(mapped))
        endpoint = Endpoint(address, length, rank, token, -1 if _share_process(peers) else segment)
        undo.callback(endpoint.close)
        undo.push(bootstrap)  # reports the reason before the others detect that this rank has left
        for peer, of_rank in zip(members, files, strict=True):
            _map_heap(endpoint, peer, rank, of_rank[0])
        # Until here the rank's connection shows that it is alive, from now on its lock on the segment.
        bootstrap.all_gather(b"", deadline)
        bells = {peer: of_rank[1] for peer, of_rank in zip(members, files, strict=True)} if with_bells else {}
        memory = HostMemory(mapped, address, descriptors, endpoint, bells, len(members))
        memory.set_threads(1)
        undo.pop_all()
        return memory


def _new_segment(length: int, shape: Shape, token: bytes) -> int:
    fd = memory_file("blink-segment", length)
    try:
        with _mapped(fd, length, 0) as fresh:
            format_segment(c.addressof((c.c_char * 1).from_buffer(fresh)), length, shape, token)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _close_all_files(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)


def _mapped(fd: int, length: int, rank: int) -> mmap.mmap:
    file = os.fstat(fd)
    if file.st_uid != os.geteuid() or file.st_size != length:
        raise CommunicationError(
            f"rank {rank} was given {file.st_size} bytes of user {file.st_uid}, "
            f"expected {length} bytes of user {os.geteuid()}"
        )
    try:
        return mmap.mmap(fd, length)
    except OSError as error:
        raise UnsupportedError(
            f"rank {rank} needs {length} bytes of address space for its group's memory, but the system reports: "
            f"{error.strerror}; look at the limit on address space (ulimit -v)"
        ) from None


def _map_heap(endpoint: Endpoint, peer: int, rank: int, fd: int) -> None:
    if peer == rank:
        heap = process_heap()
        endpoint.set_heap(peer, heap.size, address=heap.address)
    else:
        endpoint.set_heap(peer, os.fstat(fd).st_size, fd=fd)


def _share_process(peers: Sequence[PeerInfo]) -> bool:
    """True if ranks are threads of one process: then none can die alone, and POSIX locks are per process."""
    return len({(peer.host, peer.processes, peer.pid, peer.start) for peer in peers}) < len(peers)


class _SingleRankOp:
    """A collective of one rank: its output is its input, scaled."""

    def __init__(self, call: CollectiveCall) -> None:
        self._row, self._operation = element_type(call.dtype), operation(call.op)
        self._row.combine(self._operation)
        self.call = call
        self.scales = self._operation.scales and call.reduces

    def run(self, send: int | None, recv: int | None, timeout_us: int, scale: float | None = None) -> None:
        """Copy the input, and multiply it by ``scale`` if one is given."""
        nbytes = self.call.elements * self._row.itemsize
        if send is None or recv is None or not nbytes:
            return
        if scale is None:
            c.memmove(recv, send, nbytes)
            return
        values = np.frombuffer(c.string_at(send, nbytes), self._row.storage)
        result = fold(self._row, self._operation, [values], [self._row.scalar(scale)])
        c.memmove(recv, np.ascontiguousarray(result).ctypes.data, nbytes)

    def close(self) -> None:
        """Do nothing; there are no resources."""
