"""Runs a Program in native code over shared memory: the host engine.

Ranks are processes of one machine (:mod:`blinkccl.runtime` makes and joins the segment between them); each
has one :class:`Endpoint`. For tests and for the conformance suite :func:`run` plays all ranks in this
process, a thread each: the same native code on the same segment, only that nobody can die.

The native library binds what :mod:`blinkccl.engines.host_plan` laid out to a size, and executes it; this file passes
that on, and turns codes into errors.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES, Scale, element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.engines import native_library as native
from blinkccl.engines.buffers import Arithmetic, RankBuffers, Zeros, filled
from blinkccl.engines.host_plan import STAGES, Area, HostPlan
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    ScheduleError,
    UnsupportedError,
    UsageError,
)
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program

Array = NDArray[Any]

#: Per ordered pair of ranks, for point to point.
STREAM_BYTES = 64 * 1024
_MOST_CHUNK_BYTES = 1 << 62
#: Bound plans whose recorded calls can be told; the oldest goes first.
_MOST_BOUND = 4096


def shape_of(ranks: int, area: Area, stream_bytes: int = STREAM_BYTES) -> native.Shape:
    """The sizes of a segment."""
    return native.Shape(ranks, area.lines, area.staging_bytes, area.inline_bytes, stream_bytes)


def segment_bytes(shape: native.Shape) -> int:
    """Bytes of address space that a segment takes; memory is taken by the pages that are used."""
    size: int = native.load().blink_segment_bytes(c.byref(shape))
    return size


def format_segment(address: int, size: int, shape: native.Shape, token: bytes) -> None:
    """Writes the header of a segment into zeroed memory."""
    code = native.load().blink_segment_format(address, size, c.byref(shape), token, len(os.sched_getaffinity(0)))
    if code != native.OK:
        raise UnsupportedError(f"a segment of {size} bytes cannot be made for {shape.ranks} ranks")


class BoundPlan(NamedTuple):
    """What a recorded call ran."""

    plan: HostPlan
    call: CollectiveCall
    cross_memory: bool


class Endpoint:
    """One rank's end of a segment, which is mapped at ``address`` for longer than this lives.

    ``token`` is the secret that the segment was made with; ``fd`` its descriptor, by which ranks see who is alive, or
    −1 where they are threads. A CommunicationError if the memory is no segment, another's, or the rank is taken.
    """

    def __init__(self, address: int, size: int, rank: int, token: bytes, fd: int = -1) -> None:
        self._library = native.load()
        error = native.Error()
        self._comm: int | None = self._library.blink_attach(address, size, rank, token, fd, c.byref(error))
        if not self._comm:
            raise CommunicationError(f"rank {rank} cannot join its communicator: {error.text.decode()}")
        self.rank = rank
        self.bound: dict[int, BoundPlan] = {}  # by signature
        self._handling = c.c_uint64(0)  # the thread that runs signal handlers in the middle of a call
        self._library.blink_set_python(self._comm, c.byref(native.python_functions(self._handling)))

    @property
    def handle(self) -> int:
        """The native communicator; CommunicationError if it is closed, or in a signal handler amid a call on it."""
        if self._comm is None:
            raise CommunicationError(f"rank {self.rank}'s communicator is closed")
        if self._handling.value == threading.get_ident():
            raise CommunicationError(
                f"rank {self.rank} is in the middle of a call, in which this signal handler runs: it may abort the "
                "communicator or raise, not use or close it"
            )
        return self._comm

    def set_heap(self, rank: int, size: int, address: int = 0, fd: int = -1) -> None:
        """Tells where ``rank``'s shared tensors are: mapped at ``address``, or in the file ``fd``."""
        code = self._library.blink_set_heap(self.handle, rank, address or None, fd, size)
        if code != native.OK:
            raise CommunicationError(f"the {size} bytes of rank {rank}'s shared tensors cannot be mapped (code {code})")

    def close(self) -> None:
        """Leaves; the others are told. All :class:`NativeOp` of this endpoint must be closed before."""
        if self._comm is not None:
            self._library.blink_detach(self._comm)
            self._comm = None

    def forget(self) -> None:
        """In a forked child, which has no rank: what it calls finds the communicator closed."""
        self._comm = None

    def abort(self, why: str) -> None:
        """Ends the communicator for all ranks: their calls raise CommunicationError with ``why``."""
        if self._comm is not None:
            self._library.blink_abort(self._comm, why.encode()[:250])

    def report_lost(self, rank: int) -> None:
        """Says to all ranks that the process of ``rank`` has ended, unless another failure came first."""
        self._library.blink_report_lost(self.handle, rank)

    def count_from_here(self) -> None:
        """The calls until now were not the user's: what people are shown counts from here."""
        self._library.blink_count_from_here(self.handle)

    def share_core(self, long_waits: bool) -> None:
        """Other threads want this rank's core: waits yield it soon, and ``long_waits`` sleep soon."""
        self._library.blink_share_core(self.handle, long_waits)

    def can_cross(self) -> bool:
        """Whether this rank may copy from every other rank's own memory; to be asked when all have joined."""
        return bool(self._library.blink_can_cross(self.handle))

    def stats(self) -> dict[str, int]:
        """What this rank has done so far: see ``blink_stats`` in host.h."""
        stats = native.Stats()
        self._library.blink_get_stats(self.handle, c.byref(stats))
        return {name: int(getattr(stats, name)) for name, *_ in native.Stats._fields_}

    def record(self, events: int, least_bytes: int = 0) -> None:
        """Keeps this rank's last ``events`` events from now on (0: none); what was kept is gone. Only between calls.

        Of roles with chunks below ``least_bytes`` no executions are kept, since each takes some 50 ns.
        """
        code = self._library.blink_record(self.handle, events, least_bytes)
        if code == native.INVALID:
            raise UsageError(f"a recorder keeps 0 to {native.MOST_EVENTS:,} events, got {events:,}")
        if code:
            raise UnsupportedError(f"there is no memory for {events:,} events")

    def recorded(self, events: int) -> tuple[bytes, int]:
        """The events kept, at most so many, oldest first, as ``blink_event``; and how many before them are gone."""
        room, dropped = (native.Event * events)(), c.c_uint64(0)
        found: int = self._library.blink_recorded(self.handle, c.byref(room), events, c.byref(dropped))
        return bytes(memoryview(room).cast("B")[: found * c.sizeof(native.Event)]), dropped.value

    def failure(self, code: int, describe: str = "") -> BaseException:
        """The exception for ``code``, which is not 0 and the last that a function returned."""
        if code == native.INTERRUPTED:
            return self._raised()
        error = native.Error()
        self._library.blink_last_error(self.handle, c.byref(error))
        return to_exception(error, self.rank, describe)

    def _raised(self) -> BaseException:
        """What a signal handler raised in the middle of the call."""
        raised = (c.c_void_p * 3)()
        self._library.blink_take_raised(self.handle, raised)
        try:
            c.pythonapi.PyErr_Restore(*(c.c_void_p(pointer) for pointer in raised))
        except BaseException as error:
            return error
        return KeyboardInterrupt()


