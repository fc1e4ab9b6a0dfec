"""Instruction lists → Workload: what a plan of another runtime costs on the links between its GPUs.

Every instruction becomes an actor, and a thread block a *stream*, in which it does what it has to do one after the
other: it sends or stores (a transfer over the way between the two GPUs), combines (an execution, as in
:mod:`~blinkccl.simulate.translate`), and hands on to the next instruction. What orders two thread blocks is a hop, too:

- a message of a connection, to the instruction that takes it, with as many slots as connections have;
- a post, to the wait that it lets through, over the way to the other GPU, if that is another; then it costs what a
  message costs to be known, which a store to another GPU's memory, of which nobody is told, does not;
- a packet, from where it has been written to who reads it;
- to hand on, and to give a slot back: hops on no link, which take no time.

An operation loads from all others and stores to all others word by word, so that takes the ways to all of them at once.
What a switch adds up or multicasts (*NVLink SHARP*) is one transfer over several links at once, at the rate of the
slowest: a load over the links of all GPUs of the group to the switch, the own one's too, and one back; a store over one
link to the switch and those to all. That the switch itself takes no time is assumed, and that an operation stores when
all of it has been loaded.

A proxy is a stream of its own. What stands between two fences is in no order, and here in that of the list; local
copies take no time, as in programs of ours. MSCCL's runtime goes through its lists once per *pass*, which moves what a
message holds of every chunk: an actor's chunks are the passes. MSCCL++'s goes through them once, so there a message is
as large as the list says; rounds of its ``pipeline`` are as many as the size needs (:attr:`InstructionList.sized`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, fsum

import numpy as np

from blinkccl.errors import TopologyError, UsageError
from blinkccl.foreign.instructions import Await, Block, Connection, Fence, Flush, InstructionList, Move, Post
from blinkccl.simulate.calibration import Calibration
from blinkccl.simulate.translate import LinkTable, Route, compressed
from blinkccl.simulate.workload import Actors, Hops, Workload
from blinkccl.topology.memories import memory_inside
from blinkccl.topology.model import Topology

#: Elements are floats of this size where only bytes matter.
ITEMSIZE = 4


@dataclass(slots=True)
class _Actor:
    """``part``: of a chunk of the plan, how much it moves; ``combines``: how many operands it adds up."""

    part: int = 0
    combines: int = 1
    stream: int = -1
    is_start: bool = False
    receives: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Tree:
    """A route from ``sources`` to ``targets``, ranks both, over all links at once; through a switch that adds up?"""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    switch: bool = False


@dataclass(frozen=True, slots=True)
class _Hop:
    """``route`` is that between two ranks, if it has one; ``moves``: data; ``tells``: the other end learns of it."""

    tail: int
    head: int
    stream: int
    slots: int
    route: tuple[int, int] | _Tree | None = None
    moves: bool = False
    tells: bool = False


@dataclass(frozen=True)
class ListedRun:
    """An instruction list on the links of a job; ``legs`` has of each route the paths taken at once, one set after
    another.

    The list is that of the smallest size, where that matters.
    """

    plan: InstructionList
    ranks: tuple[int, ...]
    network: Topology
    calibration: Calibration
    actors: tuple[_Actor, ...]
    hops: tuple[_Hop, ...]
    streams: int
    table: LinkTable
    legs: dict[tuple[int, int] | _Tree, tuple[tuple[tuple[int, ...], ...], ...]]

    def of_size(self, size_bytes: int) -> ListedRun:
        """The same for S bytes: with as many rounds of pipelines as these need."""
        if self.plan.sized is None:
            return self
        plan = self.plan.sized(size_bytes // ITEMSIZE // self.plan.collective.total_blocks() * ITEMSIZE)
        return listed_run(plan, self.ranks, self.network, self.calibration)

    def at(self, size_bytes: int, message_bytes: int | None = None, most_tasks: int | None = None) -> Workload:
        """The workload of S bytes, in passes of at most ``message_bytes`` per chunk (None: the runtime's).

        UsageError where it has more than ``most_tasks``.
        """
        return self.of_size(size_bytes)._workload(size_bytes, message_bytes, most_tasks)

    def _workload(self, size_bytes: int, message_bytes: int | None, most_tasks: int | None) -> Workload:
        chunk = self.chunk_bytes(size_bytes)
        passes = self.passes(size_bytes, message_bytes)
        tasks = passes * (len(self.hops) + sum(actor.combines > 1 for actor in self.actors))
        if most_tasks is not None and tasks > most_tasks:
            raise UsageError(
                f"{size_bytes:,} bytes in {passes:,} passes are {tasks:,} transfers and reductions, more than the "
                f"budget of {most_tasks:,}; take larger messages (--chunk) or a larger --budget"
            )
        return Workload(
            self._actors(chunk / passes, passes), self._hops(passes), self._rates(), _NO_POOLS, self.streams
        )

    def chunk_bytes(self, size_bytes: int) -> float:
        """Of one chunk of the plan; blocks have whole elements."""
        count = size_bytes // ITEMSIZE // self.plan.collective.total_blocks()
        return count * ITEMSIZE / self.plan.chunks

    def passes(self, size_bytes: int, message_bytes: int | None = None) -> int:
        """How often all instructions are done."""
        if not self.plan.message_bytes:
            return 1
        return max(1, ceil(self.chunk_bytes(size_bytes) / (message_bytes or self.plan.message_bytes)))

    def _actors(self, pass_bytes: float, passes: int) -> Actors:
        engine = self.calibration.engine
        pace = 1e-9 / engine.reduce_gb_per_s.value if engine.reduce_gb_per_s.value else 0.0
        costs = pace > 0.0 or engine.reduce_us.value > 0.0
        size = np.asarray([actor.part * pass_bytes for actor in self.actors], np.float64)
        combines = [actor.combines > 1 for actor in self.actors]
        return Actors(
            np.full(len(self.actors), passes, np.int32),
            size,
            size,
            np.asarray([a.stream if costs and a.combines > 1 else -1 for a in self.actors], np.int32),
            np.asarray([engine.reduce_us.value * 1e-6 * one for one in combines], np.float64),
            np.asarray([pace * (a.combines + 1) / 3 * (a.combines > 1) for a in self.actors], np.float64),
            np.asarray([engine.launch_us.value * 1e-6 * a.is_start for a in self.actors], np.float64),
            *compressed([actor.receives for actor in self.actors]),
            *compressed([actor.sends for actor in self.actors]),
        )

    def _hops(self, passes: int) -> Hops:
        engine, table = self.calibration.engine, self.table
        legs = [
            [[table.of_path(path) for path in leg] for leg in self.legs[hop.route]] if hop.route else []
            for hop in self.hops
        ]
        paths = [list(dict.fromkeys(link for leg in each for path in leg for link in path)) for each in legs]
        issue = [engine.issue_us.value * 1e-6 if hop.moves else 0.0 for hop in self.hops]
        latency = [
            cost + fsum(max(fsum(table.latency_s[link] for link in path) for path in leg) for leg in each)
            for cost, each in zip(issue, legs, strict=True)
        ]
        return Hops(
            np.asarray([hop.tail for hop in self.hops], np.int32),
            np.asarray([hop.head for hop in self.hops], np.int32),
            np.asarray([hop.stream for hop in self.hops], np.int32),
            np.full(len(self.hops), -1, np.int32),
            np.asarray([hop.slots or passes for hop in self.hops], np.int32),
            np.full(len(self.hops), -1, np.int32),
            np.asarray(latency, np.float64),
            np.asarray([engine.signal_us.value * 1e-6 if hop.tells else 0.0 for hop in self.hops], np.float64),
            np.ones(len(self.hops), np.float64),
            *compressed(paths),
        )

    def _rates(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(self.table.rates, np.float64)


_NO_POOLS = np.zeros(0, np.int32)


def listed_run(plan: InstructionList, ranks: tuple[int, ...], network: Topology, calibration: Calibration) -> ListedRun:
    """What ``plan`` is to the simulator, its rank i at vertex ``ranks[i]``; the plan must be free of faults.

    TopologyError where two GPUs that move data to each other have no way on ``network`` but through other memories.
    """
    if len(ranks) != plan.collective.world_size:
        raise UsageError(f"a plan for {plan.collective.world_size} GPUs, but {len(ranks)} are given")
    builder = _Builder(plan)
    legs: dict[tuple[int, int] | _Tree, tuple[tuple[tuple[int, ...], ...], ...]] = {}
    for route, where in builder.routed:
        if route in legs:
            continue
        legs[route] = _legs(network, ranks, route, where)
    routes = [hop.route for hop in builder.hops if hop.moves and hop.route]
    senders = Counter(dst for _, dst in dict.fromkeys(pair for route in routes for pair in _pairs(route)))
    reducing = {ranks[rank] for rank in builder.combining}
    several = {ranks[rank] for rank in builder.combining if senders[rank] > 1}
    taken = (Route(path) for each in legs.values() for leg in each for path in leg)
    table = LinkTable(taken, reducing, several, network, calibration, "the plan")
    return ListedRun(
        plan, ranks, network, calibration, tuple(builder.actors), tuple(builder.hops), builder.streams, table, legs
    )


def _route(sources: list[int], targets: list[int]) -> tuple[int, int] | _Tree:
    """Between two ranks, or all at once."""
    if len(sources) == len(targets) == 1:
        return sources[0], targets[0]
    return _Tree(tuple(sources), tuple(targets))


def _pairs(route: tuple[int, int] | _Tree) -> list[tuple[int, int]]:
    """Who sends to whom; in a switch nobody does."""
    if isinstance(route, tuple):
        return [route]
    return [] if route.switch else [(src, dst) for src in route.sources for dst in route.targets]


def _legs(
    network: Topology, ranks: tuple[int, ...], route: tuple[int, int] | _Tree, where: str
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The ways between all two ranks; or the links to a switch that combines, and from there."""
    if isinstance(route, _Tree) and route.switch:
        return _through(network, ranks, route, where)
    found = []
    for src, dst in _pairs(route):
        path = shortest(network, ranks[src], ranks[dst])
        if path is None:
            raise TopologyError(
                f"{where} moves data from GPU {src} to GPU {dst}, which are {ranks[src]} and {ranks[dst]} of "
                f"{network.name}: no link joins them, and no switch does"
            )
        found.append(path)
    return (tuple(found),)


def _through(
    network: Topology, ranks: tuple[int, ...], route: _Tree, where: str
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    for vertex in network.vertices:
        up = tuple((ranks[rank], vertex.id) for rank in route.sources)
        down = tuple((vertex.id, ranks[rank]) for rank in route.targets)
        if vertex.combines and all(pair in network.link for pair in (*up, *down)):
            return up, down
    raise TopologyError(
        f"{where} adds up or multicasts in a switch, and {network.name} has none that does so and joins GPUs "
        f"{sorted({*route.sources, *route.targets})}"
    )


def shortest(network: Topology, src: int, dst: int) -> tuple[int, ...] | None:
    """The way of a store from one vertex to another, over the fewest links, through what forwards; None without one."""
    onward: dict[int, list[int]] = defaultdict(list)
    for link in network.links:
        onward[link.src].append(link.dst)
    ahead: list[tuple[int, ...]] = [(src,)]
    seen = {src}
    for path in ahead:  # grows while it is read
        for vertex in sorted(onward[path[-1]]):
            further = (*path, vertex)
            if vertex in seen or (len(further) > 2 and memory_inside(network, further) is not None):
                continue
            if vertex == dst:
                return further
            seen.add(vertex)
            ahead.append(further)
    return None


#: Chunks of memory: a rank, a buffer, a place.
_Cell = tuple[int, str, int]


class _Builder:
    """Actors and hops of all thread blocks."""

    def __init__(self, plan: InstructionList) -> None:
        self.plan = plan
        self.actors: list[_Actor] = []
        self.hops: list[_Hop] = []
        self.streams = 0
        #: Ranks between which something moves, and by which instruction first.
        self.routed: list[tuple[tuple[int, int] | _Tree, str]] = []
        #: Ranks that combine.
        self.combining: dict[int, None] = {}
        self._agents: dict[str, int] = {}
        self._sent: dict[Connection, list[tuple[int, int, Move, int]]] = defaultdict(list)
        self._taken: dict[Connection, list[tuple[int, Move]]] = defaultdict(list)
        self._posts: dict[str, dict[str, list[tuple[int, int, int | None]]]] = defaultdict(lambda: defaultdict(list))
        self._awaits: list[tuple[int, int, Await]] = []
        self._written: dict[_Cell, tuple[int, int]] = {}
        self._reads: list[tuple[int, Move]] = []
        ends = [self._block(block) for block in plan.blocks]
        self._messages()
        self._waits()
        self._packets()
        for order, stream in ends:
            self._in_order(order, stream)

    def _block(self, block: Block) -> tuple[list[int], int]:
        """The block's actors in order, with what they send elsewhere; and its stream."""
        stream, order = self._stream(), [self._actor(is_start=True)]
        for step in block.instructions:
            if isinstance(step, Move):
                order += self._move(block, step, stream)
            elif isinstance(step, Await):
                order.append(self._actor())
                self._awaits.append((order[-1], block.rank, step))
            elif isinstance(step, Post):
                order.append(self._actor())
                by = None if step.agent is None else self._agent(step.agent)
                self._posts[step.counter][block.name].append((order[-1], block.rank, by))
            elif isinstance(step, Flush):
                asked, done = self._actor(), self._actor()
                order += [asked, done]
                self._hop(asked, done, self._agent(step.agent))
            else:
                assert isinstance(step, Fence)  # the list's order holds anyway
        order.append(self._actor())
        return order, stream

    def _move(self, block: Block, step: Move, stream: int) -> Iterator[int]:
        stream = stream if step.agent is None else self._agent(step.agent)
        if step.switch:
            yield from self._through_switch(block, step, stream)
            return
        count = len(step.operands) + (step.takes is not None)
        remote = [span.rank for span in step.operands if span.rank != block.rank]
        me = self._actor(step.size, count, stream)
        if remote:
            fetch = self._actor(step.size)
            yield fetch
            self._transfer(fetch, me, stream, _route(remote, [block.rank]), step.where)
        yield me
        if count > 1:
            self.combining[block.rank] = None
        if step.takes is not None:
            self._taken[step.takes].append((me, step))
        if step.sends is not None:
            self._sent[step.sends].append((me, stream, step, block.rank))
        self._reads.append((me, step))
        there = [span.rank for span in step.stores if span.rank != block.rank]
        at, by = me, stream
        if there:
            packets = any(span.packet for span in step.stores)
            at, by = self._actor(), self._stream()
            self._transfer(me, at, stream, _route([block.rank], there), step.where, tells=packets)
        for span in step.stores:
            if span.packet:
                ends = (me, stream) if span.rank == block.rank else (at, by)
                for piece in range(step.size):
                    self._written[self.plan.place(span.rank, span.buffer, span.start + piece)] = ends

    def _through_switch(self, block: Block, step: Move, stream: int) -> Iterator[int]:
        """A load from all, if it is one, and the store to all."""
        me, there = self._actor(step.size), self._actor()
        if len(step.operands) > 1:
            asks = self._actor(step.size)
            yield asks
            sources = tuple(span.rank for span in step.operands)
            self._transfer(asks, me, stream, _Tree(sources, (block.rank,), True), step.where)
        yield me
        packet = step.stores[0].packet
        targets, by = tuple(span.rank for span in step.stores), self._stream()
        self._transfer(me, there, stream, _Tree((block.rank,), targets, True), step.where, tells=packet)
        self._reads.append((me, step))
        for span in step.stores if packet else ():
            for piece in range(step.size):
                self._written[self.plan.place(span.rank, span.buffer, span.start + piece)] = there, by

    def _messages(self) -> None:
        """Each message to who takes it, and a slot back to who sends so many messages later."""
        slots, together = self.plan.slots, self.plan.together
        for connection, sent in self._sent.items():
            taken = self._taken[connection]
            numbers: list[int] = []
            for (tail, stream, step, rank), (head, _) in zip(sent, taken, strict=True):
                numbers.append((numbers[-1] if numbers else 0) + ceil(step.size / together))
                self._transfer(tail, head, stream, (rank, connection.dst), step.where, slots)
            for place, (tail, *_) in enumerate(sent):
                free = bisect_right(numbers, numbers[place] - slots, hi=place)
                if free:  # all that the last of these messages comes behind have been taken, too
                    self._hop(taken[free - 1][0], tail, self._stream())

    def _waits(self) -> None:
        """A wait goes on when each of those who post has done its part of the count."""
        for head, rank, step in self._awaits:
            posters = self._posts[step.counter]
            part = ceil(max(0, step.count) / max(1, len(posters)))
            for posts in posters.values():
                if part:
                    tail, src, stream = posts[min(part, len(posts)) - 1]
                    route = None if src == rank else (src, rank)
                    if route:
                        self.routed.append((route, step.where))
                    stream = self._stream() if stream is None else stream
                    self._hop(tail, head, stream, 0, route, tells=route is not None)

    def _packets(self) -> None:
        for head, step in self._reads:
            cells = [
                self.plan.place(span.rank, span.buffer, span.start + piece)
                for span in step.operands
                if span.packet
                for piece in range(step.size)
            ]
            for tail, stream in dict.fromkeys(self._written[cell] for cell in cells):
                self._hop(tail, head, stream, 0)

    def _in_order(self, order: list[int], stream: int) -> None:
        """Each instruction behind the one before, and the first of a pass behind the last of the pass before."""
        self._hop(order[0], order[-1], self._stream())  # before the others: it has one slot, which the last gives back
        for tail, head in pairwise(order):
            self._hop(tail, head, stream, first=True)

    def _actor(self, part: int = 0, combines: int = 1, stream: int = -1, is_start: bool = False) -> int:
        self.actors.append(_Actor(part, combines, stream, is_start))
        return len(self.actors) - 1

    def _stream(self) -> int:
        self.streams += 1
        return self.streams - 1

    def _agent(self, name: str) -> int:
        if name not in self._agents:
            self._agents[name] = self._stream()
        return self._agents[name]

    def _transfer(
        self,
        tail: int,
        head: int,
        stream: int,
        route: tuple[int, int] | _Tree,
        where: str,
        slots: int = 0,
        tells: bool = True,
    ) -> None:
        self.routed.append((route, where))
        self._hop(tail, head, stream, slots, route, moves=True, tells=tells)

    def _hop(
        self,
        tail: int,
        head: int,
        stream: int,
        slots: int = 1,
        route: tuple[int, int] | _Tree | None = None,
        moves: bool = False,
        tells: bool = False,
        first: bool = False,
    ) -> None:
        """``slots`` 0: as many as there are passes. ``first``: it is received before all others."""
        self.hops.append(_Hop(tail, head, stream, slots, route, moves, tells))
        self.actors[tail].sends.append(len(self.hops) - 1)
        self.actors[head].receives.insert(0 if first else len(self.actors[head].receives), len(self.hops) - 1)
