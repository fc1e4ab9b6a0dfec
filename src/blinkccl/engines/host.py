"""The host engine: native code that runs a Program over shared memory.

Ranks are processes of one machine with one :class:`Endpoint` each; :mod:`blinkccl.runtime` creates and joins the
segment between them.

The native library binds the layout of :mod:`blinkccl.engines.host_plan` to a size and executes it. This file calls the
library and converts its codes to errors.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES, Scale, element_type, operation
from blinkccl.engines import native_library as native
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

#: Bytes of a stream for point-to-point messages, per ordered pair of ranks.
STREAM_BYTES = 64 * 1024
_MOST_CHUNK_BYTES = 1 << 62
#: Room for the address of a rank's networks, which has some hundred bytes for each interface.
_ADDRESS_BYTES = 1 << 20
#: Most bound plans that are kept to explain recorded calls; the oldest are dropped first.
_MOST_BOUND = 4096


def shape_of(ranks: int, area: Area, stream_bytes: int = STREAM_BYTES) -> native.Shape:
    """The sizes of a segment."""
    return native.Shape(ranks, area.lines, area.staging_bytes, area.inline_bytes, stream_bytes)


def segment_bytes(shape: native.Shape) -> int:
    """Bytes of address space of a segment; only used pages take memory."""
    size: int = native.load().blink_segment_bytes(c.byref(shape))
    return size


def format_segment(address: int, size: int, shape: native.Shape, token: bytes) -> None:
    """Write the header of a segment into zeroed memory."""
    code = native.load().blink_segment_format(address, size, c.byref(shape), token, len(os.sched_getaffinity(0)))
    if code != native.OK:
        raise UnsupportedError(f"a shared segment of {size} bytes for {shape.ranks} ranks cannot be created")


class BoundPlan(NamedTuple):
    """The plan of recorded calls."""

    plan: HostPlan
    call: CollectiveCall
    cross_memory: bool


class Endpoint:
    """One rank's end of a segment, whose mapping at ``address`` must outlive it.

    ``token`` is the segment's secret. ``fd`` is its descriptor, with which ranks detect the end of others, or −1 for
    threads. CommunicationError if the memory is no segment, has another token, or the rank has joined already.
    """

    def __init__(self, address: int, size: int, rank: int, token: bytes, fd: int = -1) -> None:
        self._library = native.load()
        error = native.Error()
        self._comm: int | None = self._library.blink_attach(address, size, rank, token, fd, c.byref(error))
        if not self._comm:
            raise CommunicationError(f"rank {rank} cannot join its communicator: {error.text.decode()}")
        self.rank = rank
        self.bound: dict[int, BoundPlan] = {}  # By signature.
        self._handling = c.c_uint64(0)  # The thread that runs signal handlers during a call.
        self._library.blink_set_python(self._comm, c.byref(native.python_functions(self._handling)))

    @property
    def handle(self) -> int:
        """The native communicator; CommunicationError if it is closed, or in a signal handler during a call on it."""
        if self._comm is None:
            raise CommunicationError(f"rank {self.rank}'s communicator is closed")
        if self._handling.value == threading.get_ident():
            raise CommunicationError(
                f"rank {self.rank}: this signal handler runs during a call on the communicator, so it cannot use or "
                "close it; abort it, or raise an exception"
            )
        return self._comm

    def set_heap(self, rank: int, size: int, address: int = 0, fd: int = -1) -> None:
        """Set the place of ``rank``'s shared tensors: mapped at ``address``, or in the file ``fd``."""
        code = self._library.blink_set_heap(self.handle, rank, address or None, fd, size)
        if code != native.OK:
            raise CommunicationError(f"the {size} bytes of rank {rank}'s shared tensors cannot be mapped (code {code})")

    def open_network(self, library: str, bell: int, devices: str = "") -> bytes:
        """Open the networks of this host with UCX's ``library``; return the address for peers on other hosts.

        ``bell`` is an eventfd of this rank; ``devices`` are those of UCX_NET_DEVICES, or all. UnsupportedError if
        the library is no UCX that serves, CommunicationError with UCX's reason if it has no such network.
        """
        return self._opened(self._library.blink_open_network, library.encode(), devices.encode() or None, bell)

    def open_rail(self, rail: int, devices: str, streams: bool = False) -> bytes:
        """Open ``devices``, named as in UCX_NET_DEVICES, for queues on ``rail``; otherwise :meth:`open_network`.

        ``streams``: for messages from point to point, too.
        """
        return self._opened(self._library.blink_open_rail, rail, devices.encode(), streams)

    def _opened(self, function: Callable[..., int], *arguments: Any) -> bytes:
        error, room = native.Error(), c.create_string_buffer(_ADDRESS_BYTES)
        nbytes = function(self.handle, *arguments, room, len(room), c.byref(error))
        if nbytes < 0:
            kind = UnsupportedError if error.code == native.UNSUPPORTED else CommunicationError
            raise kind(error.text.decode(errors="replace"))
        return room.raw[:nbytes]

    def connect(self, rank: int, address: bytes, rail: int = 0) -> None:
        """Set the address of ``rank`` on another host, the result of its :meth:`open_network` or :meth:`open_rail`."""
        if self._library.blink_connect(self.handle, rank, rail, address, len(address)) != native.OK:
            raise CommunicationError(f"rank {rank} sent {len(address)} bytes that are no address")

    def add_route(self, rank: int, share: float, hops: Sequence[tuple[int, int]]) -> None:
        """Add a route for ``share`` of the bytes of large messages to ``rank``: each hop's rail, and the rank there."""
        rails, ranks = ((c.c_int32 * len(hops))(*column) for column in zip(*hops, strict=True))
        if self._library.blink_stream_route(self.handle, rank, share, len(hops), rails, ranks) != native.OK:
            raise CommunicationError(f"the route {hops} to rank {rank} has no connection at its begin")

    def send_at_once(self, nbytes: int) -> None:
        """Send messages of up to ``nbytes`` between hosts at once; larger ones wait until their receiver is ready."""
        self._library.blink_send_at_once(self.handle, nbytes)

    def set_bell(self, rank: int, bell: int) -> None:
        """The eventfd of another rank of this host."""
        self._library.blink_set_bell(self.handle, rank, bell)

    def close(self) -> None:
        """Leave, and notify the other ranks. Close every :class:`NativeOp` of this endpoint first."""
        if self._comm is not None:
            self._library.blink_detach(self._comm)
            self._comm = None

    def forget(self) -> None:
        """Mark the communicator closed in a forked child, which is no rank."""
        self._comm = None

    def abort(self, why: str) -> None:
        """End the communicator for all ranks: their calls raise CommunicationError with ``why``."""
        if self._comm is not None:
            self._library.blink_abort(self._comm, why.encode()[:250])

    def report_lost(self, rank: int) -> None:
        """Report to all ranks that the process of ``rank`` has ended, unless another failure came first."""
        self._library.blink_report_lost(self.handle, rank)

    def count_from_here(self) -> None:
        """Restart the count of calls in messages, because earlier calls were not the user's."""
        self._library.blink_count_from_here(self.handle)

    def share_core(self, long_waits: bool) -> None:
        """Make waits yield the core early, because other threads need it; with ``long_waits`` they also sleep early."""
        self._library.blink_share_core(self.handle, long_waits)

    def set_threads(self, threads: int) -> None:
        """Share large chunks among at most ``threads`` of this rank, 1 to MOST_THREADS, the calling one included."""
        if self._library.blink_set_threads(self.handle, threads) != native.OK:
            raise UsageError(f"expected 1 to {native.MOST_THREADS} threads, got {threads}")

    def can_cross(self) -> bool:
        """True if this rank may copy from every other rank's private memory; valid after all have joined."""
        return bool(self._library.blink_can_cross(self.handle))

    def stats(self) -> dict[str, int]:
        """This rank's counters: ``blink_stats`` in host.h."""
        stats = native.Stats()
        self._library.blink_get_stats(self.handle, c.byref(stats))
        return {name: int(getattr(stats, name)) for name, *_ in native.Stats._fields_}

    def record(self, events: int, least_bytes: int = 0) -> None:
        """Record this rank's last ``events`` events from now on (0: none), and drop older ones. Only between calls.

        Executions of roles with chunks below ``least_bytes`` are not recorded, as an event costs some 50 ns.
        """
        code = self._library.blink_record(self.handle, events, least_bytes)
        if code == native.INVALID:
            raise UsageError(f"recorder: expected 0 to {native.MOST_EVENTS:,} events, got {events:,}")
        if code:
            raise UnsupportedError(f"recorder: no memory for {events:,} events; record fewer")

    def recorded(self, events: int) -> tuple[bytes, int]:
        """At most ``events`` recorded events, oldest first, as ``blink_event``, and the number of dropped ones."""
        rows, dropped = (native.Event * events)(), c.c_uint64(0)
        count: int = self._library.blink_recorded(self.handle, c.byref(rows), events, c.byref(dropped))
        return bytes(memoryview(rows).cast("B")[: count * c.sizeof(native.Event)]), dropped.value

    def failure(self, code: int, describe: str = "") -> BaseException:
        """The exception for ``code``, the last code that a function returned, not 0."""
        if code == native.INTERRUPTED:
            return self._raised()
        error = native.Error()
        self._library.blink_last_error(self.handle, c.byref(error))
        return to_exception(error, self.rank, describe)

    def _raised(self) -> BaseException:
        """The exception that a signal handler raised during the call."""
        raised = (c.c_void_p * 3)()
        self._library.blink_take_raised(self.handle, raised)
        try:
            c.pythonapi.PyErr_Restore(*(c.c_void_p(pointer) for pointer in raised))
        except BaseException as error:
            return error
        return KeyboardInterrupt()


