"""One rank's part in calls over several hosts: three phases, chunk by chunk, so that the phases overlap.

:mod:`~blinkccl.runtime.hierarchy` decides, this moves. The ranks of a host are a :class:`HostGroup`, which combines
what they give (phase 1) and orders their steps; their window is one piece of memory. Between hosts its parts travel
over a :class:`~blinkccl.runtime.network.Network` while the next chunk is being combined. Sums are folded in the order
of hosts, on all hosts alike: so all ranks get the same bits, in every run.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import OPS, DType, Operation, element_type, fold, operation
from blinkccl.errors import PeerLostError, UnsupportedError
from blinkccl.runtime import hierarchy
from blinkccl.runtime.bootstrap import join
from blinkccl.runtime.heap import memory_file
from blinkccl.runtime.hierarchy import WINDOW_BYTES, HierarchyPlan, Hosts, NetworkCost
from blinkccl.runtime.host_group import HostGroup
from blinkccl.runtime.network import Network, Pending
from blinkccl.runtime.store import Store

Array = NDArray[Any]
#: A chunk has so many rounds at most, and is entered before the one before it has left.
_SLOTS = 4
#: Waits for the network end so long after those inside a host, which know better who is missing.
_SLACK_S = 0.5


@dataclass(frozen=True, slots=True)
class PhasedCall:
    """A call, as every execution of it needs it."""

    call: CollectiveCall
    row: DType
    plan: HierarchyPlan
    reduces: bool
    blocks: int
    said: str
    tag: int
    #: What combines the sums of hosts, what ends an average, and the operation inside a host.
    combines: Operation
    divisor: int
    op: str
    #: By the elements of a chunk, the two calls inside a host where few bytes go by its first rank.
    by_first: dict[int, tuple[CollectiveCall, CollectiveCall]]

    @classmethod
    def of(cls, call: CollectiveCall, hosts: Hosts, rank: int, cost: NetworkCost) -> PhasedCall:
        """UnsupportedError or UsageError if the call makes no sense."""
        row, chosen = element_type(call.dtype), operation(call.op)
        collective = call.among(hosts.size)
        if collective.reduces:
            row.combine(chosen)  # refuses what the type does not have
        blocks = hierarchy.window_blocks(collective)
        if blocks * row.itemsize > WINDOW_BYTES:
            raise UnsupportedError(f"{call.collective} over several hosts serves fewer ranks than {hosts.size}")
        plan = hierarchy.plan(hosts, collective, rank, max(1, call.elements), row.itemsize, cost)
        said = f"{call}, {call.root} to {call.dst}" if call.collective == "sendrecv" else str(call)
        averages = collective.reduces and chosen.averages
        op = chosen.base if averages else call.op
        by_first = {
            size: (
                CollectiveCall("reduce", call.dtype, size, op),
                CollectiveCall("broadcast", "uint8", size * row.itemsize),
            )
            for size in plan.rounds
        }
        tag, divisor = crc32(said.encode()) & 0xFFFF, hosts.size if averages else 1
        return cls(call, row, plan, collective.reduces, blocks, said, tag, OPS[chosen.base], divisor, op, by_first)


class ThreePhases:
    """Where they happen, for one rank of a group: among the ranks of its host, in their window, over the network."""

    def __init__(self, hosts: Hosts, rank: int, local: HostGroup, window: Array, network: Network) -> None:
        self.hosts, self.local, self.window, self.network = hosts, local, window, network
        self.host = hosts.host_of[rank]
        self.members = hosts.members[self.host]
        self.place = self.members.index(rank)
        self.window_at = int(window.ctypes.data)
        #: Since the group was made, and the same on all ranks, which all make the same calls.
        self.rounds = self.chunks = 0
        self._staging: dict[tuple[int, int], Array] = {}

    def at_home(
        self, call: CollectiveCall, send: int | None, recv: int | None, scale: float | None, left_s: float
    ) -> None:
        """A collective among the ranks of this host."""
        try:
            self.local.run(call, send, recv, scale, max(0.001, left_s))
        except PeerLostError as error:
            raise PeerLostError(self.members[error.rank], error.message, error.pid) from error

    def meet_at_home(self, left_s: float) -> None:
        """Returns when all ranks of this host have come so far, and see what the others have written."""
        if len(self.members) > 1:
            try:
                self.local.barrier(max(0.001, left_s))
            except PeerLostError as error:
                raise PeerLostError(self.members[error.rank], error.message, error.pid) from error

    def staging(self, slot: int, host: int, nbytes: int) -> Array:
        """Memory for what comes from another host; kept, also while a call that failed may still write there."""
        found = self._staging.get((slot, host))
        if found is None or len(found) < nbytes:
            found = self._staging[slot, host] = np.empty(nbytes, np.uint8)
        return found


@dataclass(slots=True)
class _Flight:
    """A chunk between hosts: the messages of its present round, and what they are tagged with."""

    tag: int
    sends: list[Pending] = field(default_factory=list)
    receives: list[Pending] = field(default_factory=list)


class Execution:
    """One rank in one call."""

    def __init__(
        self,
        phases: ThreePhases,
        prepared: PhasedCall,
        send: int | None,
        recv: int | None,
        scale: float | None,
        deadline: float,
    ) -> None:
        self._phases, self._prepared, self._call, self._plan = phases, prepared, prepared.call, prepared.plan
        self._row, self._item = prepared.row, prepared.row.itemsize
        self._reduces, self._blocks = prepared.reduces, prepared.blocks
        self._send, self._recv, self._scale, self._deadline = send, recv, scale, deadline
        self._chunks = -(-prepared.call.elements // prepared.plan.chunk)
        self._flights: dict[int, _Flight] = {}
        #: Chunks of all calls take their slots in turns: others of this host may still read what the last call left.
        self._first = phases.chunks
        phases.chunks += self._chunks

    def run(self) -> None:
        """Makes the call."""
        if self._plan.by_first:
            self._run_by_first()
        else:
            self._run_by_all()

    def _run_by_all(self) -> None:
        """The chunks, as a pipeline: in each tick one is entered, and those before it go a stage further."""
        stages = len(next(iter(self._plan.rounds.values())))
        for tick in range(self._chunks + stages):
            if tick < self._chunks:
                self._expect(tick, 0)
                self._enter(tick)
                self._give(tick, 0)
            for stage in range(1, stages + 1):
                chunk = tick - stage
                if 0 <= chunk < self._chunks:
                    self._finish(chunk, stage - 1)
                    if stage < stages:
                        self._expect(chunk, stage)
                        self._give(chunk, stage)
                    else:
                        self._leave(chunk)

    def _run_by_first(self) -> None:
        """Few bytes: two calls inside the host per chunk, and between them messages of its first rank.

        All chunks are given to the network before the first comes back.
        """
        phases, chunks = self._phases, range(self._chunks)
        first, stages = phases.place == 0, len(next(iter(self._plan.rounds.values())))
        assert self._send is not None
        assert self._recv is not None
        step = self._plan.chunk * self._item
        for chunk in chunks if first else ():
            self._expect(chunk, 0)
        for chunk in chunks:
            combine, _ = self._prepared.by_first[self._count(chunk)]
            window = self._at(chunk) if first else None
            phases.at_home(combine, self._send + chunk * step, window, self._scale, self._left_s())
            if first:
                self._give(chunk, 0)
        for stage in range(1, stages if first else 1):
            for chunk in chunks:
                self._finish(chunk, stage - 1)
                self._expect(chunk, stage)
                self._give(chunk, stage)
        phases.rounds += 0 if first else stages * self._chunks
        for chunk in chunks:
            if first:
                self._finish(chunk, stages - 1)
            _, spread = self._prepared.by_first[self._count(chunk)]
            window = self._at(chunk) if first else None
            phases.at_home(spread, window, self._recv + chunk * step, None, self._left_s())

    def _count(self, chunk: int) -> int:
        """Elements of a block in this chunk."""
        return min(self._plan.chunk, self._call.elements - chunk * self._plan.chunk)

    def _at(self, chunk: int, element: int = 0) -> int:
        """Where an element of this chunk's window is."""
        return self._phases.window_at + self._slot(chunk) * WINDOW_BYTES + element * self._item

    def _slot(self, chunk: int) -> int:
        return (self._first + chunk) % _SLOTS

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    # ---- inside the host

    def _enter(self, chunk: int) -> None:
        """Phase 1: what this host's ranks give stands in the window."""
        count, first = self._count(chunk), chunk * self._plan.chunk
        if self._reduces:
            self._combine(chunk, count, first)
        else:
            for block, place in self._plan.into:
                assert self._send is not None
                source = self._send + (block * self._call.elements + first) * self._item
                c.memmove(self._at(chunk, place * count), source, count * self._item)
        self._phases.meet_at_home(self._left_s())

    def _combine(self, chunk: int, count: int, first: int) -> None:
        assert self._send is not None
        source = self._send + first * self._item
        total = self._blocks * count
        if self._blocks > 1:
            source = self._in_order(count, first)
        op = self._prepared.op
        ranks, place = len(self._phases.members), self._phases.place
        part, rest = divmod(total, ranks)
        if part:
            call = CollectiveCall("reduce_scatter", self._call.dtype, part, op)
            self._phases.at_home(call, source, self._at(chunk, place * part), self._scale, self._left_s())
        if rest:
            call = CollectiveCall("reduce", self._call.dtype, rest, op, ranks - 1)
            target = self._at(chunk, part * ranks) if place == ranks - 1 else None
            self._phases.at_home(call, source + part * ranks * self._item, target, self._scale, self._left_s())

    def _in_order(self, count: int, first: int) -> int:
        """The chunk of every block, one after the other, as the window has them."""
        assert self._send is not None
        hosts = self._phases.hosts
        order = [rank for members in hosts.members for rank in members]
        if count == self._call.elements and order == sorted(order):
            return self._send
        scratch = self._phases.staging(-1, 0, len(order) * count * self._item)
        at = int(scratch.ctypes.data)
        for place, rank in enumerate(order):
            source = self._send + (rank * self._call.elements + first) * self._item
            c.memmove(at + place * count * self._item, source, count * self._item)
        return at

    def _leave(self, chunk: int) -> None:
        """Phase 3: every rank takes its results out of the window."""
        self._phases.meet_at_home(self._left_s())
        count, first = self._count(chunk), chunk * self._plan.chunk
        if self._recv is None:
            return
        for place, block in self._plan.out:
            target = self._recv + (block * self._call.elements + first) * self._item
            c.memmove(target, self._at(chunk, place * count), count * self._item)

    # ---- between hosts

    def _expect(self, chunk: int, stage: int) -> None:
        """Posts what this rank receives in a round: early, since givers who know where their bytes go need not ask.

        Nobody reads the window's slot any more: all have come to the chunk before this one, or to the last call's end.
        """
        phases = self._phases
        phases.rounds += 1
        # A message tells its call, so that those of calls that differ never meet, and its round.
        network, tag = phases.network, self._prepared.tag << 15 | 1 + phases.rounds % 32767
        todo = self._plan.rounds[self._count(chunk)][stage]
        flight = self._flights[chunk] = _Flight(tag)
        if todo.fold is not None:
            nbytes = (todo.fold.stop - todo.fold.start) * self._item
            for host, parts in todo.fold.parts:
                at = int(phases.staging(self._slot(chunk), host, nbytes).ctypes.data)
                for part in parts:
                    place = at + (part.start - todo.fold.start) * self._item
                    size = (part.stop - part.start) * self._item
                    flight.receives.append(network.receive(place, size, part.giver, tag))
        for piece in todo.receives:
            size = (piece.stop - piece.start) * self._item
            flight.receives.append(network.receive(self._at(chunk, piece.start), size, piece.giver, tag))

    def _give(self, chunk: int, stage: int) -> None:
        """Posts what this rank sends in a round."""
        flight, network = self._flights[chunk], self._phases.network
        for piece in self._plan.rounds[self._count(chunk)][stage].sends:
            size = (piece.stop - piece.start) * self._item
            flight.sends.append(network.send(self._at(chunk, piece.start), size, piece.taker, flight.tag))

    def _finish(self, chunk: int, stage: int) -> None:
        """Waits for the messages of a round, and combines what came."""
        flight = self._flights.pop(chunk)
        for pending in (*flight.receives, *flight.sends):
            pending.wait(self._left_s() + _SLACK_S)
        work, prepared = self._plan.rounds[self._count(chunk)][stage].fold, self._prepared
        if work is None:
            return
        count = work.stop - work.start
        own = self._elements(chunk, work.start, count)
        operands = {self._phases.host: own}
        for host, _ in work.parts:
            came = self._phases.staging(self._slot(chunk), host, count * self._item)
            operands[host] = came[: count * self._item].view(self._row.storage)
        ordered = [operands[host] for host in sorted(operands)]
        with np.errstate(all="ignore"):  # an overflow to inf is a result
            own[:] = fold(self._row, prepared.combines, ordered, divisor=prepared.divisor)

    def _elements(self, chunk: int, first: int, count: int) -> Array:
        """A part of this chunk's window."""
        start = self._slot(chunk) * WINDOW_BYTES + first * self._item
        return self._phases.window[start : start + count * self._item].view(self._row.storage)


def shared_window(
    store: Store, prefix: str, place: int, size: int, deadline: float, look: Callable[[], None]
) -> NDArray[np.uint8]:
    """Memory that the ranks of a host share: as many windows as a call may have chunks under way."""
    length = _SLOTS * WINDOW_BYTES
    with join(store, prefix, place, size, b"", deadline, look) as bootstrap:
        own = [memory_file("blink-window", length)] if place == 0 else []
        _, files = bootstrap.all_gather(b"", deadline, own)
        mapped = mmap.mmap(files[0][0], length)
        for fd in (*own, *files[0]):
            os.close(fd)
    return np.frombuffer(mapped, np.uint8)
