"""A program for one size as messages and reductions, for exports to network simulators.

Every execution of a role becomes tasks of its vertex: a receive per incoming message, a *calc* if it reduces operands,
and a send per outgoing message. A task begins after all tasks in its ``after``:

- Data arcs of the program: a calc waits for the receives of its execution; a send waits for the calc, or without
  one for the receive. Between two vertices the message itself is the arc.
- Queue order: a send or receive waits for the previous one of its queue at its vertex. A calc waits for the calc of the
  role's previous chunk, because a role handles chunks in order.
- Stream order: a calc that takes time waits for its role's first send of the previous chunk, because the queue's stream
  does both.

So a queue has one message in flight at a time, as a stream of the simulator has. Two facts are missing: the limit of
``slots`` messages per queue, since such formats have no dependences between vertices other than messages; and the
memory of messages on their way (staged queues). Tags number the messages by queue, then by chunk.
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

#: Limit on messages and reductions of one export, at some 100 bytes each.
MOST_TASKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """One operation of a vertex.

    ``peer`` is the vertex at the other end; it is -1 for a calc, and so are ``queue`` and ``tag``. Each message has its
    own tag. ``size_bytes`` is the size of the message, or of each operand that a calc reduces in ``seconds``. ``after``
    holds indices into the vertex's list, ascending and smaller than the task's own.
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
    """A bound program, unrolled: ``tasks[v]`` for rank v or, after the ranks, for relay v − N, in a valid order.

    ``costs`` are the costs of its reductions.
    """

    bound: Bound
    costs: CombiningCosts
    tasks: tuple[tuple[Task, ...], ...]

    @property
    def program(self) -> Program:
        return self.bound.program

    @property
    def size_bytes(self) -> int:
        """S as moved: the user's size, rounded to whole elements with equal counts in all blocks."""
        return self.bound.count * self.bound.itemsize * self.program.collective.total_blocks()


def messages(program: Program, forest: Forest, choices: Choices) -> Messages:
    """The program for the size in ``choices``.

    UnsupportedError for in-network reduction, UsageError for a size that moves nothing, LimitError for more than
    :data:`MOST_TASKS`. Cost: linear in tasks.
    """
    if program.combining:
        raise UnsupportedError(
            f"the plan reduces in switches {list(program.combining)}, but simulators have only messages between "
            "hosts; plan with another algorithm than in_switch"
        )
    size, bound, costs = choices.size_bytes, choices.bound, choices.costs
    assert bound is not None  # Computed by the caller.
    assert costs is not None
    if not bound.tasks:
        raise UsageError(f"{size} bytes are fewer than one element per block, so nothing moves; give a larger size")
    if bound.tasks > MOST_TASKS:
        raise LimitError(
            f"{size:,} bytes are {bound.tasks:,} messages and reductions, more than {MOST_TASKS:,}; give a larger "
            "--chunk"
        )
    first_tag = _first_tags(bound)
    roles: list[list[Role]] = [[] for _ in program.vertices]
    for role in program.roles:
        roles[role.rank].append(role)
    by_vertex = (_Vertex(bound, costs, first_tag, own).tasks for own in roles)
    return Messages(bound, costs, tuple(map(tuple, by_vertex)))


def _first_tags(bound: Bound) -> Sequence[int]:
    """Tag of each queue's first message; its other messages have the following tags."""
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
        """Append the queue's next message; return its index."""
        before, ends, after = self._last.get(queue), self.bound.program.queues[queue], ready
        # A predecessor that the calc already waits for needs no second dependence.
        if before is not None and all(before not in self.tasks[place].after for place in ready):
            after = tuple(sorted((before, *ready)))
        tag = self.first_tag[queue] + self._through[queue]
        peer = ends.dst if kind == "send" else ends.src
        self._through[queue] += 1
        self._last[queue] = len(self.tasks)
        self.tasks.append(Task(kind, peer, queue, tag, size_bytes, 1, 0.0, after))
        return self._last[queue]

    def _seconds(self, count: int, size_bytes: int) -> float:
        """Seconds that the simulator charges for reducing ``count`` operands."""
        rate = self.costs.gb_per_s * 1e9
        return self.costs.us * 1e-6 + (size_bytes * (count + 1) / 3 / rate if rate else 0.0)


def remarks(unrolled: Messages, forest: Forest) -> Iterator[str]:
    """Lines of comment that describe the file."""
    program, bound, costs = unrolled.program, unrolled.bound, unrolled.costs
    label = {vertex.id: vertex.label for vertex in forest.topology.vertices}
    coll = program.collective
    root = "" if coll.root is None else f", root {coll.root}"
    yield (
        f"{coll.name} of {unrolled.size_bytes:,} bytes among {len(program.ranks)} ranks of {forest.topology.name}, by "
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
