"""The bound on a benchmark: the least traffic of a collective, over the current rate of this host's memory.

A probe (``peers/probe.c``) runs between the candidates, on as many cores as ranks can use and on a working set of
their size. It times ``a[i] += b[i]`` and copies; the bound uses the higher rate. Synchronization has no part in the
bound, so small sizes stay far below it.
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

#: Least round trip of a cache line between cores that share no cache nearby.
FAR_S = 250e-9
#: Round trips per burst; the best of several bursts is the time without interruptions.
_ROUND_TRIPS = 1_000
_ONES = struct.pack("<1024f", *[1.0] * 1024)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def least_traffic(collective: Collective, block_bytes: int, in_place: bool) -> int:
    """Least bytes that all ranks together read from and write to buffers in any execution of ``collective``.

    Every contributed block is read once, every final block written once. In place, an unreduced block that is already
    at its destination is not written; if no other rank needs it, it is not read either. With nccl-tests' S, the sum is
    2·N·S for allreduce and alltoall, 2·S for gather, scatter and sendrecv, (N + 1)·S for the others; in place N·S for
    broadcast and allgather, 2·S·(N − 1)/N for gather and scatter.
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
    """The probe's result: bytes per second of all cores, and seconds of a round trip between two (None: one core)."""

    bytes_per_s: float
    round_trip_s: float | None

    @property
    def placement(self) -> str:
        """``near`` or ``far``: the current distance of the cores that the host assigned."""
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
        """Bytes per second that all cores together read and write, in buffers of ``working_bytes`` in total."""
        half = max(1024, working_bytes // self._size // 2)
        iterations = max(3, min(50, int(2e8) // half))
        added = self._time("probe_add", half, iterations)
        copied = self._time("probe_copy", half, iterations)
        return self._size * half * max(3 / added, 2 / copied)

    def baseline(self, working_bytes: int) -> MemoryBaseline:
        """The current rate and round trip."""
        trip = None
        if self._size > 1:
            command = Command(Kind.RUN, "probe_round_trip", count=_ROUND_TRIPS, iterations=20)
            seconds = self.run([command] * self._size).seconds
            trip = float(np.min(seconds.max(axis=0))) / _ROUND_TRIPS
        return MemoryBaseline(self.rate(working_bytes), trip)

    def _time(self, name: str, size: int, iterations: int) -> float:
        """Median seconds of the slowest core, with ``size`` bytes per core."""
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
