"""Distribution of a program over the thread blocks of GPUs: channels, the order of roles, places of small slices.

**Channels.** :func:`dealt` gives a program one channel. Every block of a rank then runs a part of every slice, and all
blocks have the same load, for every forest. This includes a switch, where each rank is the root of one star and a leaf
of the others. If a block has no room for all connections, the program gets as few channels as hold them, and slices are
assigned to channels by weight.

**Order of roles in a tick.** In the order of shares, all ranks would send to the same rank first, then all to the next.
Instead each rank begins with the rank after it, so the simultaneous sends are a permutation.

**Small slices.** A small slice is cut into fewer pieces, which go to consecutive blocks. :func:`turns` sets the first
block of each slice: slices that share a rank are placed apart, so they run in parallel. ``cut.h`` cuts them for a size;
this module does not depend on the size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from blinkccl.native.headers import header
from blinkccl.schedule.balance import MOST_IMBALANCE, imbalance, operands_moved, weights
from blinkccl.schedule.program import Channel, Program

#: The most connections of one block.
MOST_ENDS = header("call.h").constants["kMostEnds"]
#: The blocks of a channel are one turn, which has this number of parts.
TURNS = header("call.h").constants["kTurns"]


def dealt(program: Program, blocks: int) -> Program:
    """A program of :func:`~blinkccl.schedule.lower.lower` with new channels, for ``blocks`` blocks per rank.

    It has one channel, or the fewest channels that fit all connections and are balanced by
    :data:`~blinkccl.schedule.balance.MOST_IMBALANCE`, idle blocks counted in the mean. If none are balanced, it has the
    best balanced channels that fit. If none fit, it has one channel, which
    :func:`blinkccl.codegen.channels.channel_loops` refuses with the reason.
    """
    whole = _in_channels(program, [0] * len(program.slices), 1)
    if _ends(whole) <= MOST_ENDS:
        return _rotated(whole)
    loads = _loads(program)
    candidates = []
    for count in range(2, min(blocks, len(program.slices)) + 1):
        candidate = _in_channels(program, _places(loads, count), count)
        if _ends(candidate) <= MOST_ENDS:
            candidates.append((imbalance(candidate, blocks // count, blocks), candidate))
            if candidates[-1][0] <= MOST_IMBALANCE:
                break
    return _rotated(min(candidates, key=lambda one: one[0])[1] if candidates else whole)


def turns(program: Program) -> tuple[int, ...]:
    """For every slice the block of its channel that runs its first piece, in :data:`TURNS`-ths of all blocks.

    A channel has as many places as its busiest rank has slices. Cost: slices · places · ranks.
    """
    channel = [0] * len(program.slices)
    for role in program.roles:
        channel[role.slice] = role.channel
    loads = _loads(program)
    first_block = [0] * len(program.slices)
    for number in range(len(program.channels)):
        own = [index for index, of in enumerate(channel) if of == number]
        met = Counter(rank for index in own for rank in loads[index])
        count = min(TURNS, max(met.values(), default=1))
        for index, place in zip(own, _places([loads[index] for index in own], count), strict=True):
            first_block[index] = place * TURNS // count
    return tuple(first_block)


def _loads(program: Program) -> list[dict[int, float]]:
    """For each slice the load of each rank, as a fraction of S."""
    heavy = weights(program)
    loads: list[dict[int, float]] = [{} for _ in program.slices]
    for role in program.roles:
        of = loads[role.slice]
        of[role.rank] = of.get(role.rank, 0.0) + float(operands_moved(role) * heavy[role.slice])
    return loads


def _places(loads: Sequence[dict[int, float]], count: int) -> list[int]:
    """The place of each slice, of ``count``: heaviest first, each at the place where its ranks have the least load."""
    assigned: list[dict[int, float]] = [{} for _ in range(count)]
    places = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda one: -max(loads[one].values(), default=0.0)):
        load = loads[index]
        worst = [max((at.get(rank, 0.0) + own for rank, own in load.items()), default=0.0) for at in assigned]
        places[index] = worst.index(min(worst))
        at = assigned[places[index]]
        for rank, own in load.items():
            at[rank] = at.get(rank, 0.0) + own
    return places


def _ends(program: Program) -> int:
    """The most connections of a rank in one channel."""
    ends: Counter[tuple[int, int]] = Counter()
    for role in program.roles:
        ends[role.rank, role.channel] += len(role.receives) + len(role.sends)
    return max(ends.values(), default=0)


def _in_channels(program: Program, channel: Sequence[int], count: int) -> Program:
    """The same roles, each in the channel of its slice (``channel``, by slice), of ``count`` channels."""
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
    """The same roles; roles of a rank at one offset are ordered by the distance to their peer.

    Readers of a slice still precede its keeper, and roles that send one chunk stay together. Roles of one rank at one
    offset exchange no data and no credit without a token, so any order of them is live.
    """
    ranks = len(program.ranks)
    distance, nearest = [], dict[tuple[int, int, int, bool], int]()
    for role in program.roles:
        if role.receives:
            distance_to_peer = (role.rank - program.queues[role.receives[0]].src) % ranks
        else:
            distance_to_peer = (program.queues[role.sends[0]].dst - role.rank) % ranks if role.sends else 0
        distance.append(distance_to_peer)
        key = role.rank, role.offset, role.slice, bool(role.receives)
        nearest[key] = min(nearest.get(key, ranks), distance_to_peer)

    def place(index: int) -> tuple[int, ...]:
        role = program.roles[index]
        first = nearest[role.rank, role.offset, role.slice, bool(role.receives)]
        return -role.offset, role.channel, role.keeps, first, role.slice, distance[index], role.share, role.rank

    order = sorted(range(len(program.roles)), key=place)
    return replace(program, roles=tuple(program.roles[index] for index in order))
