"""Relays on one host: what a vertex outside the job would pass on, a rank's process copies.

A relay's role runs in the process of the rank that takes what it passes on, as one more stage there: it fetches the
message from the slot where the sender stored it, and stores it again in a slot of a queue from that rank to itself.
So the bytes move as often as through the relay's memory, and the slots, executions and order of messages are those of
the Program. Only who does the work differs, so which work waits for which is proved anew.
"""

from __future__ import annotations

from dataclasses import replace

from blinkccl.errors import UnsupportedError
from blinkccl.schedule.liveness import liveness_fault
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.wiring import connect


def relays_at_ranks(program: Program) -> Program:
    """``program`` with the roles of relays at ranks. The verifier would refuse it for its queues from a rank to itself.

    UnsupportedError if it cannot deadlock with relays of their own, but can with ranks that do their work.
    """
    if not program.relays:
        return program
    ranks = len(program.ranks)
    takers = {queue: role for role in program.roles for queue in role.receives}

    def at(role: Role) -> int:
        for _ in range(len(program.roles)):  # a bound instead of a test: broken programs may hold a cycle
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
        raise UnsupportedError(f"ranks cannot do the work of relays {list(program.relays)} here: {fault}")
    return hosted
