"""Whether the stores and loads of generated code take the paths that a program promises its rate on.

Generated code knows queues by their ends and their home, the memory in which messages lie. Into the receiver's the
sender's threads store (the queue is pushed), from the sender's the receiver's threads load (it is pulled), and into a
processor's the one side stores what the other loads (it is staged); over whatever way the hardware has. A program whose
queues lie on other paths would run, but not at its rate.
"""

from __future__ import annotations

from blinkccl.errors import UnsupportedError
from blinkccl.schedule.program import Program
from blinkccl.topology.memories import store_fault
from blinkccl.topology.model import Topology


def require_direct_stores(program: Program, topology: Topology) -> None:
    """Refuse a program with a queue whose path on ``topology`` no store or load takes, naming what these do not cross.

    For code that GPUs are to run. Engine ``generated`` runs the same text in the memory of one host, where every pair
    reaches each other, and promises no rate.
    """
    if program.relays:
        labels = ", ".join(topology.vertex[vertex].label for vertex in program.relays)
        raise UnsupportedError(f"data goes on at {labels}, where no kernel of the job runs; plan without --relays")
    for number, queue in enumerate(program.queues):
        fault = next(filter(None, (store_fault(topology, leg) for leg in queue.legs)), None)
        if queue.is_staged and topology.vertex[queue.home].kind == "gpu":
            way, label = " → ".join(map(str, queue.path)), topology.vertex[queue.home].label
            fault = f"its path {way} leads through {label}, which is outside the job"
        if fault is not None:
            ends = program.vertices
            raise UnsupportedError(
                f"queue {number}, from GPU {ends[queue.src]} to GPU {ends[queue.dst]}: {fault}, so generated code "
                "cannot have the plan's rate; plan with --links fast, without --relays, or with --topo of a machine "
                "without this link (libblink.so plans so by itself)"
            )
