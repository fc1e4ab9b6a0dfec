"""MSCCL++ execution plans: the JSON that MSCCL++'s executor runs.

Thread blocks put into the memory of others and read from it, and say by counters (channels, semaphores, barriers) what
may be touched; nothing else orders them. Within a thread block only ``nop`` and ``barrier`` let all threads meet.
Limits and rules here are those of the parser (``execution_plan.cc``) and of the kernel, which checks none of them.
Operations that reduce or store in switches are refused by name. Where thread blocks share an operation (``tbg_info``),
each has an equal part of every chunk, and so chunks here are parts of the file's.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from math import lcm
from typing import TypeVar

import msgspec

from blinkccl.errors import ScheduleError
from blinkccl.foreign.instructions import (
    Await,
    Block,
    Fence,
    Flush,
    Instruction,
    InstructionList,
    Move,
    Post,
    Span,
)
from blinkccl.foreign.verify import buffer_chunks, collective_of
from blinkccl.topology.json_format import place_of

T = TypeVar("T")
MAX_FILE_BYTES = 64 * 2**20
#: Of a thread block: operations (those in a pipeline count), channels of a type, remote buffers of a type.
MOST_OPERATIONS, MOST_CHANNELS, MOST_BUFFERS = 64, 16, 16
#: Of an operation: channels, and buffers on either side.
MOST_ENDS, MOST_SPANS = 8, 10
#: Of a GPU.
MOST_BARRIERS, MOST_SEMAPHORES = 16, 16
#: Ours: a message holds at least 16 bytes of each.
MOST_CHUNKS = 2**16
#: Thread blocks that share an operation, and parts of a chunk.
MOST_GROUP = 1024
#: Of each operation that moves data, what its sources and its destinations are: the first, the second, … all others.
_MOVES = {
    "copy": ("local", "local"),
    "get": ("remote", "local"),
    "put": ("local", "remote"),
    "pws": ("local", "remote"),
    "pwsf": ("local", "remote"),
    "re": ("local", "local"),
    "res": ("local", "local, remote"),
    "rre": ("local, remote", "local"),
    "rres": ("local, remote", "local, remote"),
    "ppkt": ("local", "remote packet"),
    "rppkt": ("packet", "remote packet"),
    "cpkt": ("local", "packet"),
    "upkt": ("packet", "local"),
    "repkt": ("local, packet", "local"),
    "respkt": ("local, packet", "local, remote packet"),
    "recpkt": ("local, packet", "local, packet"),
    "recspkt": ("local, packet", "local, packet, remote packet"),
}
_NOT_JUDGED = ("glres", "gstore")


class _Buff(msgspec.Struct):
    index: int
    size: int
    type: str | None = None
    buffer_id: int | None = None
    switch_channel_id: int | None = None


class _Group(msgspec.Struct):
    tb_id: int
    tbg_size: int


class _Op(msgspec.Struct):
    name: str
    channel_type: str = "none"
    channel_ids: list[int] = []
    src_buff: list[_Buff] = []
    dst_buff: list[_Buff] = []
    barrier_id: int | None = None
    num_threadblocks: int | None = None
    semaphore_ids: list[int] = []
    tbg_info: _Group | None = None
    ops: list[_Op] = []


class _BlockChannels(msgspec.Struct):
    channel_type: str
    channel_ids: list[int]


class _BufferRefs(msgspec.Struct):
    access_channel_type: str
    remote_buffer_ids: list[int]


class _ThreadBlock(msgspec.Struct):
    id: int
    ops: list[_Op]
    channels: list[_BlockChannels]
    remote_buffer_refs: list[_BufferRefs] = []


class _Channel(msgspec.Struct):
    channel_type: str
    connected_to: list[int] = []


class _RemoteBuffer(msgspec.Struct):
    rank: int
    type: str
    access_channel_types: list[str]


class _Semaphore(msgspec.Struct):
    init_value: int


class _Gpu(msgspec.Struct):
    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: list[_ThreadBlock]
    channels: list[_Channel]
    remote_buffers: list[_RemoteBuffer]
    semaphores: list[_Semaphore] = []


class _Plan(msgspec.Struct):
    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[_Gpu]


class _Marks(msgspec.Struct):
    gpus: msgspec.Raw
    shares: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def looks_like(content: bytes) -> bool:
    """Whether it is a JSON object with GPUs, and none of our plans."""
    try:
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=_Marks).shares is msgspec.UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def read(content: bytes, source: str) -> tuple[InstructionList, ...]:
    """The one plan of a file.

    ScheduleError, with the place, for what no parser takes: no JSON, a field that is missing or of another type, what
    is above a limit, chunks outside of their buffer, channels or buffers that are not there.
    """
    if len(content) > MAX_FILE_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_FILE_BYTES >> 20} MiB, got {len(content) >> 20}")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        plan = msgspec.json.decode(content, type=_Plan)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{source}: not JSON: {error.reason} (UTF-8 is expected)") from None
    except msgspec.DecodeError as error:
        raise ScheduleError(f"{source}{place_of(str(error), content)}: {error}") from None
    except RecursionError:
        raise ScheduleError(f"{source}: nested too deeply") from None
    return (_Reader(plan, source).plan(),)


class _Reader:
    """One plan, and which channel meets which."""

    def __init__(self, plan: _Plan, source: str) -> None:
        self.data, self.source = plan, source
        self.ranks = len(plan.gpus)
        if plan.protocol not in ("Simple", "LL"):
            raise self.at(f"protocol {plan.protocol[:40]!r} is not one of Simple, LL")
        self.collective = collective_of(plan.collective, self.ranks, source)
        self.parts = self._parts()
        self.chunks = self._chunks() * self.parts
        self.ends = [self._ends(gpu) for gpu in plan.gpus]
        self.waits: Counter[str] = Counter()
        self.waiter: dict[str, str] = {}
        self.signals: list[str] = []

    def at(self, text: str) -> ScheduleError:
        return ScheduleError(f"{self.source}: {text}")

    def _parts(self) -> int:
        """Into how many parts chunks are cut, so that each thread block of a group has whole ones."""
        groups = [
            each.tbg_info
            for gpu in self.data.gpus
            for tb in gpu.threadblocks
            for op in tb.ops
            for each in (op, *op.ops)
            if each.tbg_info is not None
        ]
        for group in groups:
            if not 0 <= group.tb_id < group.tbg_size <= MOST_GROUP:
                raise self.at(
                    f"tbg_info: tb_id {group.tb_id} of {group.tbg_size}, expected 0 … at most {MOST_GROUP - 1}"
                )
        parts = lcm(*(group.tbg_size for group in groups))
        if parts > MOST_GROUP:
            raise self.at(f"thread block groups of sizes whose least common multiple is {parts}: too many to judge")
        return parts

    def _chunks(self) -> int:
        """Chunks of a block; the buffers of all GPUs must agree."""
        first, coll = self.data.gpus[0], self.collective
        each = buffer_chunks(coll, 0, 1)
        chunks = first.input_chunks // each[0] or first.output_chunks // each[1]
        for rank, gpu in enumerate(self.data.gpus):
            if gpu.id != rank:
                raise self.at(f"gpus[{rank}] has id {gpu.id}: they stand in the order of their ids")
            wanted, given = buffer_chunks(coll, rank, chunks)
            unused = (0,) if self.data.inplace else ()  # in place the other buffer may be left out
            fits = gpu.input_chunks in (wanted, *unused) and gpu.output_chunks in (given, *unused)
            if not fits or not 1 <= chunks <= MOST_CHUNKS:
                raise self.at(
                    f"GPU {rank} has {gpu.input_chunks} input and {gpu.output_chunks} output chunks, expected "
                    f"{wanted} and {given}, 1 … {MOST_CHUNKS} per block of {coll.name}"
                )
            if not 0 <= gpu.scratch_chunks <= MOST_CHUNKS * 64:
                raise self.at(f"GPU {rank}: scratch_chunks is {gpu.scratch_chunks}")
        return chunks

    def _ends(self, gpu: _Gpu) -> dict[str, list[tuple[int, int]]]:
        """Of each type the GPU's channels in order: the peer, and the how many-th to it."""
        found: dict[str, list[tuple[int, int]]] = {"memory": [], "port": []}
        seen: Counter[tuple[str, int]] = Counter()
        for channel in gpu.channels:
            if channel.channel_type == "switch":
                raise self.at(f"GPU {gpu.id} has a switch channel: reduction in switches is not judged")
            if channel.channel_type not in found:
                raise self.at(f"GPU {gpu.id}: channel_type {channel.channel_type[:40]!r} is not one of memory, port")
            for peer in channel.connected_to:
                if not 0 <= peer < self.ranks or peer == gpu.id:
                    raise self.at(f"GPU {gpu.id} has a channel to GPU {peer}, expected another of 0 … {self.ranks - 1}")
                found[channel.channel_type].append((peer, seen[channel.channel_type, peer]))
                seen[channel.channel_type, peer] += 1
        return found

    def plan(self) -> InstructionList:
        blocks, barriers = [], dict[str, int]()
        for gpu in self.data.gpus:
            for number, tb in enumerate(gpu.threadblocks):
                if tb.id != number:
                    raise self.at(f"GPU {gpu.id}: threadblocks[{number}] has id {tb.id}: they stand in order")
                blocks.append(_BlockReader(self, gpu, tb, barriers).block())
        about: dict[str, str | int] = {"format": "MSCCL++ execution plan", "protocol": self.data.protocol}
        return InstructionList(
            self.collective,
            self.chunks,
            self.data.inplace,
            tuple(blocks),
            about,
            frozenset(barriers),
            tuple(dict.fromkeys(self.signals)),
        )