def statuses(address: int, size: int) -> list[native.RankStatus]:
    """Every rank of the segment that is mapped at ``address``, as it shows itself there."""
    library = native.load()
    ranks: int = library.blink_describe(address, size, None, 0)
    if ranks < 0:
        raise CommunicationError(f"these {size} bytes are no segment of this version of blink-ccl")
    rows = (native.RankStatus * ranks)()
    library.blink_describe(address, size, c.byref(rows), ranks)
    return list(rows)


def failure_of(address: int, size: int) -> BlinkError | None:
    """What ended the communicator of the segment that is mapped at ``address``; None: nothing has."""
    error = native.Error()
    if native.load().blink_describe_failure(address, size, c.byref(error)) != 1:
        return None
    return to_exception(error, error.rank)


def to_exception(error: native.Error, rank: int, describe: str = "") -> BlinkError:
    """The one table from native codes to our errors. ``describe`` names the call, where it is known.

    Where another call than this one failed, that one is named. A call on a group that has ended before, as an earlier
    call of this rank has said, waited for nothing: no DeadlineError.
    """
    if error.code == native.REFUSED:
        return UsageError(f"{describe}: {error.text.decode(errors='replace')}; it was not begun, and the group goes on")
    if error.heard:
        return _after_failure(error, rank, describe)
    if error.earlier:
        describe = str(CollectiveCall.from_number(error.what[0], error.count[0])) if error.what[0] else ""
    where = f"call {error.sequence}" + (f" ({describe})" if describe else "")
    if not error.sequence:  # a message before the first call, or a group that is being made
        where = "the time before the first call" if error.earlier else describe or "the making of the group"
    found = "" if error.rank == rank else f" (found by rank {error.rank})"
    if error.code == native.DEADLINE:
        return DeadlineError(
            f"{where}: rank {error.rank} waited {error.seconds_us / 1e6:.1f} s {awaited(error)}; is a rank stuck, "
            "or the deadline (BLINK_TIMEOUT) too short?"
        )
    if error.code == native.PEER_LOST:
        what = "it closed its communicator" if error.left else "its process ended"
        return PeerLostError(error.peer, f"{what} during {where}{found}")
    if error.code == native.MISMATCH:
        sides = [
            f"rank {r} calls {CollectiveCall.from_number(w, n)}"
            for r, w, n in zip((error.rank, error.peer), error.what, error.count, strict=True)
        ]
        return PlanMismatchError(
            f"call {error.sequence} on the communicator: {', '.join(sides)}; collective, size, type, operation, "
            "root, order of calls, chunk size and blink-ccl's version must agree on all ranks"
        )
    if error.code == native.ABORTED:
        return CommunicationError(
            f"{where}: the communicator was aborted: {error.text.decode(errors='replace')}{found}"
        )
    return CommunicationError(f"{where}: native code {error.code}: {error.text.decode(errors='replace')}")


