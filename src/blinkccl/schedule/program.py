"""The format of schedules: a loop body per rank, independent of the size. Every engine runs Programs, and nothing else.

A **role** is the work of one rank for one share in one stage, repeated for every chunk. It takes one message from each
queue in ``receives`` and reduces them with the rank's own data. It keeps the result and puts one message into each
queue in ``sends``. A role is the *actor* of a dataflow graph; it runs once per chunk.

The chunk loop is not unrolled. Time is counted in **ticks**, from 0. In tick ``t`` a rank runs its roles in the order
of ``Program.roles``, each for chunk ``k = t − offset`` if the slice has such a chunk. ``offset`` makes the loop a
pipeline: one hop further along, a role has an offset one higher. So all hops of a tree work on successive chunks in the
same tick.

Execution ``k`` of a role is::

    operands = the next message of each queue in receives, in this order
    own input chunk k of the slice joins them     if contributes: as operands[own_operand_index]
    total = operands[0] ∘ operands[1] ∘ …         from left to right, in the accumulator of the element type
    total = total / number of contributions       if completes and the operation is avg
    value = total, rounded to the element type
    own output chunk k of the slice = value       if keeps
    for queue in sends: append value to queue     each waits while the queue holds ``slots`` messages

**Order of reduction.** Operands are reduced in their order: ``receives``, with the own contribution after the first
``own_operand_index`` messages. For premul_sum in a reducing collective, the own contribution is first multiplied by its
rank's scalar, in the accumulator, and rounded to the element type.

**Rounding.** Floats below 32 bits are widened to float32, reduced and divided there, and rounded once, at ``value``: a
rank keeps and sends the same bits. Other types are their own accumulators. A single operand that is neither scaled nor
divided keeps its bits, also those of a NaN. :mod:`blinkccl.collectives.ops` has the table of types, and
:func:`blinkccl.collectives.ops.fold` defines the arithmetic.

**Memory.** A message's slot is free as soon as the message has been received: an engine may not hold one slot while it
waits for another message. In place, the own input and output chunk of a role are the same memory, in the same
execution. So the input must be read before the value is written, for every ``own_operand_index``.

A queue's slots are in the memory of one vertex, its ``home``. All vertices between it and either end only forward
packets (:mod:`blinkccl.topology.memories`):

- ``home`` is the receiver: *push*, the sender writes over the whole path. This is the default of engines;
- ``home`` is the sender: *pull*, the receiver reads over the whole path;
- ``home`` is a memory on the path: *staged*, the sender writes the first half, the receiver reads the second.

A path with more memories is several queues, with a role at a **relay** between two. A relay is a vertex outside the
job, which receives from one queue and sends into the next, and neither contributes nor keeps. A switch with in-network
reduction is a relay too. Its roles may receive and send several messages; the reference engine runs them, and the
simulator times them.

Ranks in this module are positions 0 … N−1, and relays N, N+1, …; ``vertices`` maps both to vertex ids.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from blinkccl.collectives.spec import Block, Collective


@dataclass(frozen=True, slots=True)
class Slice:
    """The part from ``start`` to ``stop`` (fractions) of ``block``, which is an item of the collective by positions."""

    block: Block
    start: Fraction
    stop: Fraction


@dataclass(frozen=True, slots=True)
class Queue:
    """A FIFO connection from rank (or relay) ``src`` to ``dst`` on the links of ``path`` (vertex ids).

    ``home`` is the vertex of ``path`` whose memory holds the messages.
    """

    src: int
    dst: int
    path: tuple[int, ...]
    home: int

    @property
    def is_staged(self) -> bool:
        """True if neither end holds the messages."""
        return self.home not in (self.path[0], self.path[-1])

    @property
    def legs(self) -> tuple[tuple[int, ...], ...]:
        """The paths between memories: one, or two if the queue is staged."""
        if not self.is_staged:
            return (self.path,)
        at = self.path.index(self.home)
        return self.path[: at + 1], self.path[at:]


@dataclass(frozen=True, slots=True)
class Role:
    """The work of ``rank`` for ``share`` in each chunk; the module's text defines it exactly.

    ``stage`` ("reduce", "root", "broadcast" or "relay") does not change the execution: people read it, and engines use
    it to fuse roles. ``slice``, ``receives`` and ``sends`` are indexes into the program's tables.
    ``own_operand_index`` is the number of received messages that are reduced before the rank's own contribution:
    0 … ``len(receives)``, and 0 if it does not contribute.
    """

    rank: int
    channel: int
    share: int
    stage: str
    offset: int
    slice: int
    contributes: bool
    keeps: bool
    completes: bool
    receives: tuple[int, ...]
    sends: tuple[int, ...]
    own_operand_index: int = 0

    @property
    def operands(self) -> int:
        """The number of operands of an execution."""
        return len(self.receives) + self.contributes


@dataclass(frozen=True, slots=True)
class Channel:
    """One parallel channel: its shares, in order, and the number of messages that each of its queues holds."""

    shares: tuple[int, ...]
    slots: int = 2
    protocol: str = "simple"


@dataclass(frozen=True)
class Program:
    """A schedule for any size, type and chunk.

    The load of links is checked at ``rate`` (S per unit of time, in the topology's units). ``relays`` are the vertices
    outside the job that have roles. ``forest_hash`` and ``topology_hash`` identify the sources of the program ("" if it
    was written by hand).
    """

    collective: Collective
    ranks: tuple[int, ...]
    rate: Fraction
    slices: tuple[Slice, ...]
    queues: tuple[Queue, ...]
    channels: tuple[Channel, ...]
    roles: tuple[Role, ...]
    forest_hash: str = ""
    topology_hash: str = ""
    relays: tuple[int, ...] = ()

    @cached_property
    def vertices(self) -> tuple[int, ...]:
        """The vertex of every rank and, after these, of every relay."""
        return self.ranks + self.relays

    @cached_property
    def combining(self) -> tuple[int, ...]:
        """The relays with in-network reduction or multicast, which receive or send several messages."""
        roles = (role for role in self.roles if role.rank >= len(self.ranks))
        busy = (role.rank for role in roles if len(role.receives) > 1 or len(role.sends) > 1)
        return tuple(self.vertices[rank] for rank in sorted(dict.fromkeys(busy)))

    @cached_property
    def tasks_per_chunk(self) -> tuple[int, ...]:
        """For every slice, the number of messages and receiving roles of one chunk on all ranks."""
        tasks = [0] * len(self.slices)
        for role in self.roles:
            tasks[role.slice] += sum(len(self.queues[q].legs) for q in role.sends) + bool(role.receives)
        return tuple(tasks)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """For every role its index in its rank's body, which error messages call a step."""
        count_by_rank: dict[int, int] = defaultdict(int)
        steps = []
        for role in self.roles:
            steps.append(count_by_rank[role.rank])
            count_by_rank[role.rank] += 1
        return tuple(steps)
