"""The layout of connections in the memory of their ranks: one for all programs that use them in turn.

A *group* of programs on the same ranks shares its connections: an ordered pair of ranks has as many connections as the
program with the most queues on that pair. Each rank has one segment of device memory, which every other rank can map. A
sender writes into the receiver's segment and waits on its own, so all polling is local and all stores across a link are
posted. A staged queue has its connection in a segment of pinned host memory instead, one per processor, which both ends
map: it holds all their shared data, since their GPUs may not reach each other. A pulled queue has its messages in the
sender's segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import UsageError
from blinkccl.native.headers import header
from blinkccl.schedule.program import Program, Queue

#: All parts begin on a line of this many bytes; the counters of adjacent parts are this far apart.
LINE_BYTES = 8 * header("call.h").constants["kStride"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The size of connections; UsageError if a number is out of range."""

    #: The largest number of blocks that share a channel's work; block p uses rings and counters number p.
    parts: int = 1
    #: Messages per ring.
    slots: int = 2
    #: Bytes of a message of protocol simple, and of one of LL or LL128 with flags; positive multiples of 128.
    slot_bytes: int = 512 * 1024
    line_bytes: int = 16 * 1024
    #: Messages of copy engines, which have their own ring and are not cut into parts; both 0: none.
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
        """The largest number of data bytes in a message of "simple", "ll", "ll128" or "copies"; a multiple of 8."""
        if protocol == "copies":
            return self.copy_slot_bytes
        if protocol == "simple":
            return self.slot_bytes
        return self.line_bytes // 2 if protocol == "ll" else self.line_bytes // LINE_BYTES * (LINE_BYTES - 8)


@dataclass(frozen=True, slots=True)
class Connection:
    """The offsets of a connection in bytes from the start of a segment; ``call.h`` describes the contents.

    ``home`` is the segment of ``ring`` and ``lines``: ``dst``, ``src`` for a pulled connection, or a memory's for a
    staged one. A staged connection also has ``tail`` and ``head`` there. Otherwise they are in the segment of the rank
    that polls them: ``tail`` and ``dst_position`` in that of ``dst``, ``head`` and ``src_position`` in that of ``src``.
    ``copy_ring``, ``copy_tail`` and ``copy_head`` are the same for copy engines, and all 0 if unused; copy engines do
    not pull. They fetch staged messages into ``copy_landing``, a ring in the segment of ``dst``.
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
    """The connections by id, and the bytes of segments: of each rank, then of memories. All memory is zero at first."""

    geometry: Geometry
    connections: tuple[Connection, ...]
    segment_bytes: tuple[int, ...]
    ranks: int


class ProgramGroup:
    """Programs on the same ranks that share connections; UsageError without a program, or if their ranks differ."""

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs:
            raise UsageError("a group needs at least one program, got none")
        self.ranks = programs[0].ranks
        #: The vertices of the memories that stage queues; the segment of memory i follows those of the ranks.
        self.memories = tuple(sorted({q.home for program in programs for q in program.queues if q.is_staged}))
        for program in programs:
            if program.ranks != self.ranks:
                raise UsageError(
                    f"programs that share connections must run on the same ranks: expected {list(self.ranks)}, got "
                    f"{list(program.ranks)}"
                )
        widest: dict[tuple[int, int, int], int] = {}
        for program in programs:
            for way, queues in Counter(map(self._way, program.queues)).items():
                widest[way] = max(widest.get(way, 0), queues)
        #: (sender, receiver, segment of the messages) of each connection, by id.
        self.ways = tuple(way for way in sorted(widest) for _ in range(widest[way]))
        self._first = {way: index for index, way in reversed(list(enumerate(self.ways)))}

    def _way(self, queue: Queue) -> tuple[int, int, int]:
        if queue.is_staged:
            return queue.src, queue.dst, len(self.ranks) + self.memories.index(queue.home)
        return queue.src, queue.dst, queue.src if queue.home == queue.path[0] else queue.dst

    def connections_of(self, program: Program) -> tuple[int, ...]:
        """The connection of each queue of ``program``, which is one of the group."""
        used: Counter[tuple[int, int, int]] = Counter()
        ids = []
        for way in map(self._way, program.queues):
            ids.append(self._first[way] + used[way])
            used[way] += 1
        return tuple(ids)

    def layout(self, geometry: Geometry) -> SegmentLayout:
        """The places of connections: rings, lines, counters, in the order of ids; then those of copy engines."""
        ends = [0] * (len(self.ranks) + len(self.memories))

        def take(segment: int, size: int) -> int:
            ends[segment] += size
            return ends[segment] - size

        def polled(end: int, home: int) -> int:
            return end if home < len(self.ranks) else home

        rings = geometry.parts * geometry.slots * geometry.slot_bytes
        lines = 2 * geometry.parts * geometry.slots * geometry.line_bytes  # per part LL's, then LL128's
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
