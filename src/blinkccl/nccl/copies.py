"""Checks that copy engines can run a job and its programs, ahead of the same checks in ``copy_engine.h``.

Copy engines do not serve two ranks of a process on one GPU, which would share its queues. A connection of their
programs must have one role at each end. Messages, and own data that results replace, must form no cycle.
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

#: Maximum messages of one reduce kernel.
MOST_OPERANDS = header("call.h").constants["kMostOperands"]

#: An execution: rank, channel, place in its loop.
_Node = tuple[int, int, int]


def fault_of_job(job: GpuJob) -> str | None:
    """The reason that copy engines run no program of this job, as a sentence without full stop; None if they can."""
    try:
        copies_compiler()
    except UnsupportedError as error:
        return fault_of_sharing(job) or f"copy engines: {error}"
    return fault_of_sharing(job)


def fault_of_sharing(job: GpuJob) -> str | None:
    """The reason that copy engines move nothing in this job, or None; messages need no compiled code."""
    first: dict[tuple[int, str], int] = {}
    for peer in job.peers:
        other = first.setdefault((peer.pid, peer.uuid), peer.rank)
        if other != peer.rank:
            return (
                f"copy engines serve one rank per GPU of a process, but ranks {other} and {peer.rank} share the GPU "
                f"{peer.bus_id}"
            )
    return None


def fault_of_program(program: Program) -> str | None:
    """The reason that copy engines cannot run this program, as a sentence without full stop; None if they can."""
    if any(queue.home == queue.path[0] for queue in program.queues):
        return "copy engines push or stage messages, but this program pulls some"
    return fault_of_loops(channel_loops(program, SLOTS))


def fault_of_loops(loops: Sequence[ChannelLoop]) -> str | None:
    """The same as :func:`fault_of_program`, for the program's loops."""
    senders: dict[int, _Node] = {}
    receivers: dict[int, _Node] = {}
    before: TopologicalSorter[_Node] = TopologicalSorter()
    for loop in loops:
        for place, execution in enumerate(loop.executions):
            role, node = execution.role, (loop.rank, loop.channel, place)
            if len(role.receives) > MOST_OPERANDS:
                return (
                    f"rank {loop.rank} reduces {len(role.receives)} messages at once, but copy engines reduce at most "
                    f"{MOST_OPERANDS}"
                )
            for used, queues in ((senders, role.sends), (receivers, role.receives)):
                for queue in queues:
                    if queue in used:
                        return f"several steps use one end of queue {queue}, but copy engines allow one step"
                    used[queue] = node
        _order_own_data(loop, before)
    for queue, sender in senders.items():
        before.add(receivers[queue], sender)
    try:
        before.prepare()
    except CycleError:
        return "its messages form a cycle, which copy engines cannot run"
    return None


def _order_own_data(loop: ChannelLoop, before: TopologicalSorter[_Node]) -> None:
    """Add the order of in-place calls: results are kept after all reads of the own data, both in the order of time."""
    readers: dict[int, list[_Node]] = {}
    for place, execution in sorted(enumerate(loop.executions), key=lambda numbered: numbered[1].role.offset):
        role, node = execution.role, (loop.rank, loop.channel, place)
        before.add(node, *(readers.get(role.slice, []) if role.keeps else []))
        if role.contributes:
            readers.setdefault(role.slice, []).append(node)
