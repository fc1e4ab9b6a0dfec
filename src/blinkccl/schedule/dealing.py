"""How a program is dealt to the blocks of GPUs: which do what, in which order, and where small slices lie.

*All do everything.* :func:`dealt` makes a program one channel, so every block of a rank has its part of every slice and
all move as many bytes, whatever the forest is: on a switch, too, where each rank is the root of one star and a leaf of
the others. Where that is more connections than a block has room for, it is as few channels as hold them, and slices are
dealt to these by weight.

*The order* in which a block goes through roles of one tick. By share, all ranks would send to the same one first, then
all to the next. Here each begins with the neighbour after it, so that what is sent at a time is a permutation.

*Small slices* are not worth so many pieces. Then a slice has fewer, for blocks next to each other, and :func:`turns`
says where slices begin: those that meet on a rank lie apart, so that they run side by side, not one after the other.
``cut.h`` cuts them for a size; what is here does not depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from blinkccl.native.headers import header
from blinkccl.schedule.balance import MOST_IMBALANCE, imbalance, operands_moved, weights
from blinkccl.schedule.program import Channel, Program

#: Connections that one block has room for.
MOST_ENDS = header("call.h").constants["kMostEnds"]
#: A turn is so many parts of all blocks of a channel.
TURNS = header("call.h").constants["kTurns"]


def dealt(program: Program, blocks: int) -> Program:
    """The same shares for ranks of so many blocks each; of a program that :func:`~blinkccl.schedule.lower.lower` made.

    One channel, or as few as have room for all connections and are even by
    :data:`~blinkccl.schedule.balance.MOST_IMBALANCE`, with blocks that run nothing in the mean; where none are, those
    with room that are most so. Where there are no such channels either, one:
    :func:`blinkccl.codegen.channels.channel_loops` says what is too much.
    """
    whole = _in_channels(program, [0] * len(program.slices), 1)
    if _ends(whole) <= MOST_ENDS:
        return _rotated(whole)
    loads = _loads(program)
    found = []
    for count in range(2, min(blocks, len(program.slices)) + 1):
        tried = _in_channels(program, _places(loads, count), count)
        if _ends(tried) <= MOST_ENDS:
            found.append((imbalance(tried, blocks // count, blocks), tried))
            if found[-1][0] <= MOST_IMBALANCE:
                break
    return _rotated(min(found, key=lambda one: one[0])[1] if found else whole)


def turns(program: Program) -> tuple[int, ...]:
    """For every slice the block of its channel where its first piece lies, in :data:`TURNS`-ths of all blocks.

    The slices of a channel are dealt to as many places as one rank has slices at most. Cost: slices · places · ranks.
    """
    channel = [0] * len(program.slices)
    for role in program.roles:
        channel[role.slice] = role.channel
    loads = _loads(program)
    found = [0] * len(program.slices)
    for number in range(len(program.channels)):
        own = [index for index, of in enumerate(channel) if of == number]
        met = Counter(rank for index in own for rank in loads[index])
        count = min(TURNS, max(met.values(), default=1))
        for index, place in zip(own, _places([loads[index] for index in own], count), strict=True):
            found[index] = place * TURNS // count
    return tuple(found)


def _loads(program: Program) -> list[dict[int, float]]:
    """What each rank moves of each slice, in parts of S."""
    heavy = weights(program)
    loads: list[dict[int, float]] = [{} for _ in program.slices]
    for role in program.roles:
        of = loads[role.slice]
        of[role.rank] = of.get(role.rank, 0.0) + float(operands_moved(role) * heavy[role.slice])
    return loads


def _places(loads: Sequence[dict[int, float]], count: int) -> list[int]:
    """Which of ``count`` places each slice gets: heaviest first, each where the ranks that touch it have least."""
    taken: list[dict[int, float]] = [{} for _ in range(count)]
    found = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda one: -max(loads[one].values(), default=0.0)):
        load = loads[index]
        worst = [max((at.get(rank, 0.0) + own for rank, own in load.items()), default=0.0) for at in taken]
        found[index] = worst.index(min(worst))
        at = taken[found[index]]
        for rank, own in load.items():
            at[rank] = at.get(rank, 0.0) + own
    return found


def _ends(program: Program) -> int:
    """The most connections of a rank in one channel."""
    ends: Counter[tuple[int, int]] = Counter()
    for role in program.roles:
        ends[role.rank, role.channel] += len(role.receives) + len(role.sends)
    return max(ends.values(), default=0)


def _in_channels(program: Program, channel: Sequence[int], count: int) -> Program:
    """The same roles, each in the channel of its slice."""
    carried: list[dict[int, None]] = [{} for _ in range(count)]
    for role in sorted(program.roles, key=lambda one: one.share):
        carried[channel[role.slice]][role.share] = None
    slots = min(one.slots for one in program.channels)
    return replace(
        program,
        channels=tuple(Channel(tuple(shares), slots) for shares in carried),
        roles=tuple(replace(role, channel=channel[role.slice]) for role in program.roles),
    )


def _rotated(program: Program) -> Program:
    """The same roles; those of a rank with one offset by the distance to the rank that they send to or receive from.

    Readers of a slice still precede its keeper, and roles that send one chunk stay together. Among roles of one rank
    and one offset there is no data and no credit without a token, so any order of theirs is live.
    """
    ranks = len(program.ranks)
    distance, nearest = [], dict[tuple[int, int, int, bool], int]()
    for role in program.roles:
        if role.receives:
            found = (role.rank - program.queues[role.receives[0]].src) % ranks
        else:
            found = (program.queues[role.sends[0]].dst - role.rank) % ranks if role.sends else 0
        distance.append(found)
        key = role.rank, role.offset, role.slice, bool(role.receives)
        nearest[key] = min(nearest.get(key, ranks), found)

    def place(index: int) -> tuple[int, ...]:
        role = program.roles[index]
        first = nearest[role.rank, role.offset, role.slice, bool(role.receives)]
        return -role.offset, role.channel, role.keeps, first, role.slice, distance[index], role.share, role.rank

    order = sorted(range(len(program.roles)), key=place)
    return replace(program, roles=tuple(program.roles[index] for index in order))
