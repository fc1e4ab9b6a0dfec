"""Reader of MSCCL++ execution plans: the JSON that MSCCL++'s executor runs.

Thread blocks put into the memory of others and read from it. Counters (channels, semaphores, barriers) are the only
order between them. Within a thread block, only ``nop`` and ``barrier`` synchronise all threads. The limits and rules
here are those of the parser (``execution_plan.cc``) and of the kernel, which checks none of them. Thread blocks that
share an operation (``tbg_info``) have equal parts of every chunk, so chunks here are parts of the file's chunks.

A ``pipeline`` runs its body in rounds, each on the next ``unit_size`` bytes of every operation's data, until
``num_chunks`` chunks are done. So its operations depend on the size. A chunk larger than the greatest common divisor of
all units is divided into parts of that size here, and
:attr:`~blinkccl.formats.foreign.instructions.InstructionList.sized` gives the list for a size. Signals, waits and
fences of the body take place once per round.

Channels of type ``switch`` are multicast addresses for one buffer of a group of GPUs (NVLink SHARP): ``glres`` reduces
the data of all of them and stores the result to all; ``gstore`` and ``gstorepkt`` store to all.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil, gcd, lcm
from typing import TypeVar

import msgspec

from blinkccl.errors import ScheduleError
from blinkccl.formats.foreign.instructions import (
    Await,
    Block,
    ChunkSpan,
    Fence,
    Flush,
    Instruction,
    InstructionList,
    Move,
    Post,
)
from blinkccl.formats.foreign.verify import buffer_chunks, collective_of
from blinkccl.topology.json_format import place_of

T = TypeVar("T")
MAX_FILE_BYTES = 64 * 2**20
#: Per thread block: operations (including those in pipelines), channels of a type, remote buffers of a type.
MOST_OPERATIONS, MOST_CHANNELS, MOST_BUFFERS = 64, 16, 16
#: Per operation: channels, and buffers on either side.
MOST_ENDS, MOST_SPANS = 8, 10
#: Per GPU.
MOST_BARRIERS, MOST_SEMAPHORES = 16, 16
#: A limit of Blink's: a message has at least 16 bytes per chunk.
MOST_CHUNKS = 2**16
#: Limit on thread blocks that share an operation, and on parts of a chunk.
MOST_GROUP = 1024
#: Kinds of the sources and of the destinations of each operation that moves data: first, second, … all others.
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
_SWITCH_MOVES = {
    "glres": ("switch", "switch"),
    "gstore": ("local", "switch"),
    "gstorepkt": ("packet", "switch packet"),
}
_MOVES |= _SWITCH_MOVES
#: Bytes of a vector, the unit of a pipeline's moves; its unit is a 32-bit number, its rounds a 16-bit one.
VECTOR_BYTES, MOST_UNIT_BYTES, MOST_ROUNDS = 16, 2**32 - 1, 2**16 - 1
#: Limit on instructions of a file after its pipelines are unrolled.
MOST_UNROLLED = 400_000
#: Rounds to check, besides one, and beyond the initial values of semaphores.
_JUDGED_ROUNDS = 2


class _Buff(msgspec.Struct):
    index: int
    size: int
    type: str | None = None
    buffer_id: int | None = None
    switch_channel_id: int | None = None


class _Group(msgspec.Struct):
    tb_id: int
    tbg_size: int


class _Iterations(msgspec.Struct):
    unit_size: int
    num_chunks: int


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
    iter_context: _Iterations | None = None
    ops: list[_Op] = []


class _BlockChannels(msgspec.Struct):
    channel_type: str
    channel_ids: list[int]


class _BufferRefs(msgspec.Struct):
    access_channel_type: str
    remote_buffer_ids: list[int]


class _PlanThreadBlock(msgspec.Struct):
    id: int
    ops: list[_Op]
    channels: list[_BlockChannels]
    remote_buffer_refs: list[_BufferRefs] = []


class _RankGroup(msgspec.Struct):
    ranks: list[int]


class _Channel(msgspec.Struct):
    channel_type: str
    connected_to: list[int] = []
    buffer_type: str | None = None
    rank_groups: list[_RankGroup] = []


class _RemoteBuffer(msgspec.Struct):
    rank: int
    type: str
    access_channel_types: list[str]


class _Semaphore(msgspec.Struct):
    init_value: int


class _PlanGpu(msgspec.Struct):
    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: list[_PlanThreadBlock]
    channels: list[_Channel]
    remote_buffers: list[_RemoteBuffer]
    semaphores: list[_Semaphore] = []


class _PlanFile(msgspec.Struct):
    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[_PlanGpu]


class _Marks(msgspec.Struct):
    gpus: msgspec.Raw
    shares: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def looks_like(content: bytes) -> bool:
    """True if ``content`` is a JSON object with GPUs that is not a plan of Blink's."""
    try:
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=_Marks).shares is msgspec.UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def read(content: bytes, source: str) -> InstructionList:
    """The plan of a file.

    ScheduleError, with the place, for any content that the parser refuses: no JSON, missing fields or wrong types,
    exceeded limits, chunks outside of their buffer, unknown channels or buffers.
    """
    if len(content) > MAX_FILE_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_FILE_BYTES >> 20} MiB, got {len(content) >> 20}")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        plan = msgspec.json.decode(content, type=_PlanFile)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{source}: not JSON: {error.reason} (UTF-8 is expected)") from None
    except msgspec.DecodeError as error:
        raise ScheduleError(f"{source}{place_of(str(error), content)}: {error}") from None
    except RecursionError:
        raise ScheduleError(f"{source}: nested too deeply") from None
    return _Reader(plan, source).plan()


