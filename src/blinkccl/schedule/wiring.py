"""Matching of sends with receives: the two ends of every queue, for any number of roles per queue.

A queue is a FIFO, so its two ends must agree on the order of messages *for every size*: roles may have different
numbers of chunks. Message k of role A precedes message j of B if (offset_A + k, place_A) < (offset_B + j, place_B).

Each end lists its roles from the one that starts first. Both ends give the same order for all k and j exactly if these
lists have the same slices with the same relative offsets. Roles before the start of the list count as the last ones of
the previous tick, with their offset lowered by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blinkccl.schedule.program import Program


class Arc(NamedTuple):
    """Execution T of role ``head`` waits for execution T − ``tokens`` of role ``tail``, both counted in ticks.

    ``kind`` is "data" (a message in ``queue``) or "credit" (its slot, given back).
    """

    tail: int
    head: int
    tokens: int
    kind: str
    queue: int


@dataclass(frozen=True)
class Wiring:
    """The arcs of a program's queues; ``faults`` has one sentence for every queue with mismatched ends."""

    arcs: tuple[Arc, ...]
    faults: tuple[str, ...]

    @property
    def data(self) -> Iterator[Arc]:
        """The arcs that carry messages."""
        return (arc for arc in self.arcs if arc.kind == "data")


def name_role(program: Program, index: int) -> str:
    """The name of role ``index`` in messages: its rank or relay, channel, step, stage and share."""
    role = program.roles[index]
    n = len(program.ranks)
    owner = f"rank {role.rank}" if role.rank < n else f"relay {program.relays[role.rank - n]}"
    return f"{owner}, channel {role.channel}, step {program.steps[index]} ({role.stage} of share {role.share})"


def connect(program: Program) -> Wiring:
    """Pair every send with its receive. Indexes in the program must be valid."""
    count = len(program.queues)
    senders, receivers = (
        _ends(count, (r.sends for r in program.roles)),
        _ends(count, (r.receives for r in program.roles)),
    )
    arcs: list[Arc] = []
    faults: list[str] = []
    for queue, ends in enumerate(program.queues):
        if len(senders[queue]) == len(receivers[queue]) == 1:  # nearly all queues are like this
            s, r = senders[queue][0], receivers[queue][0]
            sender, receiver = program.roles[s], program.roles[r]
            if (
                (sender.rank, receiver.rank) == (ends.src, ends.dst)
                and sender.slice == receiver.slice
                and sender.channel == receiver.channel
            ):
                lag = receiver.offset - sender.offset
                arcs.append(Arc(s, r, lag, "data", queue))
                arcs.append(Arc(r, s, program.channels[sender.channel].slots - lag, "credit", queue))
                continue
        fault = _misfit(program, queue, senders[queue], receivers[queue])
        if fault is None:
            arcs += _arcs(program, queue, senders[queue], receivers[queue])
        else:
            faults.append(fault)
    return Wiring(tuple(arcs), tuple(faults))


def in_data_order(program: Program, wiring: Wiring) -> list[int]:
    """Roles in the order of the data, senders first, without roles that wait for each other."""
    followers: dict[int, list[int]] = {}
    for arc in wiring.data:
        followers.setdefault(arc.tail, []).append(arc.head)
    waiting = [len(role.receives) for role in program.roles]
    order = [index for index, count in enumerate(waiting) if count == 0]
    for index in order:
        for head in followers.get(index, ()):
            waiting[head] -= 1
            if waiting[head] == 0:
                order.append(head)
    return order


def _ends(count: int, sides: Iterable[tuple[int, ...]]) -> list[Sequence[int]]:
    """For each queue the roles at one of its ends, in order: nearly always one, so only several are a list."""
    ends: list[Sequence[int]] = [()] * count
    for index, queues in enumerate(sides):
        for queue in queues:
            roles = ends[queue]
            if isinstance(roles, list):
                roles.append(index)
            else:
                ends[queue] = [*roles, index] if roles else (index,)
    return ends