def _after_failure(error: native.Error, rank: int, describe: str) -> BlinkError:
    """The error of a call on a group that an earlier call has said to have ended."""
    error.heard, error.earlier = 0, 1
    first = to_exception(error, rank)
    if isinstance(first, PeerLostError):
        return PeerLostError(first.rank, first.message)
    text = f"{describe}: the group has ended before: {first}"
    return PlanMismatchError(text) if isinstance(first, PlanMismatchError) else CommunicationError(text)


def awaited(error: native.Error | native.RankStatus) -> str:
    """What a rank waits for, or waited for: which chunk of which channel, or which call, from whom."""
    role = f"{STAGES[error.stage] if 0 <= error.stage < len(STAGES) else 'a stage'} of share {error.share}"
    match native.WAITS[error.waits]:
        case "message":
            return f"for chunk {error.chunk} of channel {error.channel} from rank {error.peer} ({role})"
        case "slot":
            chunk = f"chunk {error.chunk} of channel {error.channel}"
            return f"for rank {error.peer} to take what was sent before, so that {chunk} can be sent ({role})"
        case "reader":
            return f"for rank {error.peer} to finish reading its buffer"
        case "stream":
            whom = f"from or to rank {error.peer}" if error.peer >= 0 else "from any rank"
            return f"for a message with tag {error.chunk} {whom}"
        case _:
            return f"for rank {error.peer} to make the same call"


class _NativePlan:
    """A plan as the native library holds it, which has checked it."""

    def __init__(self, plan: HostPlan) -> None:
        library, error = native.load(), native.Error()
        self.handle: int | None = library.blink_plan_read(plan.rows, len(plan.rows), c.byref(error))
        if not self.handle:
            raise ScheduleError(f"the native library refuses the program's plan: {error.text.decode()}")
        weakref.finalize(self, library.blink_plan_free, self.handle).atexit = False


_native_plans: weakref.WeakKeyDictionary[HostPlan, _NativePlan] = weakref.WeakKeyDictionary()
_reading = threading.Lock()


def _native_plan(plan: HostPlan) -> _NativePlan:
    """The same one for as long as ``plan`` lives."""
    with _reading:
        found = _native_plans.get(plan)
        if found is None:
            found = _native_plans[plan] = _NativePlan(plan)
        return found


