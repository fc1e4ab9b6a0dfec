"""A Program as tables for the native library: where its messages lie, which is all that the host engine decides.

Pure: no library, no memory. Every rank computes the same layout from the same agreed numbers, and passes its own rows
on (``native/include/blink/host.h`` says what a row means). The Program is executed, not replaced:

- **One copy for all readers.** A role that sends one value into several queues writes it once, into a *ring* that all
  these receivers read. Senders of the same own input, one after another in the body, are one actor.
- **Direct read.** A message that is the sender's own input, or the value that it keeps, lies in the sender's buffer
  already. Where that buffer is in shared memory, readers take it from there.
- **Reply in place.** A reply reuses the slot of the message it answers, where a message goes back to the rank whose
  message went into it and to nobody else: the lines are at hand, and cross between caches three times instead of four.
  Two ranks' AllReduce gains a quarter.
- **Direct write.** A combined value whose receiver only keeps it is written straight into the receiver's output, where
  that is in shared memory.
- **One copy by the system.** Where a call allows it, what could be read in shared memory is read in private memory too,
  by a cross-memory copy; the same proofs hold.
- **Staged messages stay staged.** What the Program stores in a memory on its way, or takes through a relay, lies in a
  ring, never in a buffer of either end, and a relay's copy is made (:mod:`blinkccl.engines.relays`).
- **Split transfer.** Where one rank gives and one takes, and both buffers can be reached, the taker takes every other
  chunk and is given the rest, so that both work.

Messages that are read or written directly must not meet the memory of another one in place; :class:`HostPlan` proves
from the Program's data arcs that they do not, and otherwise forbids them in place.

An actor announces its value in all its rings at once, where the grammar fills one queue after the other: the first may
have the new value while the last still waits for a slot. So rings of actors that send into several queues have one slot
more than their channel says. Then no value is held back longer than the grammar allows: whoever executes an actor has
put the value before into all of its queues. A ring whose messages are answered has as many slots as its rank works
ahead of the answers, and one more: when the rank comes to fill a slot again it has, by its own program order, taken the
answer out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from blinkccl.engines.buffers import check_roles
from blinkccl.engines.relays import relays_at_ranks
from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import header
from blinkccl.schedule.chunking import ALIGNMENT_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import to_json

_HEADER = header("host.h")
NOWHERE, PAYLOAD_BYTES, BLOCK_BYTES, _SMALL_CALLS_BYTES = (
    _HEADER.constants[f"BLINK_{name}"] for name in ("NOWHERE", "PAYLOAD_BYTES", "BLOCK_BYTES", "SMALL_CALLS_BYTES")
)
_READ_NONE, _READ_INPUT, _READ_OUTPUT = (
    _HEADER.constants[f"BLINK_READ_{where}"] for where in ("NONE", "INPUT", "OUTPUT")
)
#: Channel.protocol of small messages that carry their flags inside.
INLINE = "ll"
_STAGES = {"reduce": 0, "root": 1, "broadcast": 2, "relay": 3}
STAGES = tuple(_STAGES)


@dataclass(frozen=True, slots=True)
class Area:
    """What a segment has for a rank and bank: control lines, bytes for rings, bytes for small messages."""

    lines: int = 2048
    staging_bytes: int = 8 << 20
    inline_bytes: int = 64 * BLOCK_BYTES


@dataclass(slots=True, eq=False)
class _Actor:
    """A role, or several senders of the same own input that are executed as one."""

    index: int
    role: Role
    rings: list[int]


@dataclass(slots=True, eq=False)
class _Ring:
    """Messages of one actor for all its readers, or of one queue that several roles use."""

    index: int
    rank: int
    slots: int
    line: int
    queues: list[int]
    senders: list[_Actor]
    readers: list[tuple[int, int]]  # (queue, acknowledgement line)
    exclusive: bool
    answers: _Ring | None = None  # whose slots these replies reuse


@dataclass(frozen=True)
class RankTables:
    """The rows of one rank, by the structs of ``host.h``; and which buffers may be shared in place."""

    roles: NDArray[np.void]
    receives: NDArray[np.void]
    sends: NDArray[np.int64]
    rings: NDArray[np.void]
    readers: NDArray[np.void]
    queues: int
    direct_read_in_place: bool
    direct_write_in_place: bool


class HostPlan:
    """A Program laid out for the host engine, for any size; UnsupportedError if a segment has too few control lines."""

    def __init__(self, program: Program, area: Area | None = None) -> None:
        check_roles(program, relays=True)
        self.program = program
        self._stored = {
            number
            for number, queue in enumerate(program.queues)
            if queue.is_staged or max(queue.src, queue.dst) >= len(program.ranks)
        }
        self.area = area or Area()
        self.inline = all(channel.protocol == INLINE for channel in program.channels)
        self.actors = self._merge()
        self._sender: dict[int, list[_Actor]] = defaultdict(list)
        self._receiver: dict[int, list[_Actor]] = defaultdict(list)
        for actor in self.actors:
            for queue in actor.role.sends:
                self._sender[queue].append(actor)
            for queue in actor.role.receives:
                self._receiver[queue].append(actor)
        self.rings: list[_Ring] = []
        self._ring_of: dict[int, tuple[_Ring, int]] = {}
        self._lay_rings()
        self._place_replies()
        self._check_lines()
        takers = {actor.role.rank for queue in self._receiver.values() for actor in queue}
        # One gives and one takes: through a ring both work, the one a chunk ahead; directly, one would do it all.
        self._one_way = len({ring.rank for ring in self.rings}) == len(takers) == 1
        self._reach = self._reachable()
        self._safe: dict[int, tuple[bool, bool]] = {}
        self._of_rank: list[list[_Actor]] = [[] for _ in program.ranks]
        for actor in self.actors:
            self._of_rank[actor.role.rank].append(actor)

    @cached_property
    def digest(self) -> int:
        """63 bits that differ for programs that differ."""
        return int.from_bytes(hashlib.sha256(to_json(self.program).encode()).digest()[:8], "big") >> 1

    # ---- the size-free layout

    def _merge(self) -> list[_Actor]:
        """The roles, in order; senders of the same own input in a row become one."""
        actors: list[_Actor] = []
        last: dict[int, _Actor] = {}
        for role in relays_at_ranks(self.program).roles:
            before = last.get(role.rank)
            if before is not None and _same_source(before.role, role):
                before.role = replace(
                    before.role, sends=before.role.sends + role.sends, keeps=before.role.keeps or role.keeps
                )
                continue
            last[role.rank] = _Actor(len(actors), role, [])
            actors.append(last[role.rank])
        return actors

    def _exclusive(self, queue: int) -> bool:
        """Whether one actor sends into the queue and one takes from it, chunk by chunk of the same slice."""
        senders, receivers = self._sender[queue], self._receiver[queue]
        return (
            len(senders) == len(receivers) == 1
            and senders[0].role.slice == receivers[0].role.slice
            and senders[0].role.sends.count(queue) == receivers[0].role.receives.count(queue) == 1
        )

    def _lay_rings(self) -> None:
        lines = [0] * len(self.program.ranks)
        for actor in self.actors:
            shared = [queue for queue in actor.role.sends if self._exclusive(queue)]
            for stored in (False, True):
                alike = [queue for queue in shared if (queue in self._stored) == stored]
                if alike:
                    self._add_ring(actor, alike, lines, exclusive=True)
            for queue in actor.role.sends:
                if queue in self._ring_of:
                    ring = self._ring_of[queue][0]
                    if not ring.exclusive:
                        ring.senders.append(actor)
                        actor.rings.append(ring.index)
                else:
                    self._add_ring(actor, [queue], lines, exclusive=False)
        for ring in self.rings:
            ring.slots += any(len(actor.role.sends) > 1 for actor in ring.senders)

    def _add_ring(self, actor: _Actor, queues: list[int], lines: list[int], exclusive: bool) -> None:
        rank = actor.role.rank
        slots = self.program.channels[actor.role.channel].slots
        first = lines[rank]
        readers = [(queue, first + 1 + place) for place, queue in enumerate(queues)]
        lines[rank] += 1 + len(queues)
        ring = _Ring(len(self.rings), rank, slots, first, queues, [actor], readers, exclusive)
        actor.rings.append(ring.index)
        self.rings.append(ring)
        for place, queue in enumerate(queues):
            self._ring_of[queue] = (ring, place)

    def _place_replies(self) -> None:
        answered: set[int] = set()
        for ring in self.rings:
            if self.inline or not self._is_free(ring) or len(ring.queues) != 1 or ring.index in answered:
                continue
            taker = self._receiver[ring.queues[0]][0].role
            for queue in ring.senders[0].role.receives:
                question, _ = self._ring_of[queue]
                giver = question.senders[0].role
                if (
                    self._is_free(question)
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
        """Per actor, a bit set of the actors that wait for it, chunk by chunk, itself included."""
        after: list[list[int]] = [[] for _ in self.actors]
        for ring in self.rings:
            if ring.exclusive:
                for queue in ring.queues:
                    after[ring.senders[0].index].append(self._receiver[queue][0].index)
        reach = [0] * len(self.actors)
        state = [0] * len(self.actors)
        for start in range(len(self.actors)):
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

    def _precedes(self, first: _Actor, then: _Actor) -> bool:
        return bool(self._reach[first.index] >> then.index & 1)

    def _is_free(self, ring: _Ring) -> bool:
        """Whether its messages may lie elsewhere than in slots of its own."""
        return ring.exclusive and not any(queue in self._stored for queue in ring.queues)

    def _direct_read(self, ring: _Ring) -> int:
        """Where in the sender's own buffers the ring's messages lie anyway, to be read there."""
        role = ring.senders[0].role
        if not self._is_free(ring) or self.inline or (self._one_way and not self._splits(ring)):
            return _READ_NONE
        if role.contributes and not role.receives:
            return _READ_INPUT
        return _READ_OUTPUT if role.keeps else _READ_NONE

    def _direct_write(self, ring: _Ring, queue: int) -> bool:
        """Whether the sender may write the message where its receiver keeps it: a combined value, or half of all."""
        if not self._is_free(ring) or self.inline or not self._is_leaf(queue):
            return False
        sender = ring.senders[0].role
        return bool(sender.receives and sender.contributes) or self._splits(ring)

    def _is_leaf(self, queue: int) -> bool:
        """Whether who receives from the queue only keeps it."""
        leaf = self._receiver[queue][0].role
        return leaf.keeps and not leaf.contributes and not leaf.sends and len(leaf.receives) == 1

    def _splits(self, ring: _Ring) -> bool:
        """Whether it is all that goes on: one rank's own input, for one that only keeps it."""
        role = ring.senders[0].role
        return (
            self._one_way
            and not self.inline
            and self._is_free(ring)
            and len(ring.queues) == 1
            and role.contributes
            and not role.receives
            and self._is_leaf(ring.queues[0])
        )

    def _readers(self, ring: _Ring) -> list[_Actor]:
        return [self._receiver[queue][0] for queue in ring.queues]

    def _direct_read_in_place(self, rank: int) -> bool:
        """No slice is kept at ``rank`` before all who read it there as input have done so."""
        keepers = [actor for actor in self._of_rank[rank] if actor.role.keeps]
        return all(
            self._precedes(reader, keeper)
            for ring in self.rings
            if ring.rank == rank and self._direct_read(ring) == _READ_INPUT
            for keeper in keepers
            if keeper.role.slice == ring.senders[0].role.slice and keeper is not ring.senders[0]
            for reader in self._readers(ring)
        )

    def _direct_write_in_place(self, rank: int) -> bool:
        """No slice is written into ``rank``'s output before all who read it there as input have done so."""
        mine = self._of_rank[rank]
        for ring in self.rings:
            for queue in ring.queues:
                if not self._direct_write(ring, queue) or self._receiver[queue][0].role.rank != rank:
                    continue
                writer, part = ring.senders[0], ring.senders[0].role.slice
                before = [f for f in mine if f.role.contributes and f.role.slice == part]
                before += [
                    reader
                    for other in self.rings
                    if other.rank == rank
                    and self._direct_read(other) == _READ_INPUT
                    and other.senders[0].role.slice == part
                    for reader in self._readers(other)
                ]
                if not all(self._precedes(actor, writer) for actor in before):
                    return False
        return True

    def _drains(self, ring: _Ring) -> bool:
        """Whether only acknowledgements can tell that all readers have finished."""
        own = sum(1 << actor.index for actor in self._of_rank[ring.rank])
        return any(not self._reach[reader.index] & own for reader in self._readers(ring))

    # ---- for one size

    def bind(self, count: int, itemsize: int, chunk_bytes: int) -> Bound:
        """The Program for ``count`` elements per block; UnsupportedError if no chunk is so small that messages fit."""
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
        length = max(bound.extents[actor.role.slice].length for actor in ring.senders)
        if self.inline:
            return -(-length * bound.itemsize // PAYLOAD_BYTES) * BLOCK_BYTES
        return -(-min(length, bound.chunk_elements) * bound.itemsize // 64) * 64

    def _slots(self, ring: _Ring, bound: Bound) -> int:
        messages = sum(bound.extents[actor.role.slice].chunks for actor in ring.senders)
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
        return needed, max(1, min(_SMALL_CALLS_BYTES, area) // needed)

    def tables(self, bound: Bound, rank: int, averages: bool) -> RankTables:
        """The rows of ``rank``, for a Program that :meth:`bind` has bound; ``averages``: completed sums are divided."""
        places: list[tuple[int, int, int]] = []  # per ring: offset, stride, slots
        used: dict[int, int] = defaultdict(int)
        for ring in self.rings:
            stride, slots = self._stride(ring, bound), self._slots(ring, bound)
            places.append((used[ring.rank], stride, slots))
            used[ring.rank] += stride * slots if ring.answers is None else 0
        answered = (ring.answers for ring in self.rings)
        places = [place if at is None else places[at.index] for at, place in zip(answered, places, strict=True)]
        return self._rank_tables(bound, rank, places, averages)

    def _rank_tables(self, bound: Bound, rank: int, places: list[tuple[int, int, int]], averages: bool) -> RankTables:
        roles: list[dict[str, int]] = []
        receives: list[dict[str, int]] = []
        sends: list[int] = []
        queues: dict[int, int] = {}
        local = {index: place for place, index in enumerate(i for i, r in enumerate(self.rings) if r.rank == rank)}
        for actor in self._of_rank[rank]:
            role = actor.role
            roles.append(
                _role(bound, role, averages)
                | {"first_receive": len(receives), "receives": len(role.receives)}
                | {"first_send": len(sends), "sends": len(actor.rings)}
            )
            receives += [self._receive(bound, queue, places, queues) for queue in role.receives]
            sends += [local[ring] for ring in actor.rings]
        rings: list[dict[str, int]] = []
        readers: list[dict[str, int]] = []
        for index in local:
            ring = self.rings[index]
            direct = self._direct_read(ring)
            rings.append(
                self._place(ring, places)
                | {"first_reader": len(readers), "readers": len(ring.readers)}
                | {"direct_read": direct, "drain": int(direct != _READ_NONE and self._drains(ring))}
            )
            readers += [self._reader(bound, ring, queue, line) for queue, line in ring.readers]
        return RankTables(
            _table("blink_role", roles),
            _table("blink_receive", receives),
            np.array(sends, np.int64),
            _table("blink_ring", rings),
            _table("blink_reader", readers),
            len(queues),
            *self._in_place(rank),
        )

    def _in_place(self, rank: int) -> tuple[bool, bool]:
        if rank not in self._safe:
            self._safe[rank] = self._direct_read_in_place(rank), self._direct_write_in_place(rank)
        return self._safe[rank]

    def _place(self, ring: _Ring, places: list[tuple[int, int, int]]) -> dict[str, int]:
        """What both ends of a ring are told of it."""
        staging, stride, slots = places[ring.index]
        return {
            "line": ring.line,
            "staging": staging,
            "stride": stride,
            "slots": slots,
            "reply_to": 0 if ring.answers is None else ring.answers.rank + 1,
            "split": int(self._splits(ring)),
        }

    def _receive(
        self, bound: Bound, queue: int, places: list[tuple[int, int, int]], queues: dict[int, int]
    ) -> dict[str, int]:
        ring, place = self._ring_of[queue]
        sender = ring.senders[0].role
        direct = self._direct_read(ring)
        at = None
        if direct == _READ_INPUT:
            at = bound.source(ring.rank, sender.slice)
        elif direct == _READ_OUTPUT:
            at = bound.target(ring.rank, sender.slice)
        return self._place(ring, places) | {
            "rank": ring.rank,
            "ack_line": ring.readers[place][1],
            "direct_read": direct,
            "direct_offset": 0 if at is None else at * bound.itemsize,
            "direct_write": int(self._direct_write(ring, queue)),
            "queue": queues.setdefault(queue, len(queues)),
        }

    def _reader(self, bound: Bound, ring: _Ring, queue: int, line: int) -> dict[str, int]:
        receiver = self._receiver[queue][0].role
        at = bound.target(receiver.rank, receiver.slice) if self._direct_write(ring, queue) else None
        return {"rank": receiver.rank, "ack_line": line, "write_offset": _bytes(at, bound)}


def _role(bound: Bound, role: Role, averages: bool) -> dict[str, int]:
    """The numbers of a role but for its messages."""
    extent = bound.extents[role.slice]
    return {
        "offset": role.offset,
        "chunks": extent.chunks,
        "length": extent.length,
        "source": _bytes(bound.source(role.rank, role.slice) if role.contributes else None, bound),
        "target": _bytes(bound.target(role.rank, role.slice) if role.keeps else None, bound),
        "divisor": bound.contributions(role.slice) if role.completes and averages else 1,
        "own_operand_index": role.own_operand_index if role.contributes else 0,
        "channel": role.channel,
        "share": role.share,
        "stage": _STAGES.get(role.stage, len(_STAGES)),
    }


def _bytes(elements: int | None, bound: Bound) -> int:
    return NOWHERE if elements is None else elements * bound.itemsize


def _same_source(first: Role, then: Role) -> bool:
    """Whether both only send their rank's own input of one slice, in one tick, and not into one queue."""
    return (
        all(role.contributes and not role.receives for role in (first, then))
        and (first.slice, first.offset, first.channel, first.completes)
        == (then.slice, then.offset, then.channel, then.completes)
        and not any(queue in first.sends for queue in then.sends)
    )


def _table(struct: str, rows: list[dict[str, int]]) -> NDArray[np.void]:
    """The rows of a struct of int64s, in its order; a row has all its members."""
    names = _HEADER.structs[struct].names
    return np.array([tuple(row[name] for name in names) for row in rows], [(name, np.int64) for name in names])
