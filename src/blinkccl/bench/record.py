"""A measurement as JSON: nccl-tests' ``-J`` file, version 3, and ours for ``--json``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from blinkccl.bench.about import About, host_name
from blinkccl.bench.rows import PERCENTILES, PeerTiming, Row, Timing, average_busbw, failed
from blinkccl.bench.sizes import Sweep

SCHEMA_VERSION = 1
NCCL_TESTS_VERSION = 3


def record(
    about: About, sweep: Sweep, rows: Sequence[Row], arguments: Sequence[str], began: datetime, ended: datetime
) -> dict[str, Any]:
    """The object that nccl-tests writes with ``-J``.

    Where we differ: ``nccl_version`` is null, as NCCL takes no part; ``blink_version``, ``algorithm`` and
    ``engine`` are added; ``out_of_bounds`` is null where nothing was checked (-c 0); ``env`` holds this
    program's own variables only. Results may have ``bound_percent``, ``percentiles`` (µs) and ``peers``.
    """
    bad = failed(rows)
    return {
        "version": NCCL_TESTS_VERSION,
        "start_time": _stamp(began),
        "args": list(arguments),
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith("BLINK_")},
        "nccl_version": None,
        "blink_version": version("blink-ccl"),
        "algorithm": about.algorithm,
        "engine": about.engine,
        "config": _config(about, sweep),
        "results": [_result(about, row) for row in rows],
        "out_of_bounds": {"count": bad, "okay": bad == 0} if about.check else None,
        "average_bus_bandwidth": {"bandwidth": average_busbw(rows), "okay": True},
        "errors": [],
        "end_time": _stamp(ended),
    }


def document(recorded: dict[str, Any], about: About) -> dict[str, Any]:
    """The object of ``blink bench --json``: the same, with our schema version and what else is known."""
    return {"schema_version": SCHEMA_VERSION, "collective": about.collective.name, **about.more, **recorded}


def now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _config(about: About, sweep: Sweep) -> dict[str, Any]:
    host = host_name()
    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": device.pid,
            "hostname": host,
            "device": device.number,
            "device_name": device.name,
        }
        for rank, device in enumerate(about.devices)
    ]
    return {
        "collective": about.collective.name,
        "n_threads": about.n_threads,
        "n_gpus": about.n_gpus,
        "minimum_bytes": sweep.first,
        "maximum_bytes": sweep.last,
        "step_bytes": sweep.step,
        "step_factor": sweep.factor,
        "warmup_iters": about.warmup,
        "iters": about.iterations,
        "agg_iters": 1,
        "validation": int(about.check),
        "graph": 0,
        "unalign": 0,
        **about.more_config,
        "devices": devices,
    }


def _result(about: About, row: Row) -> dict[str, Any]:
    found = {
        "size": row.size,
        "count": row.count,
        "type": about.type_name,
        "redop": about.redop,
        "root": about.root,
        "out_of_place": _timing(row.out_of_place),
        "in_place": _timing(row.in_place),
    }
    if row.peers:
        found["peers"] = [
            {"name": name, "out_of_place": _peer(out), "in_place": _peer(into)} for name, out, into in row.peers
        ]
    return found


def _peer(found: PeerTiming | None) -> dict[str, Any] | None:
    timing = None if found is None else _timing(found.timing)
    return None if found is None or timing is None else {**timing, "variant": found.variant, "ratio": found.ratio}


def _timing(timing: Timing | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    found: dict[str, Any] = {
        "time": timing.seconds * 1e6,
        "alg_bw": timing.algbw_gbps,
        "bus_bw": timing.busbw_gbps,
        "nwrong": timing.wrong,
    }
    if timing.bound_percent is not None:
        found["bound_percent"] = timing.bound_percent
    if timing.percentiles is not None:
        found["percentiles"] = {
            f"p{q}": seconds * 1e6 for q, seconds in zip(PERCENTILES, timing.percentiles, strict=True)
        }
    return found
