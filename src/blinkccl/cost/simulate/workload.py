"""The input of the kernel: a program's dataflow with costs, without collectives, topologies or human-readable units.

A workload has **actors**, which fire once per chunk, and **hops**. A hop carries one message per chunk from one actor
to another over a path of links. A memory that stores messages is an actor between the hop that writes to it and
the hop that reads from it.

An actor processes chunks 0, 1, 2, … in turn. For each::

    for hop in receives: wait for its next message, and free its slot (unless another hop frees it) if the actor has a
    cost: append the execution to the actor's stream, and wait for its end for hop in sends:    wait until the hop holds
    fewer messages than it has slots, append a transfer to its stream

A **stream** runs its tasks in the order in which they were appended. An execution takes ``launch_s`` + bytes ·
``pace_s_per_byte``. A transfer acquires an engine of its pool, if it has one, in the order of requests. It waits
``latency_s``, moves its bytes over its path, and frees engine and stream. Its message arrives ``signal_s`` later. A
transfer from a memory's slot frees the slot when its last byte has moved.

A **link** moves ``rates[link]`` bytes per second in all:

- ``fifo``: each link serves one transfer after the other at its full rate. The first link of a path serves transfers in
  the order of their start, the others in the order of arrival. A transfer cuts through: it arrives at a link as soon as
  the previous link begins to serve it.
- ``fair``: max-min fair sharing by weight (Bertsekas and Gallager 1992, §6.5.2): all rates grow in proportion to the
  transfers' weights until one of their links is full. With equal weights this is plain max-min fairness.

Events at the same time run in the order in which they were scheduled, so every run is the same.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.errors import InternalError

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


def dtype_of(column: Field[Any]) -> Any:
    """The number type of a column of the tables below."""
    return np.int32 if column.type == "Ints" else np.float64


#: Ways in which transfers share a link.
SHARINGS = ("fifo", "fair")


@dataclass(frozen=True)
class Actors:
    """One entry per actor.

    ``bytes`` is the size of each chunk but the last, ``last_bytes`` of the last. ``stream`` is -1 if executions cost
    nothing. ``start_s``: the time at which its rank enters the collective. ``receives`` and ``sends`` hold hops; those
    of actor ``a`` are ``receives[receives_of[a] : receives_of[a + 1]]``.
    """

    chunks: Ints
    bytes: Floats
    last_bytes: Floats
    stream: Ints
    launch_s: Floats
    pace_s_per_byte: Floats
    start_s: Floats
    receives_of: Ints
    receives: Ints
    sends_of: Ints
    sends: Ints


@dataclass(frozen=True)
class Hops:
    """One entry per hop, from actor ``tail`` to actor ``head``, which have the same chunks.

    ``pool``: its pool of copy engines, -1 for none. ``frees``: the hop whose messages this hop reads from a memory, and
    whose slot is free after the transfer; -1 for none. ``weight`` > 0: its weight for fair sharing of links. The links
    of hop ``h`` are ``path[path_of[h] : path_of[h + 1]]``, in the direction of the data.
    """

    tail: Ints
    head: Ints
    stream: Ints
    pool: Ints
    slots: Ints
    frees: Ints
    latency_s: Floats
    signal_s: Floats
    weight: Floats
    path_of: Ints
    path: Ints


@dataclass(frozen=True)
class Workload:
    """Actors and hops, with ``rates`` in bytes per second of each link, copy engines in ``pools``, and ``streams``."""

    actors: Actors
    hops: Hops
    rates: Floats
    pools: Ints
    streams: int

    @cached_property
    def transfers(self) -> int:
        """The number of messages over all hops of a run."""
        return int(self.actors.chunks[self.hops.tail].sum(dtype=np.int64)) if len(self.hops.tail) else 0

    @cached_property
    def executions(self) -> int:
        """The number of executions with a cost."""
        return int(self.actors.chunks[self.actors.stream >= 0].sum(dtype=np.int64))

    @property
    def tasks(self) -> int:
        """The number of transfers and executions of a run, known before the run."""
        return self.transfers + self.executions

    @cached_property
    def hop_bytes(self) -> Floats:
        """Bytes over each hop in a run."""
        actors, tail = self.actors, self.hops.tail
        whole = np.maximum(actors.chunks - 1, 0) * actors.bytes + (actors.chunks > 0) * actors.last_bytes
        return np.asarray(whole[tail], dtype=np.float64)

    @cached_property
    def link_bytes(self) -> Floats:
        """Bytes over each link in a run."""
        counts = np.diff(self.hops.path_of)
        carried = np.repeat(self.hop_bytes, counts)
        return np.bincount(self.hops.path, carried, len(self.rates)).astype(np.float64)


@dataclass(frozen=True)
class Trace:
    """The times of all tasks: one entry per task, in the order in which tasks were appended to streams.

    - ``hop``: the hop of a transfer, -1 for executions; ``actor``: the actor that appended the task.
    - ``begin_s``: its start in the stream; ``move_s``: its first byte (``begin_s`` for executions); ``end_s``: its end.
    - ``cause``: the task whose end allowed it to begin, -1 for none.
    - ``holder``, ``held_s``: with fifo, the last transfer that this one waited for, at or before the link that decides
      its end, and the end of the wait; else -1.
    """

    hop: Ints
    actor: Ints
    chunk: Ints
    begin_s: Floats
    move_s: Floats
    end_s: Floats
    cause: Ints
    holder: Ints
    held_s: Floats


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    ``seconds``: the end of the last event. ``transfers``: completed transfers, counted at their ends. ``busy_s``: per
    link, the time of its bytes at its full rate. ``actor_s``: the time at which each actor finished its last chunk.
    """

    seconds: float
    transfers: int
    executions: int
    busy_s: Floats
    actor_s: Floats
    trace: Trace | None = None


def not_live(stopped_s: float, actor: int, chunk: int, chunks: int) -> InternalError:
    """The error of a run that stopped before its end; ``actor`` is the first that did not finish."""
    where = f"actor {actor} is in chunk {chunk} of {chunks}"
    return InternalError(f"the simulation stopped at {stopped_s} s; {where}: the workload is not live")
