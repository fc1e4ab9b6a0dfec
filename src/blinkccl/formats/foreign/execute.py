"""Reference semantics of instruction lists: executes one on any values and reports accesses without order.

One thread runs all blocks, so a run is one of many possible ones. The values are the same in all runs if no two
accesses of a chunk lack an order. Vector clocks (Lamport 1978; Mattern 1989) decide that for all runs at once: a clock
holds, for every thread block, how many of its *segments* (instructions between two fences) are known to be over.
Deadlocks do not depend on the run either: counters only grow, so a block that can continue stays able to, regardless of
others.
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
#: Remedies for faults, by kind.
REMEDIES = {
    "deadlock": "add the missing post (signal, sem_release) of a wait, before any instruction that depends on the wait",
    "race": "order both accesses (signal and wait, a semaphore or a barrier), "
    "with a fence (nop) between the wait and the access",
    "wrong result": "trace the chunk back from the instruction that wrote it: its source, its offset, and any "
    "missing or duplicate earlier step",
    "unbalanced": "wait exactly once for each signal",
}
#: Limit on reported faults of one list.
MOST_FAULTS = 100
#: Limits on chunks moved in total (some 20 µs each), and on entries of all clocks (4 bytes each).
MOST_MOVED, MOST_KNOWN = 4_000_000, 2**28


@dataclass(frozen=True, slots=True)
class _Access:
    """The last access of a chunk: thread, segment, instruction, index of the chunk in it, and use of a switch."""

    thread: int
    segment: int
    by: str
    piece: int
    switch: bool


@dataclass(slots=True, eq=False)
class _Thread:
    """A block or an agent: the segments known to be over, and the knowledge that the next fence adds."""

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
        """The clock once the present segment is over too."""
        clock = self.clock.copy() if self.pending is None else np.maximum(self.clock, self.pending)
        clock[self.number] += 1
        return clock


class PlanExecution(Generic[V]):
    """One execution.

    Parameters
    ----------
    plan
        The instruction list, with all chunks in range; readers check that.
    load
        Gives the value of a chunk of a rank's input.
    combine
        Reduces two values at an instruction.
    seed
        None: blocks run in turn, each as far as possible. A number: one instruction at a time, in a random order.
    trusting
        Relaxed signals order data, too.

    Attributes
    ----------
    faults
        Sentences about deadlocks, signals without a wait, and accesses without order; empty for a correct list. Each
        begins with its kind, a key of :data:`REMEDIES`.
    unpromised
        Further accesses without order: through a switch, and possibly unfinished when the other GPU ends.
    written
        The instruction that last wrote each chunk.

    Raises
    ------
    ScheduleError
        If the list is too large for minutes and a gigabyte: :data:`MOST_MOVED`, :data:`MOST_KNOWN`.
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
        # The root may be another rank than the file's; so every rank has data.
        blocks = 1 if coll.root is not None else coll.input_blocks(0)
        self._held = plan.chunks * max(blocks, coll.output_blocks(0))
        self._prepare()
        for rank in range(self._ranks):
            for index in range(blocks * plan.chunks):
                self._values[plan.place(rank, "i", index)] = load(rank, index)
        self._go()
        self._check_end()

    def value(self, rank: int, index: int) -> V:
        """Final value of a chunk of a rank's output."""
        return self._values.get(self.plan.place(rank, "o", index), self.unset)

    def _prepare(self) -> None:
        """Number the threads: the blocks, then one start per rank, then agents."""
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
                f"{size} thread blocks and agents with {len(steps)} instructions on {moved} chunks: too many to check"
            )
        self._starts = slice(len(blocks), len(blocks) + self._ranks)
        self._threads = [_Thread(i, np.zeros(size, np.int32)) for i in range(size)]
        for number, block in enumerate(blocks):
            self._threads[number].clock[len(blocks) + block.rank] = 1
        first = len(blocks) + self._ranks
        self._agents = {name: self._threads[first + place] for name, place in agents.items()}

    def _go(self) -> None:
        """Run all blocks until none can continue."""
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
        """Report a deadlock; blocks whose post never comes are named first, since the others wait for them."""
        stuck = sorted(runs, key=lambda number: "ever sent" not in waits[number])
        named = "; ".join(waits[number] for number in stuck[:4])
        more = f"; and {len(stuck) - 4} more" if len(stuck) > 4 else ""
        self._fault(f"deadlock: {len(stuck)} thread block(s) wait forever: {named}{more}")

    def _run(self, number: int, block: Block) -> Iterator[str]:
        """Yield "" after each instruction; a blocked instruction yields a description of its wait."""
        me = self._threads[number]
        for step in block.instructions:
            if isinstance(step, Fence):
                me.fence()
            elif isinstance(step, Await):
                yield from self._await(me, step)
            elif isinstance(step, Flush):
                me.learn(self._agents[step.agent].over())
            elif isinstance(step, Post):
                by = self._executor(me, step)
                clock = by.clock.copy()
                if step.relaxed and not self.trusting:
                    clock = self._only_starts(clock)
                self._posts.setdefault(step.counter, []).append((number, clock))
            else:
                yield from self._move(self._executor(me, step), step)
            yield ""

    def _executor(self, me: _Thread, step: Post | Move) -> _Thread:
        """The thread that executes the step: the block, or its agent, which then knows all that the block knows."""
        if step.agent is None:
            return me
        agent = self._agents[step.agent]
        np.maximum(agent.clock, me.clock, out=agent.clock)
        if isinstance(step, Move):
            agent.fence()  # agents work in order: its earlier tasks are over
        else:
            agent.clock[agent.number] += 1
        return agent

    def _only_starts(self, clock: Clock) -> Clock:
        starts = np.zeros_like(clock)
        starts[self._starts] = clock[self._starts]
        return starts

    def _await(self, me: _Thread, step: Await) -> Iterator[str]:
        while len(self._posts.get(step.counter, ())) < step.count:
            total = self._total[step.counter]
            missing = f", but only {total} of {step.count} are ever sent" if total < step.count else ""
            yield f"{step.where} for {step.counter}{missing}"
        posts = self._posts.get(step.counter, [])[: max(0, step.count)]
        # If several blocks post, the first posts are unknown until all have come.
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
                if read:  # all these reads are over when a packet with this value arrives
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
        """Record an access; a fault if it lacks an order with an earlier one, and one of both writes.

        ``known``: reads that are over, because the written value depends on them.
        """

        def meets(other: _Access) -> bool:
            same = (other.by, other.piece) == (access.by, access.piece)
            return not same and bool(clock[other.thread] <= other.segment)

        text = f"{access.by} {'writes' if writes else 'reads'} {_cell(cell)}"
        if not clock[len(self.plan.blocks) + cell[0]]:
            self._race(text, f"GPU {cell[0]} may not have begun: no wait ensures it")
        before = self._wrote.get(cell)
        if before is not None and meets(before):
            self._race(text, f"{before.by} writes it; nothing orders them")
        readers = self._read.setdefault(cell, {})
        if not writes:
            readers[access.thread] = access
            return
        for reader in readers.values():
            if (cell, reader.by) not in known and meets(reader):
                self._race(text, f"{reader.by} reads it; nothing orders them")
        readers.clear()
        self._wrote[cell] = access

    def _race(self, one: str, other: str) -> None:
        key = one.partition("[")[0], other
        if key not in self._races:
            self._races.add(key)
            self._fault(f"race: {one}, and {other}")

    def _check_end(self) -> None:
        """Check that all signals are waited for, and that a rank ends only after all accesses to its memory."""
        for counter in self.plan.lasting:
            posts, waits = self._total[counter], self._awaited[counter]
            if posts > waits:
                self._fault(
                    f"unbalanced: {counter}: {posts} sent, but only {waits} waited for; the next run would receive the "
                    "others"
                )
        ends: list[Clock] = [np.zeros(len(self._threads), np.int32) for _ in range(self._ranks)]
        for thread, block in zip(self._threads, self.plan.blocks, strict=False):
            np.maximum(ends[block.rank], thread.over(), out=ends[block.rank])
        for cells, verb in (
            (self._wrote.items(), "writes"),
            (((cell, access) for cell, accesses in self._read.items() for access in accesses.values()), "reads"),
        ):
            for cell, access in cells:
                if ends[cell[0]][access.thread] <= access.segment:
                    sentence = f"{access.by} {verb} {_cell(cell)}", f"GPU {cell[0]} may have ended: no wait prevents it"
                    if access.switch and not self.trusting:
                        self.unpromised.append(f"race: {sentence[0]}, and {sentence[1]}")
                    else:
                        self._race(*sentence)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def _cell(cell: Cell) -> str:
    rank, buffer, index = cell
    return f"{buffer}[{index}] of GPU {rank}"
