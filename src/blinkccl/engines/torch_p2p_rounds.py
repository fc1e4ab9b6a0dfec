"""In which round does each role fire, where all ranks exchange their messages in common rounds?

Point-to-point libraries match a send with a receive by the order in which both ends post them (NCCL has nothing
else), and a send may wait for its receive. So the ranks agree beforehand on *rounds* 0, 1, 2, …: in a round, a rank
fires what is due, then posts, as one batch, the receives and the sends of all messages that were put into queues in
this round anywhere. Both ends know from the program alone which these are; a batch is waited for before the round
that is ``ahead`` rounds later. The rank that is furthest behind finds all its partners' halves posted, or will,
so no order of ranks can block.

Role r fires chunk k in round ``start[r] + period · k``. With T the tick of a firing that is
``potential[r] + period · T``, and every arc of the folded chunk loop becomes one difference constraint:

    data      message posted in the tail's round, at hand ``ahead`` rounds later
    credit    slot emptied in the tail's round, filled again in the same round at the earliest (firings precede posts)
    overwrite in place, own input is read, and maybe sent, before the output takes its place

    potential[head] − potential[tail] ≥ delay − period · tokens

This is a periodic schedule of a marked graph: one exists as soon as ``period`` is at least delays / tokens on
every cycle (Reiter, Scheduling parallel computations, JACM 15, 1968). Longest paths give the earliest one. What our
lowering makes has one hop per tick, so its period is 1: one batch per tick. Several hops in one tick with
few slots need several batches per tick.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.errors import ScheduleError, UnsupportedError
from blinkccl.schedule.program import Program
from blinkccl.schedule.wiring import Arc, connect, steps_of


@dataclass(frozen=True, slots=True)
class Rounds:
    """Role r fires chunk k in round ``start[r] + period · k``, the least start being 0.

    ``messages`` are the data arcs, in the order in which each batch lists them: chunk k of arc i is posted by
    both its ends in round ``start[messages[i].tail] + period · k``.
    """

    ahead: int
    period: int
    start: tuple[int, ...]
    messages: tuple[Arc, ...]


def plan_rounds(program: Program, ahead: int = 1) -> Rounds:
    """The earliest rounds of the shortest period.

    Parameters
    ----------
    program
        One that the verifier accepts.
    ahead
        Rounds from posting a message to having it, ≥ 1. With 2, messages travel while the next round is computed.

    Raises
    ------
    ScheduleError
        If the ends of a queue do not fit: the first such fault.
    UnsupportedError
        If messages wait for each other in a circle; the verifier says so, too, and names the circle.

    Notes
    -----
    Cost: O(roles + arcs) for a program of period 1 whose ticks are its rounds, else log(roles) times
    Bellman and Ford's O(roles · arcs). The slots of a queue are kept, but for programs that are live only because
    a rank frees one slot in the middle of a firing: firings are whole here, so all queues get one slot more.
    More slots never change what is received (Kahn).
    """
    wiring = connect(program)
    if wiring.faults:
        raise ScheduleError(wiring.faults[0])
    data = tuple(wiring.data)
    refills = [(arc.tail, arc.head, 0, arc.tokens) for arc in wiring.arcs if arc.kind == "credit"]
    fixed = [(arc.tail, arc.head, ahead, arc.tokens) for arc in data] + _overwrites(program, ahead)
    if _feasible(program, fixed, ahead) is None:
        raise UnsupportedError(
            "this program's messages wait for each other in a circle, so no round can carry them; the verifier names it"
        )
    for more in range(len(program.roles) + 1):
        constraints = fixed + [(tail, head, 0, tokens + more) for tail, head, _, tokens in refills]
        limit = _feasible(program, constraints, ahead)
        if limit is not None:
            return _shortest(program, data, constraints, ahead, limit)
    raise UnsupportedError("no number of slots makes this program run in rounds; does the verifier accept it?")


#: (tail, head, delay, tokens): see the module's text.
_Constraint = tuple[int, int, int, int]


def _overwrites(program: Program, ahead: int) -> list[_Constraint]:
    """Each other reader of a slice → the role that keeps it on the same rank."""
    if program.collective.name == "alltoall":
        return []  # its input and output blocks are different items: it runs out of place only
    writers = {(role.rank, role.slice): index for index, role in enumerate(program.roles) if role.keeps}
    found = []
    for index, role in enumerate(program.roles):
        writer = writers.get((role.rank, role.slice), index)
        if role.contributes and writer != index:
            found.append((index, writer, ahead, program.roles[writer].offset - role.offset))
    return found


def _feasible(program: Program, constraints: list[_Constraint], ahead: int) -> int | None:
    """A period that is long enough, or None if none is: a cycle of n arcs with a token needs at most ahead · n."""
    if _potentials(program, constraints, 1) is not None:
        return 1
    limit = max(1, ahead * len(program.roles))
    return limit if _potentials(program, constraints, limit) is not None else None


def _shortest(
    program: Program, data: tuple[Arc, ...], constraints: list[_Constraint], ahead: int, limit: int
) -> Rounds:
    """The shortest period up to ``limit``, which is long enough: what is long enough stays so when it grows."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _potentials(program, constraints, middle) is not None else (middle, high)
    potential = _potentials(program, constraints, high)
    assert potential is not None
    start = [p + high * role.offset for p, role in zip(potential, program.roles, strict=True)]
    first = min(start, default=0)
    return Rounds(ahead, high, tuple(s - first for s in start), data)


def _potentials(program: Program, constraints: list[_Constraint], period: int) -> list[int] | None:
    """The least potentials ≥ 0 that satisfy all constraints, or None if a cycle cannot be satisfied."""
    lengths = [(tail, head, delay - period * tokens) for tail, head, delay, tokens in constraints]
    at = [0] * len(program.roles)
    for _ in range(len(program.roles) + 1):
        changed = False
        for tail, head, length in lengths:
            if at[tail] + length > at[head]:
                at[head] = at[tail] + length
                changed = True
        if not changed:
            return at
    return None


def firing_order(program: Program, rank: int) -> list[int]:
    """The roles of ``rank`` in the order in which one round fires them: that of (offset, step), for one chunk.

    Where a reader of a slice and the role that overwrites it meet, the verifier has put the reader first.
    """
    steps = steps_of(program)
    mine = [index for index, role in enumerate(program.roles) if role.rank == rank]
    return sorted(mine, key=lambda index: (program.roles[index].offset, steps[index]))
