"""The model of MSCCL++ plans: lists of instructions, one per thread block of each rank.

Unlike a :class:`~blinkccl.schedule.program.Program`, such a plan names memory: every rank has an input, an output and a
scratch buffer (``i``, ``o``, ``s``) of equal *chunks*, and thread blocks that work on them in parallel. All order
between two thread blocks comes from instructions, so it can be missing. :mod:`blinkccl.formats.foreign.mscclpp` reads
files into this model and checks the rules of the format itself. :mod:`blinkccl.formats.foreign.execute` defines the
semantics, and :mod:`blinkccl.formats.foreign.verify` checks the results.

Only a :class:`Fence` synchronises the threads of a block: instructions between two fences have no order. A wait
(:class:`Await`) takes effect at the next fence. A :class:`Post` announces that everything before the last fence is
done. Counters only grow; a wait does not decrease them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blinkccl.collectives.spec import Collective


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Chunks of a buffer of ``rank`` from ``start`` on; their number is the size of the move.

    ``packet``: they carry flags (LL), so a reader waits until each has been written.
    """

    rank: int
    buffer: str
    start: int
    packet: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """All threads of the block synchronise."""

    where: str


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until ``counter`` is at ``count``. ``relaxed``: it orders no data, but shows that the other rank began."""

    where: str
    counter: str
    count: int
    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """Add one to ``counter`` once everything before the last fence is done.

    ``agent``: a proxy (a NIC) posts. It executes its tasks in order, and later than the block.
    """

    where: str
    counter: str
    relaxed: bool = False
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until ``agent`` has completed all its tasks."""

    where: str
    agent: str


@dataclass(frozen=True, slots=True)
class Move:
    """For each of ``size`` chunks, reduce the ``operands`` and store the result.

    ``switch``: a switch reduces the operands, or multicasts the result.
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
    """A plan for MSCCL++.

    ``collective`` has root 0, since the format does not name the root. ``chunks`` is the number of chunks in a block of
    the collective (nccl.h's ``count``). ``barriers``: counters whose posts of one round all come before those of the
    next. ``lasting``: counters that persist until the next run, so all their posts need a wait. ``sized``: if the
    instructions depend on the size, it returns the list for blocks of a given number of bytes, which has no ``sized``.
    ``judged_bytes`` are the sizes to check, beginning with this list's.
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
        """The memory of a chunk; in place, input and output share memory as in nccl.h."""
        if self.in_place and buffer != "s":
            name = self.collective.name
            if name == "allgather":
                return (rank, "o", index + rank * self.chunks if buffer == "i" else index)
            return (rank, "i", index + rank * self.chunks if buffer == "o" and name == "reduce_scatter" else index)
        return rank, buffer, index
