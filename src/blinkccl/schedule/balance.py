"""The balance of a program's bytes between the thread blocks of a GPU that run it.

A rank runs ``channels × parts`` blocks: all blocks of a channel run its roles, each with an equal part of every slice.
An execution reads its messages and, if it contributes, the rank's own data. It stores the result once if it keeps it,
and once per send. The *load* of a block is the sum of bytes read and stored, for every protocol. A block runs its roles
in sequence, so the rate of the busiest block, not of the link, can limit the rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from blinkccl.schedule.program import Program, Role

#: The largest load of a rank's busiest block, as a multiple of the mean of its blocks.
MOST_IMBALANCE = Fraction(5, 4)


def operands_moved(role: Role) -> int:
    """The number of times an execution of the role reads or stores its chunk."""
    return len(role.receives) + role.contributes + role.keeps + len(role.sends)


def weights(program: Program) -> tuple[Fraction, ...]:
    """The size of every slice, as a fraction of S."""
    whole = {item.block: item.weight for item in program.collective.items()}
    return tuple((part.stop - part.start) * whole[part.block] for part in program.slices)


def moved(program: Program) -> Mapping[tuple[int, int], Fraction]:
    """The load of all blocks of each (rank, channel), as a fraction of S, without those of no load."""
    each = weights(program)
    loads: dict[tuple[int, int], Fraction] = {}
    for role in program.roles:
        load = operands_moved(role) * each[role.slice]
        if load and role.rank < len(program.ranks):
            key = role.rank, role.channel
            loads[key] = loads.get(key, Fraction(0)) + load
    return loads


def imbalance(program: Program, parts: int, blocks: int | None = None) -> Fraction:
    """The busiest block's load as a multiple of the mean of its rank's blocks, on the most unbalanced rank.

    ``parts`` blocks run each channel. A rank has ``blocks`` blocks (None: one per part of its channels); idle blocks
    count in the mean. 1 is even, and the result of a program without load.
    """
    whole: dict[int, Fraction] = {}
    most: dict[int, Fraction] = {}
    for (rank, _), load in moved(program).items():
        whole[rank] = whole.get(rank, Fraction(0)) + load
        most[rank] = max(most.get(rank, Fraction(0)), load)
    blocks = blocks or len(program.channels) * parts
    return max((most[rank] / parts / (whole[rank] / blocks) for rank in whole), default=Fraction(1))
