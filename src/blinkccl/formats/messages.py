"""A program for one size as messages and reductions: what exports to simulators of networks share.

Every execution of a role becomes tasks of its vertex: a receive per message that it takes, a *calc* where it combines
operands, a send per message that it gives. A task begins when those in ``after`` have ended:

- a calc after its execution's receives, a send after the calc, or where nothing is combined after the receive: the
  program's data arcs, of which the part between two vertices is the message itself;
- a send or receive after the one before it of the same queue at the same vertex, a calc after that of the role's chunk
  before: a queue is a FIFO, and a role takes one chunk after the other;
- a calc that takes time after its role's first send of the chunk before: the queue's stream does both.

So a queue has one message under way at a time, as a stream of the simulator has. That a queue holds no more than
``slots`` messages is not said: such formats have no dependence on another vertex but a message. Nor is it said where
messages lie on their way (staged queues). Tags count messages by queue, then by chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from blinkccl.errors import LimitError, UnsupportedError, UsageError
from blinkccl.formats.registry import Choices, CombiningCosts
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.program import Program, Role
from blinkccl.trees.forest.model import Forest

#: Messages and reductions of one file, or set of files: some 100 bytes each.
MOST_TASKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """What a vertex does once.

    ``peer`` is the vertex at the other end, -1 of a calc; so are ``queue`` and ``tag``, which no other message has.
    ``size_bytes``: of the message, or of each operand that a calc combines in ``seconds``. ``after``: places in the
    vertex's list, rising, all before its own.
    """

    kind: Literal["send", "recv", "calc"]
    peer: int
    queue: int
    tag: int
    size_bytes: int
    operands: int
    seconds: float
    after: tuple[int, ...]


@dataclass(frozen=True)
class Messages:
    """A bound program, unrolled: ``tasks[v]`` are those of rank v, or after the ranks of relay v − N, in an order.

    ``costs`` are what reductions are charged by.
    """

    bound: Bound
    costs: CombiningCosts
    tasks: tuple[tuple[Task, ...], ...]

    @property
    def program(self) -> Program:
        return self.bound.program

    @property
    def size_bytes(self) -> int:
        """S that is moved: what was asked for, in whole elements that are as many in each block."""
        return self.bound.count * self.bound.itemsize * self.program.collective.total_blocks()


def messages(program: Program, forest: Forest, choices: Choices) -> Messages:
    """The program for the size of ``choices``.

    UnsupportedError for switches that combine, UsageError where the size moves nothing, LimitError beyond
    :data:`MOST_TASKS`. Cost: linear in tasks.
    """
    if program.combining:
        raise UnsupportedError(
            f"the plan combines at switches {list(program.combining)}, and simulators have messages between hosts "
            "alone; plan with another algorithm than in_switch"
        )
    size, bound, costs = choices.size_bytes, choices.bound, choices.costs
    assert bound is not None  # Whoever asks has found both for the size.
    assert costs is not None
    if not bound.tasks:
        raise UsageError(f"{size} bytes move nothing: fewer than one element per block")
    if bound.tasks > MOST_TASKS:
        raise LimitError(
            f"{size:,} bytes are {bound.tasks:,} messages and reductions, more than {MOST_TASKS:,}: take a larger "
            "--chunk"
        )
    first_tag = _first_tags(bound)
    roles: list[list[Role]] = [[] for _ in program.vertices]
    for role in program.roles:
        roles[role.rank].append(role)
    tasks = (_Vertex(bound, costs, first_tag, mine).tasks for mine in roles)
    return Messages(bound, costs, tuple(tuple(found) for found in tasks))


def _first_tags(bound: Bound) -> Sequence[int]:
    """That of each queue's first message; the others follow it."""
    chunks = [0] * len(bound.program.queues)
    for role in bound.program.roles:
        for queue in role.sends:
            chunks[queue] += bound.extents[role.slice].chunks
    return tuple(accumulate(chunks, initial=0))


class _Vertex:
    """The tasks of one vertex, execution by execution."""

    def __init__(self, bound: Bound, costs: CombiningCosts, first_tag: Sequence[int], roles: Sequence[Role]) -> None:
        self.bound, self.costs, self.first_tag = bound, costs, first_tag
        self.tasks: list[Task] = []
        self._last: dict[int, int] = {}
        self._last_calc: dict[int, int] = {}
        self._through: Counter[int] = Counter()
        for place, _, elements in bound.executions(roles):
            size_bytes = (elements.stop - elements.start) * bound.itemsize
            self._execute(place, roles[place], size_bytes)

    def _execute(self, place: int, role: Role, size_bytes: int) -> None:
        ready = tuple(self._message("recv", queue, size_bytes, ()) for queue in role.receives)
        if role.operands > 1:
            seconds = self._seconds(role.operands, size_bytes)
            before = self._last.get(role.sends[0]) if seconds and role.sends else self._last_calc.get(place)
            after = ready if before is None else (before, *ready)
            self._last_calc[place] = len(self.tasks)
            ready = (len(self.tasks),)
            self.tasks.append(Task("calc", -1, -1, -1, size_bytes, role.operands, seconds, after))
        for queue in role.sends:
            self._message("send", queue, size_bytes, ready)

    def _message(self, kind: Literal["send", "recv"], queue: int, size_bytes: int, ready: tuple[int, ...]) -> int:
        """Adds the queue's next message; its place."""
        before, ends, after = self._last.get(queue), self.bound.program.queues[queue], ready
        # What a calc of the queue's stream has waited for needs no second word.
        if before is not None and all(before not in self.tasks[place].after for place in ready):
            after = tuple(sorted((before, *ready)))
        tag = self.first_tag[queue] + self._through[queue]
        peer = ends.dst if kind == "send" else ends.src
        self._through[queue] += 1
        self._last[queue] = len(self.tasks)
        self.tasks.append(Task(kind, peer, queue, tag, size_bytes, 1, 0.0, after))
        return self._last[queue]

    def _seconds(self, count: int, size_bytes: int) -> float:
        """What the simulator charges an execution that combines ``count`` operands."""
        rate = self.costs.gb_per_s * 1e9
        return self.costs.us * 1e-6 + (size_bytes * (count + 1) / 3 / rate if rate else 0.0)


def remarks(found: Messages, forest: Forest) -> Iterator[str]:
    """What a file says of itself, in lines."""
    program, bound, costs = found.program, found.bound, found.costs
    label = {vertex.id: vertex.label for vertex in forest.topology.vertices}
    coll = program.collective
    root = "" if coll.root is None else f", root {coll.root}"
    yield (
        f"{coll.name} of {found.size_bytes:,} bytes among {len(program.ranks)} ranks of {forest.topology.name}, by "
        f"{forest.algorithm}{root}. Made by Blink."
    )
    yield f"ranks: {', '.join(f'{rank} is {label[vertex]}' for rank, vertex in enumerate(program.ranks))}"
    if program.relays:
        relays = enumerate(program.relays, len(program.ranks))
        yield f"relays, outside the job: {', '.join(f'{rank} is {label[vertex]}' for rank, vertex in relays)}"
    most = max(min(extent.length, extent.chunk_elements) for extent in bound.extents) * bound.itemsize
    yield f"chunks of up to {most:,} bytes; a message waits for its data and for the one before it in its queue"
    pace = f"1 ns for {costs.gb_per_s:g} bytes of result" if costs.gb_per_s else "nothing more"
    yield f"combining two operands takes {costs.us:g} us and {pace} (calibration {costs.name})"
