"""The bound on a benchmark: the least traffic of a collective, over what this host's memory does right now.

A probe (``peers/probe.c``) runs on as many cores as ranks can use, between the candidates and on a working set as
large as theirs: ``a[i] += b[i]`` and copying. The better of both is the rate that the bound is made of. It says
nothing about the cost of meeting, so small sizes stay far below it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blinkccl.bench.candidate import CandidateLaunch, Process, RunningCandidate
from blinkccl.bench.peers.build import build
from blinkccl.bench.protocol import Command, Kind
from blinkccl.collectives.spec import Collective

#: A round trip of a cache line above this is between cores that share nothing nearby.
FAR_S = 250e-9
#: Per burst; the best of several bursts is what the cores can do when nothing interrupts them.
_ROUND_TRIPS = 1_000
_ONES = struct.pack("<1024f", *[1.0] * 1024)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def least_traffic(collective: Collective, block_bytes: int, in_place: bool) -> int:
    """Bytes that any way of running ``collective`` must read from and write to buffers, over all ranks.

    Every contributed block is read once, every final one written once. In place, a block that is where it must be, and
    that nothing is combined into, is not written; one that nobody else needs is not even read. With S as nccl-tests
    counts it that is 2·N·S for allreduce and alltoall, 2·S for gather, scatter and sendrecv, (N + 1)·S for the others;
    in place N·S for broadcast and allgather, 2·S·(N − 1)/N for gather and scatter.
    """
    reads: set[tuple[int, int]] = set()
    writes = 0
    for item in collective.items():
        lone = item.contributions[0] if len(item.contributions) == 1 else None
        stays = [rank for rank, _ in item.destinations if in_place and lone is not None and rank == lone[0]]
        writes += len(item.destinations) - len(stays)
        if len(stays) < len(item.destinations):
            reads.update(item.contributions)
    return (len(reads) + writes) * block_bytes


@dataclass(frozen=True, slots=True)
class MemoryBaseline:
    """What the probe found: bytes per second through all cores, and seconds of a round trip between two (or None)."""

    bytes_per_s: float
    round_trip_s: float | None

    @property
    def placement(self) -> str:
        """``near`` or ``far``: where the host has put the cores at the moment."""
        if self.round_trip_s is None:
            return "one core"
        return "near" if self.round_trip_s < FAR_S else "far"


class Probe(RunningCandidate):
    """The probe's processes, one per core that ``world_size`` ranks can use."""

    def __init__(self, world_size: int) -> None:
        self._size = min(world_size, cores())
        program = build("probe.c", ("cc",), ("-std=gnu11", "-O3", "-march=native"))

        def processes(path: Path, room: Path) -> Sequence[Process]:
            return [Process([str(program), str(path), str(self._size)])]

        super().__init__(CandidateLaunch("probe", self._size, processes, library="memory probe"))

    def rate(self, working_bytes: int) -> float:
        """Bytes per second that all cores read and write together, on ``working_bytes`` of buffers in all."""
        half = max(1024, working_bytes // self._size // 2)
        iterations = max(3, min(50, int(2e8) // half))
        added = self._time("probe_add", half, iterations)
        copied = self._time("probe_copy", half, iterations)
        return self._size * half * max(3 / added, 2 / copied)

    def baseline(self, working_bytes: int) -> MemoryBaseline:
        """Rate and round trip, now."""
        trip = None
        if self._size > 1:
            command = Command(Kind.RUN, "probe_round_trip", count=_ROUND_TRIPS, iterations=20)
            found = self.run([command] * self._size).seconds
            trip = float(np.min(found.max(axis=0))) / _ROUND_TRIPS
        return MemoryBaseline(self.rate(working_bytes), trip)

    def _time(self, name: str, size: int, iterations: int) -> float:
        """Median seconds of the slowest core, for ``size`` bytes each."""
        command = Command(
            Kind.RUN,
            name,
            warmup=1,
            iterations=iterations,
            itemsize=4,
            in_blocks=1,
            out_blocks=1,
            count=size // 4,
            period=1024,
            fill=_ONES,
        )
        return float(np.median(self.run([command] * self._size).seconds.max(axis=0)))
