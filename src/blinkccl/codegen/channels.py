"""A Program cut into the loops that GPU blocks run: one per rank and channel.

On every rank one block per channel (and per part of the data) runs that rank's roles of the channel, tick by tick. A
queue belongs to one channel, so to one loop at each end.

Unlike the grammar (:mod:`blinkccl.schedule.program`), a block waits for *all* messages and *all* free slots of a role
before it moves any data. That takes one pass over the data and two barriers. But a program that needs a slot to be
freed during an execution would deadlock, so :func:`channel_loops` refuses it. The proof holds for any number of chunks
per slice, provided that all ranks cut the slice in the same way.

Roles that send the same own chunk in the same tick are executed as one. In a one-shot AllReduce each rank sends its
data to every other, one tree each: as one execution they read the data once, with two barriers per block instead of
two per receiver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from blinkccl.collectives.spec import Block
from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import header
from blinkccl.schedule.chunking import placements
from blinkccl.schedule.dealing import turns
from blinkccl.schedule.liveness import atomic_liveness_fault
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.wiring import name_role
from blinkccl.topology.memories import store_fault
from blinkccl.topology.model import Topology

#: One warp handles the counters of an execution, with a thread for each end.
MAX_ENDS = 32
MAX_CHANNEL_ENDS = header("call.h").constants["kMostEnds"]
MAX_CHANNEL_SLICES = header("call.h").constants["kMostSlices"]
#: Below this, numerator · count does not overflow 64 bits for any buffer of a GPU.
MAX_DENOMINATOR = 2**28


@dataclass(frozen=True, slots=True)
class LocalSlice:
    """A slice on one rank: its first block index in the rank's input and output (0 if unused).

    ``turn``: the position of its first piece (:func:`blinkccl.schedule.dealing.turns`).
    """

    slice: int
    block: Block
    source: int
    target: int
    start: Fraction
    stop: Fraction
    turn: int


@dataclass(frozen=True, slots=True)
class RoleExecution:
    """A role, the shares that it serves, and the method of ``KernelContext`` that executes it."""

    role: Role
    shares: tuple[int, ...]
    method: str


@dataclass(frozen=True, slots=True)
class ChannelLoop:
    """The loop of a rank in a channel: queues and slices in the order of first use, and the executions of a tick."""

    rank: int
    channel: int
    receives: tuple[int, ...]
    sends: tuple[int, ...]
    pieces: tuple[LocalSlice, ...]
    executions: tuple[RoleExecution, ...]
    #: The divisor of an average if the loop completes reductions; else 1.
    contributors: int

    @property
    def first_tick(self) -> int:
        return min(each.role.offset for each in self.executions)

    def last_offset(self, piece: LocalSlice) -> int:
        """The largest offset at which the slice of ``piece`` is used."""
        return max(each.role.offset for each in self.executions if each.role.slice == piece.slice)


def channel_loops(program: Program, slots: int | None = None) -> tuple[ChannelLoop, ...]:
    """The non-empty loops of a valid program, by rank and channel.

    Connections will hold ``slots`` messages; None: the program's numbers per channel. Raise UnsupportedError, naming
    the roles, if blocks that wait for all ends at once would deadlock, if a role has more than :data:`MAX_ENDS` ends,
    if a loop has more than :data:`MAX_CHANNEL_ENDS` ends or :data:`MAX_CHANNEL_SLICES` slices, or if a denominator is
    too large. Cost: linear in roles and messages, except for look-aheads beyond the slots (see
    :func:`~blinkccl.schedule.liveness.atomic_liveness_fault`).
    """
    _refuse(program)
    fault = _deadlock(program, slots)
    if fault is not None:
        raise UnsupportedError(
            "generated code waits for all messages and slots of a role before it moves data, so this program would "
            f"deadlock: {fault}; give its queues more slots"
        )
    joined, shares = merged(program, MAX_ENDS)
    if _deadlock(joined, 1) is not None:  # with one slot, so that the code does not depend on their number
        joined, shares = program, tuple((role.share,) for role in program.roles)
    bodies: dict[tuple[int, int], list[RoleExecution]] = {}
    for role, served in zip(joined.roles, shares, strict=True):
        method = _method(role, _contributions(program, role))
        if method is not None:
            bodies.setdefault((role.rank, role.channel), []).append(RoleExecution(role, served, method))
    begins = turns(program)
    loops = tuple(_loop(program, *key, bodies[key], begins) for key in sorted(bodies))
    for loop in loops:
        ends = len(loop.receives) + len(loop.sends)
        if ends > MAX_CHANNEL_ENDS:
            raise UnsupportedError(
                f"rank {loop.rank} has {ends} connections in channel {loop.channel}: generated code serves at most "
                f"{MAX_CHANNEL_ENDS} per channel; lower the plan to more channels"
            )
        if len(loop.pieces) > MAX_CHANNEL_SLICES:
            raise UnsupportedError(
                f"rank {loop.rank} has {len(loop.pieces)} slices in channel {loop.channel}: generated code serves at "
                f"most {MAX_CHANNEL_SLICES} per channel; lower the plan to more channels"
            )
    return loops


def merged(program: Program, most_ends: int) -> tuple[Program, tuple[tuple[int, ...], ...]]:
    """Return ``program`` with roles merged, and for every role of the result the shares that it serves.

    Roles are merged if they follow each other on their rank in their channel, receive nothing and have the same slice
    and offset; a merged role has at most ``most_ends`` sends. The result does the same, but a role with more sends
    waits for more slots, so the caller must check its liveness.
    """
    roles: list[Role] = []
    shares: list[list[int]] = []
    last: dict[tuple[int, int], int] = {}
    for role in program.roles:
        loop = role.rank, role.channel
        before = last.get(loop)
        if before is not None and _fit(roles[before], role, most_ends):
            into = roles[before]
            roles[before] = replace(into, keeps=into.keeps or role.keeps, sends=into.sends + role.sends)
            shares[before].append(role.share)
        else:
            last[loop] = len(roles)
            roles.append(role)
            shares.append([role.share])
    return replace(program, roles=tuple(roles)), tuple(map(tuple, shares))


def _fit(first: Role, second: Role, most_ends: int) -> bool:
    return (
        not (first.receives or second.receives)
        and (first.slice, first.offset) == (second.slice, second.offset)
        and len(first.sends) + len(second.sends) <= most_ends
        and not any(queue in first.sends for queue in second.sends)
    )


def _refuse(program: Program) -> None:
    for index, part in enumerate(program.slices):
        finest = max(part.start.denominator, part.stop.denominator)
        if finest >= MAX_DENOMINATOR:
            raise UnsupportedError(
                f"slice {index} goes from {part.start} to {part.stop}: generated code serves denominators below 2^28, "
                f"got {finest}; plan with --objective fewest-trees, or another algorithm"
            )
    for index, role in enumerate(program.roles):
        ends = len(role.receives) + len(role.sends)
        if ends > MAX_ENDS:
            raise UnsupportedError(
                f"{name_role(program, index)} receives from {len(role.receives)} and sends to {len(role.sends)} "
                f"ranks at once: generated code allows {MAX_ENDS} connections per step; plan trees with fewer branches"
            )


def _deadlock(program: Program, slots: int | None) -> str | None:
    if slots is not None:
        program = replace(program, channels=tuple(replace(channel, slots=slots) for channel in program.channels))
    return atomic_liveness_fault(program)


def _contributions(program: Program, role: Role) -> int:
    place = placements(program.collective)[program.slices[role.slice].block]
    return len(place.sources)


def _method(role: Role, contributions: int) -> str | None:
    """The name in ``KernelContext``; None if the role has no effect."""
    verbs = [verb for verb, wanted in (("copy", role.keeps), ("send", bool(role.sends))) if wanted]
    if not role.receives:
        return "_".join(verbs) or None
    # A single message passes unchanged, unless it completes an average here.
    if len(role.receives) > 1 or role.contributes or (role.completes and contributions > 1):
        return "_".join(["recv_reduce", *(verbs or ["send"])])
    return "recv" if verbs == ["copy"] else "_".join(["recv", *(verbs or ["send"])])


def _loop(
    program: Program, rank: int, channel: int, executions: list[RoleExecution], begins: tuple[int, ...]
) -> ChannelLoop:
    roles = [each.role for each in executions]
    places = placements(program.collective)
    pieces: dict[int, LocalSlice] = {}
    for role in roles:
        part = program.slices[role.slice]
        source, target = (side.get(rank, 0) for side in (places[part.block].sources, places[part.block].targets))
        local = LocalSlice(role.slice, part.block, source, target, part.start, part.stop, begins[role.slice])
        pieces.setdefault(role.slice, local)
    return ChannelLoop(
        rank,
        channel,
        tuple(dict.fromkeys(queue for role in roles for queue in role.receives)),
        tuple(dict.fromkeys(queue for role in roles for queue in role.sends)),
        tuple(pieces.values()),
        tuple(executions),
        max((_contributions(program, role) for role in roles if role.completes), default=1),
    )


def require_direct_stores(program: Program, topology: Topology) -> None:
    """Refuse a program with a queue whose path on ``topology`` cannot be a store or load, naming the obstacle.

    Generated code knows a queue by its ends and its home, the memory of its messages. If the home is the receiver's,
    the sender's threads store into it (the queue is pushed). If it is the sender's, the receiver's threads load from
    it (pulled). If it is a processor's, the one side stores and the other loads (staged). The hardware chooses the
    route. A program with queues on other paths would run, but not at its rate.

    This applies to code for GPUs. Engine ``generated`` runs the same text in the memory of one host, where all pairs
    are connected, and promises no rate.
    """
    if program.relays:
        labels = ", ".join(topology.vertex[vertex].label for vertex in program.relays)
        raise UnsupportedError(f"data is forwarded at {labels}, where no kernel of the job runs; plan without --relays")
    for number, queue in enumerate(program.queues):
        fault = next(filter(None, (store_fault(topology, leg) for leg in queue.legs)), None)
        if queue.is_staged and topology.vertex[queue.home].kind == "gpu":
            way, label = " → ".join(map(str, queue.path)), topology.vertex[queue.home].label
            fault = f"its path {way} leads through {label}, which is outside the job"
        if fault is not None:
            ends = program.vertices
            raise UnsupportedError(
                f"queue {number}, from GPU {ends[queue.src]} to GPU {ends[queue.dst]}: {fault}, so generated code "
                "cannot reach the plan's rate; plan with --links fast, without --relays, or with --topo of a machine "
                "without this link (libblink.so does so by itself)"
            )
