"""What does one rank do in which round? Its roles, with the messages that each of their firings takes and gives."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from blinkccl.engines.torch_p2p_rounds import Rounds, firing_order
from blinkccl.schedule.program import Program, Role


@dataclass(frozen=True, slots=True)
class Inlet:
    """A message of every chunk that this rank receives: posted in round ``start + period · k``.

    ``order`` is its place in every batch. ``depth`` slots are enough; ``direct``: it is received where it is kept.
    """

    order: int
    peer: int
    start: int
    depth: int
    direct: bool


@dataclass(frozen=True, slots=True)
class Outlet:
    """A message of every chunk that this rank sends, in the round in which its role fires."""

    order: int
    peer: int


@dataclass(frozen=True, slots=True)
class Actor:
    """One of this rank's roles, with the messages of a firing; it fires in round ``start + period · k``."""

    role: Role
    start: int
    inlets: tuple[Inlet, ...]
    outlets: tuple[Outlet, ...]


def actors_of(program: Program, rounds: Rounds, rank: int) -> tuple[Actor, ...]:
    """The roles of ``rank`` in the order in which one round fires them."""
    arriving: dict[tuple[int, int], deque[int]] = {}
    leaving: dict[int, list[Outlet]] = {}
    for order, arc in enumerate(rounds.messages):
        queue = program.queues[arc.queue]
        if queue.dst == rank:
            arriving.setdefault((arc.head, arc.queue), deque()).append(order)
        if queue.src == rank:
            leaving.setdefault(arc.tail, []).append(Outlet(order, queue.dst))
    actors = []
    for index in firing_order(program, rank):
        role = program.roles[index]
        orders = [arriving[index, queue].popleft() for queue in role.receives]
        inlets = tuple(_inlet(program, rounds, index, order) for order in orders)
        actors.append(Actor(role, rounds.start[index], inlets, tuple(leaving.get(index, ()))))
    return tuple(actors)


def _inlet(program: Program, rounds: Rounds, index: int, order: int) -> Inlet:
    """The message ``order`` as role ``index`` receives it.

    Its slot is posted again ``depth · period`` rounds later: the role must have fired by then and, where it passes the
    very slot on, what it sent must have left, too. A direct one must not be posted before every other role
    that reads the slice, which in place is the same memory, has fired and what it sent has left.
    """
    arc, role = rounds.messages[order], program.roles[index]
    posted, fired = rounds.start[arc.tail], rounds.start[index]
    alone = len(role.receives) == 1 and not role.contributes
    held = fired - posted + (rounds.ahead if alone and role.sends else 0)
    readers = [
        start
        for other, start in zip(program.roles, rounds.start, strict=True)
        if other.rank == role.rank and other.slice == role.slice and other.contributes
    ]
    direct = alone and role.keeps and all(start + rounds.ahead <= posted for start in readers)
    peer = program.queues[arc.queue].src
    return Inlet(order, peer, posted, math.ceil(held / rounds.period), direct)
