"""A program in whole chunks, as MSCCL++ requires.

The format divides a buffer into equal chunks, whereas a program divides blocks at fractions. The least common
denominator of all boundaries is the number of chunks per block; ``--chunks`` rounds to fewer. The format also names
memory, so this module assigns a place to each role's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import LimitError, UnsupportedError
from blinkccl.formats.foreign.mscclpp import MOST_CHUNKS
from blinkccl.formats.foreign.verify import SERVED, buffer_chunks
from blinkccl.formats.registry import Choices
from blinkccl.schedule.chunking import placements
from blinkccl.schedule.program import Program, Role
from blinkccl.trees.forest.model import Forest


@dataclass(frozen=True)
class ChunkPlace:
    """A place in one of a rank's buffers: the first of several chunks."""

    buffer: str
    start: int


class Chunked:
    """A program whose slices are whole chunks.

    Parameters
    ----------
    program
        A program from :func:`~blinkccl.schedule.lower.lower`, in which every queue takes one tick.
    choices
        In place or not; the number of chunks per block for rounding.

    Raises
    ------
    UnsupportedError
        For a collective without a name in the format, relays, more chunks than a buffer may have, and AllToAll in
        place.
    """

    def __init__(self, program: Program, choices: Choices) -> None:
        coll = program.collective
        if coll.name not in SERVED:
            raise UnsupportedError(f"MSCCL++ plans do not support {coll.name}, only {', '.join(SERVED)}")
        if program.relays:
            raise UnsupportedError(
                f"the plan passes data through vertices {list(program.relays)} outside the job, where MSCCL++ runs "
                "nothing; plan without --relays"
            )
        if choices.in_place and coll.name == "alltoall":
            raise UnsupportedError("alltoall is planned only out of place: leave --in-place out")
        self.program, self.in_place = program, choices.in_place
        self.blocks = 1 if COLLECTIVES[coll.name].whole else coll.world_size
        exact = lcm(*(part.stop.denominator for part in program.slices))
        self.chunks = exact if choices.chunks is None else choices.chunks
        if self.chunks * self.blocks > MOST_CHUNKS:
            raise LimitError(
                f"MSCCL++ allows {MOST_CHUNKS} chunks per buffer, got {self.chunks * self.blocks}: the shares have "
                f"the common denominator {exact}, in each of {self.blocks} block(s)"
            )
        edges = [(round(part.start * self.chunks), round(part.stop * self.chunks)) for part in program.slices]
        self.starts = tuple(start for start, _ in edges)
        self.sizes = tuple(stop - start for start, stop in edges)
        self.roles = tuple(role for role in program.roles if self.sizes[role.slice])
        self.sender = {queue: role for role in self.roles for queue in role.sends}
        self.receiver = {queue: role for role in self.roles for queue in role.receives}
        self._places = placements(coll)
        self._contributing: dict[tuple[int, int], list[int]] = {}
        for role in self.roles:
            if role.contributes:
                self._contributing.setdefault((role.rank, role.slice), []).append(role.share)
        late = [q for q, role in self.receiver.items() if role.offset != self.sender[q].offset + 1]
        if late:
            raise UnsupportedError(
                f"queue {late[0]} delays its messages by more than one step, and this format allows one; export a plan "
                "instead of a changed Program"
            )

    def own(self, role: Role) -> ChunkPlace:
        """The rank's contribution to the role's slice."""
        block = self._places[self.program.slices[role.slice].block].sources[role.rank]
        return self._place(role, "i", block)

    def result(self, role: Role) -> ChunkPlace:
        """The place of the rank's result for the role's slice."""
        block = self._places[self.program.slices[role.slice].block].targets[role.rank]
        return self._place(role, "o", block)

    def _place(self, role: Role, buffer: str, block: int) -> ChunkPlace:
        name, start = self.program.collective.name, self.starts[role.slice]
        if self.in_place:
            if (name, buffer) in (("allgather", "i"), ("reduce_scatter", "o")):
                block = role.rank
            buffer = "i" if name == "reduce_scatter" else "o"
        return ChunkPlace(buffer, block * self.chunks + start)

    def keeps_at_once(self, role: Role) -> bool:
        """True if data may arrive directly at the role's result, since no other share still reads input there."""
        shares = self._contributing.get((role.rank, role.slice), ())
        return role.keeps and not (self.in_place and any(share != role.share for share in shares))

    def buffer_chunks(self, rank: int) -> tuple[int, int]:
        """Chunks of the rank's input and output."""
        return buffer_chunks(self.program.collective, rank, self.chunks)

    def rate(self, forest: Forest) -> Fraction:
        """S per unit of time that the links allow for the rounded slices, comparable to :attr:`Forest.rate`."""
        items = {item.block: item.weight for item in self.program.collective.items()}
        load: dict[tuple[int, int], Fraction] = {}
        for number in self.sender:
            queue, part = self.program.queues[number], self.sender[number].slice
            weight = items[self.program.slices[part].block] * Fraction(self.sizes[part], self.chunks)
            for pair in zip(queue.path, queue.path[1:], strict=False):
                load[pair] = load.get(pair, Fraction(0)) + weight
        return min((forest.topology.link[pair].capacity / each for pair, each in load.items()), default=forest.rate)
