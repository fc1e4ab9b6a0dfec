"""A plan as MSCCL XML.

Every queue of the program is a connection on the channel of its slice, and every message an *event* at a place in one
order of all: by the receiver's tick, then by share. Each thread block goes through the events of its connections in
this order, so none ever waits for a later one: nothing deadlocks, whatever connections hold. What a step needs of other
thread blocks (``depid``, ``deps``, ``hasdep``) follows from who touched the same memory before, in this order.

Where a rank passes on what it receives, both connections share a thread block, and the message goes on as it comes in
(``rcs``, ``rrs``, ``rrcs``). Its sends are then earlier than the order wants them, which can deadlock: what is written
is read back and proved, and without such steps if that fails.

Contributions are combined in the order in which they come, the own one first: exact for what is associative, and in
other last bits than engines have it where it is not. The file has no root and no path: a runtime gives its own root,
which has to be the plan's, and takes its own way between two GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from blinkccl.errors import LimitError
from blinkccl.export.chunked import MOST_BLOCKS, Chunked, Form, Place, file_of
from blinkccl.export.registry import ANY, Choices, File
from blinkccl.foreign import msccl
from blinkccl.forest.model import Forest
from blinkccl.schedule.program import Program, Role
from blinkccl.topology.model import Topology

#: Bytes up to which the file is taken: there is no word for "any" that both parsers know.
MOST_BYTES = 2**40

Key = tuple[float, ...]


def write(
    program: Program, forest: Forest, _machine: Topology | None = None, choices: Choices = ANY
) -> tuple[File, ...]:
    """One file; see :class:`blinkccl.export.registry.Write`, and :func:`blinkccl.export.chunked.file_of`."""
    return (file_of("msccl.xml", _FORM, program, forest, choices),)


def _texts(chunked: Chunked, _forest: Forest) -> Iterator[str]:
    yield _Lowering(chunked, fused=True).text()
    yield _Lowering(chunked, fused=False).text()


_FORM = Form(msccl.MOST_OFFSET, _texts, msccl.read)


@dataclass(slots=True)
class _Step:
    """A step as it stands in the file; ``deps`` is (thread block, step) or None."""

    kind: str
    source: Place
    target: Place
    count: int
    deps: tuple[int, int] | None = None
    awaited: bool = False


@dataclass(slots=True)
class _ThreadBlock:
    """A thread block in the making; ``known`` has, for others of its GPU, the last step that it waited for."""

    number: int
    send: int
    recv: int
    channel: int
    steps: list[_Step] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)


#: (thread block, step) of one rank.
_At = tuple[_ThreadBlock, int]


@dataclass(slots=True)
class _Region:
    """Who wrote a region of memory last, and who has read it since."""

    writer: _At | None = None
    readers: list[_At] = field(default_factory=list)


class _Lowering:
    """The whole file, event by event."""

    def __init__(self, chunked: Chunked, fused: bool) -> None:
        self.of, self.fused = chunked, fused
        self.program = chunked.program
        self.ranks = self.program.collective.world_size
        self.channels = self._most_channels()
        self.blocks = self._thread_blocks(self.channels)
        self.regions: dict[tuple[int, object], _Region] = {}
        self.scratch = [0] * self.ranks
        self.keys, self.onward = self._events()
        self.holds = {id(role): self._hold(role) for role in chunked.roles}
        self._emit()

    # Which connection is in which thread block.

    def _most_channels(self) -> int:
        """As many channels as leave every GPU with thread blocks that run side by side."""
        most = min(len(self.program.slices), msccl.MOST_CHANNELS)
        need = 0
        for channels in range(most, 0, -1):
            need = max(len({id(one) for one in found.values()}) for found in self._thread_blocks(channels))
            if need <= MOST_BLOCKS:
                return channels
        raise LimitError(f"a GPU runs {MOST_BLOCKS} thread blocks side by side, got {need}")

    def _thread_blocks(self, channels: int) -> list[dict[tuple[str, int, int], _ThreadBlock]]:
        """Per rank: (send or recv, peer, channel) → its thread block; one alone is for what is local."""
        ends: list[dict[tuple[str, int, int], None]] = [{} for _ in range(self.ranks)]
        pairs: list[Counter[tuple[int, int, int]]] = [Counter() for _ in range(self.ranks)]
        queues = self.program.queues
        for role in self.of.roles:
            channel = role.slice % channels
            for queue in role.receives:
                ends[role.rank]["recv", queues[queue].src, channel] = None
                for other in role.sends:
                    pairs[role.rank][queues[queue].src, queues[other].dst, channel] += 1
            for queue in role.sends:
                ends[role.rank]["send", queues[queue].dst, channel] = None
        return [self._numbered(found, pairs[rank]) for rank, found in enumerate(ends)]

    def _numbered(
        self, ends: dict[tuple[str, int, int], None], pairs: Counter[tuple[int, int, int]]
    ) -> dict[tuple[str, int, int], _ThreadBlock]:
        """Connections that pass most on to each other share a thread block."""
        found: dict[tuple[str, int, int], _ThreadBlock] = {}
        for recv, send, channel in sorted(pairs, key=lambda pair: (-pairs[pair], pair)) if self.fused else ():
            if ("recv", recv, channel) not in found and ("send", send, channel) not in found:
                found["recv", recv, channel] = _ThreadBlock(0, send, recv, channel)
                found["send", send, channel] = found["recv", recv, channel]
        for kind, peer, channel in ends:
            if (kind, peer, channel) not in found:
                send, recv = (peer, -1) if kind == "send" else (-1, peer)
                found[kind, peer, channel] = _ThreadBlock(0, send, recv, channel)
        ordered = {id(block): block for block in found.values()}
        for number, block in enumerate(sorted(ordered.values(), key=lambda one: (one.channel, one.recv, one.send))):
            block.number = number
        found["local", -1, 0] = _ThreadBlock(len(ordered), -1, -1, 0)
        return found

    def _end(self, role: Role, queue: int) -> _ThreadBlock:
        """The thread block of the role's end of a queue."""
        ends = self.program.queues[queue]
        kind, peer = ("send", ends.dst) if role.rank == ends.src else ("recv", ends.src)
        return self.blocks[role.rank][kind, peer, role.slice % self.channels]

    # The order of all messages.

    def _events(self) -> tuple[dict[int, Key], dict[int, int]]:
        """Every queue's place in the order, and for a last message that goes on as it comes in, the queue onward."""
        keys: dict[int, Key] = {
            queue: (role.offset, role.share, role.rank, place)
            for role in self.of.roles
            for place, queue in enumerate(role.receives)
        }
        onward: dict[int, int] = {}
        for role in sorted(self.of.roles, key=lambda one: (one.offset, one.share, one.rank)):
            if not (self.fused and role.receives):
                continue
            last = max(role.receives, key=keys.__getitem__)
            block = self._end(role, last)
            for queue in role.sends:
                if self._end(role, queue) is block:
                    onward[last] = queue
                    keys[queue] = (*keys[last], 1.0)
                    break
        return keys, onward

    def _hold(self, role: Role) -> Place | None:
        """Where the role's value lies: its input, where it is kept, in scratch, or nowhere."""
        if not role.receives:
            return self.of.own(role)
        if self.of.keeps_at_once(role):
            return self.of.result(role)
        passes = any(queue in self.onward for queue in role.receives) and len(role.sends) == 1
        if passes and len(role.receives) == 1 and role.contributes and not role.keeps:
            return None
        start = self.scratch[role.rank]
        self.scratch[role.rank] += self.of.sizes[role.slice]
        return Place("s", start)

    # Steps.

    def _emit(self) -> None:
        """All steps, in the order of events; a role's first message meets its own contribution."""
        sent_onward = set(self.onward.values())
        met: Counter[int] = Counter()
        events: list[tuple[Key, int | None, Role]] = [
            (key, queue, self.of.receiver[queue]) for queue, key in self.keys.items()
        ]
        for role in self.of.roles:
            if role.keeps and not (role.receives and self.of.keeps_at_once(role)):
                at = inf if role.receives else role.offset
                events.append(((at, role.share, role.rank, -1), None, role))
        for _, queue, role in sorted(events, key=lambda event: event[0]):
            if queue is None:
                self._keep(role)
                continue
            sender = self.of.sender[queue]
            if queue not in sent_onward:
                hold = self.holds[id(sender)]
                assert hold is not None
                self._add(sender, self._end(sender, queue), "s", hold, None)
            self._receive(role, queue, met[id(role)])
            met[id(role)] += 1

    def _receive(self, role: Role, queue: int, place: int) -> None:
        hold = self.holds[id(role)]
        passes = queue in self.onward
        operand = self.of.own(role) if place == 0 and role.contributes else hold if place else None
        kind = {
            (True, True): "rrcs" if hold else "rrs",
            (True, False): "rrc",
            (False, True): "rcs",
            (False, False): "r",
        }[operand is not None, passes]
        self._add(role, self._end(role, queue), kind, operand, hold)

    def _keep(self, role: Role) -> None:
        hold, result = self.holds[id(role)], self.of.result(role)
        assert hold is not None
        if hold != result:
            self._add(role, self.blocks[role.rank]["local", -1, 0], "cpy", hold, result)

    def _region(self, role: Role, place: Place) -> _Region:
        """What lies there as a whole: chunks of one slice are touched together."""
        return self.regions.setdefault((role.rank, (place.buffer, place.start)), _Region())

    def _add(self, role: Role, block: _ThreadBlock, kind: str, source: Place | None, target: Place | None) -> None:
        """One step, or several where a step cannot hold as many chunks, behind all that it must wait for."""
        needs: list[_At] = []
        for place, writes in ((source, False), (target, True)):
            if place is not None:
                region = self._region(role, place)
                needs += [region.writer] if region.writer is not None else []
                needs += region.readers if writes else []
        waits: dict[int, _At] = {}
        for other, step in needs:
            if other is not block and step > max(
                block.known.get(other.number, -1), waits.get(other.number, (other, -1))[1]
            ):
                waits[other.number] = other, step
        nowhere = Place("i", 0)
        for number, (other, step) in sorted(waits.items()):
            block.known[number] = step
            other.steps[step].awaited = True
            block.steps.append(_Step("nop", nowhere, nowhere, 0, (number, step)))
        left, done = self.of.sizes[role.slice], 0
        first = block.steps.pop().deps if waits else None
        while left:
            count = min(left, msccl.MOST_COUNT)
            begin, end = (
                nowhere if place is None else Place(place.buffer, place.start + done) for place in (source, target)
            )
            block.steps.append(_Step(kind, begin, end, count, first))
            left, done, first = left - count, done + count, None
        at = block, len(block.steps) - 1
        if source is not None:
            self._region(role, source).readers.append(at)
        if target is not None:
            region = self._region(role, target)
            region.writer, region.readers = at, []

    # The file.

    def text(self) -> str:
        """The XML; LimitError where a thread block has too many steps, or a rank too many nodes."""
        coll = self.program.collective
        place = f'inplace="{int(self.of.in_place)}" outofplace="{int(not self.of.in_place)}"'
        lines = [
            f'<algo name="blink_{coll.name}_{self.ranks}" proto="Simple" nchannels="{self.channels}" '
            f'nchunksperloop="{self.of.chunks * self.of.blocks}" ngpus="{self.ranks}" coll="{coll.name}" {place} '
            f'minBytes="0" maxBytes="{MOST_BYTES}">'
        ]
        for rank in range(self.ranks):
            lines += self._gpu(rank)
        return "\n".join([*lines, "</algo>"]) + "\n"

    def _gpu(self, rank: int) -> Iterator[str]:
        blocks = sorted({id(one): one for one in self.blocks[rank].values()}.values(), key=lambda one: one.number)
        blocks = [one for one in blocks if one.steps]
        nodes = 1 + self.ranks + sum(1 + len(one.steps) for one in blocks)
        if nodes > msccl.MOST_NODES:
            raise LimitError(f"a rank loads {msccl.MOST_NODES} nodes, got {nodes}")
        peers = Counter((kind, channel) for kind, _, channel in self.blocks[rank])
        if max(peers.values()) > msccl.MOST_PEERS:
            raise LimitError(f"a channel of a GPU has {msccl.MOST_PEERS} peers each way, got {max(peers.values())}")
        inputs, outputs = self.of.buffer_chunks(rank)
        if self.of.in_place:
            inputs, outputs = (inputs, 0) if self.program.collective.name == "reduce_scatter" else (0, outputs)
        yield f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{self.scratch[rank]}">'
        for block in blocks:
            if len(block.steps) > msccl.MOST_STEPS:
                raise LimitError(
                    f"a thread block holds {msccl.MOST_STEPS} steps, got {len(block.steps)} in "
                    f"thread block {block.number} of GPU {rank}"
                )
            yield f'    <tb id="{block.number}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">'
            for number, step in enumerate(block.steps):
                depid, deps = step.deps or (-1, -1)
                yield (
                    f'      <step s="{number}" type="{step.kind}" srcbuf="{step.source.buffer}" '
                    f'srcoff="{step.source.start}" dstbuf="{step.target.buffer}" dstoff="{step.target.start}" '
                    f'cnt="{step.count}" depid="{depid}" deps="{deps}" hasdep="{int(step.awaited)}"/>'
                )
            yield "    </tb>"
        yield "  </gpu>"
