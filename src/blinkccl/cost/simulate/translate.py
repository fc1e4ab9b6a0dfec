"""Translation of a Program to a Workload: the costs of its roles and queues on a topology's links.

The simulator takes the Program that engines run. A role becomes an actor, a message from role to role a hop. As in
Blink's generated code (MLSys 2020, §4.1), each link and tree has a stream: each queue has its own, and a role reduces
in the stream of its first send, before the copy. A stage of a chain therefore costs
``issue + bytes/rate (+ reduce + bytes/reduce rate)``. A pipeline of k chunks costs the sum of its stages and (k − 1)
times the longest (the chunk pipeline model).

A staged queue has two hops with their own streams. Its slots are in the memory between them, from which the receiver
reads one message ahead. A calibration's limit on host memory is one more link of both hops, from the host to itself.

A switch with in-network reduction is an actor without cost. It reduces packets at the rate of its links and forwards a
chunk after it has arrived from all inputs. It issues no copies, needs no signal, and reduction leaves its links their
full rate.

Ranks are not serial: roles of one rank run concurrently, like streams of a GPU. If several roles share a queue (never
in programs of :func:`~blinkccl.schedule.lower.lower`), each pair of roles keeps its own slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import fsum
from types import MappingProxyType

import numpy as np

from blinkccl.cost.simulate.calibration import Calibration, link_cost
from blinkccl.cost.simulate.workload import Actors, Floats, Hops, Ints, Workload
from blinkccl.errors import ScheduleError, TopologyError, UsageError
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.wiring import Arc, connect
from blinkccl.topology.memories import HOST_KINDS
from blinkccl.topology.model import Topology

#: Ways to assign streams to queues.
STREAMS = ("per-tree", "reused")
#: Ways to share links. fifo, fair: see the workload. unfair: the first tree first.
SHARINGS = ("fifo", "fair", "unfair")
#: The largest budget, because kernels number tasks in 32 bits.
MAX_BUDGET = 2**31 - 1
#: Ratio between the weights of a stream and the next one under unfair sharing.
UNFAIRNESS = 64.0


@dataclass(frozen=True)
class Settings:
    """Settings of a simulation.

    - ``sharing``: one of :data:`SHARINGS`;
    - ``streams``: one of :data:`STREAMS`, a stream per link and tree, or one for trees that use a link at the same
      depth (Blink §4.2.2);
    - ``even_chunks``: as in :func:`~blinkccl.schedule.chunking.bind`, so that trees share links by their weights;
    - ``budget``: the maximum tasks (transfers and reductions) of a run, 1 to :data:`MAX_BUDGET`. None allows half a
      minute and two gigabytes of the kernel (:data:`~blinkccl.cost.simulate.run.EVENT_BUDGET`). Above the budget,
      several chunks are timed as one chunk with the cost of all.
    """

    sharing: str = "fifo"
    streams: str = "per-tree"
    even_chunks: bool = True
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not 1 <= self.budget <= MAX_BUDGET:
            raise UsageError(
                f"budget: expected 1 to {MAX_BUDGET:,} tasks (transfers and reductions), got {self.budget:,}"
            )
        for name, value, known in (("sharing", self.sharing, SHARINGS), ("streams", self.streams, STREAMS)):
            if value not in known:
                raise UsageError(f"unknown {name} {value!r}; expected one of {', '.join(known)}")

    @property
    def kernel_sharing(self) -> str:
        """The kernel's sharing: fifo, or else fair with weights."""
        return "fifo" if self.sharing == "fifo" else "fair"


@dataclass(frozen=True, slots=True)
class QueueHop:
    """A hop before the workload exists: the path of a queue's messages from one memory to the next.

    ``mover`` is the rank whose copy engine moves them; the other fields are those of a workload's hops.
    """

    queue: int
    path: tuple[int, ...]
    tail: int
    head: int
    stream: int
    mover: int
    slots: int
    frees: int


@dataclass(frozen=True)
class Translation:
    """A workload with the meaning of its numbers.

    ``links[i]``: the ordered pair of vertices of link i; for a host's memory, the host twice. ``actors[i]``: the vertex
    and the share of actor i. Roles are the first actors, the memories of staged queues follow. Hop i is ``legs[i]``.
    """

    workload: Workload
    bound: Bound
    network: Topology
    calibration: Calibration
    settings: Settings
    links: tuple[tuple[int, int], ...]
    actors: tuple[tuple[int, int], ...]
    legs: tuple[QueueHop, ...]


