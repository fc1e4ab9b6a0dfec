"""What the kernel times: the grammar of a simulation, without collectives, topologies or units of people.

A workload is a set of **actors** that fire once per chunk, and of **hops** that carry one message per chunk from one
actor to another over a path of links. It is the program's dataflow with costs, and its meaning is this. Where messages
are stored on their way, the memory is an actor of its own, between the hop that writes there and the hop that reads.

An actor works on chunks 0, 1, 2, … in turn. For each::

    for hop in receives: wait for its next message, and give its slot back (unless another hop frees it)
    if the actor has a cost: append the execution to the actor's stream, and wait until it is done
    for hop in sends:    wait until the hop holds fewer messages than it has slots, append a transfer to its stream

A **stream** does what was appended to it, one after the other. An execution takes ``launch_s`` + bytes ·
``pace_s_per_byte``. A transfer takes an engine of its pool (if it has one, in the order of asking), waits
``latency_s``, moves its bytes over its path, frees engine and stream, and ``signal_s`` later its message is there. What
it read from a memory's slot is gone from there when its last byte has moved.

A **link** moves ``rates[link]`` bytes per second, all transfers on it together:

- ``fifo``: each link serves one transfer after the other at its full rate, the first of a path in the order in which
  transfers were begun, the others in the order in which they come. A transfer cuts through: it comes to a link as soon
  as the one before begins to serve it.
- ``fair``: max-min fair sharing by weight (Bertsekas and Gallager 1992, §6.5.2): all rates grow in proportion to the
  transfers' weights until a link of theirs is full. With equal weights this is plain max-min fairness.

Things at the same time happen in the order in which they were scheduled, so that every run is the same.
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
    """The type of the numbers in a column of the tables below."""
    return np.int32 if column.type == "Ints" else np.float64


#: Ways in which transfers share a link.
SHARINGS = ("fifo", "fair")


@dataclass(frozen=True)
class Actors:
    """One entry per actor.

    ``bytes`` are those of each chunk but the last, ``last_bytes`` those of the last. ``stream`` is -1 where executions
    cost nothing. ``start_s``: when its rank enters the collective. ``receives`` and ``sends`` hold hops;
    those of actor ``a`` are ``receives[receives_of[a] : receives_of[a + 1]]``.
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

    ``pool`` is that of its copy engines, -1 for none. ``frees``: the hop that wrote what a transfer of this one reads,
    and whose slot is free when that has ended; -1 for none. ``weight`` > 0 is its part where links are shared by
    weight. The links of hop ``h`` are ``path[path_of[h] : path_of[h + 1]]``, in the direction of the data.
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
    """``rates``: bytes per second of each link; ``pools``: copy engines in each pool; ``streams``: how many."""

    actors: Actors
    hops: Hops
    rates: Floats
    pools: Ints
    streams: int

    @cached_property
    def transfers(self) -> int:
        """How many messages cross a hop: the chunk hops of a run."""
        return int(self.actors.chunks[self.hops.tail].sum(dtype=np.int64)) if len(self.hops.tail) else 0

    @cached_property
    def executions(self) -> int:
        """How many executions cost time."""
        return int(self.actors.chunks[self.actors.stream >= 0].sum(dtype=np.int64))

    @property
    def tasks(self) -> int:
        """Transfers and executions: what is appended to streams in a run, known before it."""
        return self.transfers + self.executions

    @cached_property
    def hop_bytes(self) -> Floats:
        """Bytes that cross each hop in a run."""
        actors, tail = self.actors, self.hops.tail
        whole = np.maximum(actors.chunks - 1, 0) * actors.bytes + (actors.chunks > 0) * actors.last_bytes
        return np.asarray(whole[tail], dtype=np.float64)

    @cached_property
    def link_bytes(self) -> Floats:
        """Bytes that cross each link in a run."""
        counts = np.diff(self.hops.path_of)
        carried = np.repeat(self.hop_bytes, counts)
        return np.bincount(self.hops.path, carried, len(self.rates)).astype(np.float64)


@dataclass(frozen=True)
class Trace:
    """What was done when: one entry per task, in the order in which tasks were appended to streams.

    ``hop`` is -1 for executions; ``actor`` is who appended it. ``begin_s``: the stream took it up; ``move_s``: the
    first byte moved (``begin_s`` for executions); ``end_s``: done. ``cause`` is the task whose end let it begin, -1 for
    none; ``holder`` the transfer whose link it waited for before the part of its way that decided its end (fifo only),
    else -1, and ``held_s`` when that link was free.
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
    """How a run ended.

    ``seconds``: the last end of anything. ``transfers``: chunk hops completed, counted as they ended. ``busy_s``: per
    link, the time that its bytes take at its full rate. ``actor_s``: when each actor was through its last chunk.
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