def _misfit(program: Program, queue: int, senders: Sequence[int], receivers: Sequence[int]) -> str | None:
    """The reason that the two ends of a queue do not match, or None."""
    roles = program.roles
    src, dst = program.queues[queue].src, program.queues[queue].dst
    where = f"queue {queue} from rank {src} to rank {dst}"
    for ends, rank, verb in ((senders, src, "sends into"), (receivers, dst, "receives from")):
        for index in ends:
            if roles[index].rank != rank:
                return f"{name_role(program, index)} {verb} {where}, which does not end there"
    if len(senders) > len(receivers):
        named = name_role(program, senders[-1])
        return f"lost chunk: {named} sends into {where}, and no step of rank {dst} receives it"
    if len(receivers) > len(senders):
        named = name_role(program, receivers[-1])
        return f"{named} starves: it receives from {where}, and no step of rank {src} sends to it"
    if not senders:
        return f"{where} is used by no step"
    channels = dict.fromkeys(sorted(roles[i].channel for i in (*senders, *receivers)))
    if len(channels) > 1:
        return f"{where} is shared by channels {', '.join(map(str, channels))}; a queue belongs to one channel"
    return _disorder(program, where, _cycle(program, senders), _cycle(program, receivers))


def _disorder(
    program: Program,
    where: str,
    sent: list[tuple[int, int]],
    received: list[tuple[int, int]],
) -> str | None:
    """The first difference between the messages sent and the messages expected, or None."""
    for (s, s_offset), (r, r_offset) in zip(sent, received, strict=True):
        sender, receiver = program.roles[s], program.roles[r]
        if sender.slice != receiver.slice:
            return (
                f"wrong order: {name_role(program, r)} expects slice {receiver.slice} from {where}, "
                f"but {name_role(program, s)} sends slice {sender.slice} at this place"
            )
        send_delay, receive_delay = s_offset - sent[0][1], r_offset - received[0][1]
        if send_delay != receive_delay:
            return (
                f"wrong order: {name_role(program, r)} receives from {where} {receive_delay} ticks after its "
                f"first message, but {name_role(program, s)} sends {send_delay} ticks after it; chunks of "
                "several slices would be mixed up"
            )
    return None


def _cycle(program: Program, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The roles at one end in the order of a tick, from the one that runs first, with their offsets."""
    roles = program.roles
    if len(ends) == 1:
        return [(ends[0], roles[ends[0]].offset)]
    order = sorted(ends)  # all are of one rank, which runs its roles in this order
    first = order.index(min(order, key=lambda i: (roles[i].offset, i)))
    return [(i, roles[i].offset) for i in order[first:]] + [(i, roles[i].offset - 1) for i in order[:first]]


def _arcs(program: Program, queue: int, senders: Sequence[int], receivers: Sequence[int]) -> Iterator[Arc]:
    """Data and credit arcs of a queue whose ends match.

    With m messages per tick, the i-th needs the slot of the message ``slots`` places before it. That is message
    (i − slots) mod m, ⌊(i − slots) / m⌋ ticks later. A tick has fewer messages if some slices have run out of chunks.
    Then it needs an older slot, so m messages are the strictest case.
    """
    roles = program.roles
    sent, received = _cycle(program, senders), _cycle(program, receivers)
    slots, m = program.channels[roles[senders[0]].channel].slots, len(sent)
    lag = received[0][1] - sent[0][1]
    for i, ((s, s_read), (r, _)) in enumerate(zip(sent, received, strict=True)):
        yield Arc(s, r, roles[r].offset - roles[s].offset, "data", queue)
        ticks, j = divmod(i - slots, m)
        giver, g_read = received[j]
        # A role listed one tick late (its offset lowered by one) runs one tick after its place.
        late = (roles[s].offset - s_read) - (roles[giver].offset - g_read)
        yield Arc(giver, s, late - lag - ticks, "credit", queue)