@dataclass(frozen=True)
class Frame:
    """The part of a program's workload that does not depend on the size, with fields as in :class:`Translation`.

    ``actors`` have no chunks yet. ``slices``: the slice of each actor.
    """

    program: Program
    network: Topology
    calibration: Calibration
    settings: Settings
    actors: Actors
    slices: tuple[int, ...]
    hops: Hops
    rates: Floats
    streams: int
    links: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int], ...]
    legs: tuple[QueueHop, ...]

    def at(self, bound: Bound) -> Translation:
        """The workload of the bound program. Cost: O(actors)."""
        extents = [bound.extents[index] for index in self.slices]
        whole = [x.chunk_elements * bound.itemsize for x in extents]
        last = [(x.length - (x.chunks - 1) * x.chunk_elements) * bound.itemsize if x.chunks else 0 for x in extents]
        actors = replace(
            self.actors,
            chunks=np.asarray([x.chunks for x in extents], np.int32),
            bytes=np.asarray(whole, np.float64),
            last_bytes=np.asarray(last, np.float64),
        )
        copy_engines = int(self.calibration.engine.copy_engines.value)
        pools = np.full(len(self.program.vertices), copy_engines, np.int32)
        workload = Workload(actors, self.hops, self.rates, pools, self.streams)
        return Translation(
            workload, bound, self.network, self.calibration, self.settings, self.links, self.places, self.legs
        )


def frame(
    program: Program,
    network: Topology,
    calibration: Calibration,
    settings: Settings | None = None,
    gb_per_s: Mapping[tuple[int, int], float] = MappingProxyType({}),
) -> Frame:
    """The frame of a program whose paths are on ``network``. Cost: O(roles + links on paths of queues).

    ``gb_per_s``: rates of some of the links that replace the calibration's.
    """
    settings = settings or Settings()
    wiring = connect(program)
    if wiring.faults:
        raise ScheduleError(f"the program cannot be timed: {wiring.faults[0]}")
    table = _LinkTable(program, network, calibration, gb_per_s)
    arcs = tuple(wiring.data)
    streams = _Streams(program, arcs, settings.streams)
    hops, staged = _legs(program, arcs, streams)
    roles = (*((program.vertices[role.rank], role.share) for role in program.roles),)
    memories = (*((hops[hop].path[-1], program.roles[hops[hop].tail].share) for hop in staged),)
    senders = [program.roles[hops[hop].tail] for hop in staged]
    return Frame(
        program,
        network,
        calibration,
        settings,
        _actors(program, hops, staged, calibration, streams, settings),
        tuple(role.slice for role in (*program.roles, *senders)),
        _hops(hops, calibration, table, settings, {v for v in program.relays if network.vertex[v].combines}),
        np.asarray(table.rates, np.float64),
        streams.count,
        tuple(table.index),
        roles + memories,
        tuple(hops),
    )


def translate(
    bound: Bound, network: Topology, calibration: Calibration, settings: Settings | None = None
) -> Translation:
    """The workload of a bound program, for one size."""
    return frame(bound.program, network, calibration, settings).at(bound)


def _legs(program: Program, arcs: Sequence[Arc], streams: _Streams) -> tuple[list[QueueHop], list[int]]:
    """All hops, and the numbers of the hops into a memory; their order is that of the memories' actors."""
    legs: list[QueueHop] = []
    staged: list[int] = []
    for arc in arcs:
        queue = program.queues[arc.queue]
        slots = program.channels[program.roles[arc.tail].channel].slots
        stream, first = streams.of_queue[arc.queue], queue.legs[0]
        if not queue.is_staged:
            mover = queue.src if queue.home == queue.path[-1] else queue.dst
            legs.append(QueueHop(arc.queue, first, arc.tail, arc.head, stream, mover, slots, -1))
            continue
        memory, hop = len(program.roles) + len(staged), len(legs)
        staged.append(hop)
        legs.append(QueueHop(arc.queue, first, arc.tail, memory, stream, queue.src, slots, -1))
        beyond = streams.of_second_leg[arc.queue]
        legs.append(QueueHop(arc.queue, queue.legs[1], memory, arc.head, beyond, queue.dst, 1, hop))
    return legs, staged


