"""Runs a Program with a thread per rank, really concurrently: bounded queues, pipelined by chunks.

Each queue owns ``slots`` staging buffers of one chunk, as a connection between GPUs would: a sender
copies its value in, a receiver combines straight out of it and gives it back. No buffer is allocated while
the loop runs (float min and max make a temporary). NumPy lets other threads run while it works on a chunk,
so ranks overlap on as many cores as there are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DType, Operation, Scale, operation, scalars
from blinkccl.engines.buffers import RankBuffers, filled, role_views
from blinkccl.errors import DeadlineError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Queue, Role

Array = NDArray[Any]


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
    """Runs a collective once; see :class:`blinkccl.engines.registry.Run`.

    The same bits as the reference engine for any data: the Program fixes the order of every reduction.

    Raises
    ------
    DeadlineError
        If a rank waits past the deadline: rank, chunk, channel and peer.

    Notes
    -----
    Cost: one copy per message and one combination per receive, in chunks; besides the buffers, queues ·
    slots · ``chunk_bytes`` of memory at most, and a thread start per rank.
    """
    buffers, row = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    bound = bind(program, call.elements, row.itemsize, chunk_bytes)
    with ThreadedProgram(bound, buffers, row, operation(call.op), scales) as execution:
        execution.go(deadline_s)
    return list(buffers.outputs)


class ThreadedProgram:
    """A program bound to buffers, with its staging memory: made once, run as often as wanted.

    Parameters
    ----------
    bound
        The program for these sizes.
    buffers
        What the ranks read and write; their contents may be changed between runs.
    dtype, chosen
        Rows of :mod:`blinkccl.collectives.ops`.
    scales
        One number per rank for ``premul_sum``; else None.
    """

    def __init__(
        self,
        bound: Bound,
        buffers: RankBuffers,
        dtype: DType,
        chosen: Operation,
        scales: Sequence[float] | None = None,
    ) -> None:
        self._bound = bound
        self._dtype = dtype
        self._combine = dtype.combine(chosen)
        factors = scalars(chosen, dtype, scales, bound.program.collective.world_size)
        self._failure = _Failure()
        self._pool = ThreadPoolExecutor(len(bound.program.ranks), "blink-rank")
        self._connections = self._connect()
        self._bodies: list[list[_Step]] = [[] for _ in bound.program.ranks]
        for role in bound.program.roles:
            views = role_views(bound, buffers, role, chosen, factors)
            if views.chunks:
                self._bodies[role.rank].append(
                    _Step(
                        role,
                        views.source,
                        views.target,
                        views.chunks,
                        views.divisor,
                        views.scale,
                        tuple(self._connections[q] for q in role.receives),
                        tuple(self._connections[q] for q in role.sends),
                    )
                )

    def __enter__(self) -> ThreadedProgram:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown()

    def go(self, deadline_s: float = 60.0) -> None:
        """Runs all ranks to their ends, once.

        Raises
        ------
        DeadlineError
            If a rank waits past the deadline. Afterwards this object must not be used again.
        """
        deadline = time.monotonic() + deadline_s
        futures = [self._pool.submit(self._run, body, deadline) for body in self._bodies]
        try:
            for future in futures:
                future.add_done_callback(self._note)
            wait(futures)
        finally:  # where the caller is interrupted, its ranks stop too
            if not all(future.done() for future in futures):
                self._stop(_StoppedError())
        for future in futures:  # a callback may still be on its way
            self._note(future)
        if self._failure.first is not None:
            raise self._failure.first

    def _note(self, future: Future[None]) -> None:
        """Called by each rank's thread at its end: what ends one rank stops all."""
        error = future.exception()
        if error is not None and not isinstance(error, _StoppedError):
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        self._failure.set(error)
        for connection in self._connections:
            connection.wake()

    def _connect(self) -> list[_Connection]:
        program = self._bound.program
        slots = [1] * len(program.queues)
        messages = [0] * len(program.queues)
        longest = [0] * len(program.queues)
        for role in program.roles:
            for queue in role.sends:
                slots[queue] = program.channels[role.channel].slots
                messages[queue] += self._bound.extents[role.slice].chunks
                longest[queue] = max(longest[queue], self._bound.extents[role.slice].length)
        return [
            _Connection(
                queue,
                max(1, min(slots[index], messages[index])),  # no memory for idle slots
                min(longest[index], self._bound.chunk_elements),
                self._dtype,
                self._failure,
            )
            for index, queue in enumerate(program.queues)
        ]

    def _run(self, body: list[_Step], deadline: float) -> None:
        """One rank: walks through its steps tick by tick."""
        if not body:
            return
        with np.errstate(all="ignore"):  # an overflow to inf is a result, not a mishap
            self._walk(body, deadline)

    def _walk(self, body: list[_Step], deadline: float) -> None:
        extents = self._bound.extents
        longest = max(extents[step.role.slice].length for step in body)
        scratch = _Scratch(min(self._bound.chunk_elements, longest), self._dtype)
        for tick in range(min(s.role.offset for s in body), max(s.role.offset + s.chunks for s in body)):
            for step in body:
                chunk = tick - step.role.offset
                if 0 <= chunk < step.chunks:
                    elements = extents[step.role.slice].chunk_elements
                    span = slice(chunk * elements, (chunk + 1) * elements)
                    self._fire(step, chunk, span, scratch, deadline)

    def _fire(self, step: _Step, chunk: int, span: slice, scratch: _Scratch, deadline: float) -> None:
        """One execution of a role.

        The value is never built in a send slot: no received slot must be held back while a send has to wait.
        """
        own = step.source[span] if step.source is not None else None
        place = step.target[span] if step.target is not None else None
        operands = len(step.receives) + (own is not None)
        if operands == 1 and step.scale is None and step.divisor == 1:
            value = own if own is not None else self._copied(step, chunk, place, scratch, deadline)
        else:
            total = self._combined(step, chunk, own, place, scratch, deadline)
            if step.divisor > 1:
                built = place if place is not None and not self._dtype.rounds_once else scratch.total[: total.size]
                self._dtype.divide(total, step.divisor, built)
                total = built
            value = scratch.rounded(total, place)
        if place is not None and value is not place:
            np.copyto(place, value)
        for connection in step.sends:
            connection.send(value, step, chunk, deadline)

    def _copied(self, step: _Step, chunk: int, place: Array | None, scratch: _Scratch, deadline: float) -> Array:
        """The one message of an execution that passes it on as it is."""
        (connection,) = step.receives
        message = connection.receive(step, chunk, deadline)
        value = place if place is not None else scratch.value[: message.size]
        np.copyto(value, message)
        connection.release()
        return value

    def _combined(
        self, step: _Step, chunk: int, own: Array | None, place: Array | None, scratch: _Scratch, deadline: float
    ) -> Array:
        """All operands of an execution in accumulators; the own one after ``own_operand_index`` messages.

        Built where it is kept if that is of the accumulator's type, and, as it may be the own input's memory in
        place, if nothing is combined before the own input.
        """
        own_index = step.role.own_operand_index
        kept = place if not self._dtype.rounds_once and (own is None or own_index == 0) else None
        total: Array | None = None
        for index in range(len(step.receives) + 1):
            if index == own_index and own is not None:
                total = self._take(total, own, step.scale, kept, scratch, lasts=True)
            if index < len(step.receives):
                connection = step.receives[index]
                message = connection.receive(step, chunk, deadline)
                total = self._take(total, message, None, kept, scratch, lasts=False)
                connection.release()
        assert total is not None  # role_views has seen to it
        return total

    def _take(
        self, total: Array | None, operand: Array, scale: Scale, kept: Array | None, scratch: _Scratch, *, lasts: bool
    ) -> Array:
        """``total`` ∘ ``scale`` · ``operand``, in ``kept`` or else in ``scratch``.

        A first operand that ``lasts`` longer than a message in its slot need not be copied.
        """
        built = kept if kept is not None else scratch.total[: operand.size]
        value = built if total is None else scratch.operand[: operand.size]
        if scale is not None:
            np.multiply(self._dtype.widen(operand), scale, out=value)
        elif self._dtype.rounds_once or (total is None and not lasts):
            np.copyto(value, operand)
        else:
            value = operand
        return value if total is None else self._combine(total, value, out=built)