def statuses(address: int, size: int) -> list[native.RankStatus]:
    """The status of every rank in the segment that is mapped at ``address``."""
    library = native.load()
    ranks: int = library.blink_describe(address, size, None, 0)
    if ranks < 0:
        raise CommunicationError(f"expected a segment of this version of blink-ccl, got {size} other bytes")
    rows = (native.RankStatus * ranks)()
    library.blink_describe(address, size, c.byref(rows), ranks)
    return list(rows)


def failure_of(address: int, size: int) -> BlinkError | None:
    """The error that ended the communicator of the segment mapped at ``address``; None if it has not ended."""
    error = native.Error()
    if native.load().blink_describe_failure(address, size, c.byref(error)) != 1:
        return None
    return to_exception(error, error.rank)


def to_exception(error: native.Error, rank: int, describe: str = "") -> BlinkError:
    """The error of a native code. ``describe`` names the call, if known.

    If another call failed, the message names that call. A call on a group whose end was reported to this rank before
    raises no DeadlineError, as it waited for nothing.
    """
    if error.code == native.REFUSED:
        return UsageError(
            f"{describe}: {error.text.decode(errors='replace')}; the call did not start, and the group is still usable"
        )
    if error.heard:
        return _after_failure(error, rank, describe)
    if error.earlier:
        describe = str(CollectiveCall.from_number(error.what[0], error.count[0])) if error.what[0] else ""
    where = f"call {error.sequence}" + (f" ({describe})" if describe else "")
    if not error.sequence:  # A message before the first call, or the creation of the group.
        where = "the time before the first call" if error.earlier else describe or "the creation of the group"
    detector = "" if error.rank == rank else f" (detected by rank {error.rank})"
    if error.code == native.DEADLINE:
        return DeadlineError(
            f"{where}: rank {error.rank} waited {error.seconds_us / 1e6:.1f} s {awaited(error)}; a rank is stuck, or "
            "the timeout (BLINK_TIMEOUT) is too short"
        )
    if error.code == native.PEER_LOST:
        end = "it closed its communicator" if error.left else "its process ended"
        return PeerLostError(error.peer, f"{end} during {where}{detector}")
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
            f"{where}: the communicator was aborted: {error.text.decode(errors='replace')}{detector}"
        )
    return CommunicationError(f"{where}: native code {error.code}: {error.text.decode(errors='replace')}")


