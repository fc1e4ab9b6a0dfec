"""The layout of connections in the memory of their ranks: one for all programs that take turns on them.

A *group* of programs on the same ranks shares its connections: per ordered pair of ranks there are as many as the
program with most queues on that pair needs. Each rank has one segment of device memory, whose base every other rank
can map; what the sender writes lies in the receiver's segment, what the sender waits for in its own, so that all
polling is local and all stores across a link are posted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import UsageError
from blinkccl.native.headers import header
from blinkccl.schedule.program import Program

#: Everything begins on a line of this many bytes; the counters of two parts lie this far apart.
LINE_BYTES = 8 * header("call.h").constants["kStride"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How much a connection holds; UsageError if a number is out of range."""

    #: Blocks that share a channel's work, each with rings and counters of its own.
    parts: int = 1
    #: Messages that each ring holds.
    slots: int = 2
    #: Of a message of the protocol simple, and of one of LL or LL128, flags included; positive multiples of 128.
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

    ``ring``, ``lines``, ``tail`` and ``dst_position`` lie in the segment of ``dst``, ``head`` and ``src_position`` in
    that of ``src``. So do ``copy_ring`` and ``copy_tail``, and ``copy_head``, which are 0 where nothing is for copy
    engines.
    """

    src: int
    dst: int
    ring: int
    lines: int
    tail: int
    dst_position: int
    head: int
    src_position: int
    copy_ring: int = 0
    copy_tail: int = 0
    copy_head: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The connections by id, and the bytes of each rank's segment. All memory is zero at the start."""

    geometry: Geometry
    connections: tuple[Connection, ...]
    segment_bytes: tuple[int, ...]


class Group:
    """Programs on the same ranks that share connections; UsageError if there is none, or their ranks differ."""

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs:
            raise UsageError("a group needs at least one program, got none")
        self.ranks = programs[0].ranks
        for program in programs:
            if program.ranks != self.ranks:
                raise UsageError(
                    f"programs that share connections run on the same ranks: expected {list(self.ranks)}, got "
                    f"{list(program.ranks)}"
                )
        widest: dict[tuple[int, int], int] = {}
        for program in programs:
            for pair, queues in Counter((queue.src, queue.dst) for queue in program.queues).items():
                widest[pair] = max(widest.get(pair, 0), queues)
        #: (sender, receiver) of each connection, by id.
        self.pairs = tuple(pair for pair in sorted(widest) for _ in range(widest[pair]))
        self._first = {pair: index for index, pair in reversed(list(enumerate(self.pairs)))}

    def connections_of(self, program: Program) -> tuple[int, ...]:
        """The connection that each queue of ``program`` uses; ``program`` is one of the group."""
        used: Counter[tuple[int, int]] = Counter()
        ids = []
        for queue in program.queues:
            pair = queue.src, queue.dst
            ids.append(self._first[pair] + used[pair])
            used[pair] += 1
        return tuple(ids)

    def layout(self, geometry: Geometry) -> Layout:
        """Where connections lie: rings, lines, counters, in the order of ids; what copy engines take comes behind."""
        ends = [0] * len(self.ranks)

        def take(rank: int, size: int) -> int:
            ends[rank] += size
            return ends[rank] - size

        rings = geometry.parts * geometry.slots * geometry.slot_bytes
        lines = geometry.parts * geometry.slots * geometry.line_bytes
        counters = geometry.parts * LINE_BYTES
        data = [(take(dst, rings), take(dst, lines)) for _, dst in self.pairs]
        connections = tuple(
            Connection(
                src,
                dst,
                *data[index],
                tail=take(dst, counters),
                dst_position=take(dst, counters),
                head=take(src, counters),
                src_position=take(src, counters),
            )
            for index, (src, dst) in enumerate(self.pairs)
        )
        if geometry.copy_slots:
            connections = tuple(
                replace(
                    one,
                    copy_ring=take(one.dst, geometry.copy_slots * geometry.copy_slot_bytes),
                    copy_tail=take(one.dst, LINE_BYTES),
                    copy_head=take(one.src, LINE_BYTES),
                )
                for one in connections
            )
        return Layout(geometry, connections, tuple(ends))
