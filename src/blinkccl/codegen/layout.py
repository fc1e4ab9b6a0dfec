"""The layout of connections in the memory of their ranks: one for all programs that take turns on them.

A *group* of programs on the same ranks shares its connections: per ordered pair of ranks there are as many as the
program with most queues on that pair needs. Each rank has one segment of device memory, whose base every other rank
can map; what the sender writes lies in the receiver's segment, what the sender waits for in its own, so that all
polling is local and all stores across a link are posted. A queue that is staged has its connection in a segment of
pinned host memory instead, one per processor, which both ends map: there lies all that they share, as their GPUs may
not reach each other. Of one that is pulled the messages lie in the sender's segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import UsageError
from blinkccl.native.headers import header
from blinkccl.schedule.program import Program, Queue

#: Everything begins on a line of this many bytes; the counters of two parts lie this far apart.
LINE_BYTES = 8 * header("call.h").constants["kStride"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How much a connection holds; UsageError if a number is out of range."""

    #: The most blocks that share a channel's work, each with rings and counters of its own; the p-th those of number p.
    parts: int = 1
    #: Messages that each ring holds.
    slots: int = 2
    #: Of a message of the protocol simple, and of one of LL or of LL128, flags included; positive multiples of 128.
    slot_bytes: int = 512 * 1024
    line_bytes: int = 16 * 1024
    #: Of messages that copy engines carry, which have a ring of their own and are not cut into parts; both 0: none.
    copy_slots: int = 0
    copy_slot_bytes: int = 0

    def __post_init__(self) -> None:
        for name, unit in (("parts", 1), ("slots", 1), ("slot_bytes", LINE_BYTES), ("line_bytes", LINE_BYTES)):
            value = getattr(self, name)
            if value < unit or value % unit:
                raise UsageError(f"{name}: expected a positive multiple of {unit}, got {value}")
        if min(self.copy_slots, self.copy_slot_bytes) < 0 or self.copy_slot_bytes % LINE_BYTES:
            raise UsageError(
                f"copy_slots and copy_slot_bytes: expected a number and a multiple of {LINE_BYTES}, got "
                f"{self.copy_slots} and {self.copy_slot_bytes}"
            )
        if (self.copy_slots == 0) != (self.copy_slot_bytes == 0):
            raise UsageError(
                f"copy_slots and copy_slot_bytes are both 0 or neither is, got {self.copy_slots} and "
                f"{self.copy_slot_bytes}"
            )

    def capacity_bytes(self, protocol: str) -> int:
        """The most data that one message of "simple", "ll", "ll128" or "copies" carries; a multiple of 8."""
        if protocol == "copies":
            return self.copy_slot_bytes
        if protocol == "simple":
            return self.slot_bytes
        return self.line_bytes // 2 if protocol == "ll" else self.line_bytes // LINE_BYTES * (LINE_BYTES - 8)


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection's places, in bytes from the start of a segment; ``call.h`` says what they hold.

    ``home`` is ``dst``, ``src`` where it is pulled, or where it is staged the segment of a memory. ``ring`` and
    ``lines`` lie there. What is staged has ``tail`` and ``head`` there, too, else they lie where they are polled:
    ``tail`` and ``dst_position`` in the segment of ``dst``, ``head`` and ``src_position`` in that of ``src``.
    ``copy_ring``, ``copy_tail`` and ``copy_head`` are the same for copy engines, and all 0 where nothing is for them:
    they do not pull. What is staged they fetch into ``copy_landing``, a ring in the segment of ``dst``.
    """

    src: int
    dst: int
    home: int
    ring: int
    lines: int
    tail: int
    dst_position: int
    head: int
    src_position: int
    copy_ring: int = 0
    copy_tail: int = 0
    copy_head: int = 0
    copy_landing: int = 0


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The connections by id, and the bytes of segments: of each rank, then of memories. All is zero at the start."""

    geometry: Geometry
    connections: tuple[Connection, ...]
    segment_bytes: tuple[int, ...]
    ranks: int


class ProgramGroup:
    """Programs on the same ranks that share connections; UsageError if there is none, or their ranks differ."""

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs:
            raise UsageError("a group needs at least one program, got none")
        self.ranks = programs[0].ranks
        #: The vertices of memories in which queues are staged; the segment of number i is behind those of the ranks.
        self.memories = tuple(sorted({q.home for program in programs for q in program.queues if q.is_staged}))
        for program in programs:
            if program.ranks != self.ranks:
                raise UsageError(
                    f"programs that share connections run on the same ranks: expected {list(self.ranks)}, got "
                    f"{list(program.ranks)}"
                )
        widest: dict[tuple[int, int, int], int] = {}
        for program in programs:
            for way, queues in Counter(map(self._way, program.queues)).items():
                widest[way] = max(widest.get(way, 0), queues)
        #: (sender, receiver, segment in which messages lie) of each connection, by id.
        self.ways = tuple(way for way in sorted(widest) for _ in range(widest[way]))
        self._first = {way: index for index, way in reversed(list(enumerate(self.ways)))}

    def _way(self, queue: Queue) -> tuple[int, int, int]:
        if queue.is_staged:
            return queue.src, queue.dst, len(self.ranks) + self.memories.index(queue.home)
        return queue.src, queue.dst, queue.src if queue.home == queue.path[0] else queue.dst

    def connections_of(self, program: Program) -> tuple[int, ...]:
        """The connection that each queue of ``program`` uses; ``program`` is one of the group."""
        used: Counter[tuple[int, int, int]] = Counter()
        ids = []
        for way in map(self._way, program.queues):
            ids.append(self._first[way] + used[way])
            used[way] += 1
        return tuple(ids)

    def layout(self, geometry: Geometry) -> SegmentLayout:
        """Where connections lie: rings, lines, counters, in the order of ids; what copy engines take comes behind."""
        ends = [0] * (len(self.ranks) + len(self.memories))

        def take(segment: int, size: int) -> int:
            ends[segment] += size
            return ends[segment] - size

        def polled(end: int, home: int) -> int:
            return end if home < len(self.ranks) else home

        rings = geometry.parts * geometry.slots * geometry.slot_bytes
        lines = 2 * geometry.parts * geometry.slots * geometry.line_bytes  # of each part LL's, then LL128's
        counters = geometry.parts * LINE_BYTES
        data = [(take(home, rings), take(home, lines)) for _, _, home in self.ways]
        connections = tuple(
            Connection(
                *way,
                *data[index],
                tail=take(polled(way[1], way[2]), counters),
                dst_position=take(way[1], counters),
                head=take(polled(way[0], way[2]), counters),
                src_position=take(way[0], counters),
            )
            for index, way in enumerate(self.ways)
        )
        if geometry.copy_slots:
            copies = geometry.copy_slots * geometry.copy_slot_bytes
            connections = tuple(
                one
                if one.home == one.src
                else replace(
                    one,
                    copy_ring=take(one.home, copies),
                    copy_tail=take(polled(one.dst, one.home), LINE_BYTES),
                    copy_head=take(polled(one.src, one.home), LINE_BYTES),
                    copy_landing=0 if one.home == one.dst else take(one.dst, copies),
                )
                for one in connections
            )
        return SegmentLayout(geometry, connections, tuple(ends), len(self.ranks))