class _Scratch:
    """One rank's memory for values in the making, of the longest chunk that it meets."""

    def __init__(self, elements: int, dtype: DType) -> None:
        self._dtype = dtype
        self.total = np.empty(elements, dtype.accumulator)
        self.operand = np.empty(elements, dtype.accumulator)
        #: Elements, not accumulators: the same memory as ``total`` where these are one type.
        self.value = np.empty(elements, dtype.storage) if dtype.rounds_once else self.total

    def rounded(self, total: Array, place: Array | None) -> Array:
        """``total`` as elements: itself if it is of their type, else rounded into ``place`` or here."""
        if not self._dtype.rounds_once:
            return total
        value = place if place is not None else self.value[: total.size]
        np.copyto(value, total, casting="same_kind")
        return value


class _StoppedError(Exception):
    """Another rank has failed; this one stops in silence."""


class _Failure:
    """The first error of any rank."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.first: BaseException | None = None

    def set(self, error: BaseException) -> None:
        """Keeps ``error`` if it is the first."""
        with self._lock:
            if self.first is None:
                self.first = error


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A role with its memory and connections."""

    role: Role
    source: Array | None
    target: Array | None
    chunks: int
    divisor: int
    scale: Scale
    receives: tuple[_Connection, ...]
    sends: tuple[_Connection, ...]


