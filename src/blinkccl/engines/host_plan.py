"""The layout of a Program for the native library: tables with the places of its messages.

The layout uses no library and no memory. Every rank computes the same layout from the same agreed numbers, and passes
its own rows to the library (defined in ``src/blinkccl/native/include/blink/host.h``). The Program is executed
unchanged; the host engine only decides the places of messages:

- **One copy for all readers.** A role that sends one value into several queues writes it once, into a *ring* that all
  receivers read. Consecutive senders of the same own input are one actor.
- **Direct read.** A message that is the sender's input, or a value that it keeps, is already in the sender's buffer. If
  that buffer is in shared memory, receivers read it there.
- **Reply in place.** A reply that goes only to the sender of the message which it answers reuses that message's slot.
  Its cache lines are local, and cross between caches three times instead of four. An AllReduce of two ranks is a
  quarter faster.
- **Direct write.** A reduced value that its receiver only keeps is written directly into the receiver's output, if that
  is in shared memory.
- **One copy by the system.** If a call allows cross-memory copies, they read messages in private memory under the same
  conditions as direct reads in shared memory; the same proofs hold.
- **Staged messages stay staged.** A message that the Program stages in a memory, or sends through a relay, lies in a
  ring and never in a buffer of its ends, and the copy of a relay is made (:mod:`blinkccl.engines.relays`).
- **Split transfer.** If one rank sends and one receives, and both buffers can be reached, the receiver reads every
  other chunk and the sender writes the rest, so both work.

In place, a message that is read or written directly must not share memory with another one. :class:`HostPlan` proves
this from the Program's data arcs, and otherwise forbids direct access in place.

The Program's rules fill one queue after another: the first may have a new value while the last waits for a slot. An
actor announces its value in all its rings at once. Rings of actors with several queues therefore have one slot more
than their channel, so no value waits longer than by these rules: an actor that runs has put its previous value into all
its queues. A ring with answered messages has one slot more than the number of messages that its rank sends ahead of the
answers: when the rank fills a slot again, it has, in its program order, read the answer from it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from blinkccl.engines.buffers import check_roles
from blinkccl.engines.relays import relays_at_ranks
from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import header
from blinkccl.schedule.chunking import Placement, placements
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import to_json

_HEADER = header("host.h")
NOWHERE, PAYLOAD_BYTES, BLOCK_BYTES = (
    _HEADER.constants[f"BLINK_{name}"] for name in ("NOWHERE", "PAYLOAD_BYTES", "BLOCK_BYTES")
)
_PLAN_HEADER = _HEADER.structs["blink_plan_header"].names
_COLLECTIVE_CODES = header("types.h").numbers("blink_collective")
#: Largest denominator of a share for the native library.
_FINEST = 1 << 61
_READ_NONE, _READ_INPUT, _READ_OUTPUT = (
    _HEADER.constants[f"BLINK_READ_{where}"] for where in ("NONE", "INPUT", "OUTPUT")
)
#: Channel.protocol of small messages with inline flags.
INLINE = "ll"
_STAGES = {"reduce": 0, "root": 1, "broadcast": 2, "relay": 3}
STAGES = tuple(_STAGES)


@dataclass(frozen=True, slots=True)
class Area:
    """A segment's sizes per rank and bank: control lines, bytes of rings, bytes of small messages."""

    lines: int = 2048
    staging_bytes: int = 8 << 20
    inline_bytes: int = 64 * BLOCK_BYTES


@dataclass(slots=True, eq=False)
class _HostActor:
    """A role, or several senders of the same own input, executed as one."""

    index: int
    role: Role
    rings: list[_Ring]


@dataclass(slots=True, eq=False)
class _Ring:
    """Messages of one actor for all its readers, or of one queue that several roles use."""

    index: int
    rank: int
    slots: int
    line: int
    queues: list[int]
    senders: list[_HostActor]
    readers: list[tuple[int, int]]  # (queue, acknowledgement line)
    exclusive: bool
    answers: _Ring | None = None  # The ring whose slots these replies reuse.