@dataclass
class _Streams:
    """The streams of hops and of roles that reduce."""

    program: Program
    arcs: Sequence[Arc]
    choice: str
    count: int = 0
    of_queue: list[int] = field(default_factory=list)
    of_second_leg: dict[int, int] = field(default_factory=dict)
    of_actor: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.program
        if self.choice == "reused":
            # Trees that cross a link at the same depth take turns in one stream, chunk by chunk.
            depth = {arc.queue: program.roles[arc.tail].offset for arc in self.arcs}
            shared: dict[tuple[tuple[int, ...], int], int] = {}
            for number, queue in enumerate(program.queues):
                self.of_queue.append(shared.setdefault((queue.path, depth.get(number, 0)), len(shared)))
            self.count = len(shared)
        else:
            self.of_queue = list(range(len(program.queues)))
            self.count = len(program.queues)
        for number, queue in enumerate(program.queues):
            if queue.is_staged:
                self.of_second_leg[number] = self.count
                self.count += 1
        for role in program.roles:
            if not reduces(program, role):
                self.of_actor.append(-1)
            elif role.sends:
                self.of_actor.append(self.of_queue[role.sends[0]])
            else:
                self.of_actor.append(self.count)
                self.count += 1


def reduces(program: Program, role: Role) -> bool:
    """True if a role reduces on a processor, which takes time, and not in a switch."""
    return role.operands > 1 and role.rank < len(program.ranks)


class _LinkTable:
    """The links on a program's paths in the order of first use, with their effective rates.

    ``gb_per_s`` as in :func:`frame`. TopologyError for a link that ``network`` does not have.
    """

    def __init__(
        self,
        program: Program,
        network: Topology,
        calibration: Calibration,
        gb_per_s: Mapping[tuple[int, int], float],
    ) -> None:
        #: Vertices that reduce, and those that reduce messages of several others.
        reducing = {program.vertices[role.rank] for role in program.roles if reduces(program, role)}
        combining = _combining(program)
        self.index: dict[tuple[int, int], int] = {}
        memory_gb_per_s = calibration.engine.memory_gb_per_s.value
        gpu_gb_per_s = calibration.engine.gpu_gb_per_s.value
        for queue in program.queues:
            for pair in pairwise(queue.path):
                self.index.setdefault(pair, len(self.index))
            home = queue.legs[0][-1]
            if queue.is_staged and memory_gb_per_s and network.vertex[home].kind in HOST_KINDS:
                self.index.setdefault((home, home), len(self.index))
            for end in (queue.path[0], queue.path[-1]):
                if gpu_gb_per_s and _all_nvlink(queue.path, network) and network.vertex[end].kind != "switch":
                    self.index.setdefault((end, end), len(self.index))
        self.rates: list[float] = []
        self.latency_s: list[float] = []
        for src, dst in self.index:
            if src == dst:
                of_host = network.vertex[src].kind in HOST_KINDS
                self.rates.append((memory_gb_per_s if of_host else gpu_gb_per_s) * 1e9)
                self.latency_s.append(0.0)
                continue
            if (src, dst) not in network.link:
                raise TopologyError(f"the program sends over a link {src} → {dst}, which {network.name} does not have")
            cost = link_cost(calibration, network.link[src, dst])
            both_ways = (dst, src) in self.index and (src in reducing or dst in reducing)
            rate = cost.duplex_rate if both_ways else cost.rate
            rate = gb_per_s[src, dst] * 1e9 if (src, dst) in gb_per_s else rate
            if src in combining or dst in combining:
                rate *= calibration.engine.combining.value
            self.rates.append(rate)
            self.latency_s.append(cost.latency_s)

    def of_path(self, path: tuple[int, ...]) -> list[int]:
        """The links of a leg, with the memories of hosts or GPUs that it reads at its begin and writes at its end."""
        steps = ((path[0], path[0]), *pairwise(path), (path[-1], path[-1]))
        return [self.index[step] for step in steps if step[0] != step[1] or step in self.index]


def _all_nvlink(path: tuple[int, ...], network: Topology) -> bool:
    """True if all links of a path are NVLinks."""
    return all(pair in network.link and network.link[pair].kind == "nvlink" for pair in pairwise(path))


