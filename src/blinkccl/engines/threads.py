"""Runs a Program with a thread per rank, really concurrently: bounded queues, pipelined by chunks.

Each queue owns ``slots`` staging buffers of one chunk, as a connection between GPUs would: a sender
copies its value in, a receiver combines straight out of it and gives it back. Nothing is allocated while
the loop runs. NumPy lets other threads run while it works on a chunk, so ranks overlap on as many cores
as there are.
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

from blinkccl.collectives.ops import DType, Operation, operation
from blinkccl.engines.buffers import RankBuffers, filled, role_views
from blinkccl.errors import DeadlineError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Queue, Role

Array = NDArray[Any]


def run(
    program: Program,
    inputs: Sequence[Array | None],
    *,
    count: int,
    dtype: str,
    op: str = "sum",
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
    buffers, row = filled(program.collective, inputs, count, dtype, in_place)
    with Execution(bind(program, count, row.itemsize, chunk_bytes), buffers, row, operation(op)) as execution:
        execution.go(deadline_s)
    return list(buffers.outputs)


class Execution:
    """A program bound to buffers, with its staging memory: made once, run as often as wanted.

    Parameters
    ----------
    bound
        The program for these sizes.
    buffers
        What the ranks read and write; their contents may be changed between runs.
    dtype, chosen
        Rows of :mod:`blinkccl.collectives.ops`.
    """

    def __init__(self, bound: Bound, buffers: RankBuffers, dtype: DType, chosen: Operation) -> None:
        self._bound = bound
        self._dtype = dtype
        self._combine = dtype.combine(chosen)
        self._failure = _Failure()
        self._pool = ThreadPoolExecutor(len(bound.program.ranks), "blink-rank")
        self._connections = self._connect()
        self._bodies: list[list[_Step]] = [[] for _ in bound.program.ranks]
        for role in bound.program.roles:
            views = role_views(bound, buffers, role, chosen.averages)
            if views.chunks:
                self._bodies[role.rank].append(
                    _Step(
                        role,
                        views.source,
                        views.target,
                        views.chunks,
                        views.divisor,
                        tuple(self._connections[q] for q in role.receives),
                        tuple(self._connections[q] for q in role.sends),
                    )
                )

    def __enter__(self) -> Execution:
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
        elements = self._bound.chunk_elements
        scratch = np.empty(
            min(elements, max(self._bound.extents[s.role.slice].length for s in body)), self._dtype.storage
        )
        for tick in range(min(s.role.offset for s in body), max(s.role.offset + s.chunks for s in body)):
            for step in body:
                chunk = tick - step.role.offset
                if 0 <= chunk < step.chunks:
                    self._fire(
                        step, chunk, slice(chunk * elements, (chunk + 1) * elements), scratch, deadline
                    )

    def _fire(self, step: _Step, chunk: int, span: slice, scratch: Array, deadline: float) -> None:
        """One firing. The value is built where it is kept, or else in ``scratch``.

        Never in a send slot: no received slot must be held back while a send has to wait.
        """
        value = step.source[span] if step.source is not None else None
        place = step.target[span] if step.target is not None else None
        for connection in step.receives:
            message = connection.receive(step, chunk, deadline)
            built = place if place is not None else scratch[: message.size]
            if value is None:
                np.copyto(built, message)
            else:
                self._combine(value, message, out=built)
            value = built
            connection.release()
        assert value is not None  # role_views has seen to it
        if place is not None and value is not place:
            np.copyto(place, value)
        if step.divisor > 1:
            value = self._divided(value, place if place is not None else scratch[: value.size], step.divisor)
        for connection in step.sends:
            connection.send(value, step, chunk, deadline)

    def _divided(self, value: Array, built: Array, divisor: int) -> Array:
        self._dtype.divide(value, divisor, built)
        return built


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
                self._wait(
                    step.role, f"for a slot to send chunk {chunk}", f"to rank {self._queue.dst}", deadline
                )
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
