"""Export of a plan for one size as a GOAL schedule (Group Operation Assembly Language), for LogGOPSim, ATLAHS, htsim.

Format (Hoefler, Siebert, Lumsdaine: Group Operation Assembly Language, ICPP 2009; as read by ``txt2bin`` of
github.com/spcl/LogGOPSim): one block per rank, ascending, with ``send``, ``recv`` and ``calc`` (ns). ``a requires b``
means that a begins after the end of b. Each statement and each comment has a line of its own.
:mod:`blinkccl.formats.messages` defines the dependences and their gaps. All tags differ, so messages match in any
order of delivery. Relays are hosts after the ranks.

``cpu`` and ``nic`` are ports. LogGOPSim uses a send's ports for the arrival too, and a message occupies the processor
while its bytes arrive. So the links of a GPU run in parallel only if each has its own number, equal at both ends.
Ports joined by messages form one class, and classes that meet at a vertex get different numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.errors import UnsupportedError
from blinkccl.formats.messages import Messages, Task, messages, remarks
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest

#: txt2bin stores cpu and nic in one byte each.
MOST_PORTS = 256

#: A vertex, and its neighbour on a path to or from another vertex.
Port = tuple[int, int]


def write(program: Program, forest: Forest, _machine: Topology | None, choices: Choices) -> tuple[File, ...]:
    """One file; see :class:`blinkccl.formats.registry.Write`, and :func:`blinkccl.formats.messages.messages`."""
    unrolled = messages(program, forest, choices)
    ports = port_numbers(program)
    lines = [f"// {line}" for line in remarks(unrolled, forest)]
    lines += ["// cpu and nic: the port of the link that a message takes", f"num_ranks {len(unrolled.tasks)}"]
    for rank in range(len(unrolled.tasks)):
        lines += ["", f"rank {rank} {{", *_rank(unrolled, rank, ports), "}"]
    return (File(f"{program.collective.name}.goal", "\n".join(lines) + "\n"),)


def _rank(unrolled: Messages, rank: int, ports: tuple[int, ...]) -> Iterator[str]:
    tasks = unrolled.tasks[rank]
    for place, task in enumerate(tasks):
        if task.kind == "calc":
            # The port of its last operand.
            port = ports[tasks[task.after[-1]].queue]
            yield f"l{place}: calc {round(task.seconds * 1e9)} cpu {port}"
        else:
            yield f"l{place}: {_message(task)} tag {task.tag} cpu {ports[task.queue]} nic {ports[task.queue]}"
        yield from (f"l{place} requires l{before}" for before in task.after)


def _message(task: Task) -> str:
    return f"{task.kind} {task.size_bytes}b {'to' if task.kind == 'send' else 'from'} {task.peer}"


def port_numbers(program: Program) -> tuple[int, ...]:
    """Each queue's port: joined ports share one number, and the ports of a vertex have different ones.

    UnsupportedError if that needs more than :data:`MOST_PORTS`.
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
        raise UnsupportedError(f"GOAL has {MOST_PORTS} ports per rank, but the plan's links need more")
    return tuple(number[top((queue.path[0], queue.path[1]))] for queue in program.queues)
