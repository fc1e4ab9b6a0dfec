"""A benchmark's conditions, and its JSON: nccl-tests' ``-J`` format, version 3, with schema version and more fields."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from blinkccl.bench.algorithms import CHUNKS, Job
from blinkccl.bench.bound import MemoryBaseline
from blinkccl.bench.interleave import BenchSettings
from blinkccl.bench.rows import SizeRow, SizeTiming, average_busbw, failed
from blinkccl.bench.sizes import Sweep
from blinkccl.collectives.spec import Collective
from blinkccl.schema import SCHEMA_VERSION

NCCL_TESTS_VERSION = 3
#: nccl-tests' names of element types that differ from NumPy's.
TYPE_NAMES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
DTYPE_OF = {shown: name for name, shown in TYPE_NAMES.items()}
#: nccl-tests' names of operations that differ from ours.
OP_NAMES = {"premul_sum": "mulsum"}
OP_OF = {shown: name for name, shown in OP_NAMES.items()}


@dataclass(frozen=True, slots=True)
class About:
    """The conditions of a run; ``devices`` has per rank a process id, a vertex or place on this host, and a name.

    ``notes`` are lines of the header on the meaning of the times; ``more`` and ``more_config`` extend nccl-tests' JSON.
    """

    collective: Collective
    settings: BenchSettings
    algorithm: str
    n_gpus: int
    devices: Sequence[tuple[int, int, str]]
    notes: Sequence[str]
    more: dict[str, Any]
    more_config: dict[str, Any]
    bound: bool = False
    #: The measured algorithms, that of the rows first; with one algorithm, the table is nccl-tests'.
    algorithms: Sequence[str] = ()

    @property
    def several(self) -> bool:
        """True if algorithms are compared."""
        return len(self.algorithms) > 1

    @property
    def type_name(self) -> str:
        """nccl-tests' name of the element type."""
        return TYPE_NAMES.get(self.settings.dtype, self.settings.dtype)

    @property
    def redop(self) -> str:
        """The operation; "none" for collectives without one."""
        return OP_NAMES.get(self.settings.op, self.settings.op) if self.collective.reduces else "none"

    @property
    def root(self) -> int:
        """The root's rank; −1 without a root."""
        return -1 if self.collective.root is None else self.collective.root


def of_host(
    job: Job,
    settings: BenchSettings,
    pids: Sequence[int],
    launcher: str | None,
    baseline: MemoryBaseline | None,
    peers: dict[str, str],
) -> About:
    """The conditions of rank processes on this host, started by ``launcher`` or by this process (None).

    ``peers`` has the libraries of peers by name, ``baseline`` the probe's result at the start; without a probe there is
    no %bound.
    """
    ranks = job.collective.world_size
    memory = "shared tensors" if settings.shared else "private buffers"
    notes = [
        f"Ranks are processes of this host, on {memory}. time: of the slowest rank, mean over iterations,",
        f"median of {settings.rounds} round(s). %bound and ratios compare medians, paired by round; with a ratio "
        "above 1, blink is faster.",
    ]
    probe = None
    if baseline is None:
        notes.append("There is no %bound, because there is no C compiler (cc) for the memory probe.")
    else:
        trip = "" if baseline.round_trip_s is None else f", {baseline.round_trip_s * 1e9:.0f} ns round trip"
        notes.append(f"Cores at the start: {baseline.placement}{trip}; memory {baseline.bytes_per_s / 1e9:.1f} GB/s.")
        probe = {**asdict(baseline), "placement": baseline.placement}
    notes += _planned_notes(job)
    notes += [f"Peer {name}: {library}" for name, library in peers.items()]
    more: dict[str, Any] = {"algorithms": job.names, "topology": job.where} if job.planned else {}
    return About(
        job.collective,
        settings,
        job.names[0],
        1 if launcher else ranks,
        [(pid, rank, "process of this host") for rank, pid in enumerate(pids)],
        notes,
        {"ranks": list(range(ranks)), "launcher": launcher, "probe": probe, "peers": peers, **more},
        {"rounds": settings.rounds, "average": 3, "shared": settings.shared},
        baseline is not None,
        job.names,
    )


