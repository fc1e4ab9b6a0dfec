"""The definition of instruction lists: executes one, on any values, and says what was in no order.

One thread runs all blocks, so a run is one of many possible ones. Values do not depend on which, where no two accesses
of a chunk are without order, and this is told for all runs at once by vector clocks (Lamport 1978; Mattern 1989): a
clock holds, for every thread block, how many of its *segments* (what lies between two fences) are known to be over. Nor
does it matter for deadlocks: counters only grow, so whoever can go on can still do so whatever others do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from blinkccl.errors import ScheduleError
from blinkccl.formats.foreign.instructions import Await, Block, Fence, Flush, InstructionList, Move, Post

V = TypeVar("V")
Clock = NDArray[np.int32]
Cell = tuple[int, str, int]
#: What to do about faults, by their kind.
REMEDIES = {
    "deadlock": "give each wait the post that it is for (signal, sem_release), earlier than what waits for it in turn",
    "race": "put a wait for the other between the two (signal and wait, a semaphore or barrier), "
    "with a fence (nop) between it and what it is for",
    "wrong result": "follow the chunk back from the instruction that wrote it: its source, its offset, and what "
    "was left out or done twice before it",
    "unbalanced": "let each signal be waited for once",
}
#: Faults of one list that are told.
MOST_FAULTS = 100
#: Chunks that are moved in all (some 20 µs each), and entries of all clocks (4 bytes each).
MOST_MOVED, MOST_KNOWN = 4_000_000, 2**28


@dataclass(frozen=True, slots=True)
class _Access:
    """Who touched a chunk last, in which segment, by what, as which of its chunks, and whether through a switch."""

    thread: int
    segment: int
    by: str
    piece: int
    switch: bool


@dataclass(slots=True, eq=False)
class _Thread:
    """A block or an agent: the segments that it knows to be over, and what it learns at the next fence."""

    number: int
    clock: Clock
    pending: Clock | None = None

    def learn(self, clock: Clock) -> None:
        self.pending = clock if self.pending is None else np.maximum(self.pending, clock)

    def fence(self) -> None:
        if self.pending is not None:
            np.maximum(self.clock, self.pending, out=self.clock)
            self.pending = None
        self.clock[self.number] += 1

    def over(self) -> Clock:
        """What is known when the present segment is over too."""
        clock = self.clock.copy() if self.pending is None else np.maximum(self.clock, self.pending)
        clock[self.number] += 1
        return clock


class PlanExecution(Generic[V]):
    """One execution.

    Parameters
    ----------
    plan
        With all chunks in range; readers see to that.
    load
        The value of a chunk of a rank's input.
    combine
        Of two values that meet, where that is.
    seed
        None: blocks go in turn, each as far as it can. A number: one instruction at a time, in an order that it draws.
    trusting
        Relaxed signals tell of data, too.

    Attributes
    ----------
    faults
        Sentences: deadlocks, signals that nobody waits for, accesses without order. Empty if there are none. Each
        begins with its kind, a key of :data:`REMEDIES`.
    unpromised
        More such accesses: through a switch, and not known to be over when the other GPU ends.
    written
        What wrote each chunk last.

    Raises
    ------
    ScheduleError
        If there is more than is judged in minutes and a gigabyte: :data:`MOST_MOVED`, :data:`MOST_KNOWN`.
    """

    def __init__(
        self,
        plan: InstructionList,
        load: Callable[[int, int], V],
        combine: Callable[[V, V, str], V],
        unset: V,
        seed: int | None = None,
        trusting: bool = False,
    ) -> None:
        self.plan, self.combine, self.unset = plan, combine, unset
        self.trusting = trusting
        self.random = None if seed is None else Random(seed)
        self.faults: list[str] = []
        self.unpromised: list[str] = []
        self.written: dict[Cell, str] = {}
        self._values: dict[Cell, V] = {}
        self._packets: dict[Cell, V] = {}
        self._flows: dict[tuple[Cell, bool], set[tuple[Cell, str]]] = {}
        self._posts: dict[str, list[tuple[int, Clock]]] = {}
        self._wrote: dict[Cell, _Access] = {}
        self._read: dict[Cell, dict[int, _Access]] = {}
        self._races: set[tuple[str, str]] = set()
        coll = plan.collective
        self._ranks, self._done = coll.world_size, 0
        # Where there is a root, it may be another than is said; so every rank has something.
        blocks = 1 if coll.root is not None else coll.input_blocks(0)
        self._held = plan.chunks * max(blocks, coll.output_blocks(0))
        self._prepare()
        for rank in range(self._ranks):
            for index in range(blocks * plan.chunks):
                self._values[plan.place(rank, "i", index)] = load(rank, index)
        self._go()
        self._check_end()

    def value(self, rank: int, index: int) -> V:
        """What a chunk of a rank's output holds at the end."""
        return self._values.get(self.plan.place(rank, "o", index), self.unset)

    def _prepare(self) -> None:
        """Threads: the blocks, then for each rank its start, then agents."""
        blocks = self.plan.blocks
        agents: dict[str, int] = {}
        self._posters: dict[str, set[int]] = {}
        self._total: Counter[str] = Counter()
        self._awaited: Counter[str] = Counter()
        self._has_packets = False
        for number, block in enumerate(blocks):
            for step in block.instructions:
                agent = None if isinstance(step, Fence | Await) else step.agent
                if agent is not None:
                    agents.setdefault(agent, len(agents))
                if isinstance(step, Move):
                    self._has_packets |= any(span.packet for span in (*step.operands, *step.stores))
                if isinstance(step, Await):
                    self._awaited[step.counter] = max(self._awaited[step.counter], step.count)
                if isinstance(step, Post):
                    self._total[step.counter] += 1
                    self._posters.setdefault(step.counter, set()).add(number)
        size = len(blocks) + self._ranks + len(agents)
        steps = [step for block in blocks for step in block.instructions]
        moved = sum(step.size for step in steps if isinstance(step, Move)) + self._ranks * self._held
        known = size * (size + sum(isinstance(step, Await | Post) for step in steps))
        if moved > MOST_MOVED or known > MOST_KNOWN:
            raise ScheduleError(
                f"{size} thread blocks and agents with {len(steps)} instructions on {moved} chunks: too many to judge"
            )
        self._starts = slice(len(blocks), len(blocks) + self._ranks)
        self._threads = [_Thread(i, np.zeros(size, np.int32)) for i in range(size)]
        for number, block in enumerate(blocks):
            self._threads[number].clock[len(blocks) + block.rank] = 1
        first = len(blocks) + self._ranks
        self._agents = {name: self._threads[first + place] for name, place in agents.items()}

    def _go(self) -> None:
        """Runs all blocks until none can go on."""
        blocks = self.plan.blocks
        runs = {number: self._run(number, block) for number, block in enumerate(blocks)}
        waits: dict[int, str] = {}
        before = -1
        while runs and self._done != before:
            before = self._done
            order = list(runs)
            if self.random is not None:
                self.random.shuffle(order)
            for number in order:
                while True:
                    try:
                        wait = next(runs[number])
                    except StopIteration:
                        del runs[number]
                        break
                    if wait:
                        waits[number] = wait
                        break
                    self._done += 1
                    if self.random is not None:
                        break
        if runs:
            self._deadlock(runs, waits)

    def _deadlock(self, runs: Iterable[int], waits: dict[int, str]) -> None:
        """Those whose post never comes first: the others wait for them."""
        stuck = sorted(runs, key=lambda number: "ever come" not in waits[number])
        told = "; ".join(waits[number] for number in stuck[:4])
        more = f"; and {len(stuck) - 4} more" if len(stuck) > 4 else ""
        self._fault(f"deadlock: {len(stuck)} thread block(s) wait for ever: {told}{more}")

    def _run(self, number: int, block: Block) -> Iterator[str]:
        """Yields "" after each instruction, and where it has to wait, for what."""
        me = self._threads[number]
        for step in block.instructions:
            if isinstance(step, Fence):
                me.fence()
            elif isinstance(step, Await):
                yield from self._await(me, step)
            elif isinstance(step, Flush):
                me.learn(self._agents[step.agent].over())
            elif isinstance(step, Post):
                by = self._given(me, step)
                clock = by.clock.copy()
                if step.relaxed and not self.trusting:
                    clock = self._only_starts(clock)
                self._posts.setdefault(step.counter, []).append((number, clock))
            else:
                yield from self._move(self._given(me, step), step)
            yield ""

    def _given(self, me: _Thread, step: Post | Move) -> _Thread:
        """Who does it: the block, or the agent that it is given to, which knows by then what the block knows."""
        if step.agent is None:
            return me
        agent = self._agents[step.agent]
        np.maximum(agent.clock, me.clock, out=agent.clock)
        if isinstance(step, Move):
            agent.fence()  # in its order: what it was given before is over
        else:
            agent.clock[agent.number] += 1
        return agent

    def _only_starts(self, clock: Clock) -> Clock:
        kept = np.zeros_like(clock)
        kept[self._starts] = clock[self._starts]
        return kept

    def _await(self, me: _Thread, step: Await) -> Iterator[str]:
        while len(self._posts.get(step.counter, ())) < step.count:
            total = self._total[step.counter]
            missing = f", and only {total} of {step.count} ever come" if total < step.count else ""
            yield f"{step.where} for {step.counter}{missing}"
        posts = self._posts.get(step.counter, [])[: max(0, step.count)]
        # Of posts by several blocks it is unknown which are the first, unless all are there.
        known = step.counter in self.plan.barriers or len(self._posters.get(step.counter, ())) < 2
        if known or step.count == self._total[step.counter]:
            for _, clock in posts if len(self._posters.get(step.counter, ())) > 1 else posts[-1:]:
                me.learn(self._only_starts(clock) if step.relaxed and not self.trusting else clock)

    def _move(self, me: _Thread, step: Move) -> Iterator[str]:
        for piece in range(step.size):
            values: list[V] = []
            read: set[tuple[Cell, str]] = set()
            for span in step.operands:
                cell = self.plan.place(span.rank, span.buffer, span.start + piece)
                if span.packet:
                    while cell not in self._packets:
                        yield f"{step.where} for the packet {_cell(cell)}"
                    values.append(self._packets[cell])
                    read |= self._flows.get((cell, True), set())
                else:
                    self._touch(cell, self._access(me, step, piece), me.clock)
                    values.append(self._values.get(cell, self.unset))
                    if self._has_packets:
                        read |= {(cell, step.where)} | self._flows.get((cell, False), set())
            total = values[0]
            for value in values[1:]:
                total = self.combine(total, value, step.where)
            for span in step.stores:
                cell = self.plan.place(span.rank, span.buffer, span.start + piece)
                if span.packet:
                    self._put_packet(cell, step.where, total)
                else:
                    self._touch(cell, self._access(me, step, piece), me.clock, writes=True, known=read)
                    self._values[cell], self.written[cell] = total, step.where
                if read:  # all of them over when a packet with this value is there
                    self._flows[cell, span.packet] = read

    def _access(self, me: _Thread, step: Move, piece: int) -> _Access:
        return _Access(me.number, int(me.clock[me.number]), step.where, piece, step.switch)

    def _put_packet(self, cell: Cell, where: str, value: V) -> None:
        if cell in self._packets:
            self._fault(f"race: {where} writes the packet {_cell(cell)} again, under the same flag")
        self._packets[cell] = value

    def _touch(
        self,
        cell: Cell,
        access: _Access,
        clock: Clock,
        writes: bool = False,
        known: Set[tuple[Cell, str]] = frozenset(),
    ) -> None:
        """Notes an access; a fault if it is in no order with an earlier one, and one of them writes.

        ``known``: reads that are over, since what is written went through them.
        """

        def meets(other: _Access) -> bool:
            same = (other.by, other.piece) == (access.by, access.piece)
            return not same and bool(clock[other.thread] <= other.segment)

        told = f"{access.by} {'writes' if writes else 'reads'} {_cell(cell)}"
        if not clock[len(self.plan.blocks) + cell[0]]:
            self._race(told, f"GPU {cell[0]} may not have begun: no wait says so")
        before = self._wrote.get(cell)
        if before is not None and meets(before):
            self._race(told, f"{before.by} writes it; nothing orders them")
        readers = self._read.setdefault(cell, {})
        if not writes:
            readers[access.thread] = access
            return
        for reader in readers.values():
            if (cell, reader.by) not in known and meets(reader):
                self._race(told, f"{reader.by} reads it; nothing orders them")
        readers.clear()
        self._wrote[cell] = access

    def _race(self, one: str, other: str) -> None:
        key = one.partition("[")[0], other
        if key not in self._races:
            self._races.add(key)
            self._fault(f"race: {one}, and {other}")

    def _check_end(self) -> None:
        """All signals are waited for, and a rank may end only when others are done with its memory."""
        for counter in self.plan.lasting:
            posts, waits = self._total[counter], self._awaited[counter]
            if posts > waits:
                self._fault(
                    f"unbalanced: {counter} are {posts}, and {waits} are waited for: the next run begins with the rest"
                )
        ends: list[Clock] = [np.zeros(len(self._threads), np.int32) for _ in range(self._ranks)]
        for thread, block in zip(self._threads, self.plan.blocks, strict=False):
            np.maximum(ends[block.rank], thread.over(), out=ends[block.rank])
        for cells, verb in (
            (self._wrote.items(), "writes"),
            (((cell, access) for cell, found in self._read.items() for access in found.values()), "reads"),
        ):
            for cell, access in cells:
                if ends[cell[0]][access.thread] <= access.segment:
                    told = f"{access.by} {verb} {_cell(cell)}", f"GPU {cell[0]} may be done: no wait holds it"
                    if access.switch and not self.trusting:
                        self.unpromised.append(f"race: {told[0]}, and {told[1]}")
                    else:
                        self._race(*told)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def _cell(cell: Cell) -> str:
    rank, buffer, index = cell
    return f"{buffer}[{index}] of GPU {rank}"
