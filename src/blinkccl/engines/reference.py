"""The reference engine: the executable definition of :mod:`blinkccl.schedule.program`, one action at a time.

It has no threads: an *executor* runs until it has to wait for a message or a slot, then another runs. Results and
liveness do not depend on the order of executors: with blocking receives and sends, a schedule is a Kahn network, in
which every queue has one history. ``order`` tests adversarial orders. If all executors wait, the deadlock is reported
at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.buffers import Arithmetic, RankBuffers, RoleViews, check_roles, execute, filled, role_views
from blinkccl.errors import DeadlineError, ScheduleError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Role

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
    order: str | int = "program",
) -> list[Array | None]:
    """Run a collective once; every other engine has these parameters and results, except for ``order``.

    Parameters
    ----------
    program
        A verified program (:func:`blinkccl.schedule.verifier.verify`); engines do not check it again.
    inputs
        One-dimensional array of the input blocks of every rank, or None. Not changed.
    call
        Elements per block, type and operation; the collective is the program's.
    scales
        For ``premul_sum``, the factor of every rank's contributions; else None.
    chunk_bytes
        Preferred size of a message.
    in_place
        Let input and output share memory (:mod:`blinkccl.engines.buffers`).
    deadline_s
        Timeout of the whole run, in seconds.
    order
        Choice of the next enabled executor. ``"program"``: each rank is an executor, in turn. ``"reverse"``: each
        channel of each rank is an executor, the last enabled first. An integer: the same executors, drawn with this
        seed after every execution of a role.

    Returns
    -------
    list
        The output buffer of every rank, or None.

    Raises
    ------
    UsageError
        If program, sizes, buffers and scales do not fit.
    UnsupportedError
        If the engine lacks the operation, type or placement.
    DeadlineError
        At once if all executors wait, with the chunk, channel and peer of each; or if the run takes longer than
        ``deadline_s``.
    ScheduleError
        If a role is invalid, or if messages are left over at the end (lost chunks).

    Notes
    -----
    Cost: a few microseconds per role and chunk, plus the copies.
    """
    deadline = time.monotonic() + deadline_s
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    values = Arithmetic.of(program.collective, call, scales)
    bound = bind(program, call.elements, values.dtype.itemsize, chunk_bytes)
    check_roles(program, switches=True)
    machine = _Machine(bound, buffers, values, split=order != "program")
    with np.errstate(all="ignore"):  # An overflow to inf is a valid result.
        machine.go(order, deadline)
    return list(buffers.outputs)


@dataclass(slots=True, eq=False)
class _Queue:
    """Messages in flight; ``waiting`` lists the executors to wake after a change."""

    index: int
    slots: int
    messages: deque[Array] = field(default_factory=deque)
    waiting: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """A role with its memory and queues."""

    role: Role
    memory: RoleViews
    receives: tuple[_Queue, ...]
    sends: tuple[_Queue, ...]


#: The wait of an executor: the queue, its step and the chunk; None if it can continue.
_Wait = tuple[_Queue, _Step, int] | None


class _Machine:
    """All ranks of a bound program, ready to run."""

    def __init__(self, bound: Bound, buffers: RankBuffers, values: Arithmetic, split: bool) -> None:
        self.bound = bound
        self.values = values
        program = bound.program
        slots = [1] * len(program.queues)
        for role in program.roles:
            for index in role.sends:
                slots[index] = program.channels[role.channel].slots
        self.queues = [_Queue(index, count) for index, count in enumerate(slots)]
        bodies: dict[tuple[int, int], list[_Step]] = {}
        for role in program.roles:
            step = _Step(
                role,
                role_views(bound, buffers, role, values),
                tuple(self.queues[q] for q in role.receives),
                tuple(self.queues[q] for q in role.sends),
            )
            if step.memory.chunks:
                bodies.setdefault((role.rank, role.channel if split else 0), []).append(step)
        self.bodies = [bodies[key] for key in sorted(bodies)]
        self.ready: deque[int] = deque(range(len(self.bodies)))

    def go(self, order: str | int, deadline: float) -> None:
        """Run all executors to their end."""
        random = Random(order) if isinstance(order, int) else None
        executors = [self._execute(body, pause=random is not None) for body in self.bodies]
        waits: dict[int, tuple[_Queue, _Step, int]] = {}
        running = len(executors)
        ready = self.ready
        while ready:
            if random is not None:
                ready.rotate(random.randrange(len(ready)))
            index = ready.pop() if order == "reverse" else ready.popleft()
            waits.pop(index, None)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank {self.bodies[index][0].role.rank} is not done at the timeout: one thread runs all ranks in "
                    "this engine; allow more time, or run fewer bytes"
                )
            try:
                wait = next(executors[index])
            except StopIteration:
                running -= 1
                continue
            if wait is None:
                ready.append(index)
            else:
                waits[index] = wait
                wait[0].waiting.append(index)
        if running:
            raise DeadlineError("deadlock: " + "; ".join(self._describe(*waits[index]) for index in sorted(waits)))
        self._check_empty()

    def _execute(self, body: list[_Step], pause: bool) -> Iterator[_Wait]:
        """One executor: run its steps in order, and yield at every wait."""
        ready = self.ready
        for place, chunk, span in self.bound.executions([step.role for step in body]):
            step = body[place]
            messages = []
            for queue in step.receives:
                while not queue.messages:
                    yield queue, step, chunk
                messages.append(queue.messages.popleft())
                if queue.waiting:
                    ready.extend(queue.waiting)
                    queue.waiting.clear()
            value = execute(step.role, step.memory, span, messages, self.values)
            for queue in step.sends:
                while len(queue.messages) >= queue.slots:
                    yield queue, step, chunk
                queue.messages.append(value)
                if queue.waiting:
                    ready.extend(queue.waiting)
                    queue.waiting.clear()
            if pause:
                yield None

    def _describe(self, queue: _Queue, step: _Step, chunk: int) -> str:
        role = step.role
        ends = self.bound.program.queues[queue.index]
        awaited = (
            f"for chunk {chunk} of channel {role.channel} from rank {ends.src}"
            if queue in step.receives
            else f"to send chunk {chunk} of channel {role.channel} to rank {ends.dst}, which frees none of "
            f"{queue.slots} slot(s)"
        )
        return f"rank {role.rank} waits {awaited} ({role.stage} of share {role.share})"

    def _check_empty(self) -> None:
        for queue in self.queues:
            if queue.messages:
                ends = self.bound.program.queues[queue.index]
                raise ScheduleError(
                    f"lost chunk: {len(queue.messages)} message(s) from rank {ends.src} to rank "
                    f"{ends.dst} in queue {queue.index} were never received"
                )
