"""A plan for one size as a GOAL schedule (Group Operation Assembly Language), for LogGOPSim, ATLAHS and htsim.

The format (Hoefler, Siebert, Lumsdaine: Group Operation Assembly Language, ICPP 2009; as ``txt2bin`` of
github.com/spcl/LogGOPSim reads it): a block per rank in rising order, with ``send``, ``recv`` and ``calc`` (ns), and
``a requires b`` where a begins after the end of b. A line holds one of these, and a comment has a line of its own. What
a message waits for, and what is not said, is in :mod:`blinkccl.formats.messages`; all tags differ, so that no order in
which a network delivers makes another match. Relays are hosts behind the ranks.

``cpu`` and ``nic`` are ports. LogGOPSim takes those of the send for the arrival too, and has the processor of a message
busy as long as its bytes come in. So the links of a GPU work side by side only if each has a number of its own, which
is the same at both ends: the ports that messages join are one class, and classes that meet at a vertex differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.errors import UnsupportedError
from blinkccl.formats.messages import Messages, Task, messages, remarks
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest

#: txt2bin keeps cpu and nic in a byte.
MOST_PORTS = 256

#: A vertex, and its neighbour on the way to or from another one.
Port = tuple[int, int]


def write(program: Program, forest: Forest, _machine: Topology | None, choices: Choices) -> tuple[File, ...]:
    """One file; see :class:`blinkccl.formats.registry.Write`, and :func:`blinkccl.formats.messages.messages`."""
    found = messages(program, forest, choices)
    ports = port_numbers(program)
    lines = [f"// {line}" for line in remarks(found, forest)]
    lines += ["// cpu and nic: the port of the link that a message takes", f"num_ranks {len(found.tasks)}"]
    for rank in range(len(found.tasks)):
        lines += ["", f"rank {rank} {{", *_rank(found, rank, ports), "}"]
    return (File(f"{program.collective.name}.goal", "\n".join(lines) + "\n"),)


def _rank(found: Messages, rank: int, ports: tuple[int, ...]) -> Iterator[str]:
    tasks = found.tasks[rank]
    for place, task in enumerate(tasks):
        if task.kind == "calc":
            # Where its operand came in last.
            port = ports[tasks[task.after[-1]].queue]
            yield f"l{place}: calc {round(task.seconds * 1e9)} cpu {port}"
        else:
            yield f"l{place}: {_message(task)} tag {task.tag} cpu {ports[task.queue]} nic {ports[task.queue]}"
        yield from (f"l{place} requires l{before}" for before in task.after)


def _message(task: Task) -> str:
    return f"{task.kind} {task.size_bytes}b {'to' if task.kind == 'send' else 'from'} {task.peer}"


def port_numbers(program: Program) -> tuple[int, ...]:
    """Each queue's port: one number for all ports that queues join, and different ones at a vertex.

    UnsupportedError where that takes more than :data:`MOST_PORTS`.
    """
    above: dict[Port, Port] = {}

    def top(port: Port) -> Port:
        while above.setdefault(port, port) != port:
            port = above[port]
        return port

    for queue in program.queues:
        above[top((queue.path[0], queue.path[1]))] = top((queue.path[-1], queue.path[-2]))
    classes: dict[Port, dict[int, None]] = {}
    for vertex, neighbour in above:
        classes.setdefault(top((vertex, neighbour)), {})[vertex] = None
    number: dict[Port, int] = {}
    taken: dict[int, set[int]] = {}
    for port, vertices in classes.items():
        used = set().union(*(taken.setdefault(vertex, set()) for vertex in vertices))
        number[port] = next(free for free in range(len(used) + 1) if free not in used)
        for vertex in vertices:
            taken[vertex].add(number[port])
    if max(number.values(), default=0) >= MOST_PORTS:
        raise UnsupportedError(f"GOAL has {MOST_PORTS} ports per rank, and the plan's links need more")
    return tuple(number[top((queue.path[0], queue.path[1]))] for queue in program.queues)
