"""Simulated times as tables, a chart and their decisive costs; and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from blinkccl.cost.baselines.candidate import Conditions, Estimate
from blinkccl.cost.baselines.registry import JobCandidates, moves_nothing, wins
from blinkccl.cost.choice.candidates import Code
from blinkccl.cost.choice.programs import stores_bound_gb_per_s
from blinkccl.cost.simulate.timeline import Summary
from blinkccl.show.charts import Curve, curves_picture
from blinkccl.show.plan_text import assumed_lines
from blinkccl.show.shapes import Picture
from blinkccl.show.text import Paint, columns, count, fit, gb_per_s_text, ids, seconds_text
from blinkccl.show.words import collective_name
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import assumed
from blinkccl.trees.algorithms.path_table import PairSplits
from blinkccl.units import size_text

#: Limit on links and hops in text.
_SHOWN = 4
#: Limit on links and hops in JSON.
_LISTED = 16


def head_text(field: JobCandidates, code: Code, conditions: Conditions) -> str:
    """The job, and the assumptions of its simulation."""
    request = field.request
    links = "the plan's links" if field.of_plan else f"--links {request.links}"
    streams = ", a stream per link and tree" if code.gpu is None else ""
    lines = [
        f"{request.collective.name} among GPUs {ids(request.ranks)} of {request.topology.name}",
        f"{code.about(conditions)}; links fifo{streams}",
        f"no schedule of trees on {links} is faster than {gb_per_s_text(field.bound_gb_per_s)} (nominal rates)",
    ]
    lines += assumed_lines(_network(field))
    stores = None if code.gpu is None or field.of_plan else stores_bound_gb_per_s(request)
    if stores is not None:
        lines.append(f"kernels use no link that leads only into a processor's memory: at most {gb_per_s_text(stores)}")
    return "\n".join(lines) + "\n"


def _network(field: JobCandidates) -> Topology:
    """The job's links; a plan's are all of its topology."""
    return field.request.topology if field.of_plan else field.request.network


def size_table(field: JobCandidates, row: Sequence[Estimate], paint: Paint, width: int | None = None) -> str:
    """One size: every candidate, the fastest first."""
    nothing, size = moves_nothing(row), row[0].size_bytes
    table = [
        [
            estimate.name,
            seconds_text(estimate.seconds),
            f"{estimate.algbw_gb_per_s:.2f}",
            f"{estimate.busbw_gb_per_s:.2f}",
            f"{100 * estimate.algbw_gb_per_s / field.bound_gb_per_s:.0f}",
            size_text(estimate.chunk_bytes) if estimate.chunk_bytes else "-",
            estimate.detail,
        ]
        for estimate in sorted(row, key=lambda estimate: estimate.seconds)
    ]
    header = ("algorithm", "time", "algbw", "busbw", "%bound", "chunk", "how")
    best = "" if nothing else "bold"
    lines = columns(header, table, (0, 6), width, look=lambda n, _: best if n == 1 else "", paint=paint)
    if nothing:
        lines += ["", fit("nothing moves: fewer than one element per block", width)]
    return f"\n{size_text(size)} ({size:,} bytes), GB/s:\n\n" + "\n".join(lines) + "\n"


def sweep_table(rows: Sequence[Sequence[Estimate]], paint: Paint, width: int | None = None) -> str:
    """All sizes: the time of every candidate, the fastest marked, and the ranges of sizes that each wins."""
    names = [estimate.name for estimate in rows[0]]
    table = []
    for row in rows:
        best = None if moves_nothing(row) else min(row, key=lambda estimate: estimate.seconds)
        cells = [seconds_text(estimate.seconds) + ("*" if estimate is best else " ") for estimate in row]
        table.append([size_text(row[0].size_bytes), *cells])
    lines = columns(("size", *(f"{name} " for name in names)), table, width=width)
    text = "\n" + "\n".join(lines) + "\n\n* the fastest\n\nfastest by size:\n"
    for win in wins(rows):
        if win.first_bytes == win.last_bytes:
            text += f"  {size_text(win.first_bytes):>6}           {paint(win.name, 'bold')}\n"
        else:
            span = f"{size_text(win.first_bytes):>6} … {size_text(win.last_bytes)}"
            text += f"  {span:<16} {paint(win.name, 'bold')}\n"
    return text


def sim_picture(field: JobCandidates, code: Code, rows: Sequence[Sequence[Estimate]]) -> Picture:
    """The algbw of every candidate over size, and the bound."""
    request = field.request
    curves = [
        Curve(column[0].name, [(estimate.size_bytes, estimate.algbw_gb_per_s) for estimate in column])
        for column in zip(*rows, strict=True)
    ]
    title = (
        f"{collective_name(request.collective.name)} among {count(len(request.ranks), 'GPU')} ({ids(request.ranks)}) "
        f"of {request.topology.name}, simulated ({code.name})"
    )
    return curves_picture(title, "algbw, GB/s", curves, ("proved bound", field.bound_gb_per_s))


def summary_text(name: str, summary: Summary, seconds: float) -> str:
    """The full links of one candidate, and its use of time."""
    if not summary.links or not seconds:
        return ""
    label = summary.labels
    full = ", ".join(
        f"{label[use.src]} → {label[use.dst] if use.src != use.dst else 'memory'} {use.busy:.0%} of "
        f"{gb_per_s_text(use.gb_per_s)}"
        for use in summary.links[:_SHOWN]
    )
    parts = ", ".join(f"{what} {part / seconds:.0%}" for what, part in summary.parts.items())
    hops = ", ".join(
        f"{label[hop.src]} → {label[hop.dst]} {hop.seconds / seconds:.0%}"
        if hop.src != hop.dst
        else f"at {label[hop.src]} {hop.seconds / seconds:.0%}"
        for hop in summary.hops[:_SHOWN]
    )
    return f"\n{name}: fullest links  {full}\ncritical path   {parts}\ndecided by      {hops}\n"


def sharing_text(best: Estimate, fair: Estimate) -> str:
    """The time of the fastest plan if links are shared fairly."""
    change = fair.seconds / best.seconds - 1
    return (
        f"sharing         {best.name} takes {seconds_text(best.seconds)} if links serve transfers in order (fifo), "
        f"{seconds_text(fair.seconds)} ({change:+.0%}) if transfers share them (fair)\n"
    )


def path_text(row: PairSplits, width: int | None = None) -> str:
    """The split of messages between two ends, by size."""
    table = []
    for before, split in zip((None, *row.splits), row.splits, strict=False):
        end = split.up_to_bytes
        size = f"up to {size_text(end)}" if end else f"from {size_text((before and before.up_to_bytes) or 0)}"
        table.append([size, f"{split.gb_per_s:.2f}", f"{split.direct_gb_per_s:.2f}", split.text()])
    head = fit(f"\nmulti_path from {row.src} to {row.dst}, at the longest message of each row:\n\n", width)
    return head + "\n".join(columns(("size", "GB/s", "direct", "paths"), table, (0, 3), width)) + "\n"


def absent_text(field: JobCandidates) -> str:
    """Candidates missing in the table, with reasons if they were requested by name."""
    return f"\n{not_here_text(field.absent, bool(field.named), '--algo NAME')}" if field.absent else ""


def not_here_text(absent: Mapping[str, str], why: bool, option: str) -> str:
    """Candidates that do not serve the job, and ``why``; else the ``option`` that shows the reasons."""
    if not why:
        return f"unavailable: {', '.join(absent)} (reasons: {option})\n"
    return "unavailable:\n" + "".join(f"  {name}: {reason}\n" for name, reason in absent.items())


def sim_document(
    field: JobCandidates,
    code: Code,
    conditions: Conditions,
    rows: Sequence[Sequence[Estimate]],
    best: Estimate | None,
    summary: Summary | None,
    steps: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The JSON object; ``summary`` belongs to the plan ``best``, and ``steps`` are those of training, if any."""
    request, bound = field.request, field.bound_gb_per_s
    document: dict[str, Any] = {
        "collective": request.collective.name,
        "topology": request.topology.name,
        "ranks": list(request.ranks),
        "code": code.name,
        "calibration": conditions.calibration.name if code.gpu is None else None,
        "sharing": "fifo",
        "streams": "per-tree" if code.gpu is None else None,
        "bound_gb_per_s": bound,
        "assumed": assumed(_network(field)),
        "sizes": [
            {"size_bytes": row[0].size_bytes, "algorithms": [_row_document(estimate, bound) for estimate in row]}
            for row in rows
        ],
        "wins": [{"algorithm": w.name, "first_bytes": w.first_bytes, "last_bytes": w.last_bytes} for w in wins(rows)],
        "absent": dict(field.absent),
    }
    if field.path_row is not None:
        document["paths"] = msgspec.to_builtins(field.path_row, enc_hook=str)
    if steps:
        document["steps"] = list(steps)
    if best is not None and summary is not None:
        document["decided_by"] = decided_document(best, summary)
    return document


def decided_document(best: Estimate, summary: Summary) -> dict[str, Any]:
    """The content of :func:`summary_text` as JSON."""
    return {
        "algorithm": best.name,
        "size_bytes": best.size_bytes,
        "seconds": dict(summary.parts),
        "hops": [asdict(hop) for hop in summary.hops[:_LISTED]],
        "links": [asdict(use) for use in summary.links[:_LISTED]],
    }


def _row_document(estimate: Estimate, bound: float) -> dict[str, Any]:
    simulation = estimate.simulation
    return {
        "algorithm": estimate.name,
        "seconds": estimate.seconds,
        "algbw_gb_per_s": estimate.algbw_gb_per_s,
        "busbw_gb_per_s": estimate.busbw_gb_per_s,
        "percent_bound": 100 * estimate.algbw_gb_per_s / bound,
        "protocol": estimate.protocol or None,
        "chunk_bytes": estimate.chunk_bytes or None,
        "transfers": None if simulation is None else simulation.outcome.transfers,
        "aggregated": None if simulation is None else simulation.aggregated,
        "how": estimate.detail,
    }