def _after_failure(error: native.Error, rank: int, describe: str) -> BlinkError:
    """The error of a call on a group whose end an earlier call reported."""
    error.heard, error.earlier = 0, 1
    first = to_exception(error, rank)
    if isinstance(first, PeerLostError):
        return PeerLostError(first.rank, first.message)
    text = f"{describe}: the group had ended already: {first}"
    return PlanMismatchError(text) if isinstance(first, PlanMismatchError) else CommunicationError(text)


def awaited(error: native.Error | native.RankStatus) -> str:
    """The chunk and channel, or the call, and the peer that a rank waits for."""
    role = f"{STAGES[error.stage] if 0 <= error.stage < len(STAGES) else 'a stage'} of share {error.share}"
    match native.WAITS[error.waits]:
        case "message":
            return f"for chunk {error.chunk} of channel {error.channel} from rank {error.peer} ({role})"
        case "slot":
            chunk = f"chunk {error.chunk} of channel {error.channel}"
            return f"for rank {error.peer} to read earlier messages, before it can send {chunk} ({role})"
        case "reader" if error.peer < 0:
            return "for its messages to leave this host"
        case "reader":
            return f"for rank {error.peer} to finish reading its buffer"
        case "stream":
            peer = f"from or to rank {error.peer}" if error.peer >= 0 else "from any rank"
            return f"for a message with tag {error.chunk} {peer}"
        case _:
            return f"for rank {error.peer} to make the same call"