class HostPlan:
    """The layout of a Program for the host engine, for any size; UnsupportedError if control lines are too few.

    ``rails``: the rail of each queue, for queues between hosts; without them UCX selects the networks.
    """

    def __init__(self, program: Program, area: Area | None = None, rails: Sequence[int] = ()) -> None:
        check_roles(program)
        self.program = program
        self._placements = placements(program.collective)
        self._stored = {
            number
            for number, queue in enumerate(program.queues)
            if queue.is_staged or max(queue.src, queue.dst) >= len(program.ranks)
        }
        self.area = area or Area()
        self._rails = rails or (0,) * len(program.queues)
        self.inline = all(channel.protocol == INLINE for channel in program.channels)
        self.actors = self._merge()
        self._sender: dict[int, list[_HostActor]] = defaultdict(list)
        self._receiver: dict[int, list[_HostActor]] = defaultdict(list)
        for actor in self.actors:
            for queue in actor.role.sends:
                self._sender[queue].append(actor)
            for queue in actor.role.receives:
                self._receiver[queue].append(actor)
        self.rings: list[_Ring] = []
        self._ring_of: dict[int, tuple[_Ring, int]] = {}
        self._lay_rings()
        self._place_replies()
        self.rings.sort(key=lambda ring: ring.rank)
        for place, ring in enumerate(self.rings):
            ring.index = place
        self._check_lines()
        takers = {actor.role.rank for queue in self._receiver.values() for actor in queue}
        # With one sender and one receiver, both work on a ring, one chunk apart; direct access would leave one idle.
        self._one_way = len({ring.rank for ring in self.rings}) == len(takers) == 1
        self._reach = self._reachable()
        self._of_rank: list[list[_HostActor]] = [[] for _ in program.ranks]
        for actor in self.actors:
            self._of_rank[actor.role.rank].append(actor)
        self._own = [sum(1 << actor.index for actor in actors) for actors in self._of_rank]  # Bit sets.

    @cached_property
    def digest(self) -> int:
        """A hash of the program, in 63 bits."""
        return int.from_bytes(hashlib.sha256(to_json(self.program).encode()).digest()[:8], "big") >> 1

    def role(self, rank: int, row: int) -> Role:
        """The role in this row of the rank; it may send into the queues of several roles of the Program."""
        return self._of_rank[rank][row].role

    # ---- the size-free layout

    def _merge(self) -> list[_HostActor]:
        """The actors in order: the roles, with consecutive senders of the same own input merged."""
        actors: list[_HostActor] = []
        last: dict[int, _HostActor] = {}
        for role in relays_at_ranks(self.program).roles:
            before = last.get(role.rank)
            if before is not None and _same_source(before.role, role):
                before.role = replace(
                    before.role, sends=before.role.sends + role.sends, keeps=before.role.keeps or role.keeps
                )
                continue
            last[role.rank] = _HostActor(len(actors), role, [])
            actors.append(last[role.rank])
        return actors

    def _exclusive(self, queue: int) -> bool:
        """True if one actor sends into the queue and one receives from it, in the chunks of one slice."""
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
                queues = [queue for queue in shared if (queue in self._stored) == stored]
                if queues:
                    self._add_ring(actor, queues, lines, exclusive=True)
            for queue in actor.role.sends:
                if queue in self._ring_of:
                    ring = self._ring_of[queue][0]
                    if not ring.exclusive:
                        ring.senders.append(actor)
                        actor.rings.append(ring)
                else:
                    self._add_ring(actor, [queue], lines, exclusive=False)
        for ring in self.rings:
            ring.slots += any(len(actor.role.sends) > 1 for actor in ring.senders)

    def _add_ring(self, actor: _HostActor, queues: list[int], lines: list[int], exclusive: bool) -> None:
        rank = actor.role.rank
        slots = self.program.channels[actor.role.channel].slots
        first = lines[rank]
        readers = [(queue, first + 1 + place) for place, queue in enumerate(queues)]
        lines[rank] += 1 + len(queues)
        ring = _Ring(len(self.rings), rank, slots, first, queues, [actor], readers, exclusive)
        actor.rings.append(ring)
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
                f"the plan needs {worst} counters in shared memory on one rank, but a group has {self.area.lines} per "
                "rank: use a plan with fewer trees or channels"
            )

    # ---- proofs of order

    def _reachable(self) -> list[int]:
        """A bit set per actor of the actors that wait for it, chunk by chunk, including itself."""
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

    def _precedes(self, first: _HostActor, then: _HostActor) -> bool:
        return bool(self._reach[first.index] >> then.index & 1)

    def _is_free(self, ring: _Ring) -> bool:
        """True if its messages need no slots of their own."""
        return ring.exclusive and not any(queue in self._stored for queue in ring.queues)

    def _direct_read(self, ring: _Ring) -> int:
        """The sender's buffer in which receivers can read the ring's messages, or _READ_NONE."""
        role = ring.senders[0].role
        if not self._is_free(ring) or self.inline or (self._one_way and not self._splits(ring)):
            return _READ_NONE
        if role.contributes and not role.receives:
            return _READ_INPUT
        return _READ_OUTPUT if role.keeps else _READ_NONE

    def _direct_write(self, ring: _Ring, queue: int) -> bool:
        """True if the sender may write the message into the receiver's output: a reduced value, or a split transfer."""
        if not self._is_free(ring) or self.inline or not self._is_leaf(queue):
            return False
        sender = ring.senders[0].role
        return bool(sender.receives and sender.contributes) or self._splits(ring)

    def _is_leaf(self, queue: int) -> bool:
        """True if the receiver of the queue only keeps its messages."""
        leaf = self._receiver[queue][0].role
        return leaf.keeps and not leaf.contributes and not leaf.sends and len(leaf.receives) == 1

    def _splits(self, ring: _Ring) -> bool:
        """True for a split transfer: one rank's own input, sent to one receiver that only keeps it."""
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

    def _readers(self, ring: _Ring) -> list[_HostActor]:
        return [self._receiver[queue][0] for queue in ring.queues]

    @cached_property
    def _lent(self) -> dict[tuple[int, int], list[tuple[_HostActor, _HostActor]]]:
        """Senders and readers by rank and slice, for slices that are read in the rank's own input."""
        lent: dict[tuple[int, int], list[tuple[_HostActor, _HostActor]]] = defaultdict(list)
        for ring in self.rings:
            if self._direct_read(ring) == _READ_INPUT:
                sender = ring.senders[0]
                lent[ring.rank, sender.role.slice] += [(sender, reader) for reader in self._readers(ring)]
        return lent

    @cached_property
    def _writers(self) -> dict[int, list[_HostActor]]:
        """The actors that write directly into a rank's output, by rank."""
        writers: dict[int, list[_HostActor]] = defaultdict(list)
        for ring in self.rings:
            for queue in ring.queues:
                if self._direct_write(ring, queue):
                    writers[self._receiver[queue][0].role.rank].append(ring.senders[0])
        return writers

    def _direct_read_in_place(self, rank: int) -> bool:
        """True if every direct reader of a slice of ``rank``'s input has read it before ``rank`` keeps that slice."""
        return all(
            sender is keeper or self._precedes(reader, keeper)
            for keeper in self._of_rank[rank]
            if keeper.role.keeps
            for sender, reader in self._lent.get((rank, keeper.role.slice), ())
        )

    def _direct_write_in_place(self, rank: int) -> bool:
        """True if every reader of a slice of ``rank``'s input has read it before another rank writes that slice."""
        for writer in self._writers.get(rank, ()):
            part = writer.role.slice
            before = [actor for actor in self._of_rank[rank] if actor.role.contributes and actor.role.slice == part]
            before += [reader for _, reader in self._lent.get((rank, part), ())]
            if not all(self._precedes(actor, writer) for actor in before):
                return False
        return True

    def _drains(self, ring: _Ring) -> bool:
        """True if only acknowledgements prove that all readers have finished."""
        return any(not self._reach[reader.index] & self._own[ring.rank] for reader in self._readers(ring))

    # ---- tables

    @cached_property
    def rows(self) -> bytes:
        """The layout for the native library: ``blink_plan_header`` and its tables.

        UnsupportedError for inline flags in a queue that several roles share.
        """
        if self.inline and not all(ring.exclusive for ring in self.rings):
            raise UnsupportedError(
                f"protocol {INLINE!r} needs one sending step per queue, but here several share a queue; use protocol "
                "'simple'"
            )
        numbers = {block: number for number, block in enumerate(self._placements)}
        tables = {
            "slice": [
                {"block": numbers[part.block], **_share("start", part.start), **_share("stop", part.stop)}
                for part in self.program.slices
            ],
            "ring": [],
            "reader": [],
        }
        sources: list[int] = []
        first_reader: list[int] = []
        for ring in self.rings:
            first_reader.append(len(tables["reader"]))
            tables["ring"].append(
                self._ring_row(ring)
                | {"first_source": len(sources), "sources": len(ring.senders)}
                | {"first_reader": len(tables["reader"]), "readers": len(ring.readers)}
            )
            sources += [actor.role.slice for actor in ring.senders]
            tables["reader"] += [self._reader_row(ring, queue, line) for queue, line in ring.readers]
        sends = self._add_roles(tables, first_reader)
        parts = [*(_table(f"blink_plan_{name}", tables[name]) for name in ("rank", "slice", "role", "receive"))]
        parts += [np.array(sends, np.int64), _table("blink_plan_ring", tables["ring"])]
        parts += [np.array(sources, np.int64), _table("blink_plan_reader", tables["reader"])]
        return self._with_header([part.view(np.int64) for part in parts])

    def _add_roles(self, tables: dict[str, list[dict[str, int]]], first_reader: list[int]) -> list[int]:
        """Add the rows of ranks, roles and receives; return the rings of all sends, in the order of roles."""
        tables |= {"rank": [], "role": [], "receive": []}
        sends: list[int] = []
        first_ring, of_rank = 0, Counter(ring.rank for ring in self.rings)
        for rank, actors in enumerate(self._of_rank):
            queues: dict[int, int] = {}
            first_role = len(tables["role"])
            for actor in actors:
                tables["role"].append(
                    self._role_row(actor.role)
                    | {"first_receive": len(tables["receive"]), "receives": len(actor.role.receives)}
                    | {"first_send": len(sends), "sends": len(actor.rings)}
                )
                for queue in actor.role.receives:
                    ring, place = self._ring_of[queue]
                    number = queues.setdefault(queue, len(queues))
                    reader = first_reader[ring.index] + place
                    tables["receive"].append({"ring": ring.index, "reader": reader, "queue": number})
                sends += [ring.index for ring in actor.rings]
            tables["rank"].append(
                self._rank_row(rank)
                | {"first_role": first_role, "roles": len(actors)}
                | {"first_ring": first_ring, "rings": of_rank[rank], "queues": len(queues)}
            )
            first_ring += of_rank[rank]
        return sends

    def _with_header(self, tables: list[NDArray[np.int64]]) -> bytes:
        coll = self.program.collective
        root = coll.src if coll.root is None else coll.root
        counts = ("rank", "slice", "role", "receive", "send", "ring", "source", "reader")
        names = [f"blink_plan_{name}" for name in counts]
        widths = [len(_HEADER.structs[name].names) if name in _HEADER.structs else 1 for name in names]
        header = {
            "magic": _HEADER.constants["BLINK_PLAN_MAGIC"],
            "version": _HEADER.constants["BLINK_PLAN_VERSION"],
            "digest": self.digest,
            "collective": _COLLECTIVE_CODES[coll.name],
            "root": root or 0,
            "dst": coll.dst or 0,
            "inline_messages": int(self.inline),
            "words": len(_PLAN_HEADER) + sum(map(len, tables)),
            "checksum": 0,
        } | {f"{name}_count": len(table) // width for name, width, table in zip(counts, widths, tables, strict=True)}
        words = np.concatenate([np.array([header[name] for name in _PLAN_HEADER], np.int64), *tables])
        summed = _PLAN_HEADER.index("checksum")
        words.view(np.uint64)[summed] = checksum(words[summed + 1 :])
        return words.tobytes()

    def _rank_row(self, rank: int) -> dict[str, int]:
        return {
            "input_blocks": self.program.collective.input_blocks(rank),
            "output_blocks": self.program.collective.output_blocks(rank),
            "direct_read_in_place": int(self._direct_read_in_place(rank)),
            "direct_write_in_place": int(self._direct_write_in_place(rank)),
        }

    def _ring_row(self, ring: _Ring) -> dict[str, int]:
        direct = self._direct_read(ring)
        role = ring.senders[0].role
        return {
            "rank": ring.rank,
            "line": ring.line,
            "slots": ring.slots,
            "direct_read": direct,
            "direct_block": NOWHERE
            if direct == _READ_NONE
            else self._source(role)
            if direct == _READ_INPUT
            else self._target(role),
            "drain": int(direct != _READ_NONE and self._drains(ring)),
            "split": int(self._splits(ring)),
            "answers": NOWHERE if ring.answers is None else ring.answers.index,
        }

    def _reader_row(self, ring: _Ring, queue: int, line: int) -> dict[str, int]:
        role = self._receiver[queue][0].role
        write = self._target(role) if self._direct_write(ring, queue) else NOWHERE
        return {"rank": role.rank, "ack_line": line, "write_block": write, "rail": self._rails[queue]}

    def _role_row(self, role: Role) -> dict[str, int]:
        """The fields of a role, without those of its messages."""
        return {
            "slice": role.slice,
            "offset": role.offset,
            "source_block": self._source(role) if role.contributes else NOWHERE,
            "target_block": self._target(role) if role.keeps else NOWHERE,
            "contributions": len(self._placement(role).sources) if role.completes else 1,
            "own_operand_index": role.own_operand_index if role.contributes else 0,
            "channel": role.channel,
            "share": role.share,
            "stage": _STAGES.get(role.stage, len(_STAGES)),
        }

    def _placement(self, role: Role) -> Placement:
        return self._placements[self.program.slices[role.slice].block]

    def _source(self, role: Role) -> int:
        return self._placement(role).sources.get(role.rank, NOWHERE)

    def _target(self, role: Role) -> int:
        return self._placement(role).targets.get(role.rank, NOWHERE)


def checksum(words: NDArray[np.int64]) -> int:
    """The checksum of the words of plans and bundles; ``native/src/plan.cpp`` has the same function."""
    places = np.arange(1, len(words) + 1, dtype=np.uint64)
    mixed = words.view(np.uint64) + places * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    return int((mixed ^ mixed >> np.uint64(32)).sum(dtype=np.uint64))


def _share(name: str, share: Fraction) -> dict[str, int]:
    """A fraction as two fields; below 2^-61 it is rounded down, equally for slices with this common boundary."""
    if share.denominator > _FINEST:
        share = Fraction(share.numerator * _FINEST // share.denominator, _FINEST)
    return {name: share.numerator, f"{name}_parts": share.denominator}


def _same_source(first: Role, then: Role) -> bool:
    """True if both roles only send their rank's own input of one slice, in one tick, into different queues."""
    return (
        all(role.contributes and not role.receives for role in (first, then))
        and (first.slice, first.offset, first.channel, first.completes)
        == (then.slice, then.offset, then.channel, then.completes)
        and not any(queue in first.sends for queue in then.sends)
    )


def _table(struct: str, rows: list[dict[str, int]]) -> NDArray[np.void]:
    """The rows of a struct of int64s as an array; a row must have all members."""
    names = _HEADER.structs[struct].names
    return np.array([tuple(row[name] for name in names) for row in rows], [(name, np.int64) for name in names])