def _planned_notes(job: Job) -> list[str]:
    if not job.planned:
        return []
    chunks = ", ".join(f"{size // 1024}K" for size in CHUNKS)
    return [
        f"Planned for {job.where}; the host engine runs the plans in this host's memory, not on these links.",
        f"Messages have inline flags, or {chunks}: the fastest of a short trial at each size.",
    ]


def record(
    about: About, sweep: Sweep, rows: Sequence[SizeRow], arguments: Sequence[str], began: str, ended: str
) -> dict[str, Any]:
    """The object of nccl-tests' ``-J``.

    Differences: ``nccl_version`` is null, as NCCL takes no part; ``blink_version``, ``algorithm`` and ``engine`` are
    added; ``env`` has only variables that begin with BLINK_. Results may have ``bound_percent`` and ``peers``.
    """
    bad = failed(rows, about.algorithms)
    return {
        "version": NCCL_TESTS_VERSION,
        "start_time": began,
        "args": list(arguments),
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith("BLINK_")},
        "nccl_version": None,
        "blink_version": version("blink-ccl"),
        "algorithm": about.algorithm,
        "engine": "host",
        "config": _config_document(about, sweep),
        "results": [_result_document(about, row) for row in rows],
        "out_of_bounds": {"count": bad, "okay": bad == 0},
        "average_bus_bandwidth": {"bandwidth": average_busbw(rows), "okay": True},
        "errors": [],
        "end_time": ended,
    }


def document(recorded: dict[str, Any], about: About) -> dict[str, Any]:
    """The object of ``blink bench --json``: ``recorded`` with blink's schema version and fields."""
    return {"schema_version": SCHEMA_VERSION, "collective": about.collective.name, **about.more, **recorded}


def now() -> str:
    """The time, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _config_document(about: About, sweep: Sweep) -> dict[str, Any]:
    host = socket.gethostname()
    devices = [
        {"rank": rank, "group": 0, "pid": pid, "hostname": host, "device": number, "device_name": name}
        for rank, (pid, number, name) in enumerate(about.devices)
    ]
    return {
        "collective": about.collective.name,
        "n_threads": 1,
        "n_gpus": about.n_gpus,
        "minimum_bytes": sweep.first,
        "maximum_bytes": sweep.last,
        "step_bytes": 0,
        "step_factor": sweep.factor,
        "warmup_iters": about.settings.warmup,
        "iters": about.settings.iterations,
        "agg_iters": 1,
        "validation": 1,
        "graph": 0,
        "unalign": 0,
        **about.more_config,
        "devices": devices,
    }


def _result_document(about: About, row: SizeRow) -> dict[str, Any]:
    result = {
        "size": row.size,
        "count": row.count,
        "type": about.type_name,
        "redop": about.redop,
        "root": about.root,
        "out_of_place": _timing_document(row.out_of_place),
        "in_place": _timing_document(row.in_place),
    }
    if row.peers:
        result["peers"] = [
            {"name": name, "out_of_place": _timing_document(out), "in_place": _timing_document(into)}
            for name, out, into in row.peers
        ]
    return result


def _timing_document(timing: SizeTiming | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    fields: dict[str, Any] = {
        "time": timing.seconds * 1e6,
        "alg_bw": timing.algbw_gb_per_s,
        "bus_bw": timing.busbw_gb_per_s,
        "nwrong": timing.wrong,
        "median": timing.median_s * 1e6,
    }
    if timing.bound_percent is not None:
        fields["bound_percent"] = timing.bound_percent
    if timing.ratio is not None or timing.variant:
        fields["variant"] = timing.variant
    if timing.ratio is not None:
        fields["ratio"] = timing.ratio
    return fields
