"""The grammar of schedules: a size-free loop body per rank. Every engine runs this, and only this.

A **role** is what one rank does for one share in one stage, for every chunk: take one message from each queue
in ``receives``, combine them with the rank's own data, keep the result, put one message into each queue in
``sends``. A role is the *actor* of a dataflow graph; it fires once per chunk.

The chunk loop is not unrolled. Time runs in **ticks** 0, 1, 2, …: in tick ``t`` a rank walks through its roles
in the order of ``Program.roles`` and fires each for chunk ``k = t − offset`` where 0 ≤ k < the slice's number
of chunks. ``offset`` is the look-ahead that makes a pipeline out of the loop: a role one hop further along has
an offset one higher, so all hops of a tree work in the same tick on successive chunks.

Execution ``k`` of a role, exactly::

    operands = the next message of each queue in receives, in this order
    own input chunk k of the slice joins them     if contributes: as operands[own_operand_index]
    total = operands[0] ∘ operands[1] ∘ …         from left to right, in the accumulator of the element type
    total = total / number of contributions       if completes and the operation is avg
    value = total, rounded to the element type
    own output chunk k of the slice = value       if keeps
    for queue in sends: append value to queue     each waits while the queue holds ``slots`` messages

**The order of reduction** is that of the operands: ``receives``, with the own contribution after the first
``own_operand_index`` messages. Where the operation is premul_sum (and the collective reduces), the own contribution
is multiplied by its rank's scalar, in the accumulator, and rounded to the element type before it joins.

**Rounding.** float16, bfloat16 and the 8-bit floats are widened to float32, combined and divided there, and rounded
once, at ``value``: what a rank keeps and what it sends are the same bits. Other types are their own accumulators. An
operand that is alone, not scaled and not divided is not touched: its bits pass through, also those of a NaN. The
table of all this is :mod:`blinkccl.collectives.ops`, its definition :func:`blinkccl.collectives.ops.fold`.

A message's slot is free as soon as it has been received: an engine may not hold one slot while it waits for another
message. In place the own input and output chunk of a role are the same memory; both are of the same execution, so the
input must have been read before the value is written there, whatever ``own_operand_index`` is.

**Where messages lie.** A queue's slots are in the memory of one vertex, its ``home``. Between there and either end
everything on the path forwards packets (:mod:`blinkccl.topology.memories`):

- ``home`` is the receiver: *push*, the sender writes over the whole path. What engines do where nothing else is said;
- ``home`` is the sender: *pull*, the receiver reads over the whole path;
- ``home`` is a memory on the path: *staged*, the sender writes the first half, the receiver reads the second.

A longer way is several queues, with a role at a **relay** between two: a vertex outside the job, which receives from
one queue and sends into the next, and neither contributes nor keeps. A switch that combines is one too, whose roles may
take several messages and send several: the reference engine runs it, and the simulator times it.

Ranks here are positions 0 … N−1, and relays N, N+1, …; ``vertices`` maps both to vertex ids.
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

    ``home``: the vertex of ``path`` in whose memory the messages lie.
    """

    src: int
    dst: int
    path: tuple[int, ...]
    home: int

    @property
    def is_staged(self) -> bool:
        """Whether messages lie in the memory of neither end."""
        return self.home not in (self.path[0], self.path[-1])

    @property
    def legs(self) -> tuple[tuple[int, ...], ...]:
        """The paths between memories: one, or where it is staged two."""
        if not self.is_staged:
            return (self.path,)
        at = self.path.index(self.home)
        return self.path[: at + 1], self.path[at:]


@dataclass(frozen=True, slots=True)
class Role:
    """What ``rank`` does for ``share`` in each chunk; see the module's text for the exact meaning.

    ``stage`` ("reduce", "root", "broadcast" or "relay") is for people and for engines that fuse; it has no meaning of
    its own. ``slice``, ``receives`` and ``sends`` are indexes into the program's tables. ``own_operand_index`` is
    how many received messages are combined before the rank's own contribution: 0 … ``len(receives)``, and 0 if it
    does not contribute.
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
        """How many things an execution combines."""
        return len(self.receives) + self.contributes


@dataclass(frozen=True, slots=True)
class Channel:
    """One parallel channel: the shares it carries, in order, and how many messages each of its queues may hold."""

    shares: tuple[int, ...]
    slots: int = 2
    protocol: str = "simple"


@dataclass(frozen=True)
class Program:
    """A schedule for any size, type and chunk.

    ``rate`` (S per unit of time, in the topology's units) is what the link loads are checked against. ``relays`` are
    the vertices outside the job that have roles.
    ``forest_hash`` and ``topology_hash`` say what it was made from ("" where it was written by hand).
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
        """The relays that do more than pass on one message: switches that combine, or send what comes to several."""
        roles = (role for role in self.roles if role.rank >= len(self.ranks))
        busy = (role.rank for role in roles if len(role.receives) > 1 or len(role.sends) > 1)
        return tuple(self.vertices[rank] for rank in sorted(dict.fromkeys(busy)))

    @cached_property
    def tasks_per_chunk(self) -> tuple[int, ...]:
        """For every slice, the messages and receiving roles that a chunk of it has on all ranks."""
        tasks = [0] * len(self.slices)
        for role in self.roles:
            tasks[role.slice] += sum(len(self.queues[q].legs) for q in role.sends) + bool(role.receives)
        return tuple(tasks)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """For every role, its index in its rank's body: the step that messages to people name."""
        seen: dict[int, int] = defaultdict(int)
        steps = []
        for role in self.roles:
            steps.append(seen[role.rank])
            seen[role.rank] += 1
        return tuple(steps)