def _combining(program: Program) -> frozenset[int]:
    """The vertices of ranks that reduce messages from more than one neighbour."""
    neighbours: dict[int, set[int]] = {}
    for role in program.roles:
        if reduces(program, role):
            neighbours.setdefault(role.rank, set()).update(program.queues[q].src for q in role.receives)
    return frozenset(program.vertices[rank] for rank, those in neighbours.items() if len(those) > 1)


def _actors(
    program: Program,
    hops: Sequence[QueueHop],
    staged: Sequence[int],
    calibration: Calibration,
    streams: _Streams,
    settings: Settings,
) -> Actors:
    engine = calibration.engine
    ends = {(hop.head, hop.queue): number for number, hop in enumerate(hops)}
    starts = {(hop.tail, hop.queue): number for number, hop in enumerate(hops)}
    receives = [[ends[number, queue] for queue in role.receives] for number, role in enumerate(program.roles)]
    sends = [[starts[number, queue] for queue in role.sends] for number, role in enumerate(program.roles)]
    receives += [[hop] for hop in staged]
    sends += [[hop + 1] for hop in staged]
    # A kernel reads every operand once and writes once; the rate is defined for two operands.
    combined = [(role.operands + 1) / 3 if reduces(program, role) else 0.0 for role in program.roles]
    pace = 1e-9 / engine.reduce_gb_per_s.value if engine.reduce_gb_per_s.value else 0.0
    stream = np.asarray([*streams.of_actor, *[-1] * len(staged)], np.int32)
    if pace == 0.0 and engine.reduce_us.value == 0.0:
        stream = np.full_like(stream, -1)  # a reduction without cost needs no stream
    begin_s = [engine.launch_us.value * 1e-6] * len(program.roles)
    count = len(program.roles) + len(staged)
    return Actors(
        np.zeros(count, np.int32),
        np.zeros(count),
        np.zeros(count),
        stream,
        np.full(count, engine.reduce_us.value * 1e-6),
        np.asarray([*combined, *[0.0] * len(staged)]) * pace,
        np.asarray([*begin_s, *[0.0] * len(staged)], np.float64),
        *_compressed(receives),
        *_compressed(sends),
    )


def _hops(
    hops: Sequence[QueueHop],
    calibration: Calibration,
    table: _LinkTable,
    settings: Settings,
    switches: Set[int],
) -> Hops:
    engine = calibration.engine
    issue_s = [0.0 if hop.path[0] in switches else engine.issue_us.value * 1e-6 for hop in hops]
    paths = [table.of_path(hop.path) for hop in hops]
    # fsum gives the same bits in every Python, sum() may not.
    latency_s = [fsum([s, *(table.latency_s[link] for link in path)]) for s, path in zip(issue_s, paths, strict=True)]
    limited, signal_s = engine.copy_engines.value > 0, engine.signal_us.value * 1e-6
    return Hops(
        np.asarray([hop.tail for hop in hops], np.int32),
        np.asarray([hop.head for hop in hops], np.int32),
        np.asarray([hop.stream for hop in hops], np.int32),
        np.asarray([hop.mover if limited and hop.path[0] not in switches else -1 for hop in hops], np.int32),
        np.asarray([hop.slots for hop in hops], np.int32),
        np.asarray([hop.frees for hop in hops], np.int32),
        np.asarray(latency_s, np.float64),
        # A reader needs no signal for its own read, and a switch processes packets as they arrive.
        np.asarray([0.0 if hop.frees >= 0 or hop.path[-1] in switches else signal_s for hop in hops]),
        np.asarray(_weights(settings.sharing, paths), np.float64),
        *_compressed(paths),
    )


def _weights(sharing: str, paths: Sequence[Sequence[int]]) -> list[float]:
    """The weight of each hop on its links."""
    if sharing == "unfair":
        # The weight of a queue falls with its place on its most crowded link.
        queues_on: dict[int, int] = {}
        weights = []
        for path in paths:
            place = max((queues_on.get(link, 0) for link in path), default=0)
            for link in path:
                queues_on[link] = queues_on.get(link, 0) + 1
            weights.append(UNFAIRNESS ** -min(place, 8))
        return weights
    return [1.0] * len(paths)


def _compressed(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows in compressed form: starts and values."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return starts, np.asarray([value for row in rows for value in row], np.int32)
