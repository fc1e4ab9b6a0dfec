"""Export of a plan as an MSCCL++ execution plan (JSON).

Each role gets a thread block, which works in rounds (a ``pipeline``) of :data:`UNIT_BYTES`: it waits for the signals of
all senders, reduces, puts, and signals to all receivers. So the stages of a tree overlap, each one round behind the
previous. Two communicating thread blocks have a channel of their own, with one signal per round. The thread blocks of a
rank need no order among themselves: roles of a slice use different memory, or are ordered through other ranks.

One thread block runs all roles of a slice, or of several, tick by tick, in three cases: several shares still read an
input at the place of a result; there would be more thread blocks than run in parallel; a thread block would need too
many channels. A message is put at the place of the receiver's result. It is put into the receiver's scratch if it is to
be reduced, or if input at that place is still read. Before the first put, a thread block waits until its peer has
begun.

Data use port channels between servers, and memory channels otherwise. Contributions are reduced in the order of the
receives, the rank's own first. The result is exact for associative operations; for others its last bits differ from
those of the engines. The written file is read back and proved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import lcm
from typing import Any, TypeVar

from blinkccl.errors import InternalError, LimitError, ScheduleError, TopologyError, UnsupportedError, UsageError
from blinkccl.formats.chunked import Chunked, ChunkPlace
from blinkccl.formats.foreign import mscclpp
from blinkccl.formats.foreign.verify import audit
from blinkccl.formats.mscclpp_switch import allreduce_gpus, combining_switch
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Role
from blinkccl.topology.memories import store_fault
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: Thread blocks of a GPU that run in parallel on an A100; the plan must not need more on any GPU.
MOST_BLOCKS = 108
#: Bytes of a round: the fastest of 64 KiB to 1 MiB in simulations of such plans, from some MiB on.
UNIT_BYTES = 2**19
#: Slices smaller than this fraction (1/8) of the largest are moved in one piece.
_LARGEST_OVER_SMALLEST = 8
#: Byte offsets of an operation are unsigned 32-bit numbers; sizes are multiples of this many bytes per chunk.
MOST_BYTES, ALIGNMENT = 2**32 - 1, 16
#: Alternatives for a plan that does not fit: roundings, fewer trees up to this many ranks (a search), and algorithms.
_ROUNDINGS = (64, 32, 16, 12, 8, 4, 2, 1)
_MOST_SEARCHED = 16
_BASELINES = ("one_hop", "ring", "double_binary_tree", "flat", "internal_broadcast")
_SPELLED = {"reduce_scatter": "reducescatter"}

Json = dict[str, Any]
T = TypeVar("T")
#: A thread block: its rank, and its number in that rank.
Unit = tuple[int, int]


def write(program: Program, forest: Forest, _machine: Topology | None, choices: Choices) -> tuple[File, ...]:
    """One file, read back and proved; see :class:`blinkccl.formats.registry.Write`.

    The UnsupportedError names the exceeded limit and, as options to type, alternatives that fit: fewer chunks, or
    another algorithm, by rate. InternalError if the file is wrong.
    """
    if choices.chunks is not None and choices.chunks < 1:
        raise UsageError(f"--chunks {choices.chunks}: expected at least 1")
    try:
        chunked = Chunked(program, choices)
        _check_paths(program, forest.topology)
        text = _proved(_texts(chunked, forest))
    except LimitError as limit:
        raise UnsupportedError(f"{limit.reason}; {_what_fits(program, forest, choices)}") from None
    unit, rate, notes = forest.topology.unit_gb_per_s, chunked.rate(forest), []
    if rate != forest.rate:
        notes.append(
            f"{chunked.chunks} chunks per block: {float(rate) * unit:.4g} of {float(forest.rate) * unit:.4g} GB/s"
        )
    if program.collective.root is not None:
        notes.append(f"valid only for calls with root {program.collective.root}, which the format does not record")
    return (File("mscclpp.json", text, "; ".join(notes)),)


def _check_paths(program: Program, topology: Topology) -> None:
    """Refuse a queue of one server whose path its channel does not take: MSCCL++ stores straight from GPU to GPU."""
    for number, queue in enumerate(program.queues):
        ends = queue.path[0], queue.path[-1]
        if len({topology.vertex[end].server for end in ends}) == 1:
            fault = store_fault(topology, queue.path)
            if fault is not None:
                raise UnsupportedError(
                    f"queue {number}, from GPU {ends[0]} to GPU {ends[1]}: {fault}, so a channel of MSCCL++ cannot "
                    "reach the plan's rate; plan with --links fast, with another --algo, or with --topo of a machine "
                    "without this link"
                )


def pack(machine: Topology, ranks: tuple[int, ...], choices: Choices) -> tuple[File, ...]:
    """AllReduce in the switch that joins ``ranks``; see :class:`blinkccl.formats.registry.Pack`."""
    if choices.chunks is not None:
        raise UsageError(f"--chunks {choices.chunks} needs a plan: leave it out, or give a plan")
    combining_switch(machine, ranks)
    gpus = allreduce_gpus(len(ranks), choices.in_place, UNIT_BYTES)
    chunks = gpus[0]["input_chunks"]
    text = _document("allreduce", len(ranks), choices.in_place, gpus, chunks, chunks)
    judgement = audit(mscclpp.read(text.encode(), "export"))
    if not judgement.ok:
        raise InternalError(f"the written file is no AllReduce: {judgement.faults[0]}")
    return (File("mscclpp.json", text, "an AllReduce with in-network reduction"),)


def _proved(texts: Iterable[str]) -> str:
    """The first correct text; callers order them by expected speed."""
    faults: tuple[str, ...] = ()
    for text in texts:
        try:
            faults = audit(mscclpp.read(text.encode(), "export")).faults
        except ScheduleError as error:
            raise LimitError(f"the MSCCL++ plan cannot be proved: {error}") from None
        if not faults:
            return text
    raise InternalError(f"the MSCCL++ plan does not compute the collective: {faults[0]}")


def _what_fits(program: Program, forest: Forest, choices: Choices) -> str:
    """Alternatives: the finest rounding that fits, and the fastest other trees."""
    request = Request(forest.topology, forest.collective, forest.ranks)
    exact = choices.chunks or lcm(*(part.stop.denominator for part in program.slices))
    fitting: list[tuple[Fraction, str]] = []
    for chunks in (one for one in _ROUNDINGS if one < exact):
        fitting = _fitting(f"--chunks {chunks}", partial(replace, forest), replace(choices, chunks=chunks))
        if fitting:
            break
    others = [(f"--algo {name}", partial(ALGORITHMS[name].plan, request)) for name in _BASELINES]
    if len(forest.ranks) <= _MOST_SEARCHED:
        fewest = replace(request, objective="fewest-trees")
        others.insert(0, ("--objective fewest-trees", partial(ALGORITHMS["optimal"].plan, fewest)))
    planned = [one for typed, plan in others for one in _fitting(typed, plan, choices)]
    fitting += sorted(planned, key=lambda one: -one[0])[:1]
    unit = forest.topology.unit_gb_per_s
    texts = [f"{typed} ({float(rate) * unit:.4g} of {float(forest.rate) * unit:.4g} GB/s)" for rate, typed in fitting]
    return f"these fit: {', or '.join(texts)}" if texts else "none of the tried alternatives fits: plan for fewer GPUs"


def _fitting(typed: str, plan: Callable[[], Forest], choices: Choices) -> list[tuple[Fraction, str]]:
    """The rate of a plan and the options for it, if it fits; else an empty list."""
    try:
        forest = plan()
        program = lower(forest)
        chunked = Chunked(program, choices)
        _check_paths(program, forest.topology)
        next(iter(_texts(chunked, forest)))
    except (UnsupportedError, TopologyError, UsageError):  # It does not fit, or the algorithm has no such plan.
        return []
    return [(chunked.rate(forest), typed)]


def _document(collective: str, ranks: int, in_place: bool, gpus: list[Json], base: int, largest: int) -> str:
    """The JSON, one line per operation; ``base``: chunks of a message; ``largest``: chunks of the largest buffer."""
    document = {
        "name": f"blink_{collective}_{ranks}",
        "collective": _SPELLED.get(collective, collective),
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": ALIGNMENT * base,
        "max_message_size": MOST_BYTES // (ALIGNMENT * largest) * ALIGNMENT * base,
    }
    return _pretty(document) + "\n"


def _texts(chunked: Chunked, forest: Forest) -> Iterator[str]:
    servers = [forest.topology.vertex[rank].server for rank in forest.ranks]
    # Rounds gain nothing if one thread block runs a whole star (up, sum, down), since they wait for each other.
    deep = max(role.offset for role in chunked.roles) > 2
    for split, rounds in ((True, True), (False, True))[: 1 + deep]:
        try:
            yield _Lowering(chunked, servers, split, rounds).text()
        except LimitError:  # the next text has fewer thread blocks or operations
            continue
    yield _Lowering(chunked, servers, False, False).text()


class _Lowering:
    """The whole file. ``split``: one thread block per role; ``rounds``: with pipelines."""

    def __init__(self, chunked: Chunked, servers: Sequence[int], split: bool, rounds: bool) -> None:
        self.of, self.servers, self.rounds = chunked, servers, rounds
        self.program = chunked.program
        self.ranks = self.program.collective.world_size
        self.groups = min(len(self.program.slices), MOST_BLOCKS)
        self.scratch = [0] * self.ranks
        self.landing: dict[int, ChunkPlace] = {}
        self.holds: dict[int, ChunkPlace] = {}
        for role in chunked.roles:
            self._lay(role)
        self.units = self._units(split)
        self.unit_of = {id(role): at for at, roles in self.units.items() for role in roles}
        self.channels: list[dict[str, list[int]]] = [{"memory": [], "port": []} for _ in range(self.ranks)]
        #: Index of the channel between two thread blocks among the channels of the first one's rank.
        self.channel: dict[tuple[Unit, Unit], int] = {}
        self._connect()
        self.buffers: list[dict[tuple[int, str, str], int]] = [{} for _ in range(self.ranks)]
        self.blocks: list[list[Json]] = [[] for _ in range(self.ranks)]
        for unit, roles in self.units.items():
            self.blocks[unit[0]].append(_ThreadBlock(self, unit, roles).document())

    def _units(self, split: bool) -> dict[Unit, list[Role]]:
        """The roles of each thread block: one if ``split`` and no role of its group keeps late, else the group."""
        mine: dict[tuple[int, int], list[Role]] = {}
        for role in self.of.roles:
            mine.setdefault((role.rank, role.slice % self.groups), []).append(role)
        units: dict[Unit, list[Role]] = {}
        count = [0] * self.ranks
        for rank, group in sorted(mine):
            roles = mine[rank, group]
            apart = split and not any(map(self.keeps_late, roles))
            for each in [[role] for role in roles] if apart else [roles]:
                units[rank, count[rank]] = each
                count[rank] += 1
        if max(count) > MOST_BLOCKS:
            raise LimitError(f"a GPU runs {MOST_BLOCKS} thread blocks in parallel, got {max(count)}")
        return units

    def _connect(self) -> None:
        """Create a channel for every two communicating thread blocks, in the same order at both ends."""
        pairs = {
            frozenset((self.unit_of[id(sender)], self.unit_of[id(self.of.receiver[queue])]))
            for queue, sender in self.of.sender.items()
        }
        for one, other in sorted(tuple(sorted(pair)) for pair in pairs):
            kind = self.kind(one[0], other[0])
            for near, far in ((one, other), (other, one)):
                channels = self.channels[near[0]][kind]
                self.channel[near, far] = len(channels)
                channels.append(far[0])

    def ends(self, role: Role) -> tuple[list[Unit], list[Unit]]:
        """Thread blocks from which the role receives, and to which it sends."""
        return (
            [self.unit_of[id(self.of.sender[queue])] for queue in role.receives],
            [self.unit_of[id(self.of.receiver[queue])] for queue in role.sends],
        )

    def keeps_late(self, role: Role) -> bool:
        """True if the role's value stays elsewhere until others have read the input at the place of its result."""
        return role.keeps and bool(role.receives) and self.holds[id(role)] != self.of.result(role)

    def kind(self, one: int, other: int) -> str:
        """The type of channel between two ranks."""
        return "memory" if self.servers[one] == self.servers[other] else "port"

    def reduces(self, role: Role) -> bool:
        return len(role.receives) + role.contributes > 1

    def _lay(self, role: Role) -> None:
        """Assign the place of each incoming message, and of the role's value afterwards."""
        at_once = self.of.keeps_at_once(role)
        for queue in role.receives:
            if at_once and not self.reduces(role):
                self.landing[queue] = self.of.result(role)
            else:
                self.landing[queue] = ChunkPlace("s", self.scratch[role.rank])
                self.scratch[role.rank] += self.of.sizes[role.slice]
        if not role.receives:
            self.holds[id(role)] = self.of.own(role)
        else:
            self.holds[id(role)] = self.of.result(role) if at_once else self.landing[role.receives[0]]

    def text(self) -> str:
        """The JSON of the file."""
        coll, of = self.program.collective, self.of
        inputs, outputs = of.buffer_chunks(0)
        largest = max(inputs, outputs, *self.scratch)
        base = outputs if coll.name == "allgather" else inputs
        gpus = [self._gpu(rank) for rank in range(self.ranks)]
        return _document(coll.name, self.ranks, of.in_place, gpus, base, largest)

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
    """Operations of one thread block for its roles."""

    def __init__(self, plan: _Lowering, unit: Unit, roles: list[Role]) -> None:
        self.plan, self.unit, self.rank = plan, unit, unit[0]
        self.roles = roles
        ends = [plan.ends(role) for role in roles]
        sources = {peer for froms, _ in ends for peer in froms}
        targets = {peer for _, tos in ends for peer in tos}
        self.peers = {
            kind: [peer for peer in sorted(sources | targets) if plan.kind(self.rank, peer[0]) == kind]
            for kind in ("memory", "port")
        }
        self.refs: dict[str, list[int]] = {"memory": [], "port": []}
        self.ops: list[Json] = []
        self._signal(sorted(sources), "rlxsignal")
        self._signal(sorted(targets), "rlxwait")
        if self.ops:
            self._nop()
        begin, self.ops = self.ops, []
        for tick in sorted({role.offset for role in roles}):
            self._tick([role for role in roles if role.offset == tick])
        self.ops = [*begin, *self._in_rounds(self.ops)]
        self._finish()

    def _in_rounds(self, body: list[Json]) -> list[Json]:
        """Wrap ``body`` in a pipeline if all its roles have equally many chunks, and enough of them."""
        sizes = {self.plan.of.sizes[role.slice] for role in self.roles}
        if not self.plan.rounds or len(sizes) > 1 or max(sizes) * _LARGEST_OVER_SMALLEST < max(self.plan.of.sizes):
            return body
        context = {"unit_size": UNIT_BYTES, "num_chunks": sizes.pop()}
        end = [] if body[-1]["name"] == "nop" else [{"name": "nop"}]
        return [{"name": "pipeline", "iter_context": context, "ops": [*body, *end]}]

    def _tick(self, roles: list[Role]) -> None:
        """Append one tick: wait for all senders, reduce and put, then signal."""
        ends = [self.plan.ends(role) for role in roles]
        sources = sorted({peer for froms, _ in ends for peer in froms})
        if sources:
            self._signal(sources, "wait")
            self._nop()
        later: list[tuple[Role, list[int]]] = []
        for role in roles:
            if self.plan.reduces(role):
                left = self._reduce(role)
                later += [(role, left)] if left else []
            else:
                self._send(role, role.sends)
        if later:
            self._nop()
            for role, left in later:
                self._send(role, left)
        targets = sorted({peer for _, tos in ends for peer in tos})
        if targets:
            self._nop()
            self._signal(targets, "signal")

    def _send(self, role: Role, sends: Sequence[int]) -> None:
        """Put to all these queues, and copy an own contribution to its result.

        Several near receivers are served by reductions of one operand, which store to all at once; ``put`` stores to
        one after the other. Such a reduction also stores to the rank's own memory, which must not be its input.
        """
        plan, size = self.plan, self.plan.of.sizes[role.slice]
        hold = plan.holds[id(role)]
        target = plan.of.result(role) if role.keeps and not role.receives else hold
        stored = target == hold
        for kind in ("memory", "port"):
            for some in _parts([q for q in sends if self._kind(q) == kind]):
                if self.ops and self.ops[-1]["name"] == "res":
                    self._nop()  # the reduction stored the operand
                if kind == "memory" and len(some) > 1 and (target != hold or role.receives):
                    self.ops.append(self._reduction([hold], target, size, some))
                    stored = True
                else:
                    self.ops.append(self._put(kind, hold, size, some))
        if not stored:
            self.ops.append(self._copy(role, hold, target))

    def _near(self, role: Role) -> list[int]:
        """Queues that one operation can send on: memory channels, up to its limit."""
        return [q for q in role.sends if self._kind(q) == "memory"][: mscclpp.MOST_ENDS]

    def _reduce(self, role: Role) -> list[int]:
        """Reduce the operands and send the result as far as one operation can; return the remaining queues."""
        plan, size = self.plan, self.plan.of.sizes[role.slice]
        hold = plan.holds[id(role)]
        operands = [plan.of.own(role)] if role.contributes else []
        operands += [plan.landing[q] for q in role.receives]
        while len(operands) > mscclpp.MOST_SPANS:
            self.ops.append(self._reduction(operands[: mscclpp.MOST_SPANS], hold, size, []))
            self._nop()
            operands = [hold, *operands[mscclpp.MOST_SPANS :]]
        near = self._near(role)
        self.ops.append(self._reduction(operands, hold, size, near))
        return [q for q in role.sends if q not in near]

    def _reduction(self, operands: Sequence[ChunkPlace], hold: ChunkPlace, size: int, sends: Sequence[int]) -> Json:
        remote = [self._remote(queue, size) for queue in sends]
        return {
            "name": "res" if sends else "re",
            "src_buff": [_local(place, size) for place in operands],
            "dst_buff": [_local(hold, size), *remote],
            **({"channel_type": "memory"} if sends else {}),
            "reduce_op": "sum",
        }

    def _copy(self, role: Role, source: ChunkPlace, target: ChunkPlace) -> Json:
        size = self.plan.of.sizes[role.slice]
        return {"name": "copy", "src_buff": [_local(source, size)], "dst_buff": [_local(target, size)]}

    def _put(self, kind: str, source: ChunkPlace, size: int, sends: Sequence[int]) -> Json:
        ends = [self.plan.unit_of[id(self.plan.of.receiver[queue])] for queue in sends]
        return {
            "name": "put",
            "src_buff": [_local(source, size) for _ in sends],
            "dst_buff": [self._remote(queue, size) for queue in sends],
            "channel_type": kind,
            **({"channel_ids": [self._channel(end) for end in ends]} if kind == "port" else {}),
        }

    def _finish(self) -> None:
        """Wait until the proxies have read everything, then copy results that had to wait for readers of the input."""
        plan = self.plan
        sent = {peer for role in self.roles for peer in plan.ends(role)[1]}
        self._signal([peer for peer in self.peers["port"] if peer in sent], "flush")
        late = [role for role in self.roles if plan.keeps_late(role)]
        if late:
            self._nop()
        self.ops += [self._copy(role, plan.holds[id(role)], plan.of.result(role)) for role in late]

    def _signal(self, peers: Iterable[Unit], name: str) -> None:
        for kind in ("memory", "port"):
            for some in _parts([peer for peer in peers if self.plan.kind(self.rank, peer[0]) == kind]):
                self.ops.append({"name": name, "channel_ids": [self._channel(p) for p in some], "channel_type": kind})

    def _nop(self) -> None:
        if self.ops and self.ops[-1]["name"] != "nop":
            self.ops.append({"name": "nop"})

    def _kind(self, queue: int) -> str:
        return self.plan.kind(self.rank, self.plan.program.queues[queue].dst)

    def _channel(self, peer: Unit) -> int:
        """The number of the channel to ``peer`` in this thread block."""
        return self.peers[self.plan.kind(self.rank, peer[0])].index(peer)

    def _remote(self, queue: int, size: int) -> Json:
        """The destination of a message, in the numbering of this thread block."""
        peer, place, kind = self.plan.program.queues[queue].dst, self.plan.landing[queue], self._kind(queue)
        known = self.plan.buffers[self.rank]
        number = known.setdefault((peer, place.buffer, kind), len(known))
        if number not in self.refs[kind]:
            self.refs[kind].append(number)
        return {"buffer_id": self.refs[kind].index(number), "index": place.start, "size": size}

    def document(self) -> Json:
        """The thread block's JSON; LimitError if it exceeds the kernel's limits."""
        number = self.unit[1]
        for what, most, got in (
            ("operations", mscclpp.MOST_OPERATIONS, sum(1 + len(op.get("ops", ())) for op in self.ops)),
            *((f"{kind} channels", mscclpp.MOST_CHANNELS, len(peers)) for kind, peers in self.peers.items()),
            *((f"remote {kind} buffers", mscclpp.MOST_BUFFERS, len(refs)) for kind, refs in self.refs.items()),
        ):
            if got > most:
                raise LimitError(
                    f"a thread block holds {most} {what}, got {got} in thread block {number} of GPU {self.rank}"
                )
        listed = []
        for kind, peers in self.peers.items():
            if peers:
                ids = [self.plan.channel[self.unit, peer] for peer in peers]
                listed.append({"channel_type": kind, "channel_ids": ids})
        refs = [{"access_channel_type": kind, "remote_buffer_ids": ids} for kind, ids in self.refs.items() if ids]
        return {"id": number, "ops": self.ops, "channels": listed, "remote_buffer_refs": refs}


def _local(place: ChunkPlace, size: int) -> Json:
    return {"type": place.buffer, "index": place.start, "size": size}


def _parts(items: Sequence[T]) -> Iterable[Sequence[T]]:
    """Groups of at most as many items as one operation takes."""
    return [items[at : at + mscclpp.MOST_ENDS] for at in range(0, len(items), mscclpp.MOST_ENDS)]


def _pretty(value: Any, depth: int = 0) -> str:
    """JSON with one line per element down to the operations, each of which is one line."""
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
