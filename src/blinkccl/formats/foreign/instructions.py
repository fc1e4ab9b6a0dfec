"""The grammar of plans that MSCCL++ executes: lists of instructions, one per thread block of each rank.

Unlike a :class:`~blinkccl.schedule.program.Program` these name memory: every rank has an input, an output and a scratch
buffer (``i``, ``o``, ``s``) of equal *chunks*, and thread blocks that work on them side by side. All order between two
thread blocks is said by instructions, so it can be missing. The reader (:mod:`blinkccl.formats.foreign.mscclpp`)
translates into this grammar and judges only what the format's own words say; :mod:`blinkccl.formats.foreign.execute` is
its definition, and :mod:`blinkccl.formats.foreign.verify` judges what comes of it.

The threads of a block are in step at a :class:`Fence` alone: what comes between two fences is in no order. A wait
(:class:`Await`) holds for what comes behind the next fence, and a :class:`Post` says that all before the last fence has
been done. Counters only grow, and waiting takes nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blinkccl.collectives.spec import Collective


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Chunks of a buffer of ``rank`` from ``start`` on, as many as the move says.

    ``packet``: they carry flags (LL), so that a reader waits for each until it has been written.
    """

    rank: int
    buffer: str
    start: int
    packet: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """All threads of the block meet."""

    where: str


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until ``counter`` is at ``count``; ``relaxed``: that says nothing of data, but that the other rank began."""

    where: str
    counter: str
    count: int
    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """Add one to ``counter``, once all before the last fence is done.

    ``agent``: by a proxy, which does what it is given in this order, and later than the block (a NIC).
    """

    where: str
    counter: str
    relaxed: bool = False
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until ``agent`` has done all that it was given."""

    where: str
    agent: str


@dataclass(frozen=True, slots=True)
class Move:
    """Combine, for each of ``size`` chunks, the ``operands``, then store the result.

    ``switch``: a switch combines the operands, or copies what is stored, on the way.
    """

    where: str
    size: int
    operands: tuple[ChunkSpan, ...]
    stores: tuple[ChunkSpan, ...]
    agent: str | None = None
    switch: bool = False


Instruction = Fence | Await | Post | Flush | Move


@dataclass(frozen=True, slots=True)
class Block:
    """A thread block of ``rank``: its instructions, in order."""

    rank: int
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class InstructionList:
    """A plan of MSCCL++.

    ``collective`` has root 0, since the format does not say the root. ``chunks`` is how many there are in a block of
    the collective (nccl.h's ``count``). ``barriers``: counters of which all posts of one round come before any of the
    next. ``lasting``: counters that the next run begins with, so that all posts must have been waited for. ``sized``:
    where what is done depends on the size, the list for blocks of so many bytes, which has no ``sized``;
    ``judged_bytes`` are those by which all are judged, the first of them this list's.
    """

    collective: Collective
    chunks: int
    in_place: bool
    blocks: tuple[Block, ...]
    protocol: str
    barriers: frozenset[str] = frozenset()
    lasting: tuple[str, ...] = ()
    sized: Callable[[int], InstructionList] | None = None
    judged_bytes: tuple[int, ...] = ()

    def place(self, rank: int, buffer: str, index: int) -> tuple[int, str, int]:
        """The chunk's memory: in place, input and output are one, as nccl.h has it."""
        if self.in_place and buffer != "s":
            name = self.collective.name
            if name == "allgather":
                return (rank, "o", index + rank * self.chunks if buffer == "i" else index)
            return (rank, "i", index + rank * self.chunks if buffer == "o" and name == "reduce_scatter" else index)
        return rank, buffer, index
