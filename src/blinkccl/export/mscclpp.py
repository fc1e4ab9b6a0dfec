"""A plan as an MSCCL++ execution plan (JSON).

Slices are dealt to groups, and a thread block per rank and group does all that its roles do, tick by tick: it waits for
the signals of all from whom something arrives, reduces, puts, and signals to all to whom it has put. So nothing has to
order two thread blocks of a rank, and a signal per pair and tick is enough: a queue takes exactly one tick. Messages
are put where the receiver keeps them, or into its scratch where they are to be combined or its input there is still
read. Before the first put a rank waits until the other has begun.

Between servers data go by port channels, elsewhere by memory channels. Contributions are combined in the order of the
receives, the own one first (see :mod:`blinkccl.export.msccl`). What is written is read back and proved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from blinkccl.errors import LimitError
from blinkccl.export.chunked import MOST_BLOCKS, Chunked, Form, Place, file_of
from blinkccl.export.registry import ANY, Choices, File
from blinkccl.foreign import mscclpp
from blinkccl.forest.model import Forest
from blinkccl.schedule.program import Program, Role
from blinkccl.topology.model import Topology

#: An operation's byte offsets are unsigned 32-bit numbers; sizes are multiples of so many bytes per chunk.
MOST_BYTES, ALIGNMENT = 2**32 - 1, 16
_SPELLED = {"reduce_scatter": "reducescatter"}

Json = dict[str, Any]


def write(
    program: Program, forest: Forest, _machine: Topology | None = None, choices: Choices = ANY
) -> tuple[File, ...]:
    """One file; see :class:`blinkccl.export.registry.Write`, and :func:`blinkccl.export.chunked.file_of`."""
    return (file_of("mscclpp.json", _FORM, program, forest, choices),)


def _texts(chunked: Chunked, forest: Forest) -> Iterator[str]:
    yield _Lowering(chunked, [forest.topology.vertex[rank].server for rank in forest.ranks]).text()


_FORM = Form(mscclpp.MOST_CHUNKS, _texts, mscclpp.read)


class _Lowering:
    """The whole file."""

    def __init__(self, chunked: Chunked, servers: Sequence[int]) -> None:
        self.of, self.servers = chunked, servers
        self.program = chunked.program
        self.ranks = self.program.collective.world_size
        self.groups = min(len(self.program.slices), MOST_BLOCKS)
        self.scratch = [0] * self.ranks
        self.landing: dict[int, Place] = {}
        self.holds: dict[int, Place] = {}
        for role in chunked.roles:
            self._lay(role)
        self.channels: list[dict[str, list[int]]] = [{"memory": [], "port": []} for _ in range(self.ranks)]
        self.buffers: list[dict[tuple[int, str, str], int]] = [{} for _ in range(self.ranks)]
        self.blocks: list[list[Json]] = [[] for _ in range(self.ranks)]
        mine: dict[tuple[int, int], list[Role]] = {}
        for role in chunked.roles:
            mine.setdefault((role.rank, role.slice % self.groups), []).append(role)
        for rank, group in sorted(mine):
            self.blocks[rank].append(_ThreadBlock(self, rank, mine[rank, group]).document())

    def kind(self, one: int, other: int) -> str:
        """The type of channel between two ranks."""
        return "memory" if self.servers[one] == self.servers[other] else "port"

    def reduces(self, role: Role) -> bool:
        return len(role.receives) + role.contributes > 1

    def _lay(self, role: Role) -> None:
        """Where each message to the role arrives, and where its value then lies."""
        at_once = self.of.keeps_at_once(role)
        for queue in role.receives:
            if at_once and not self.reduces(role):
                self.landing[queue] = self.of.result(role)
            else:
                self.landing[queue] = Place("s", self.scratch[role.rank])
                self.scratch[role.rank] += self.of.sizes[role.slice]
        if not role.receives:
            self.holds[id(role)] = self.of.own(role)
        else:
            self.holds[id(role)] = self.of.result(role) if at_once else self.landing[role.receives[0]]

    def text(self) -> str:
        """The JSON, an operation in a line."""
        coll, of = self.program.collective, self.of
        inputs, outputs = of.buffer_chunks(0)
        largest = max(inputs, outputs, *self.scratch)
        base = outputs if coll.name == "allgather" else inputs
        document = {
            "name": f"blink_{coll.name}_{self.ranks}",
            "collective": _SPELLED.get(coll.name, coll.name),
            "protocol": "Simple",
            "inplace": of.in_place,
            "reuse_resources": False,
            "gpus": [self._gpu(rank) for rank in range(self.ranks)],
            "num_threads_per_block": 1024,
            "use_double_scratch_buffer": False,
            "buffer_alignment": ALIGNMENT,
            "min_message_size": ALIGNMENT * base,
            "max_message_size": MOST_BYTES // (ALIGNMENT * largest) * ALIGNMENT * base,
        }
        return _pretty(document) + "\n"

    def _gpu(self, rank: int) -> Json:
        inputs, outputs = self.of.buffer_chunks(rank)
        return {
            "id": rank,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": self.scratch[rank],
            "threadblocks": self.blocks[rank],
            "channels": [
                {"channel_type": kind, "connected_to": peers} for kind, peers in self.channels[rank].items() if peers
            ],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": [kind]}
                for peer, buffer, kind in self.buffers[rank]
            ],
            "semaphores": [],
        }


class _ThreadBlock:
    """What one rank does for the slices of one group."""

    def __init__(self, plan: _Lowering, rank: int, roles: list[Role]) -> None:
        self.plan, self.rank = plan, rank
        self.roles = roles
        queues = plan.program.queues
        sources = {queues[q].src for role in roles for q in role.receives}
        targets = {queues[q].dst for role in roles for q in role.sends}
        self.peers = {
            kind: [peer for peer in sorted(sources | targets) if plan.kind(rank, peer) == kind]
            for kind in ("memory", "port")
        }
        self.refs: dict[str, list[int]] = {"memory": [], "port": []}
        self.ops: list[Json] = []
        self._signal(sorted(sources), "rlxsignal")
        self._signal(sorted(targets), "rlxwait")
        if self.ops:
            self._nop()
        for tick in sorted({role.offset for role in roles}):
            self._tick([role for role in roles if role.offset == tick])
        self._finish()

    def _tick(self, roles: list[Role]) -> None:
        """Wait for all that arrives, combine and put, then signal."""
        queues = self.plan.program.queues
        sources = sorted({queues[q].src for role in roles for q in role.receives})
        if sources:
            self._signal(sources, "wait")
            self._nop()
        later: list[tuple[Role, list[int]]] = []
        for role in roles:
            if self.plan.reduces(role):
                left = self._reduce(role)
                later += [(role, left)] if left else []
            else:
                hold = self.plan.holds[id(role)]
                if role.keeps and not role.receives and hold != self.plan.of.result(role):
                    self.ops.append(self._copy(role, hold, self.plan.of.result(role)))
                self._put(role, role.sends)
        if later:
            self._nop()
            for role, left in later:
                self._put(role, left)
        targets = sorted({queues[q].dst for role in roles for q in role.sends})
        self._nop()
        self._signal(targets, "signal")

    def _reduce(self, role: Role) -> list[int]:
        """Combine what came, and send it on as far as one operation can; the queues that are left."""
        plan, size = self.plan, self.plan.of.sizes[role.slice]
        hold = plan.holds[id(role)]
        operands = [plan.of.own(role)] if role.contributes else []
        operands += [plan.landing[q] for q in role.receives]
        while len(operands) > mscclpp.MOST_SPANS:
            self.ops.append(self._reduction(operands[: mscclpp.MOST_SPANS], hold, size, []))
            self._nop()
            operands = [hold, *operands[mscclpp.MOST_SPANS :]]
        near = [q for q in role.sends if self._kind(q) == "memory"][: mscclpp.MOST_ENDS]
        self.ops.append(self._reduction(operands, hold, size, near))
        return [q for q in role.sends if q not in near]

    def _reduction(self, operands: Sequence[Place], hold: Place, size: int, sends: Sequence[int]) -> Json:
        remote = [self._remote(queue, size) for queue in sends]
        return {
            "name": "res" if sends else "re",
            "src_buff": [_local(place, size) for place in operands],
            "dst_buff": [_local(hold, size), *remote],
            **({"channel_type": "memory"} if sends else {}),
            "reduce_op": "sum",
        }

    def _copy(self, role: Role, source: Place, target: Place) -> Json:
        size = self.plan.of.sizes[role.slice]
        return {"name": "copy", "src_buff": [_local(source, size)], "dst_buff": [_local(target, size)]}

    def _put(self, role: Role, sends: Sequence[int]) -> None:
        size = self.plan.of.sizes[role.slice]
        source = _local(self.plan.holds[id(role)], size)
        for kind in ("memory", "port"):
            for some in _parts([q for q in sends if self._kind(q) == kind]):
                op: Json = {
                    "name": "put",
                    "src_buff": [source for _ in some],
                    "dst_buff": [self._remote(queue, size) for queue in some],
                    "channel_type": kind,
                }
                if kind == "port":
                    op["channel_ids"] = [self._channel(self.plan.program.queues[q].dst) for q in some]
                self.ops.append(op)

    def _finish(self) -> None:
        """Wait until proxies have read all, then keep what had to lie elsewhere while others still read."""
        plan = self.plan
        sent = {plan.program.queues[q].dst for role in self.roles for q in role.sends}
        self._signal([peer for peer in self.peers["port"] if peer in sent], "flush")
        late = [role for role in self.roles if role.keeps and role.receives]
        late = [role for role in late if plan.holds[id(role)] != plan.of.result(role)]
        if late:
            self._nop()
        self.ops += [self._copy(role, plan.holds[id(role)], plan.of.result(role)) for role in late]

    def _signal(self, peers: Iterable[int], name: str) -> None:
        for kind in ("memory", "port"):
            for some in _parts([peer for peer in peers if self.plan.kind(self.rank, peer) == kind]):
                self.ops.append({"name": name, "channel_ids": [self._channel(p) for p in some], "channel_type": kind})

    def _nop(self) -> None:
        if self.ops and self.ops[-1]["name"] != "nop":
            self.ops.append({"name": "nop"})

    def _kind(self, queue: int) -> str:
        return self.plan.kind(self.rank, self.plan.program.queues[queue].dst)

    def _channel(self, peer: int) -> int:
        """Its number in this thread block."""
        return self.peers[self.plan.kind(self.rank, peer)].index(peer)

    def _remote(self, queue: int, size: int) -> Json:
        """Where a message arrives, as this thread block names it."""
        peer, place, kind = self.plan.program.queues[queue].dst, self.plan.landing[queue], self._kind(queue)
        known = self.plan.buffers[self.rank]
        number = known.setdefault((peer, place.buffer, kind), len(known))
        if number not in self.refs[kind]:
            self.refs[kind].append(number)
        return {"buffer_id": self.refs[kind].index(number), "index": place.start, "size": size}

    def document(self) -> Json:
        """The thread block in the file; LimitError for what the kernel has no room for."""
        number = len(self.plan.blocks[self.rank])
        for what, most, got in (
            ("operations", mscclpp.MOST_OPERATIONS, len(self.ops)),
            *((f"{kind} channels", mscclpp.MOST_CHANNELS, len(peers)) for kind, peers in self.peers.items()),
            *((f"remote {kind} buffers", mscclpp.MOST_BUFFERS, len(refs)) for kind, refs in self.refs.items()),
        ):
            if got > most:
                raise LimitError(
                    f"a thread block holds {most} {what}, got {got} in thread block {number} of GPU {self.rank}"
                )
        listed = []
        for kind, peers in self.peers.items():
            channels = self.plan.channels[self.rank][kind]
            if peers:
                ids = list(range(len(channels), len(channels) + len(peers)))
                listed.append({"channel_type": kind, "channel_ids": ids})
            channels += peers
        refs = [{"access_channel_type": kind, "remote_buffer_ids": ids} for kind, ids in self.refs.items() if ids]
        return {"id": number, "ops": self.ops, "channels": listed, "remote_buffer_refs": refs}


def _local(place: Place, size: int) -> Json:
    return {"type": place.buffer, "index": place.start, "size": size}


def _parts(items: Sequence[int]) -> Iterable[Sequence[int]]:
    """As many as an operation takes at a time."""
    return [items[at : at + mscclpp.MOST_ENDS] for at in range(0, len(items), mscclpp.MOST_ENDS)]


def _pretty(value: Any, depth: int = 0) -> str:
    """JSON in which everything has a line of its own down to the operations, which are whole lines."""
    inner, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and (depth == 0 or "id" in value):
        return (
            "{"
            + ",".join(f"{inner}{json.dumps(key)}: {_pretty(one, depth + 1)}" for key, one in value.items())
            + end
            + "}"
        )
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(inner + _pretty(one, depth + 1) for one in value) + end + "]"
    return json.dumps(value)
