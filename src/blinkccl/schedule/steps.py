"""A role as single actions, for whoever needs them one by one: exporters, code generators, people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blinkccl.schedule.program import Program, Role

#: In the order in which a role has them.
ACTIONS = ("copy_in", "recv", "reduce", "complete", "copy_out", "send")


@dataclass(frozen=True, slots=True)
class Step:
    """One action of one firing.

    Parameters
    ----------
    number
        The role's index in its rank's body: the step that the law's messages name.
    role
        The role that this is an action of; its offset says in which tick it works on which chunk.
    action
        ``copy_in``: value = own input. ``recv``: value = message. ``reduce``: value = value ∘ message, or
        value ∘ own input where ``queue`` is None. ``complete``: the reduction is complete; an average is divided.
        ``copy_out``: own output = value. ``send``: append value.
    queue
        For recv and send, and for reduce with a message; else None.
    """

    number: int
    role: Role
    action: str
    queue: int | None = None


def steps(program: Program, rank: int) -> Iterator[Step]:
    """The actions of one tick of ``rank``, in order; chunk ``t − role.offset`` in tick t."""
    for number, role in enumerate(program.body[rank]):
        operands: list[int | None] = list(role.receives)
        if role.contributes:
            operands.insert(role.turn, None)
        for place, queue in enumerate(operands):
            first = "copy_in" if queue is None else "recv"
            yield Step(number, role, "reduce" if place else first, queue)
        if role.completes:
            yield Step(number, role, "complete")
        if role.keeps:
            yield Step(number, role, "copy_out")
        for queue in role.sends:
            yield Step(number, role, "send", queue)