class _BlockReader:
    """One thread block."""

    def __init__(self, plan: _Reader, gpu: _Gpu, tb: _ThreadBlock, barriers: dict[str, int]) -> None:
        self.plan, self.gpu, self.tb, self.barriers = plan, gpu, tb, barriers
        self.name = f"GPU {gpu.id}, thread block {tb.id}"
        self.given: dict[int, int] = {}
        self.channels: dict[str, list[int]] = {"memory": [], "port": []}
        for listed in tb.channels:
            for index in listed.channel_ids:
                self.channels.setdefault(listed.channel_type, []).append(index)
        self.buffers: dict[str, list[int]] = {"memory": [], "port": []}
        for refs in tb.remote_buffer_refs:
            self.buffers.setdefault(refs.access_channel_type, []).extend(refs.remote_buffer_ids)
        for what, lists, most in (("channels", self.channels, MOST_CHANNELS), ("buffers", self.buffers, MOST_BUFFERS)):
            for kind, found in lists.items():
                if kind not in ("memory", "port"):
                    raise plan.at(f"{self.name}: {what} of type {kind[:40]!r} are not judged")
                if len(found) > most:
                    raise plan.at(f"{self.name}: {len(found)} {kind} {what}, expected at most {most}")

    def block(self) -> Block:
        listed: list[Instruction] = []
        count = 0
        for place, op in enumerate(self.tb.ops):
            where = f"{self.name}, operation {place}"
            inner = op.ops if op.name == "pipeline" else [op]
            count += len(inner) + (op.name == "pipeline")
            for number, each in enumerate(inner):
                listed += self._op(each, f"{where}.{number}" if op.name == "pipeline" else where)
        if count > MOST_OPERATIONS:
            raise self.plan.at(f"{self.name}: {count} operations, expected at most {MOST_OPERATIONS}")
        return Block(self.gpu.id, self.name, tuple(listed))

    def _op(self, op: _Op, where: str) -> Iterator[Instruction]:
        """What an operation does; a pipeline's body stands for all its rounds, which touch different data."""
        for what, found, most in (
            ("channels", op.channel_ids, MOST_ENDS),
            ("sources", op.src_buff, MOST_SPANS),
            ("destinations", op.dst_buff, MOST_SPANS),
            ("semaphores", op.semaphore_ids, MOST_SEMAPHORES),
        ):
            if len(found) > most:
                raise self.plan.at(f"{where}: {len(found)} {what}, expected at most {most}")
        if op.name in ("nop", "barrier"):
            self.given.clear()
        elif op.name not in ("wait", "rlxwait") and op.channel_type == "port":
            self._check_threads(op, where)
        if op.name == "nop":
            yield Fence(where)
        elif op.name == "barrier":
            yield from self._barrier(op, where)
        elif op.name in ("signal", "rlxsignal"):
            for agent, counter, _ in self._ends(op, where):
                self.plan.signals.append(counter)
                yield Post(where, counter, op.name == "rlxsignal", agent)
        elif op.name in ("wait", "rlxwait"):
            for _, _, counter in self._ends(op, where):
                yield self._await(where, counter, op.name == "rlxwait")
        elif op.name == "flush":
            for agent, _, _ in self._ends(op, where):
                if agent is None:
                    raise self.plan.at(f"{where}: flush is for port channels, got {op.channel_type[:40]!r}")
                yield Flush(where, agent)
        elif op.name in ("sem_acquire", "sem_release"):
            for index in op.semaphore_ids:
                yield self._semaphore(where, index, op.name == "sem_acquire")
        elif op.name in _MOVES:
            yield from self._moves(op, where)
        else:
            reason = "reduction in switches is not judged" if op.name in _NOT_JUDGED else "the parser has no such name"
            raise self.plan.at(f"{where}: operation {op.name[:40]!r}: {reason}")

    def _check_threads(self, op: _Op, where: str) -> None:
        """A proxy is given things by the thread of the channel's place in an operation: another is in no order."""
        for place, local in enumerate(op.channel_ids):
            if self.given.setdefault(local, place) != place:
                raise self.plan.at(
                    f"{where}: port channel {local} was used at another place of channel_ids: put a nop between"
                )

    def _barrier(self, op: _Op, where: str) -> Iterator[Instruction]:
        if op.barrier_id is None or op.num_threadblocks is None or not 0 <= op.barrier_id < MOST_BARRIERS:
            raise self.plan.at(f"{where}: a barrier has num_threadblocks and barrier_id 0 … {MOST_BARRIERS - 1}")
        counter = f"barrier {op.barrier_id} of GPU {self.gpu.id}"
        size = self.barriers.setdefault(counter, op.num_threadblocks)
        if size != op.num_threadblocks or size < 1:
            raise self.plan.at(f"{where}: num_threadblocks {op.num_threadblocks}, expected {size} as elsewhere")
        round_of = f"{counter} in {self.name}"
        self.plan.waits[round_of] += 1
        yield Fence(where)
        yield Post(where, counter)
        yield Await(where, counter, size * self.plan.waits[round_of])
        yield Fence(where)

    def _ends(self, op: _Op, where: str) -> Iterator[tuple[str | None, str, str]]:
        """Of each channel: who does it (a port's proxy), the counter that a signal adds to, and that a wait is for."""
        kind, rank = op.channel_type, self.gpu.id
        if kind not in self.channels:
            raise self.plan.at(f"{where}: channel_type {kind[:40]!r} is not one of memory, port")
        if not op.channel_ids:
            raise self.plan.at(f"{where}: {op.name} has no channel_ids")
        if len(dict.fromkeys(op.channel_ids)) != len(op.channel_ids):
            raise self.plan.at(f"{where}: channel_ids names one channel twice: {op.channel_ids}")
        for local in op.channel_ids:
            index = self._pick(where, f"{kind} channels of the thread block", self.channels[kind], local)
            peer, nth = self._pick(where, f"{kind} channels of the GPU", self.plan.ends[rank][kind], index)
            agent = f"the proxy of port channel {index} of GPU {rank}" if kind == "port" else None
            yield agent, _signals(kind, nth, rank, peer), _signals(kind, nth, peer, rank)

    def _pick(self, where: str, what: str, listed: Sequence[T], index: int | None) -> T:
        if index is None or not 0 <= index < len(listed):
            raise self.plan.at(f"{where}: number {index} of the {len(listed)} {what}")
        return listed[index]

    def _await(self, where: str, counter: str, relaxed: bool = False, first: int = 0) -> Await:
        """The next wait for a counter; who waits takes one from it, so one thread block must do it."""
        waiter = self.plan.waiter.setdefault(counter, self.name)
        if waiter != self.name:
            raise self.plan.at(f"{where}: {waiter} waits for {counter} too: which gets which is not defined")
        self.plan.waits[counter] += 1
        return Await(where, counter, self.plan.waits[counter] - first, relaxed)

    def _semaphore(self, where: str, index: int, acquires: bool) -> Instruction:
        semaphore = self._pick(where, "semaphores of the GPU", self.gpu.semaphores[:MOST_SEMAPHORES], index)
        counter = f"semaphore {index} of GPU {self.gpu.id}"
        if not acquires:
            return Post(where, counter)
        return self._await(where, counter, first=semaphore.init_value)

    def _moves(self, op: _Op, where: str) -> Iterator[Instruction]:
        source, target = _MOVES[op.name]
        reads = self._spans(op, op.src_buff, source, where)
        stores = self._spans(op, op.dst_buff, target, where)
        signals = list(self._ends(op, where)) if op.channel_ids else []
        port = op.channel_type == "port"
        if port and op.name not in ("put", "pws", "pwsf", "ppkt", "rppkt"):
            raise self.plan.at(f"{where}: {op.name} goes over memory channels alone")
        if port and len(signals) != len(stores):
            raise self.plan.at(f"{where}: {len(signals)} channels for {len(stores)} destinations")
        if op.name in ("pws", "pwsf") and not port:
            raise self.plan.at(f"{where}: {op.name} over a memory channel sends no signal; use put, nop, signal")
        pairs: list[tuple[tuple[tuple[Span, int], ...], tuple[tuple[Span, int], ...]]]
        if op.name in ("get", "put", "pws", "pwsf", "ppkt", "rppkt"):  # several at once, each for itself
            if len(reads) != len(stores):
                raise self.plan.at(f"{where}: {len(reads)} sources for {len(stores)} destinations")
            if not port and any(span.buffer != reads[0][0].buffer for span, _ in reads) and op.name != "get":
                raise self.plan.at(
                    f"{where}: all its sources are read from the buffer of the first, {reads[0][0].buffer}"
                )
            pairs = [((one,), (other,)) for one, other in zip(reads, stores, strict=True)]
        else:
            pairs = [(reads, stores)]
        for index, (operands, results) in enumerate(pairs):
            sizes = {size for _, size in (*operands, *results)}
            if len(sizes) != 1:
                raise self.plan.at(
                    f"{where}: wrong count: its buffers have {sorted(sizes)} chunks, expected one number"
                )
            size = min(sizes)
            agent = signals[index][0] if port else None
            yield Move(where, size, tuple(s for s, _ in operands), tuple(s for s, _ in results), None, None, agent)
            if op.name in ("pws", "pwsf"):
                self.plan.signals.append(signals[index][1])
                yield Post(where, signals[index][1], False, agent)
            if op.name == "pwsf":
                assert agent is not None
                yield Flush(where, agent)

    def _spans(self, op: _Op, buffs: list[_Buff], kind: str, where: str) -> tuple[tuple[Span, int], ...]:
        """Where each operand or result lies, and how many chunks it has; ``kind`` is of :data:`_MOVES`."""
        if not buffs:
            raise self.plan.at(f"{where}: {op.name} has no {'source' if buffs is op.src_buff else 'destination'}")
        kinds = kind.split(", ")
        ends = (kinds[min(place, len(kinds) - 1)] for place in range(len(buffs)))
        return tuple(
            self._span(op, buff, "remote" in end, "packet" in end, where) for buff, end in zip(buffs, ends, strict=True)
        )

    def _span(self, op: _Op, buff: _Buff, remote: bool, packet: bool, where: str) -> tuple[Span, int]:
        rank, buffer = self.gpu.id, buff.type
        if remote:
            ids = self.buffers.get(op.channel_type, [])
            number = self._pick(where, "remote buffers of the thread block", ids, buff.buffer_id)
            there = self._pick(where, "remote buffers of the GPU", self.gpu.remote_buffers, number)
            if op.channel_type not in there.access_channel_types:
                raise self.plan.at(f"{where}: its buffer has no access_channel_type {op.channel_type[:40]!r}")
            rank, buffer = there.rank, there.type
        gpu = self._pick(where, "GPUs", self.plan.data.gpus, rank)
        sizes = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}
        if buffer not in sizes:
            raise self.plan.at(f"{where}: buffer type {str(buffer)[:40]!r} is not one of i, o, s")
        if buff.size < 1 or not 0 <= buff.index <= sizes[buffer] - buff.size:
            raise self.plan.at(
                f"{where}: chunks {buff.index} … {buff.index + buff.size - 1} of {buffer} of GPU {rank}, which has "
                f"{sizes[buffer]}"
            )
        group = op.tbg_info or _Group(0, 1)
        size = buff.size * self.plan.parts // group.tbg_size
        return Span(rank, buffer, buff.index * self.plan.parts + group.tb_id * size, packet), size


def _signals(kind: str, nth: int, src: int, dst: int) -> str:
    return f"the signals of {kind} channel {nth} from GPU {src} to GPU {dst}"
