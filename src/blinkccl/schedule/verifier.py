"""The verifier of Programs: they compute their collective, cannot deadlock, and overload no link.

A Program has no size, so the checks hold for all sizes at once. All chunks of a slice take the same path, so one
symbolic pass over sets of contributing ranks covers the data of every rank. The folded loop covers finite buffers
(:mod:`~blinkccl.schedule.liveness`). Engines, exporters and the simulator rely on these checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from blinkccl.collectives.spec import Block
from blinkccl.errors import VerificationError
from blinkccl.schedule.balance import weights
from blinkccl.schedule.chunking import Placement, placements
from blinkccl.schedule.liveness import liveness_fault
from blinkccl.schedule.program import Program, Queue, Role
from blinkccl.schedule.wiring import Wiring, connect, in_data_order, name_role
from blinkccl.topology.memories import memory_inside
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Path


def verify(program: Program, topology: Topology) -> None:
    """Raise a VerificationError with all :func:`violations`, if there are any."""
    faults = violations(program, topology)
    if faults:
        raise VerificationError(faults)


def violations(program: Program, topology: Topology) -> list[str]:
    """The violations of ``program`` on ``topology``, one sentence each; empty if it is valid.

    A program is valid if

    - all indexes are valid, and slices tile every block;
    - both ends of each queue exist and agree on the order of messages;
    - each contribution enters each slice exactly once, and the reduction is completed where all contributions are in;
    - every destination gets every slice once, and nothing else is written;
    - no cycle of waits closes for any size, with finite buffers;
    - in place, no rank overwrites input that it still has to read;
    - every message's path exists and has no memory on it but the queue's home;
    - the load of each link, at ``program.rate``, is within its capacity.

    Each sentence names rank, channel and step (the index in the rank's body), or the link. The time is linear in roles
    and messages, except for :func:`~blinkccl.schedule.liveness.liveness_fault`.
    """
    faults = list(_table_faults(program, topology))
    faults = faults or list(_switch_faults(program, topology))
    if faults:  # the other checks need valid indexes
        return faults
    wiring = connect(program)
    faults += wiring.faults
    faults += _tiling_faults(program)
    faults += _Propagation(program, wiring).faults() if not wiring.faults else []
    deadlock = liveness_fault(program, wiring)
    if deadlock is not None:
        faults.append(deadlock)
    faults += _overwrite_faults(program)
    faults += _load_faults(program, topology)
    return faults


def _table_faults(program: Program, topology: Topology) -> Iterator[str]:
    """Invalid indexes, ranks and numbers."""
    n = program.collective.world_size
    if len(program.ranks) != n or len(dict.fromkeys(program.ranks)) != n:
        yield f"{program.collective.name} on {n} ranks needs {n} different vertices, got {list(program.ranks)}"
        return
    for rank, vertex in enumerate(program.vertices):
        if vertex not in topology.vertex:
            yield f"rank {rank} is vertex {vertex}, which {topology.name} does not have"
    if len(program.vertices) != len(dict.fromkeys(program.vertices)):
        yield f"relays {list(program.relays)} must be different vertices outside the job {list(program.ranks)}"
    if program.rate <= 0:
        yield f"the rate must be positive, got {program.rate}"
    places = placements(program.collective)
    for index, part in enumerate(program.slices):
        if part.block not in places:
            coll = program.collective
            yield f"slice {index}: {coll.name} on {coll.world_size} ranks has no block {part.block!r}"
    for index, queue in enumerate(program.queues):
        for rank in (queue.src, queue.dst):
            if not 0 <= rank < len(program.vertices):
                yield f"queue {index} ends at rank {rank}, outside 0 … {len(program.vertices) - 1}"
        if queue.src == queue.dst:
            yield f"queue {index} joins rank {queue.src} to itself"
    carrier: dict[int, int] = {}
    for index, channel in enumerate(program.channels):
        if channel.slots < 1:
            yield f"channel {index} has {channel.slots} slots; a queue needs at least one"
        for share in channel.shares:
            if carrier.setdefault(share, index) != index:
                yield f"share {share} is carried by channels {carrier[share]} and {index}; it has one channel"
    yield from _role_faults(program, carrier)


def _switch_faults(program: Program, topology: Topology) -> Iterator[str]:
    for vertex in program.combining:
        if not topology.vertex[vertex].combines:
            label = topology.vertex[vertex].label
            yield f"relay {vertex} reduces or multicasts, but {label} only forwards packets"


def _role_faults(program: Program, carrier: dict[int, int]) -> Iterator[str]:
    queues, slices = len(program.queues), len(program.slices)
    n = len(program.vertices)
    for index, role in enumerate(program.roles):
        if not 0 <= role.rank < n:
            yield f"role {index} runs on rank {role.rank}, outside 0 … {n - 1}"
            continue
        where = f"role {index} on rank {role.rank}, channel {role.channel}"
        if carrier.get(role.share) != role.channel:
            yield f"{where}: share {role.share} is not carried by this channel"
        if not 0 <= role.slice < slices:
            yield f"{where}: slice {role.slice} is outside the table of {slices}"
        if role.offset < 0:
            yield f"{where}: offset {role.offset} is negative; the loop starts at tick 0"
        for verb, ends in (("receives from", role.receives), ("sends into", role.sends)):
            for queue in ends:
                if not 0 <= queue < queues:
                    yield f"{where}: it {verb} queue {queue}, outside the table of {queues}"
            if len(ends) > 1 and len(dict.fromkeys(ends)) != len(ends):
                yield f"{where}: it {verb} one queue twice: {list(ends)}"
        own = role.own_operand_index
        if not 0 <= own <= len(role.receives):
            yield f"{where}: own_operand_index {own} is outside 0 … {len(role.receives)}, its number of messages"
        elif own and not role.contributes:
            yield f"{where}: own_operand_index {own}, expected 0: it contributes no operand"
        if not (role.contributes or role.receives):
            yield f"{where}: it neither contributes nor receives, so it has no value to pass on"


def _tiling_faults(program: Program) -> Iterator[str]:
    """Gaps, overlaps and empty slices: the slices of every block must cover it from 0 to 1."""
    cuts: dict[Block, list[tuple[Fraction, Fraction, int]]] = {block: [] for block in placements(program.collective)}
    for index, part in enumerate(program.slices):
        cuts[part.block].append((part.start, part.stop, index))
    for block, parts in cuts.items():
        name = "the buffer" if block is None else f"block {block}"
        reached = Fraction(0)
        for start, stop, index in sorted(parts):
            if start != reached:
                verb = "overlaps the slice before it" if start < reached else "leaves a gap before it"
                yield f"slice {index} of {name} starts at {start}, expected {reached}: it {verb}"
            if stop <= start:
                yield f"slice {index} of {name} goes from {start} to {stop}: it is empty"
            reached = stop
        if reached != 1:
            yield f"the slices of {name} end at {reached}, expected 1: chunks are lost or outside the buffer"


@dataclass(frozen=True, slots=True)
class _Value:
    """The content of a message: contributing ranks as bits, and True if the reduction has been completed."""

    ranks: int
    completed: bool


class _Propagation:
    """Check of every reduction, completion and write against the collective's definition, in linear time.

    A rank contributes only its own data, once. Every path has exactly one role that ``completes``, where all
    contributions are in. Roles keep complete values only, only at destinations, once. Every destination gets every
    slice. Roles after a missing message are skipped, since another check reports the cause.
    """

    def __init__(self, program: Program, wiring: Wiring) -> None:
        self.program = program
        self.placements = placements(program.collective)
        self.full = {block: sum(1 << rank for rank in place.sources) for block, place in self.placements.items()}
        self.wiring = wiring
        # The role that sends into each queue, or -1 for several: then ``sender`` has the one of each receiver. Nearly
        # all queues have one sender; a dictionary of all would have a million entries.
        self.only = [-2] * len(program.queues)
        for arc in wiring.data:
            self.only[arc.queue] = arc.tail if self.only[arc.queue] == -2 else -1
        self.sender = {(arc.queue, arc.head): arc.tail for arc in wiring.data if self.only[arc.queue] == -1}
        self.found: list[str] = []
        self.writer: dict[tuple[int, int], int] = {}
        self.values: list[_Value | None] = [None] * len(program.roles)

    def faults(self) -> list[str]:
        order = in_data_order(self.program, self.wiring)
        for index in order:
            self.values[index] = self._fire(index)
        if len(order) == len(self.values):  # else chunks are missing for a reason that another check reports
            self._check_all_written()
        return self.found

    def _message(self, queue: int, index: int) -> _Value:
        """The message that role ``index`` receives from ``queue``."""
        tail = self.only[queue]
        message = self.values[tail if tail >= 0 else self.sender[queue, index]]
        assert message is not None
        return message

    def _fire(self, index: int) -> _Value:
        role = self.program.roles[index]
        block = self.program.slices[role.slice].block
        place = self.placements[block]
        if len(role.receives) == 1 and not (role.contributes or role.completes):  # it only forwards, as most roles do
            value = self._message(role.receives[0], index)
            if role.keeps:
                self._keep(index, role, value.ranks, value.completed, block, place)
            return value
        ranks, completed = 0, False
        if role.contributes:
            if role.rank not in place.sources:
                self._fault(index, f"wrong block: it contributes its own {_block(block)}, but has none")
            ranks = 1 << role.rank
        for queue in role.receives:
            message = self._message(queue, index)
            if ranks & message.ranks:
                self._fault(
                    index,
                    f"double contribution: slice {role.slice} of {_block(block)} gets "
                    f"{_ranks(ranks & message.ranks)} twice",
                )
            ranks |= message.ranks
            completed = completed or message.completed
        # A single contribution is complete from the start; dividing by one changes nothing.
        alone = len(place.sources) == 1
        completed = alone or self._complete(index, role, ranks, completed, self.full[block])
        if role.keeps:
            self._keep(index, role, ranks, completed, block, place)
        return _Value(ranks, completed)

    def _complete(self, index: int, role: Role, ranks: int, completed: bool, full: int) -> bool:
        if role.completes and ranks != full:
            self._fault(index, f"it completes the reduction without {_ranks(full & ~ranks)}")
        if role.completes and completed:
            self._fault(index, "it completes a reduction that was completed before")
        return completed or role.completes

    def _keep(self, index: int, role: Role, ranks: int, completed: bool, block: Block, place: Placement) -> None:
        full = self.full[block]
        if role.rank not in place.targets:
            self._fault(
                index,
                f"wrong block: it keeps slice {role.slice} of {_block(block)}, which this rank must not get",
            )
        if full & ~ranks:
            self._fault(
                index,
                f"missing contribution: it keeps slice {role.slice} of {_block(block)} without {_ranks(full & ~ranks)}",
            )
        elif not completed:
            self._fault(index, "it keeps a reduction that no step has completed (avg would not be divided)")
        first = self.writer.setdefault((role.rank, role.slice), index)
        if first != index:
            self._fault(
                index,
                f"it writes slice {role.slice} of {_block(block)}, which step {self.program.steps[first]} writes too",
            )

    def _check_all_written(self) -> None:
        carriers: dict[int, set[int]] = {}
        for role in self.program.roles:
            carriers.setdefault(role.slice, set()).add(role.channel)
        for index, part in enumerate(self.program.slices):
            channels = ", ".join(map(str, sorted(carriers.get(index, ())))) or "none"
            for rank in self.placements[part.block].targets:
                if (rank, index) not in self.writer:
                    self.found.append(
                        f"rank {rank} never gets slice {index} of {_block(part.block)}, carried by channel {channels}: "
                        "no step of this rank keeps it"
                    )

    def _fault(self, index: int, text: str) -> None:
        self.found.append(f"{name_role(self.program, index)}: {text}")


def _block(block: Block) -> str:
    return "the buffer" if block is None else f"block {block}"


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    s = "s" if len(ranks) > 1 else ""
    return f"the contribution{s} of rank{s} {', '.join(ranks)}"


def _overwrite_faults(program: Program) -> Iterator[str]:
    """Writes before reads in place, where a rank's input and output block of one item are the same memory.

    Every role that contributes reads chunk k in tick offset + k, before the role that keeps may overwrite it. Channels
    of a rank have no order, since engines may run them in parallel.
    """
    if program.collective.name == "alltoall":
        return  # its input and output blocks are different items, so it runs out of place only
    writers = {(role.rank, role.slice): index for index, role in enumerate(program.roles) if role.keeps}
    for index, role in enumerate(program.roles):
        if not role.contributes or writers.get((role.rank, role.slice), index) == index:
            continue
        write = writers[role.rank, role.slice]
        writer = program.roles[write]
        if role.channel != writer.channel:
            yield (
                f"{name_role(program, index)} reads slice {role.slice}, which "
                f"{name_role(program, write)} overwrites in place in another channel, in no fixed order"
            )
        elif (role.offset, index) > (writer.offset, write):
            yield (
                f"{name_role(program, index)} reads chunks of slice {role.slice} at offset {role.offset} after "
                f"{name_role(program, write)} has overwritten them in place at offset {writer.offset}"
            )


def _way_faults(queue: Queue, topology: Topology, job: Collection[int]) -> Iterator[str]:
    """Faults in the path and the home of a queue with correct ends."""
    if queue.home not in queue.path:
        yield f"its home {queue.home} is not on its path {list(queue.path)}"
    elif all(pair in topology.link for pair in itertools.pairwise(queue.path)):
        yield from _home_faults(queue, topology)
    yield from _crossed_ranks(queue, job)


def _crossed_ranks(queue: Queue, job: Collection[int]) -> Iterator[str]:
    for vertex in queue.path[1:-1]:
        if vertex in job:
            yield f"path {list(queue.path)} passes through vertex {vertex}, a rank of the job"


def _home_faults(queue: Queue, topology: Topology) -> Iterator[str]:
    """Memories on the path of a queue that are not its home, and homes without memory."""
    home = topology.vertex[queue.home]
    if home.kind in ("switch", "nic") and not home.combines:
        yield f"its home {home.label} is a {home.kind}, which has no memory for messages"
    for number, leg in enumerate(queue.legs):
        moved = "read" if number == 1 or queue.home == queue.path[0] else "write"
        for pair in itertools.pairwise(leg):
            by = topology.link[pair].by
            if by not in ("", moved):
                yield (
                    f"its messages are stored at {topology.vertex[queue.home].label}, so link {pair[0]} → {pair[1]} "
                    f"carries {moved}s, but the plan counts its capacity for {by}s"
                )
        at = memory_inside(topology, leg)
        if at is not None:
            yield (
                f"path {list(leg)} crosses the memory of {topology.vertex[at].label}, so its home must be "
                f"there, got {topology.vertex[queue.home].label}"
            )


def _load_faults(program: Program, topology: Topology) -> Iterator[str]:
    """Paths that do not exist, and links with a load above their capacity at the program's rate."""
    of_whole = weights(program)
    scale = lcm(*(part.denominator for part in of_whole))
    scaled = [int(part * scale) for part in of_whole]
    sent = [0] * len(program.queues)
    for role in program.roles:
        for index in role.sends:
            sent[index] += scaled[role.slice]
    job = frozenset(program.ranks)
    vertices = program.vertices
    # Many queues share one path, which is checked once.
    carried_on: dict[Path, int] = {}
    right: set[tuple[Path, int]] = set()
    for index, queue in enumerate(program.queues):
        path = queue.path
        src, dst = vertices[queue.src], vertices[queue.dst]
        carried_on[path] = carried_on.get(path, 0) + sent[index]
        if len(path) < 2 or path[0] != src or path[-1] != dst:
            yield (
                f"queue {index} from rank {queue.src} to rank {queue.dst} lies on path {list(path)}, which "
                f"must lead from vertex {src} to vertex {dst}"
            )
            yield from (f"queue {index}: {fault}" for fault in _crossed_ranks(queue, job))
        elif (path, queue.home) not in right:
            faults = [f"queue {index}: {fault}" for fault in _way_faults(queue, topology, job)]
            yield from faults
            if not faults:
                right.add((path, queue.home))
    load: dict[tuple[int, int], int] = {}
    for path, amount in carried_on.items():
        for arc in itertools.pairwise(path):
            load[arc] = load.get(arc, 0) + amount
    for (src, dst), carried in sorted(load.items()):
        link = topology.link.get((src, dst))
        if link is None:
            yield f"link {src} → {dst} is used, but {topology.name} has no such link"
        elif carried * program.rate.numerator > link.capacity * scale * program.rate.denominator:
            yield (
                f"overload: link {src} → {dst} carries {Fraction(carried, scale) * program.rate} at rate "
                f"{program.rate}, above its capacity {link.capacity}"
            )
