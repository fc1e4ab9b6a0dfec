"""The order in which a Program sums each element, proved: one pass over roles, as symbols instead of numbers.

What an order is says :mod:`blinkccl.trees.forest.order`. A program is *order-invariant* if the complete value of every
slice, wherever it is kept, has one and the same order. Sizes, chunks, slots and engines are not looked at, because they
cannot change it: :func:`~blinkccl.schedule.chunking.bind` cuts slices and never an element, each execution of a role
folds the same operands, and every engine computes what :func:`~blinkccl.collectives.ops.fold` says. Which slice an
element falls into depends on the size, and so all slices need the one order.

An average divides where the reduction is completed, before that role rounds. A role that completes what another one
has already rounded is a rounding more: a list of one operand, in parentheses of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.schedule.program import Program
from blinkccl.schedule.wiring import connect, in_data_order, name_role
from blinkccl.trees.forest.order import Orders, shortened


def kept_orders(program: Program) -> dict[tuple[int, int], str]:
    """The order, by vertex ids, of what each (rank, slice) of a valid program keeps; empty where nothing is reduced."""
    if not program.collective.reduces:
        return {}
    pass_ = _symbols(program)
    return {
        (role.rank, role.slice): pass_.orders.text(order)
        for order, role in zip(pass_.made, program.roles, strict=True)
        if role.keeps
    }


def order_of(program: Program) -> str | None:
    """The one order of a valid program; None where elements are summed in several, "" where in none."""
    kept = tuple(dict.fromkeys(kept_orders(program).values()))
    return None if len(kept) > 1 else "".join(kept)


def order_faults(program: Program, wanted: str | None = None) -> list[str]:
    """A sentence for every role of a valid program that keeps a value of another order than ``wanted``.

    It names the role at which the order departs. Without ``wanted``: than the first role that keeps one.
    """
    if not program.collective.reduces:
        return [] if not wanted else [f"{program.collective.name} sums nothing, so it has no order {wanted}"]
    pass_ = _symbols(program)
    kept = [(index, order) for index, order in enumerate(pass_.made) if program.roles[index].keeps]
    texts = {order: pass_.orders.text(order) for order in dict.fromkeys(order for _, order in kept)}
    right = next((order for order in texts if wanted in (None, texts[order])), None)
    expected = texts[right] if right is not None else wanted
    allowed = frozenset[int]() if right is None else pass_.orders.parts(right)
    found = []
    for index, order in kept:
        if order == right:
            continue
        text = f"{name_role(program, index)}: it keeps slice {program.roles[index].slice} summed as "
        text += f"{shortened(texts[order])}, expected {shortened(expected or '')}"
        at = next((role for role in pass_.order if _departs(pass_, program, role, index, allowed)), None)
        if at is not None and allowed:
            text += f"; {name_role(program, at)} departs: {shortened(pass_.orders.text(pass_.made[at]))}"
        found.append(text)
    return found


def _departs(pass_: _Pass, program: Program, role: int, keeper: int, allowed: frozenset[int]) -> bool:
    return program.roles[role].slice == program.roles[keeper].slice and pass_.made[role] not in allowed


@dataclass(frozen=True, slots=True)
class _Pass:
    """The order of every role's value, and roles with senders before receivers."""

    orders: Orders
    made: list[int]
    order: list[int]


def _symbols(program: Program) -> _Pass:
    """What an engine does with numbers, for one chunk of every slice."""
    orders, roles, wiring = Orders(program.ranks), program.roles, connect(program)
    tails: list[dict[int, int]] = [{} for _ in roles]
    for arc in wiring.data:
        tails[arc.head][arc.queue] = arc.tail
    made, order = [0] * len(roles), in_data_order(program, wiring)
    for index in order:
        role = roles[index]
        operands = [made[tails[index][queue]] for queue in role.receives]
        if role.contributes:
            operands.insert(role.own_operand_index, role.rank)
        made[index] = orders.listed(tuple(operands), collapse=not role.completes)
    return _Pass(orders, made, order)
