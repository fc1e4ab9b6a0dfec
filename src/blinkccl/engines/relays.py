"""Relays on one host: a rank's process makes the copies of a vertex outside the job.

A relay's role runs in the process of the rank that receives its messages, as an additional stage. It reads a message
from the slot where the sender stored it, and stores it again in a slot of a queue from that rank to itself. The bytes
are thus copied as often as in the relay's memory, and slots, executions and order of messages are those of the Program.
Because another process does the work, the absence of deadlock is proved again.
"""

from __future__ import annotations

from dataclasses import replace

from blinkccl.errors import UnsupportedError
from blinkccl.schedule.liveness import liveness_fault
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.wiring import connect


def relays_at_ranks(program: Program) -> Program:
    """``program`` with its relays' roles at ranks. The verifier would refuse its queues from a rank to itself.

    UnsupportedError if it can deadlock with ranks that do the relays' work, though not with separate relays.
    """
    if not program.relays:
        return program
    ranks = len(program.ranks)
    takers = {queue: role for role in program.roles for queue in role.receives}

    def at(role: Role) -> int:
        for _ in range(len(program.roles)):  # Bounded, because an invalid program may have a cycle.
            if role.rank < ranks or not role.sends or role.sends[0] not in takers:
                break
            role = takers[role.sends[0]]
        return role.rank if role.rank < ranks else 0

    roles = tuple(replace(role, rank=at(role)) for role in program.roles)
    sender = {queue: role.rank for role in roles for queue in role.sends}
    taker = {queue: role.rank for role in roles for queue in role.receives}
    queues = tuple(
        replace(queue, src=sender.get(number, queue.src), dst=taker.get(number, queue.dst))
        for number, queue in enumerate(program.queues)
    )
    hosted = replace(program, roles=roles, queues=queues, relays=())
    fault = liveness_fault(hosted, connect(hosted))
    if fault is not None:
        raise UnsupportedError(f"the host engine cannot run relays {list(program.relays)} at ranks: {fault}")
    return hosted
