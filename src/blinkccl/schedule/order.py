"""Proof of the order in which a Program sums each element: one pass over roles with symbols instead of numbers.

:mod:`blinkccl.trees.forest.order` defines an order. A program is *order-invariant* if the complete value of every slice
has the same order on every rank that keeps it. Sizes, chunks, slots and engines cannot change the order:
:func:`~blinkccl.schedule.chunking.bind` never cuts an element, each execution of a role folds the same operands, and
every engine computes the result of :func:`~blinkccl.collectives.ops.fold`. The slice of an element depends on the size,
so all slices need the same order.

An average divides in the role that completes the reduction, before that role rounds. If another role has rounded the
value before, the completing role rounds once more: a list of one operand, in its own parentheses.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.schedule.program import Program
from blinkccl.schedule.wiring import connect, in_data_order, name_role
from blinkccl.trees.forest.order import Orders, shortened


def kept_orders(program: Program) -> dict[tuple[int, int], str]:
    """The order, by vertex ids, of the value that each (rank, slice) of a valid program keeps; {} without reduction."""
    if not program.collective.reduces:
        return {}
    pass_ = _symbols(program)
    return {
        (role.rank, role.slice): pass_.orders.text(order)
        for order, role in zip(pass_.values, program.roles, strict=True)
        if role.keeps
    }


def order_of(program: Program) -> str | None:
    """The order of all elements of a valid program; None if there are several orders, "" without reduction."""
    orders = tuple(dict.fromkeys(kept_orders(program).values()))
    return None if len(orders) > 1 else "".join(orders)


def order_faults(program: Program, wanted: str | None = None) -> list[str]:
    """One sentence for every role of a valid program that keeps a value of another order than ``wanted``.

    None stands for the order of the first role that keeps a value. The sentence names the role that departs.
    """
    if not program.collective.reduces:
        return [] if not wanted else [f"{program.collective.name} sums nothing, so it has no order {wanted}"]
    pass_ = _symbols(program)
    keepers = [(index, order) for index, order in enumerate(pass_.values) if program.roles[index].keeps]
    texts = {order: pass_.orders.text(order) for order in dict.fromkeys(order for _, order in keepers)}
    right = next((order for order in texts if wanted in (None, texts[order])), None)
    expected = texts[right] if right is not None else wanted
    allowed = frozenset[int]() if right is None else pass_.orders.parts(right)
    faults = []
    for index, order in keepers:
        if order == right:
            continue
        text = f"{name_role(program, index)}: it keeps slice {program.roles[index].slice} summed as "
        text += f"{shortened(texts[order])}, expected {shortened(expected or '')}"
        at = next((role for role in pass_.order if _departs(pass_, program, role, index, allowed)), None)
        if at is not None and allowed:
            text += f"; {name_role(program, at)} departs: {shortened(pass_.orders.text(pass_.values[at]))}"
        faults.append(text)
    return faults


def _departs(pass_: _Pass, program: Program, role: int, keeper: int, allowed: frozenset[int]) -> bool:
    return program.roles[role].slice == program.roles[keeper].slice and pass_.values[role] not in allowed


@dataclass(frozen=True, slots=True)
class _Pass:
    """The order of every role's value, and roles with senders before receivers."""

    orders: Orders
    values: list[int]
    order: list[int]


def _symbols(program: Program) -> _Pass:
    """The steps of an engine for one chunk of every slice, with symbols instead of numbers."""
    orders, roles, wiring = Orders(program.ranks), program.roles, connect(program)
    tails: list[dict[int, int]] = [{} for _ in roles]
    for arc in wiring.data:
        tails[arc.head][arc.queue] = arc.tail
    values, order = [0] * len(roles), in_data_order(program, wiring)
    for index in order:
        role = roles[index]
        operands = [values[tails[index][queue]] for queue in role.receives]
        if role.contributes:
            operands.insert(role.own_operand_index, role.rank)
        values[index] = orders.listed(tuple(operands), collapse=not role.completes)
    return _Pass(orders, values, order)
