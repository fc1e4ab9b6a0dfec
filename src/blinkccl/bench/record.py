"""A measurement as JSON: nccl-tests' ``-J`` file, version 3, and ours for ``--json``."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from blinkccl.bench import table
from blinkccl.bench.measure import Bench, Row, Timing
from blinkccl.bench.sizes import Sweep

SCHEMA_VERSION = 1
NCCL_TESTS_VERSION = 3


def record(bench: Bench, sweep: Sweep, rows: Sequence[Row], arguments: Sequence[str], began: datetime,
           ended: datetime) -> dict[str, Any]:
    """The object that nccl-tests writes with ``-J``.

    Where we differ: ``nccl_version`` is null, as NCCL takes no part; ``blink_version``, ``algorithm`` and
    ``engine`` are added; ``out_of_bounds`` is null where nothing was checked (-c 0); ``env`` holds this
    program's own variables only.
    """
    bad = table.failed(rows)
    return {
        "version": NCCL_TESTS_VERSION, "start_time": _stamp(began), "args": list(arguments),
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith("BLINK_")},
        "nccl_version": None, "blink_version": version("blink-ccl"), "algorithm": bench.forest.algorithm,
        "engine": bench.settings.engine, "config": _config(bench, sweep),
        "results": [_result(bench, row) for row in rows],
        "out_of_bounds": {"count": bad, "okay": bad == 0} if bench.settings.check else None,
        "average_bus_bandwidth": {"bandwidth": table.average_busbw(rows), "okay": True},
        "errors": [], "end_time": _stamp(ended),
    }


def document(recorded: dict[str, Any], bench: Bench) -> dict[str, Any]:
    """The object of ``blink bench --json``: the same, with our schema version and what was planned."""
    forest = bench.forest
    planned = {"rate": str(forest.rate), "bound": str(forest.bound), "unit_gbps": forest.topology.unit_gbps,
               "algbw_gbps": forest.algbw_gbps}
    return {"schema_version": SCHEMA_VERSION, "collective": forest.collective.name,
            "ranks": list(forest.ranks), "planned": planned, **recorded}


def now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _config(bench: Bench, sweep: Sweep) -> dict[str, Any]:
    settings, forest = bench.settings, bench.forest
    host = socket.gethostname()
    devices = [{"rank": rank, "group": 0, "pid": os.getpid(), "hostname": host, "device": vertex,
                "device_name": f"thread for {forest.topology.vertex[vertex].label} of {forest.topology.name}"}
               for rank, vertex in enumerate(forest.ranks)]
    return {"collective": forest.collective.name, "n_threads": len(forest.ranks), "n_gpus": 1,
            "minimum_bytes": sweep.first, "maximum_bytes": sweep.last, "step_bytes": sweep.step,
            "step_factor": sweep.factor, "warmup_iters": settings.warmup, "iters": settings.iterations,
            "agg_iters": 1, "validation": int(settings.check), "graph": 0, "unalign": 0,
            "chunk_bytes": settings.chunk_bytes, "devices": devices}


def _result(bench: Bench, row: Row) -> dict[str, Any]:
    return {"size": row.size, "count": row.count, "type": table.type_name(bench),
            "redop": bench.settings.op if bench.collective.reduces else "none", "root": table.root(bench),
            "out_of_place": _timing(row.out_of_place), "in_place": _timing(row.in_place)}


def _timing(timing: Timing | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    return {"time": timing.seconds * 1e6, "alg_bw": timing.algbw_gbps, "bus_bw": timing.busbw_gbps,
            "nwrong": timing.wrong}
