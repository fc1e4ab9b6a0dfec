"""Who reads what from where? A Program as tables for the native library: the host engine's only decisions.

Pure: no library, no memory. Every rank computes the same layout from the same agreed numbers, and passes its
own rows on (``native/src/op.h`` says what a row means). The Program is executed, not replaced; what is
decided here is only where its messages lie:

- **One copy for all readers.** A role that sends one value into several queues writes it once, into a *ring*
  that all these receivers read. Senders of the same own input, one after another in the body, are one firing.
- **No copy.** A message that is the sender's own input, or the value that it keeps, lies in the sender's
  buffer already. Where that buffer is in shared memory, readers take it from there (*direct*).
- **A reply over the question.** Where a message goes back to the rank whose message went into it, and to nobody else,
  it is written into the slot that this one came in: the lines are at hand, and cross between caches three times
  instead of four. Two ranks' AllReduce gains a quarter.
- **No second copy.** A combined value whose receiver only keeps it is written straight into the receiver's
  output, where that is in shared memory (*pushed*).
- **One copy by the system.** Where a call allows it, what could be read in shared memory is read in private memory too,
  by a cross-memory copy; the same proofs hold.
- **Half each.** Where one rank gives and one takes, and both buffers can be reached, the taker takes every other chunk
  and is given the rest, so that both work (*halved*).

Direct and pushed messages must not meet the memory of another one in place; :class:`HostPlan` proves from the
Program's data arcs that they do not, and otherwise forbids them in place.

A firing announces its value in all its rings at once, where the grammar fills one queue after the other: the first
may have the new value while the last still waits for a slot. So rings of firings that send into several queues have
one slot more than their channel says. Then no value is held back longer than the grammar allows: whoever is at a
firing has put the one before into all of its queues. A ring whose messages are answered has as many slots as its rank
works ahead of the answers, and one more: when the rank comes to fill a slot again it has, by its own program order,
taken the answer out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from blinkccl.engines.buffers import check_roles
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import to_json

NOWHERE = -1
PAYLOAD_BYTES, BLOCK_BYTES = 4096, 4160  # Block in native/src/segment.h
#: Channel.protocol of small messages that carry their flags inside.
INLINE = "ll"
#: What small calls in a row spread over. It has to leave the first-level cache: 128 KiB and more made messages of 16 to
#: 64 KiB 1.2 to 1.7 times as fast here; it should stay in the second.
_SHIFTED_BYTES = 384 << 10
_DIRECT_NO, _DIRECT_INPUT, _DIRECT_OUTPUT = range(3)
_STAGES = {"reduce": 0, "root": 1, "broadcast": 2}
STAGES = tuple(_STAGES)


@dataclass(frozen=True, slots=True)
class Area:
    """What a segment has for a rank and bank: control lines, bytes for rings, bytes for small messages."""

    lines: int = 2048
    staging_bytes: int = 8 << 20
    inline_bytes: int = 64 * 4160


@dataclass(slots=True, eq=False)
class _Firing:
    """A role, or several senders of the same own input that are one."""

    index: int
    role: Role
    rings: list[int]


@dataclass(slots=True, eq=False)
class _Ring:
    """Messages of one firing for all its readers, or of one queue that several roles use."""

    index: int
    rank: int
    slots: int
    line: int
    queues: list[int]
    senders: list[_Firing]
    readers: list[tuple[int, int]]  # (queue, acknowledgement line)
    exclusive: bool
    answers: _Ring | None = None  # whose slots these messages are written over


@dataclass(frozen=True)
class RankTables:
    """The rows of one rank, each table a two-dimensional int64 array; and which buffers may be shared in place."""

    roles: NDArray[np.int64]
    receives: NDArray[np.int64]
    sends: NDArray[np.int64]
    rings: NDArray[np.int64]
    readers: NDArray[np.int64]
    queues: int
    direct_in_place: bool
    push_in_place: bool


class HostPlan:
    """A Program laid out for the host engine, for any size.

    Raises
    ------
    ScheduleError
        If a role has no value, or a block that its rank does not have.
    UnsupportedError
        If it needs more control lines than a segment has.
    """

    def __init__(self, program: Program, area: Area | None = None) -> None:
        check_roles(program)
        self.program = program
        self.area = area or Area()
        self.inline = all(channel.protocol == INLINE for channel in program.channels)
        self.firings = self._merge()
        self._sender: dict[int, list[_Firing]] = defaultdict(list)
        self._receiver: dict[int, list[_Firing]] = defaultdict(list)
        for firing in self.firings:
            for queue in firing.role.sends:
                self._sender[queue].append(firing)
            for queue in firing.role.receives:
                self._receiver[queue].append(firing)
        self.rings: list[_Ring] = []
        self._ring_of: dict[int, tuple[_Ring, int]] = {}
        self._lay_rings()
        self._lodge_replies()
        self._check_lines()
        takers = {firing.role.rank for queue in self._receiver.values() for firing in queue}
        # One gives and one takes: through a ring both work, the one a chunk ahead; directly, one would do it all.
        self._one_way = len({ring.rank for ring in self.rings}) == len(takers) == 1
        self._reach = self._reachable()
        self._safe: dict[int, tuple[bool, bool]] = {}
        self._of_rank: list[list[_Firing]] = [[] for _ in program.ranks]
        for firing in self.firings:
            self._of_rank[firing.role.rank].append(firing)

    @cached_property
    def digest(self) -> int:
        """63 bits that differ for programs that differ."""
        return int.from_bytes(hashlib.sha256(to_json(self.program).encode()).digest()[:8], "big") >> 1

    # ---- the size-free layout

    def _merge(self) -> list[_Firing]:
        """The roles, in order; senders of the same own input in a row become one."""
        firings: list[_Firing] = []
        last: dict[int, _Firing] = {}
        for role in self.program.roles:
            before = last.get(role.rank)
            if before is not None and _same_source(before.role, role):
                before.role = replace(
                    before.role, sends=before.role.sends + role.sends, keeps=before.role.keeps or role.keeps
                )
                continue
            last[role.rank] = _Firing(len(firings), role, [])
            firings.append(last[role.rank])
        return firings

    def _exclusive(self, queue: int) -> bool:
        """Whether one firing sends into the queue and one takes from it, chunk by chunk of the same slice."""
        senders, receivers = self._sender[queue], self._receiver[queue]
        return (
            len(senders) == len(receivers) == 1
            and senders[0].role.slice == receivers[0].role.slice
            and senders[0].role.sends.count(queue) == receivers[0].role.receives.count(queue) == 1
        )

    def _lay_rings(self) -> None:
        lines = [0] * len(self.program.ranks)
        for firing in self.firings:
            shared = [queue for queue in firing.role.sends if self._exclusive(queue)]
            if shared:
                self._add_ring(firing, shared, lines, exclusive=True)
            for queue in firing.role.sends:
                if queue in self._ring_of:
                    ring = self._ring_of[queue][0]
                    if not ring.exclusive:
                        ring.senders.append(firing)
                        firing.rings.append(ring.index)
                else:
                    self._add_ring(firing, [queue], lines, exclusive=False)
        for ring in self.rings:
            ring.slots += any(len(firing.role.sends) > 1 for firing in ring.senders)

    def _add_ring(self, firing: _Firing, queues: list[int], lines: list[int], exclusive: bool) -> None:
        rank = firing.role.rank
        slots = self.program.channels[firing.role.channel].slots
        first = lines[rank]
        readers = [(queue, first + 1 + place) for place, queue in enumerate(queues)]
        lines[rank] += 1 + len(queues)
        ring = _Ring(len(self.rings), rank, slots, first, queues, [firing], readers, exclusive)
        firing.rings.append(ring.index)
        self.rings.append(ring)
        for place, queue in enumerate(queues):
            self._ring_of[queue] = (ring, place)

    def _lodge_replies(self) -> None:
        answered: set[int] = set()
        for ring in self.rings:
            if self.inline or not ring.exclusive or len(ring.queues) != 1 or ring.index in answered:
                continue
            taker = self._receiver[ring.queues[0]][0].role
            for queue in ring.senders[0].role.receives:
                question, _ = self._ring_of[queue]
                giver = question.senders[0].role
                if (
                    question.exclusive
                    and len(question.queues) == 1
                    and question.rank == taker.rank
                    and giver.slice == taker.slice
                    and question.answers is None
                    and question.index not in answered
                ):
                    answered.add(question.index)
                    ring.answers = question
                    question.slots = max(question.slots, taker.offset - giver.offset + 1)
                    break

    def _check_lines(self) -> None:
        used: dict[int, int] = defaultdict(int)
        for ring in self.rings:
            used[ring.rank] += 1 + len(ring.readers)
        worst = max(used.values(), default=0)
        if worst > self.area.lines:
            raise UnsupportedError(
                f"the program needs {worst} control lines on one rank, a segment has {self.area.lines}: "
                "use a plan with fewer trees or channels"
            )

    # ---- who has certainly finished when?

    def _reachable(self) -> list[int]:
        """Per firing, a bit set of the firings that wait for it, chunk by chunk, itself included."""
        after: list[list[int]] = [[] for _ in self.firings]
        for ring in self.rings:
            if ring.exclusive:
                for queue in ring.queues:
                    after[ring.senders[0].index].append(self._receiver[queue][0].index)
        reach = [0] * len(self.firings)
        state = [0] * len(self.firings)
        for start in range(len(self.firings)):
            stack = [start]
            while stack:
                node = stack[-1]
                if state[node] == 0:
                    state[node] = 1
                    stack += [other for other in after[node] if state[other] == 0]
                    continue
                stack.pop()
                if state[node] == 1:
                    state[node] = 2
                    reach[node] = 1 << node
                    for other in after[node]:
                        reach[node] |= reach[other]
        return reach

    def _precedes(self, first: _Firing, then: _Firing) -> bool:
        return bool(self._reach[first.index] >> then.index & 1)

    def _direct(self, ring: _Ring) -> int:
        """Where in the sender's own buffers the ring's messages lie anyway."""
        role = ring.senders[0].role
        if not ring.exclusive or self.inline or (self._one_way and not self._halved(ring)):
            return _DIRECT_NO
        if role.contributes and not role.receives:
            return _DIRECT_INPUT
        return _DIRECT_OUTPUT if role.keeps else _DIRECT_NO

    def _pushed(self, ring: _Ring, queue: int) -> bool:
        """Whether the sender may write the message where its receiver keeps it: a combined value, or half of all."""
        if not ring.exclusive or self.inline or not self._is_leaf(queue):
            return False
        sender = ring.senders[0].role
        return bool(sender.receives and sender.contributes) or self._halved(ring)

    def _is_leaf(self, queue: int) -> bool:
        """Whether who receives from the queue only keeps it."""
        leaf = self._receiver[queue][0].role
        return leaf.keeps and not leaf.contributes and not leaf.sends and len(leaf.receives) == 1

    def _halved(self, ring: _Ring) -> bool:
        """Whether it is all that goes on: one rank's own input, for one that only keeps it."""
        role = ring.senders[0].role
        return (
            self._one_way
            and not self.inline
            and ring.exclusive
            and len(ring.queues) == 1
            and role.contributes
            and not role.receives
            and self._is_leaf(ring.queues[0])
        )

    def _readers(self, ring: _Ring) -> list[_Firing]:
        return [self._receiver[queue][0] for queue in ring.queues]

    def _direct_in_place(self, rank: int) -> bool:
        """No slice is kept at ``rank`` before all who read it there as input have done so."""
        keepers = [firing for firing in self._of_rank[rank] if firing.role.keeps]
        return all(
            self._precedes(reader, keeper)
            for ring in self.rings
            if ring.rank == rank and self._direct(ring) == _DIRECT_INPUT
            for keeper in keepers
            if keeper.role.slice == ring.senders[0].role.slice and keeper is not ring.senders[0]
            for reader in self._readers(ring)
        )

    def _push_in_place(self, rank: int) -> bool:
        """No slice is written into ``rank``'s output before all who read it there as input have done so."""
        mine = self._of_rank[rank]
        for ring in self.rings:
            for queue in ring.queues:
                if not self._pushed(ring, queue) or self._receiver[queue][0].role.rank != rank:
                    continue
                writer, part = ring.senders[0], ring.senders[0].role.slice
                before = [f for f in mine if f.role.contributes and f.role.slice == part]
                before += [
                    reader
                    for other in self.rings
                    if other.rank == rank
                    and self._direct(other) == _DIRECT_INPUT
                    and other.senders[0].role.slice == part
                    for reader in self._readers(other)
                ]
                if not all(self._precedes(firing, writer) for firing in before):
                    return False
        return True

    def _drains(self, ring: _Ring) -> bool:
        """Whether only acknowledgements can tell that all readers have finished."""
        own = sum(1 << firing.index for firing in self._of_rank[ring.rank])
        return any(not self._reach[reader.index] & own for reader in self._readers(ring))

    # ---- for one size

    def bind(self, count: int, itemsize: int, chunk_bytes: int) -> Bound:
        """The Program for ``count`` elements per block, in chunks that fit into the segment.

        Raises
        ------
        UnsupportedError
            If its messages do not fit, however small the chunks.
        """
        if self.inline:
            if not all(ring.exclusive for ring in self.rings):
                raise UnsupportedError(
                    f"protocol {INLINE!r} carries one message per queue; here several roles share one"
                )
            bound = bind(
                self.program, count, itemsize, count * itemsize + ALIGNMENT_BYTES
            )  # one chunk, whatever the group
            needed = max(self._staging(bound).values(), default=0)
            if needed > self.area.inline_bytes:
                raise UnsupportedError(
                    f"{count} elements of {itemsize} bytes are too many for protocol {INLINE!r}: a rank's messages "
                    f"need {needed} bytes, there are {self.area.inline_bytes}; use protocol 'simple'"
                )
            return bound
        while True:
            bound = bind(self.program, count, itemsize, chunk_bytes)
            needed = max(self._staging(bound).values(), default=0)
            if needed <= self.area.staging_bytes:
                return bound
            if chunk_bytes <= max(16, itemsize):
                raise UnsupportedError(
                    f"the program's rings need {needed} bytes on one rank even in the smallest chunks; "
                    f"there are {self.area.staging_bytes}: use a plan with fewer trees"
                )
            chunk_bytes = max(16, itemsize, min(chunk_bytes * self.area.staging_bytes // needed, chunk_bytes - 16))

    def _stride(self, ring: _Ring, bound: Bound) -> int:
        length = max(bound.extents[firing.role.slice].length for firing in ring.senders)
        if self.inline:
            return -(-length * bound.itemsize // PAYLOAD_BYTES) * BLOCK_BYTES
        return -(-min(length, bound.chunk_elements) * bound.itemsize // 64) * 64

    def _slots(self, ring: _Ring, bound: Bound) -> int:
        messages = sum(bound.extents[firing.role.slice].chunks for firing in ring.senders)
        return max(1, min(ring.slots, messages))

    def _staging(self, bound: Bound) -> dict[int, int]:
        needed: dict[int, int] = defaultdict(int)
        for ring in self.rings:
            if ring.answers is None:
                needed[ring.rank] += self._stride(ring, bound) * self._slots(ring, bound)
        return needed

    def shifts(self, bound: Bound) -> tuple[int, int]:
        """By how many bytes successive calls move their rings on, and how many times before they begin again."""
        unit = BLOCK_BYTES if self.inline else 64
        needed = max(unit, -(-max(self._staging(bound).values(), default=0) // unit) * unit)
        area = self.area.inline_bytes if self.inline else self.area.staging_bytes
        return needed, max(1, min(_SHIFTED_BYTES, area) // needed)

    def tables(self, bound: Bound, rank: int, averages: bool) -> RankTables:
        """The rows of ``rank``, for a Program that :meth:`bind` has bound; ``averages``: completed sums are divided."""
        places: list[tuple[int, int, int]] = []  # per ring: offset, stride, slots
        used: dict[int, int] = defaultdict(int)
        for ring in self.rings:
            stride, slots = self._stride(ring, bound), self._slots(ring, bound)
            places.append((used[ring.rank], stride, slots))
            used[ring.rank] += stride * slots if ring.answers is None else 0
        lodged = (ring.answers for ring in self.rings)
        places = [place if at is None else places[at.index] for at, place in zip(lodged, places, strict=True)]
        return self._rank_tables(bound, rank, places, averages)

    def _rank_tables(self, bound: Bound, rank: int, places: list[tuple[int, int, int]], averages: bool) -> RankTables:
        roles: list[tuple[int, ...]] = []
        receives: list[tuple[int, ...]] = []
        sends: list[tuple[int]] = []
        queues: dict[int, int] = {}
        local = {index: place for place, index in enumerate(i for i, r in enumerate(self.rings) if r.rank == rank)}
        for firing in self._of_rank[rank]:
            role, extent = firing.role, bound.extents[firing.role.slice]
            source = bound.source(rank, role.slice) if role.contributes else None
            target = bound.target(rank, role.slice) if role.keeps else None
            roles.append(
                (
                    role.offset,
                    extent.chunks,
                    extent.length,
                    NOWHERE if source is None else source * bound.itemsize,
                    NOWHERE if target is None else target * bound.itemsize,
                    bound.contributions(role.slice) if role.completes and averages else 1,
                    role.own_operand_index if role.contributes else 0,
                    len(receives),
                    len(role.receives),
                    len(sends),
                    len(firing.rings),
                    role.channel,
                    role.share,
                    _STAGES.get(role.stage, len(_STAGES)),
                )
            )
            for queue in role.receives:
                receives.append(self._receive(bound, queue, places, queues))
            sends += [(local[ring],) for ring in firing.rings]
        rings: list[tuple[int, ...]] = []
        readers: list[tuple[int, ...]] = []
        for index in local:
            ring = self.rings[index]
            direct = self._direct(ring)
            rings.append(
                (
                    ring.line,
                    *places[index],
                    len(readers),
                    len(ring.readers),
                    direct,
                    int(direct != _DIRECT_NO and self._drains(ring)),
                    _lodged(ring),
                    int(self._halved(ring)),
                )
            )
            readers += [self._reader(bound, ring, queue, line) for queue, line in ring.readers]
        return RankTables(
            _table(roles, 14),
            _table(receives, 12),
            _table(sends, 1),
            _table(rings, 10),
            _table(readers, 3),
            len(queues),
            *self._in_place(rank),
        )

    def _in_place(self, rank: int) -> tuple[bool, bool]:
        if rank not in self._safe:
            self._safe[rank] = self._direct_in_place(rank), self._push_in_place(rank)
        return self._safe[rank]

    def _receive(
        self, bound: Bound, queue: int, places: list[tuple[int, int, int]], queues: dict[int, int]
    ) -> tuple[int, ...]:
        ring, place = self._ring_of[queue]
        sender = ring.senders[0].role
        direct = self._direct(ring)
        at = None
        if direct == _DIRECT_INPUT:
            at = bound.source(ring.rank, sender.slice)
        elif direct == _DIRECT_OUTPUT:
            at = bound.target(ring.rank, sender.slice)
        return (
            ring.rank,
            ring.line,
            ring.readers[place][1],
            *places[ring.index],
            direct,
            0 if at is None else at * bound.itemsize,
            int(self._pushed(ring, queue)),
            queues.setdefault(queue, len(queues)),
            _lodged(ring),
            int(self._halved(ring)),
        )

    def _reader(self, bound: Bound, ring: _Ring, queue: int, line: int) -> tuple[int, ...]:
        receiver = self._receiver[queue][0].role
        at = bound.target(receiver.rank, receiver.slice) if self._pushed(ring, queue) else None
        return receiver.rank, line, NOWHERE if at is None else at * bound.itemsize


def _lodged(ring: _Ring) -> int:
    """0 if the ring lies in its own rank's area, else 1 + the rank in whose area it does."""
    return 0 if ring.answers is None else ring.answers.rank + 1


def _same_source(first: Role, then: Role) -> bool:
    """Whether both only send their rank's own input of one slice, in one tick, and not into one queue."""
    return (
        all(role.contributes and not role.receives for role in (first, then))
        and (first.slice, first.offset, first.channel, first.completes)
        == (then.slice, then.offset, then.channel, then.completes)
        and not any(queue in first.sends for queue in then.sends)
    )


def _table(rows: list[tuple[int, ...]] | list[tuple[int]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(len(rows), width)