class _Reader:
    """One plan for blocks of ``block_bytes`` (0: one round of all pipelines), and the ends of its channels."""

    def __init__(self, plan: _PlanFile, source: str, block_bytes: int = 0) -> None:
        self.data, self.source = plan, source
        self.ranks = len(plan.gpus)
        if plan.protocol not in ("Simple", "LL"):
            raise self.at(f"protocol {plan.protocol[:40]!r} is not one of Simple, LL")
        self.collective = collective_of(plan.collective, self.ranks, source)
        self.shared = self._shared()
        self.contexts = [
            self._context(op, f"GPU {gpu.id}, thread block {tb.id}, operation {place}")
            for gpu in plan.gpus
            for tb in gpu.threadblocks
            for place, op in enumerate(tb.ops)
            if op.name == "pipeline"
        ]
        #: Greatest common divisor of the units of all pipelines, in bytes: the size of a part of a larger chunk.
        self.unit = gcd(*(context.unit_size for context in self.contexts))
        file_chunks = self._chunks()
        self.file_chunks, self.chunk_bytes = file_chunks, block_bytes / file_chunks
        self.parts = self.shared * (max(1, ceil(self.chunk_bytes / self.unit)) if self.unit else 1)
        self.chunks = file_chunks * self.parts
        self.ends = [self._ends(gpu) for gpu in plan.gpus]
        self.groups = [self._groups(gpu) for gpu in plan.gpus]
        self._check_groups()
        self.waits: Counter[str] = Counter()
        self.waiter: dict[str, str] = {}
        self.signals: list[str] = []
        self.unrolled = 0

    def at(self, text: str) -> ScheduleError:
        return ScheduleError(f"{self.source}: {text}")

    def _context(self, op: _Op, where: str) -> _Iterations:
        context = op.iter_context
        if context is None:
            raise self.at(
                f"{where}: a pipeline without iter_context; expected its unit_size in bytes and its num_chunks"
            )
        if not 0 < context.unit_size <= MOST_UNIT_BYTES or context.unit_size % VECTOR_BYTES:
            raise self.at(
                f"{where}: unit_size {context.unit_size}, expected a multiple of {VECTOR_BYTES} up to {MOST_UNIT_BYTES}"
            )
        if not 0 < context.num_chunks <= MOST_CHUNKS:
            raise self.at(f"{where}: num_chunks {context.num_chunks}, expected 1 … {MOST_CHUNKS}")
        return context

    def _judged_bytes(self) -> tuple[int, ...]:
        """Sizes of a block to check: one round, and enough rounds that faults in further rounds show in these.

        The latter is computed for the pipelines with most rounds, and for those with fewest.
        """
        begins = [semaphore.init_value for gpu in self.data.gpus for semaphore in gpu.semaphores]
        rounds = _JUDGED_ROUNDS + max([0, *begins])
        chunks = [Fraction((rounds - 1) * context.unit_size, context.num_chunks) for context in self.contexts]
        least, most = (self.file_chunks * (int(chunk) + 1) for chunk in (min(chunks), max(chunks)))
        return tuple(dict.fromkeys((0, least, most)))

    def unit_parts(self, context: _Iterations) -> int:
        """Parts of a round; if a chunk is smaller than a unit, in whole chunks."""
        if self.chunk_bytes >= self.unit:
            return context.unit_size // self.unit * self.shared
        whole = context.num_chunks
        return self.parts * (min(whole, ceil(context.unit_size / self.chunk_bytes)) if self.chunk_bytes else whole)

    def _shared(self) -> int:
        """Number of parts per chunk that gives each thread block of a group whole parts."""
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
            raise self.at(f"thread block groups of sizes whose least common multiple is {parts}: too many to check")
        return parts

    def _chunks(self) -> int:
        """Chunks of a block; all GPUs must agree."""
        first, coll = self.data.gpus[0], self.collective
        each = buffer_chunks(coll, 0, 1)
        chunks = first.input_chunks // each[0] or first.output_chunks // each[1]
        for rank, gpu in enumerate(self.data.gpus):
            if gpu.id != rank:
                raise self.at(f"gpus[{rank}] has id {gpu.id}: expected the order of the ids")
            inputs, outputs = buffer_chunks(coll, rank, chunks)
            unused = (0,) if self.data.inplace else ()  # in place the other buffer may be left out
            fits = gpu.input_chunks in (inputs, *unused) and gpu.output_chunks in (outputs, *unused)
            if not fits:
                raise self.at(
                    f"GPU {rank} has {gpu.input_chunks} input and {gpu.output_chunks} output chunks, expected "
                    f"{inputs} and {outputs}"
                )
            if not 1 <= chunks <= MOST_CHUNKS:
                raise self.at(f"GPU {rank} has {chunks} chunks per block of {coll.name}, expected 1 … {MOST_CHUNKS}")
            if not 0 <= gpu.scratch_chunks <= MOST_CHUNKS * 64:
                raise self.at(f"GPU {rank}: scratch_chunks is {gpu.scratch_chunks}, expected 0 … {MOST_CHUNKS * 64}")
        return chunks

    def _ends(self, gpu: _PlanGpu) -> dict[str, list[tuple[int, int]]]:
        """The GPU's channels by type, in order: the peer, and the index among the channels to it."""
        ends: dict[str, list[tuple[int, int]]] = {"memory": [], "port": []}
        counts: Counter[tuple[str, int]] = Counter()
        for channel in gpu.channels:
            if channel.channel_type == "switch":
                continue
            if channel.channel_type not in ends:
                raise self.at(
                    f"GPU {gpu.id}: channel_type {channel.channel_type[:40]!r} is not one of memory, port, switch"
                )
            for peer in channel.connected_to:
                if not 0 <= peer < self.ranks or peer == gpu.id:
                    raise self.at(f"GPU {gpu.id} has a channel to GPU {peer}, expected another of 0 … {self.ranks - 1}")
                ends[channel.channel_type].append((peer, counts[channel.channel_type, peer]))
                counts[channel.channel_type, peer] += 1
        return ends

    def _groups(self, gpu: _PlanGpu) -> list[tuple[str, tuple[int, ...]]]:
        """The GPU's switch channels in order: a buffer, and the ranks of its group."""
        groups = []
        for channel in gpu.channels:
            if channel.channel_type != "switch":
                continue
            buffer = channel.buffer_type
            if buffer not in ("i", "o", "s"):
                raise self.at(f"GPU {gpu.id}: switch channel with buffer_type {str(buffer)[:40]!r}, expected i, o or s")
            if self.data.inplace and (self.collective.name, buffer) in (("allgather", "i"), ("reduce_scatter", "o")):
                raise self.at(
                    f"GPU {gpu.id}: switch channel over {buffer}, whose place differs between GPUs when in place, but "
                    f"a multicast address has one offset; use {'o' if buffer == 'i' else 'i'}"
                )
            for group in channel.rank_groups:
                ranks = tuple(group.ranks)
                if (
                    gpu.id not in ranks
                    or len(set(ranks)) != len(ranks)
                    or not 0 <= min(ranks) <= max(ranks) < self.ranks
                ):
                    raise self.at(
                        f"GPU {gpu.id}: switch channel of GPUs {list(ranks)[:40]}, expected distinct ones of "
                        f"0 … {self.ranks - 1}, including this one"
                    )
                groups.append((buffer, ranks))
        return groups

    def _check_groups(self) -> None:
        """Check that all members of a group create it, since they connect together."""
        has = [Counter(groups) for groups in self.groups]
        for rank, groups in enumerate(has):
            for (buffer, ranks), count in groups.items():
                for peer in ranks:
                    if has[peer][buffer, ranks] != count:
                        raise self.at(
                            f"GPU {rank} has {count} switch channel(s) over {buffer} of GPUs {list(ranks)[:40]}, "
                            f"but GPU {peer} has {has[peer][buffer, ranks]}; with unequal numbers, the GPUs of the "
                            "group block each other"
                        )

    def plan(self) -> InstructionList:
        blocks, barriers = [], dict[str, int]()
        for gpu in self.data.gpus:
            for number, tb in enumerate(gpu.threadblocks):
                if tb.id != number:
                    raise self.at(f"GPU {gpu.id}: threadblocks[{number}] has id {tb.id}: expected the order of the ids")
                blocks.append(_BlockReader(self, gpu, tb, barriers).block())
        return InstructionList(
            self.collective,
            self.chunks,
            self.data.inplace,
            tuple(blocks),
            self.data.protocol,
            frozenset(barriers),
            tuple(dict.fromkeys(self.signals)),
            sized=partial(_sized, self.data, self.source) if self.contexts else None,
            judged_bytes=self._judged_bytes() if self.contexts else (),
        )


