"""How evenly a program's bytes lie on the blocks that run it.

A rank runs ``channels × parts`` blocks: the blocks of a channel go through its roles side by side, each with an equal
part of every slice. An execution reads its messages and, where it contributes, the rank's own data, and stores what it
keeps and what it sends. What a block *moves* is the sum of both, whatever the protocol. A block does one thing after
the other, so the rank is done when its busiest block is, at that block's rate and not at the link's.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from blinkccl.schedule.program import Program, Role

#: The most that a rank's busiest block may move, as a multiple of the mean of its blocks.
MOST_IMBALANCE = Fraction(5, 4)


def operands_moved(role: Role) -> int:
    """How many times an execution of the role moves its chunk: what it reads, and what it stores."""
    return len(role.receives) + role.contributes + role.keeps + len(role.sends)


def weights(program: Program) -> tuple[Fraction, ...]:
    """Of every slice, in parts of S."""
    whole = {item.block: item.weight for item in program.collective.items()}
    return tuple((part.stop - part.start) * whole[part.block] for part in program.slices)


def moved(program: Program) -> Mapping[tuple[int, int], Fraction]:
    """What the blocks of each (rank, channel) move together, in parts of S; those with nothing to do are left out."""
    each = weights(program)
    found: dict[tuple[int, int], Fraction] = {}
    for role in program.roles:
        load = operands_moved(role) * each[role.slice]
        if load and role.rank < len(program.ranks):
            key = role.rank, role.channel
            found[key] = found.get(key, Fraction(0)) + load
    return found


def imbalance(program: Program, parts: int, blocks: int | None = None) -> Fraction:
    """The busiest block's load as a multiple of the mean of its rank's blocks, on the rank where that is most.

    ``parts`` blocks run each channel, of the ``blocks`` that a rank may have (None: just these): those that run nothing
    count in the mean. 1 is even; 1 as well where nothing moves.
    """
    whole: dict[int, Fraction] = {}
    most: dict[int, Fraction] = {}
    for (rank, _), load in moved(program).items():
        whole[rank] = whole.get(rank, Fraction(0)) + load
        most[rank] = max(most.get(rank, Fraction(0)), load)
    blocks = blocks or len(program.channels) * parts
    return max((most[rank] / parts / (whole[rank] / blocks) for rank in whole), default=Fraction(1))
