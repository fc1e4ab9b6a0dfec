"""The circumstances of a benchmark, as the table's header and the JSON's ``config`` tell them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blinkccl.bench.bound import MemoryBaseline
from blinkccl.bench.interleave import BenchSettings
from blinkccl.bench.measure import PlannedRanks
from blinkccl.bench.rows import ACROSS_RANKS
from blinkccl.collectives.spec import Collective

#: nccl-tests' names of element types; the rest are called as in NumPy.
TYPE_NAMES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
DTYPE_OF = {shown: name for name, shown in TYPE_NAMES.items()}
#: And of operations.
OP_NAMES = {"premul_sum": "mulsum"}
OP_OF = {shown: name for name, shown in OP_NAMES.items()}


@dataclass(frozen=True, slots=True)
class About:
    """A run's circumstances.

    ``notes`` are lines of the header that say what the times are of; ``more`` and ``more_config`` what the JSON adds to
    nccl-tests' fields and to its ``config``. There are columns of %bound if ``bound`` says so. ``devices`` are by rank
    a process id, a vertex of the topology or a place on this host, and a name.
    """

    collective: Collective
    settings: BenchSettings
    engine: str
    algorithm: str
    n_threads: int
    n_gpus: int
    devices: Sequence[tuple[int, int, str]]
    notes: Sequence[str]
    more: dict[str, Any]
    more_config: dict[str, Any]
    bound: bool = False

    @property
    def type_name(self) -> str:
        """The element type as nccl-tests calls it."""
        return TYPE_NAMES.get(self.settings.dtype, self.settings.dtype)

    @property
    def redop(self) -> str:
        """The operation, "none" for collectives that have none."""
        return OP_NAMES.get(self.settings.op, self.settings.op) if self.collective.reduces else "none"

    @property
    def root(self) -> int:
        """The root's rank, −1 where there is none."""
        return -1 if self.collective.root is None else self.collective.root


def of_plan(planned: PlannedRanks, settings: BenchSettings) -> About:
    """Of a plan that is run in this process."""
    forest = planned.forest
    topology = forest.topology
    devices = [
        (os.getpid(), vertex, f"memory for {topology.vertex[vertex].label} of {topology.name}")
        for vertex in forest.ranks
    ]
    notes = [
        f"Times are of one process that moves real bytes along the plan for {topology.name}; they say nothing",
        f"about its links, so there is no %bound. Planned there: {forest.algbw_gb_per_s:.4g} GB/s algbw.",
    ]
    rates = {
        "rate": str(forest.rate),
        "bound": str(forest.bound),
        "unit_gb_per_s": topology.unit_gb_per_s,
        "algbw_gb_per_s": forest.algbw_gb_per_s,
    }
    return About(
        forest.collective,
        settings,
        planned.engine,
        forest.algorithm,
        len(forest.ranks),
        1,
        devices,
        notes,
        {"ranks": list(forest.ranks), "planned": rates},
        {"chunk_bytes": planned.chunk_bytes},
    )


def of_host(
    collective: Collective,
    settings: BenchSettings,
    pids: Sequence[int],
    launcher: str | None,
    baseline: MemoryBaseline | None,
    peers: dict[str, str],
) -> About:
    """Of rank processes on this host, which ``launcher`` started, or we (None).

    ``baseline`` is what the probe found at the start; without a probe there is no %bound. ``peers`` are the names of
    those that take part, with what they say they are.
    """
    ranks = collective.world_size
    memory = "shared tensors" if settings.shared else "private buffers"
    notes = [
        f"Ranks are processes of this host, on {memory}. time: of the {ACROSS_RANKS[settings.across]} (-a "
        f"{settings.across}), mean over iterations,",
        f"median of {settings.rounds} round(s). %bound and ratios compare medians, paired by round; a ratio "
        "above 1 is in our favour.",
    ]
    probe = None
    if baseline is None:
        notes.append("There is no C compiler (cc) for the memory probe, so there is no %bound.")
    else:
        trip = "" if baseline.round_trip_s is None else f", {baseline.round_trip_s * 1e9:.0f} ns round trip"
        notes.append(f"Cores at the start: {baseline.placement}{trip}; memory {baseline.bytes_per_s / 1e9:.1f} GB/s.")
        probe = {**asdict(baseline), "placement": baseline.placement}
    notes += [f"Peer {name}: {library}" for name, library in peers.items()]
    return About(
        collective,
        settings,
        "host",
        "auto",
        1,
        1 if launcher else ranks,
        [(pid, rank, "process of this host") for rank, pid in enumerate(pids)],
        notes,
        {"ranks": list(range(ranks)), "launcher": launcher, "probe": probe, "peers": peers},
        {"rounds": settings.rounds, "average": settings.across, "shared": settings.shared},
        baseline is not None,
    )