class _NativePlan:
    """A plan that the native library has read and checked."""

    def __init__(self, plan: HostPlan) -> None:
        library, error = native.load(), native.Error()
        self.handle: int | None = library.blink_plan_read(plan.rows, len(plan.rows), c.byref(error))
        if not self.handle:
            raise ScheduleError(f"the native library refuses the program's plan: {error.text.decode()}")
        weakref.finalize(self, library.blink_plan_free, self.handle).atexit = False


_native_plans: weakref.WeakKeyDictionary[HostPlan, _NativePlan] = weakref.WeakKeyDictionary()
_reading = threading.Lock()


def _native_plan(plan: HostPlan) -> _NativePlan:
    """The native form of ``plan``, cached for as long as ``plan`` lives."""
    with _reading:
        native_plan = _native_plans.get(plan)
        if native_plan is None:
            native_plan = _native_plans[plan] = _NativePlan(plan)
        return native_plan


class NativeOp:
    """One rank's plan, bound to ``call``. ``cross_memory`` must be possible on all ranks, and equal on all.

    UnsupportedError if it does not fit into the segment with chunks of any size; UsageError for ``chunk_bytes`` < 1.
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
        #: True if its messages, which are small, contain their flags.
        self.inline = plan.inline
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
        # An operation that is not closed is destroyed with its last reference, since its call may still be running.
        self._destroy = weakref.finalize(self, self._library.blink_op_destroy, self._op)
        self._destroy.atexit = False

    @property
    def handle(self) -> int:
        """The native operation; a CommunicationError if it or its communicator is closed."""
        op, endpoint = self._op, self.endpoint
        # Endpoint.handle only where it may raise: a small call is worth few frames of Python.
        if op is None or ((endpoint._comm is None or endpoint._handling.value) and not endpoint.handle):
            raise CommunicationError(f"{self.call}: rank {endpoint.rank}'s communicator is closed")
        return op

    def add_variant(self, other: NativeOp) -> None:
        """Take over ``other``, another execution of the same call: the group times both, and runs the faster one.

        All ranks must add the same variants in the same order before the first run.
        """
        code = self._library.blink_op_add_variant(self.handle, other.handle)
        if code:
            raise UnsupportedError(f"{self.call}: too many variants")
        other._destroy.detach()
        other._op = None

    def run(self, send: int | None, receive: int | None, timeout_us: int, scale: float | None = None) -> None:
        """Run on raw addresses, without the GIL; after a CommunicationError the communicator cannot be used."""
        code = self._library.blink_op_run(
            self.handle, send, receive, scale is not None, 1.0 if scale is None else scale, timeout_us
        )
        if code:
            raise self.endpoint.failure(code, str(self.call))

    def start(self, send: int | None, receive: int | None, timeout_us: int, patience_us: int = 0) -> bool:
        """Start, and continue until a wait for another rank that takes longer than this; True if the call has ended.

        Until it has ended, allow no other call on the communicator. Errors as in :meth:`run`; they end it too.
        """
        return self._ended(self._library.blink_op_start(self.handle, send, receive, timeout_us, patience_us))

    def step(self, patience_us: int = 0) -> bool:
        """Continue as :meth:`start`."""
        return self._ended(self._library.blink_op_step(self.handle, patience_us))

    def finish(self) -> bool:
        """Continue to the end of the call."""
        return self._ended(self._library.blink_op_finish(self.handle))

    @property
    def only_receives(self) -> bool:
        """True if the call in progress has sent all its messages, so that no rank waits for its next step."""
        return bool(self._library.blink_op_only_receives(self.handle))

    def _ended(self, code: int) -> bool:
        if code and code != native.AGAIN:
            raise self.endpoint.failure(code, str(self.call))
        return not code

    def time(
        self,
        barrier: NativeOp | None,
        send: int | None,
        receive: int | None,
        iterations: int,
        timeout_us: int,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """Run ``iterations`` times in a loop in C, each after a barrier; seconds of each run."""
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
        """Free the native memory."""
        self._op = None
        self._destroy()


def native_scale(factor: Scale) -> float:
    """A scalar as a double for the native library; UnsupportedError for an integer that no double holds exactly."""
    value = float(factor)
    if isinstance(factor, np.integer) and int(value) != int(factor):  # NumPy would compare them as doubles.
        raise UnsupportedError(
            f"scales: expected integers up to 2^53, which doubles hold exactly, got {factor}; multiply before the call"
        )
    return value
