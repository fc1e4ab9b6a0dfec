"""Whether the stores of generated code take the paths that a program promises its rate on.

Generated code knows queues by their ends alone: the sender's threads store into the receiver's memory, over whatever
way the hardware has between the two. A program whose queues lie on other paths would run, but not at its rate.
"""

from __future__ import annotations

from blinkccl.errors import UnsupportedError
from blinkccl.schedule.program import Program
from blinkccl.topology.memories import store_fault
from blinkccl.topology.model import Topology


def require_direct_stores(program: Program, topology: Topology) -> None:
    """Refuse a program with a queue whose path on ``topology`` no store takes, naming what a store does not cross.

    For code that GPUs are to run. Engine ``generated`` runs the same text in the memory of one host, where every pair
    reaches each other, and promises no rate.
    """
    for number, queue in enumerate(program.queues):
        fault = store_fault(topology, queue.path)
        if fault is not None:
            ends = program.vertices
            raise UnsupportedError(
                f"queue {number}, from GPU {ends[queue.src]} to GPU {ends[queue.dst]}: {fault}, so generated code "
                "cannot have the plan's rate; plan with --links fast, without --relays, or with --topo of a machine "
                "without this link (libblink.so plans so by itself)"
            )