class NativeOp:
    """A plan bound to ``call``, of one rank; all ranks must be able to ``cross_memory``, and say the same.

    An UnsupportedError if the segment has no room for it, however small the chunks; a UsageError for no chunks.
    """

    def __init__(
        self, endpoint: Endpoint, plan: HostPlan, call: CollectiveCall, chunk_bytes: int, cross_memory: bool = False
    ) -> None:
        dtype, chosen = element_type(call.dtype), operation(call.op)
        dtype.combine(chosen)
        if chunk_bytes < 1:
            raise UsageError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
        self.call = call
        self.scales = chosen.scales and plan.program.collective.reduces
        self.endpoint = endpoint
        self._library = native.load()
        held, error = _native_plan(plan), native.Error()
        binding = native.Binding(
            call.elements, DTYPE_CODES[dtype.name], chosen.code, min(chunk_bytes, _MOST_CHUNK_BYTES), int(cross_memory)
        )
        self._op: int | None = self._library.blink_op_bind(
            endpoint.handle, held.handle, c.byref(binding), c.byref(error)
        )
        if not self._op:
            kind = UnsupportedError if error.code == native.UNSUPPORTED else ScheduleError
            raise kind(f"{call}: {error.text.decode()}")
        signature: int = self._library.blink_op_signature(self._op)
        endpoint.bound[signature] = BoundPlan(plan, call, cross_memory)
        while len(endpoint.bound) > _MOST_BOUND:
            endpoint.bound.pop(next(iter(endpoint.bound)), None)
        # Also what nobody closes goes with its last user: a call that was forgotten may still be under way.
        self._destroy = weakref.finalize(self, self._library.blink_op_destroy, self._op)
        self._destroy.atexit = False

    @property
    def handle(self) -> int:
        """The native operation; a CommunicationError if it or its communicator is closed."""
        if self._op is None or not self.endpoint.handle:
            raise CommunicationError(f"{self.call}: rank {self.endpoint.rank}'s communicator is closed")
        return self._op

    def add_variant(self, other: NativeOp) -> None:
        """Takes ``other``, which does the same otherwise, over: the group measures both, and runs the faster one.

        All ranks add the same in the same order, before they run it.
        """
        code = self._library.blink_op_add_variant(self.handle, other.handle)
        if code:
            raise UnsupportedError(f"{self.call}: there are too many variants")
        other._destroy.detach()
        other._op = None

    def run(self, send: int | None, receive: int | None, timeout_us: int, scale: float | None = None) -> None:
        """Runs it on raw addresses, without the GIL; after a CommunicationError the communicator is of no use."""
        code = self._library.blink_op_run(
            self.handle, send, receive, scale is not None, 1.0 if scale is None else scale, timeout_us
        )
        if code:
            raise self.endpoint.failure(code, str(self.call))

    def start(self, send: int | None, receive: int | None, timeout_us: int) -> None:
        """Begins it, to go on by :meth:`step`; no other call on the communicator until it has ended."""
        self._check(self._library.blink_op_start(self.handle, send, receive, timeout_us))

    def step(self) -> bool:
        """Goes on as far as no other rank has to be waited for: whether it has ended; errors as of :meth:`run`."""
        code: int = self._library.blink_op_step(self._op)
        if code != native.AGAIN:
            self._check(code)
        return code != native.AGAIN

    def finish(self) -> None:
        """Goes on to its end."""
        self._check(self._library.blink_op_finish(self._op))

    def _check(self, code: int) -> None:
        if code:
            raise self.endpoint.failure(code, str(self.call))

    def time(
        self,
        barrier: NativeOp | None,
        send: int | None,
        receive: int | None,
        iterations: int,
        timeout_us: int,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """Runs it ``iterations`` times, each after a barrier, in a loop in C; seconds of each."""
        seconds = np.zeros(iterations)
        code = self._library.blink_op_time(
            self.handle,
            barrier.handle if barrier else None,
            send,
            receive,
            iterations,
            timeout_us,
            with_barrier,
            seconds.ctypes.data,
        )
        if code:
            raise self.endpoint.failure(code, str(self.call))
        return seconds

    def close(self) -> None:
        """Gives the native memory back."""
        self._op = None
        self._destroy()


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How messages of :func:`run` go.

    ``shared`` keeps the buffers in the ranks' heaps, so that messages are read and written where they lie; with
    ``cross_memory`` they are read in private buffers by the system. ``stats`` gets every rank's counters appended.
    """

    shared: bool = False
    cross_memory: bool = False
    stats: list[dict[str, int]] | None = None


def run(
    program: Program,
    inputs: Sequence[Array | None],
    call: CollectiveCall,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
    scales: Sequence[float] | None = None,
    options: HostOptions | None = None,
) -> list[Array | None]:
    """Runs a collective once, all ranks in this process; see :class:`blinkccl.engines.registry.RunProgram`.

    The same bits as the reference engine. Cost: mapping a segment and a thread per rank, besides the run.
    """
    ways = options or HostOptions()
    values = Arithmetic.of(program.collective, call, scales)
    plan = HostPlan(program)
    block_bytes = call.elements * values.dtype.itemsize
    heap = mmap.mmap(-1, _heap_bytes(program.collective, block_bytes)) if ways.shared else None
    zeros = np.zeros if heap is None else _in_heap(heap)
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place, zeros)
    with local_endpoints(len(program.ranks), plan.area, heap) as endpoints:
        ops = [NativeOp(endpoint, plan, call, chunk_bytes, ways.cross_memory) for endpoint in endpoints]
        try:
            _go(ops, buffers, int(deadline_s * 1e6), values.factors)
            if ways.stats is not None:
                ways.stats.extend([endpoint.stats() for endpoint in endpoints])
        finally:
            for each in ops:
                each.close()
    return list(buffers.outputs)


def _go(ops: Sequence[NativeOp], buffers: RankBuffers, timeout_us: int, factors: tuple[Scale, ...] | None) -> None:
    """All ranks at once, a thread each; the first error ends all of them."""
    scales = [None] * len(ops) if factors is None else [native_scale(factor) for factor in factors]
    calls = zip(ops, map(_address, buffers.inputs), map(_address, buffers.outputs), scales, strict=True)
    with ThreadPoolExecutor(len(ops), "blink-host-rank") as pool:
        futures = [pool.submit(each.run, source, target, timeout_us, scale) for each, source, target, scale in calls]
        try:
            for future in futures:
                future.result()
        except BaseException:  # where it is the caller who was interrupted, the ranks must not go on waiting
            ops[0].endpoint.abort("it was interrupted")
            raise


def native_scale(factor: Scale) -> float:
    """A scalar as the native library takes it; an UnsupportedError for an integer that no double holds exactly."""
    value = float(factor)
    if isinstance(factor, np.integer) and int(value) != int(factor):  # NumPy would compare them as doubles
        raise UnsupportedError(
            f"the host engine takes integer scales up to 2^53, got {factor}; use the engine reference"
        )
    return value


def _address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


@contextmanager
def local_endpoints(ranks: int, area: Area, heap: mmap.mmap | None = None) -> Iterator[list[Endpoint]]:
    """A segment in this process's own memory, with an endpoint per rank; ``heap`` is every rank's."""
    shape, token = shape_of(ranks, area), secrets.token_bytes(16)
    size = segment_bytes(shape)
    memory = mmap.mmap(-1, size)
    base = _Mapped(memory)
    endpoints: list[Endpoint] = []
    try:
        format_segment(base.address, size, shape, token)
        for rank in range(ranks):
            endpoints.append(Endpoint(base.address, size, rank, token))
        if heap is not None:
            at = _Mapped(heap)
            for endpoint in endpoints:
                for rank in range(ranks):
                    endpoint.set_heap(rank, len(heap), address=at.address)
            at.release()
        yield endpoints
    finally:
        for endpoint in endpoints:
            endpoint.close()
        base.release()
        memory.close()


@dataclass
class _Mapped:
    """A mapping's address, which ctypes gives only for as long as it exports the buffer."""

    memory: mmap.mmap

    def __post_init__(self) -> None:
        self._view: Any = (c.c_char * 1).from_buffer(self.memory)
        self.address = c.addressof(self._view)

    def release(self) -> None:
        """Lets the mapping be closed."""
        self._view = None


def _in_heap(heap: mmap.mmap) -> Zeros:
    """Makes arrays one after the other in ``heap``, each on pages of its own."""
    place = 0

    def zeros(elements: int, dtype: np.dtype[Any]) -> Array:
        nonlocal place
        array = np.frombuffer(heap, dtype, elements, place)
        place += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return array

    return zeros


def _heap_bytes(collective: Collective, block_bytes: int) -> int:
    """Enough for every rank's buffers, each on pages of its own."""
    ranks = range(collective.world_size)
    blocks = sum(collective.input_blocks(rank) + collective.output_blocks(rank) for rank in ranks)
    return blocks * block_bytes + (2 * collective.world_size + 1) * mmap.PAGESIZE
