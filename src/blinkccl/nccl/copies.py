"""Whether copy engines can run a job, and each of its programs: what ``copy_engine.h`` of libblink.so refuses, before.

They serve no two ranks of a process on one GPU, whose queues both would share. Of a program they ask that a connection
has one role at each end and that its messages, and the own data that its results replace, go in no circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from blinkccl.codegen.channels import ChannelLoop, channel_loops
from blinkccl.codegen.host_compiler import copies_compiler
from blinkccl.cost.choice.programs import SLOTS
from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import header
from blinkccl.nccl.peer_info import GpuJob
from blinkccl.schedule.program import Program

#: Messages that one reduce kernel takes.
MOST_OPERANDS = header("call.h").constants["kMostOperands"]

#: An execution: rank, channel, place in its loop.
_Node = tuple[int, int, int]


def fault_of_job(job: GpuJob) -> str | None:
    """Why copy engines run no program of this job; a sentence without full stop. None: they may."""
    try:
        copies_compiler()
    except UnsupportedError as error:
        return fault_of_sharing(job) or f"copy engines: {error}"
    return fault_of_sharing(job)


def fault_of_sharing(job: GpuJob) -> str | None:
    """Why copy engines move nothing at all, as that of a job; they take no code to move messages."""
    first: dict[tuple[int, str], int] = {}
    for peer in job.peers:
        other = first.setdefault((peer.pid, peer.uuid), peer.rank)
        if other != peer.rank:
            return (
                f"copy engines serve one rank per GPU of a process, and ranks {other} and {peer.rank} share the GPU "
                f"{peer.bus_id}"
            )
    return None


def fault_of_program(program: Program) -> str | None:
    """Why copy engines cannot run this program; a sentence without full stop. None: they can."""
    if any(queue.home == queue.path[0] for queue in program.queues):
        return "copy engines carry what is pushed or staged, and nothing that is pulled"
    return fault_of_loops(channel_loops(program, SLOTS))


def fault_of_loops(loops: Sequence[ChannelLoop]) -> str | None:
    """As :func:`fault_of_program`, for the loops that are run."""
    senders: dict[int, _Node] = {}
    receivers: dict[int, _Node] = {}
    before: TopologicalSorter[_Node] = TopologicalSorter()
    for loop in loops:
        for place, execution in enumerate(loop.executions):
            role, node = execution.role, (loop.rank, loop.channel, place)
            if len(role.receives) > MOST_OPERANDS:
                return (
                    f"rank {loop.rank} combines {len(role.receives)} messages at once, copy engines at most "
                    f"{MOST_OPERANDS}"
                )
            for used, queues in ((senders, role.sends), (receivers, role.receives)):
                for queue in queues:
                    if queue in used:
                        return f"several roles at one end use queue {queue}, of which copy engines serve one"
                    used[queue] = node
        _order_own_data(loop, before)
    for queue, sender in senders.items():
        before.add(receivers[queue], sender)
    try:
        before.prepare()
    except CycleError:
        return "its messages go in a circle, which copy engines cannot run"
    return None


def _order_own_data(loop: ChannelLoop, before: TopologicalSorter[_Node]) -> None:
    """In place, what is kept comes after all that read the own data; both in the order of time."""
    readers: dict[int, list[_Node]] = {}
    for place, execution in sorted(enumerate(loop.executions), key=lambda numbered: numbered[1].role.offset):
        role, node = execution.role, (loop.rank, loop.channel, place)
        before.add(node, *(readers.get(role.slice, []) if role.keeps else []))
        if role.contributes:
            readers.setdefault(role.slice, []).append(node)