class _Connection:
    """One queue: a ring of staging buffers, filled by one thread and emptied by another."""

    def __init__(self, queue: Queue, slots: int, elements: int, dtype: DType, failure: _Failure) -> None:
        self._queue = queue
        self._slots = slots
        self._staging = np.empty((slots, elements), dtype.storage)
        self._sizes = [0] * slots
        self._sent = 0
        self._received = 0
        self._changed = Condition(Lock())
        self._failure = failure

    def receive(self, step: _Step, chunk: int, deadline: float) -> Array:
        """The next message, which stays in its slot until :meth:`release`."""
        with self._changed:
            while self._sent == self._received:
                self._wait(step.role, f"for chunk {chunk}", f"from rank {self._queue.src}", deadline)
        slot = self._received % self._slots
        return self._staging[slot, : self._sizes[slot]]

    def release(self) -> None:
        """Gives the slot of the message received last back to the sender."""
        with self._changed:
            self._received += 1
            self._changed.notify()

    def send(self, value: Array, step: _Step, chunk: int, deadline: float) -> None:
        """Copies ``value`` into the next free slot."""
        with self._changed:
            while self._sent - self._received >= self._slots:
                self._wait(step.role, f"for a slot to send chunk {chunk}", f"to rank {self._queue.dst}", deadline)
        slot = self._sent % self._slots
        self._sizes[slot] = value.size
        np.copyto(self._staging[slot, : value.size], value)  # outside the lock: the slot is the sender's
        with self._changed:
            self._sent += 1
            self._changed.notify()

    def wake(self) -> None:
        """Lets whoever waits here see that the run has failed."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self, role: Role, what: str, peer: str, deadline: float) -> None:
        if self._failure.first is not None:
            raise _StoppedError
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"rank {role.rank} waited past the deadline {what} of channel {role.channel} {peer} "
                f"({role.stage} of share {role.share}); is the program verified, or the deadline too "
                "short for this size?"
            )
        self._changed.wait(left)
