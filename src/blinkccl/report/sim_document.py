"""Simulated times as the JSON object of ``blink sim --json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blinkccl.schema import SCHEMA_VERSION
from blinkccl.simulate.contenders import Conditions, Estimate, Field, wins
from blinkccl.simulate.summary import Summary
from blinkccl.simulate.training import Step

#: Links and hops that are listed.
_LISTED = 16


def sim_document(
    field: Field,
    conditions: Conditions,
    rows: Sequence[Sequence[Estimate]],
    best: Estimate | None,
    summary: Summary | None,
    steps: Mapping[str, Step],
) -> dict[str, Any]:
    """The object; ``best`` is the plan that ``summary`` is of, ``steps`` are those of training."""
    request, bound = field.request, field.bound_gb_per_s
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "collective": request.collective.name,
        "topology": request.topology.name,
        "ranks": list(request.ranks),
        "calibration": conditions.calibration.name,
        "sharing": conditions.settings.sharing,
        "streams": conditions.settings.streams,
        "bound_gb_per_s": bound,
        "sizes": [
            {"size_bytes": row[0].size_bytes, "algorithms": [_row(estimate, bound) for estimate in row]} for row in rows
        ],
        "wins": [{"algorithm": w.name, "first_bytes": w.first_bytes, "last_bytes": w.last_bytes} for w in wins(rows)],
        "absent": dict(field.absent),
    }
    if steps:
        document["steps"] = [
            {
                "algorithm": name,
                "step_s": step.total_s,
                "compute_s": step.compute_s,
                "communication_s": step.communication_s,
                "exposed_s": step.exposed_s,
                "overhead_percent": step.overhead_percent,
            }
            for name, step in steps.items()
        ]
    if best is not None and summary is not None:
        document["decided_by"] = {
            "algorithm": best.name,
            "size_bytes": best.size_bytes,
            "seconds": dict(summary.parts),
            "hops": [{"src": h.src, "dst": h.dst, "seconds": h.seconds} for h in summary.hops[:_LISTED]],
            "links": [
                {"src": use.src, "dst": use.dst, "bytes": use.bytes, "gb_per_s": use.gb_per_s, "busy": use.busy}
                for use in summary.links[:_LISTED]
            ],
        }
    return document


def _row(estimate: Estimate, bound: float) -> dict[str, Any]:
    simulation = estimate.simulation
    return {
        "algorithm": estimate.name,
        "seconds": estimate.seconds,
        "algbw_gb_per_s": estimate.algbw_gb_per_s,
        "busbw_gb_per_s": estimate.busbw_gb_per_s,
        "percent_bound": 100 * estimate.algbw_gb_per_s / bound,
        "chunk_bytes": estimate.chunk_bytes or None,
        "transfers": None if simulation is None else simulation.outcome.transfers,
        "aggregated": None if simulation is None else simulation.aggregated,
        "how": estimate.detail,
    }