def _sized(data: _PlanFile, source: str, block_bytes: int) -> InstructionList:
    return replace(_Reader(data, source, block_bytes).plan(), sized=None)


class _BlockReader:
    """One thread block."""

    def __init__(self, plan: _Reader, gpu: _PlanGpu, tb: _PlanThreadBlock, barriers: dict[str, int]) -> None:
        self.plan, self.gpu, self.tb, self.barriers = plan, gpu, tb, barriers
        self.name = f"GPU {gpu.id}, thread block {tb.id}"
        self.port_places: dict[int, int] = {}
        #: Per operation: the parts of its data for the present round of a pipeline, and its least number of chunks.
        self.window: range | None = None
        self.least = 0
        self.channels: dict[str, list[int]] = {"memory": [], "port": [], "switch": []}
        for listed in tb.channels:
            for index in listed.channel_ids:
                self.channels.setdefault(listed.channel_type, []).append(index)
        self.buffers: dict[str, list[int]] = {"memory": [], "port": []}
        for refs in tb.remote_buffer_refs:
            self.buffers.setdefault(refs.access_channel_type, []).extend(refs.remote_buffer_ids)
        for what, lists, most in (("channels", self.channels, MOST_CHANNELS), ("buffers", self.buffers, MOST_BUFFERS)):
            for kind, indices in lists.items():
                if kind not in ("memory", "port") and (kind != "switch" or what != "channels"):
                    raise plan.at(
                        f"{self.name}: {what} of type {kind[:40]!r}, expected memory, port or switch channels"
                    )
                if len(indices) > most:
                    raise plan.at(f"{self.name}: {len(indices)} {kind} {what}, expected at most {most}")

    def block(self) -> Block:
        listed: list[Instruction] = []
        count = sum(1 + len(op.ops) if op.name == "pipeline" else 1 for op in self.tb.ops)
        if count > MOST_OPERATIONS:
            raise self.plan.at(f"{self.name}: {count} operations, expected at most {MOST_OPERATIONS}")
        for place, op in enumerate(self.tb.ops):
            where = f"{self.name}, operation {place}"
            listed += self._pipeline(op, where) if op.name == "pipeline" else self._op(op, where)
        return Block(self.gpu.id, self.name, tuple(listed))

    def _pipeline(self, op: _Op, where: str) -> Iterator[Instruction]:
        """Instructions of all rounds in sequence."""
        context = op.iter_context
        assert context is not None  # checked by the reader
        for number, each in enumerate(op.ops):
            if each.name == "pipeline":
                raise self.plan.at(f"{where}.{number}: a pipeline in a pipeline, which the kernel does not support")
            if each.name.endswith("pkt"):
                raise self.plan.at(
                    f"{where}.{number}: {each.name} in a pipeline, but packets are moved whole in every round"
                )
            if each.tbg_info is not None and each.tbg_info.tbg_size > 1:
                raise self.plan.at(
                    f"{where}.{number}: tbg_info in a pipeline, but its rounds cover whole chunks, beyond the end "
                    "of a part"
                )
        whole = context.num_chunks * self.plan.parts
        unit = self.plan.unit_parts(context)
        rounds = ceil(whole / unit)
        if rounds > MOST_ROUNDS:
            raise self.plan.at(f"{where}: {rounds} rounds, expected at most {MOST_ROUNDS}; use a larger unit_size")
        self.plan.unrolled += rounds * len(op.ops)
        if self.plan.unrolled > MOST_UNROLLED:
            raise self.plan.at(
                f"{where}: more than {MOST_UNROLLED} operations in all rounds of pipelines: too many to check; "
                "use larger units, or units that are multiples of each other"
            )
        self.least = context.num_chunks
        for start in range(0, whole, unit):
            self.window = range(start, min(whole, start + unit))
            round_of = f", round {start // unit + 1} of {rounds}" if rounds > 1 else ""
            for number, each in enumerate(op.ops):
                yield from self._op(each, f"{where}.{number}{round_of}")
        self.window = None

    def _op(self, op: _Op, where: str) -> Iterator[Instruction]:
        """Instructions of an operation; within a pipeline, those of one round."""
        for what, items, most in (
            ("channels", op.channel_ids, MOST_ENDS),
            ("sources", op.src_buff, MOST_SPANS),
            ("destinations", op.dst_buff, MOST_SPANS),
            ("semaphores", op.semaphore_ids, MOST_SEMAPHORES),
        ):
            if len(items) > most:
                raise self.plan.at(f"{where}: {len(items)} {what}, expected at most {most}")
        if op.name in ("nop", "barrier"):
            self.port_places.clear()
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
            raise self.plan.at(f"{where}: operation {op.name[:40]!r}: unknown to MSCCL++'s parser")

    def _check_threads(self, op: _Op, where: str) -> None:
        """Refuse a port channel at two positions: each position has its own thread, and the threads have no order."""
        for place, local in enumerate(op.channel_ids):
            if self.port_places.setdefault(local, place) != place:
                raise self.plan.at(
                    f"{where}: port channel {local} was used at another position of channel_ids; put a nop between both"
                )

    def _barrier(self, op: _Op, where: str) -> Iterator[Instruction]:
        if op.barrier_id is None or op.num_threadblocks is None or not 0 <= op.barrier_id < MOST_BARRIERS:
            raise self.plan.at(f"{where}: a barrier needs num_threadblocks and barrier_id 0 … {MOST_BARRIERS - 1}")
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
        """For each channel: the executor (a port's proxy), and the counters for its signals and its waits."""
        kind, rank = op.channel_type, self.gpu.id
        if kind not in self.plan.ends[rank]:
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
            raise self.plan.at(f"{where}: number {index} of the {len(listed)} {what}: expected 0 … {len(listed) - 1}")
        return listed[index]

    def _await(self, where: str, counter: str, relaxed: bool = False, first: int = 0) -> Await:
        """The next wait for a counter; waits consume signals, so only one thread block may wait for it."""
        waiter = self.plan.waiter.setdefault(counter, self.name)
        if waiter != self.name:
            raise self.plan.at(
                f"{where}: {waiter} also waits for {counter}, so it is undefined which of them gets a signal"
            )
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
        signals = list(self._ends(op, where)) if op.channel_ids and op.name not in _SWITCH_MOVES else []
        port, switch = op.channel_type == "port", op.name in _SWITCH_MOVES
        if switch and (len(op.src_buff), len(op.dst_buff), op.channel_type) != (1, 1, "switch"):
            raise self.plan.at(
                f"{where}: {op.name} has {len(op.src_buff)} source(s), {len(op.dst_buff)} destination(s) and "
                f"channel_type {op.channel_type[:40]!r}, expected 1, 1 and 'switch'"
            )
        if self.plan.data.protocol != "LL" and op.name.endswith("pkt"):
            raise self.plan.at(
                f"{where}: {op.name} in protocol {self.plan.data.protocol}: packets need twice their size, and only "
                "protocol LL has that scratch"
            )
        if port and op.name not in ("put", "pws", "pwsf", "ppkt", "rppkt"):
            raise self.plan.at(f"{where}: {op.name} needs a memory channel")
        if port and len(signals) != len(stores):
            raise self.plan.at(f"{where}: {len(signals)} channels for {len(stores)} destinations")
        if op.name in ("pws", "pwsf") and not port:
            raise self.plan.at(f"{where}: {op.name} over a memory channel sends no signal; use put, nop, signal")
        pairs: list[tuple[tuple[tuple[ChunkSpan, int], ...], tuple[tuple[ChunkSpan, int], ...]]]
        if op.name in ("get", "put", "pws", "pwsf", "ppkt", "rppkt"):  # independent pairs
            if len(reads) != len(stores):
                raise self.plan.at(f"{where}: {len(reads)} sources for {len(stores)} destinations")
            if not port and any(span.buffer != reads[0][0].buffer for span, _ in reads) and op.name != "get":
                raise self.plan.at(f"{where}: all sources must be in the buffer of the first, {reads[0][0].buffer}")
            pairs = [((one,), (other,)) for one, other in zip(reads, stores, strict=True)]
        else:
            pairs = [(reads, stores)]
        for index, (operands, results) in enumerate(pairs):
            sizes = {size for _, size in (*operands, *results)}
            if len(sizes) != 1:
                raise self.plan.at(
                    f"{where}: wrong count: its buffers have {sorted(sizes)} chunks, expected equal numbers"
                )
            size = min(sizes)
            agent = signals[index][0] if port else None
            if size:
                spans = tuple(s for s, _ in operands), tuple(s for s, _ in results)
                yield Move(where, size, *spans, agent, switch)
            if op.name in ("pws", "pwsf"):
                self.plan.signals.append(signals[index][1])
                yield Post(where, signals[index][1], False, agent)
            if op.name == "pwsf":
                assert agent is not None
                yield Flush(where, agent)

    def _spans(self, op: _Op, buffs: list[_Buff], kind: str, where: str) -> tuple[tuple[ChunkSpan, int], ...]:
        """The place and the number of chunks of each operand or result; ``kind`` is a value of :data:`_MOVES`."""
        if not buffs:
            raise self.plan.at(f"{where}: {op.name} has no {'source' if buffs is op.src_buff else 'destination'}")
        kinds = kind.split(", ")
        ends = (kinds[min(place, len(kinds) - 1)] for place in range(len(buffs)))
        return tuple(
            self._span(buff, rank, buffer, "packet" in end, op.tbg_info, where)
            for buff, end in zip(buffs, ends, strict=True)
            for rank, buffer in self._memories(op, buff, end, where)
        )

    def _memories(self, op: _Op, buff: _Buff, end: str, where: str) -> Iterator[tuple[int, str | None]]:
        """The memory of a source or destination: one GPU's, or through a switch the memory of a whole group."""
        rank, buffer = self.gpu.id, buff.type
        if "switch" in end:
            index = self._pick(
                where, "switch channels of the thread block", self.channels["switch"], buff.switch_channel_id
            )
            name, ranks = self._pick(where, "switch channels of the GPU", self.plan.groups[rank], index)
            yield from ((each, name) for each in ranks)
            return
        if "remote" in end:
            ids = self.buffers.get(op.channel_type, [])
            number = self._pick(where, "remote buffers of the thread block", ids, buff.buffer_id)
            remote = self._pick(where, "remote buffers of the GPU", self.gpu.remote_buffers, number)
            if op.channel_type not in remote.access_channel_types:
                raise self.plan.at(f"{where}: its buffer has no access_channel_type {op.channel_type[:40]!r}")
            rank, buffer = remote.rank, remote.type
        yield rank, buffer

    def _span(
        self, buff: _Buff, rank: int, buffer: str | None, packet: bool, shared: _Group | None, where: str
    ) -> tuple[ChunkSpan, int]:
        gpu = self._pick(where, "GPUs", self.plan.data.gpus, rank)
        sizes = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}
        if buffer not in sizes:
            raise self.plan.at(f"{where}: buffer type {str(buffer)[:40]!r} is not one of i, o, s")
        if buff.size < 1 or not 0 <= buff.index <= sizes[buffer] - buff.size:
            raise self.plan.at(
                f"{where}: chunks {buff.index} … {buff.index + buff.size - 1} of {buffer} of GPU {rank}, which has "
                f"{sizes[buffer]}: expected within 0 … {sizes[buffer] - 1}"
            )
        if self.window is not None:
            if buff.size < self.least:
                raise self.plan.at(
                    f"{where}: wrong count: {buff.size} chunk(s) in a pipeline whose num_chunks is {self.least}: its "
                    f"rounds exceed the buffer; expected {self.least}"
                )
            return ChunkSpan(rank, buffer, buff.index * self.plan.parts + self.window.start, packet), len(self.window)
        group = shared or _Group(0, 1)
        size = buff.size * self.plan.parts // group.tbg_size
        return ChunkSpan(rank, buffer, buff.index * self.plan.parts + group.tb_id * size, packet), size


def _signals(kind: str, nth: int, src: int, dst: int) -> str:
    return f"the signals of {kind} channel {nth} from GPU {src} to GPU {dst}"
