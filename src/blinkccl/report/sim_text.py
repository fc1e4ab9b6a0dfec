"""Simulated times as people read them: a table per size, or one over sizes, and what decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blinkccl.report.paint import Paint
from blinkccl.report.table import columns
from blinkccl.report.units_text import gb_per_s_text, ids
from blinkccl.simulate.contenders import Conditions, Estimate, Field, moves_nothing, wins
from blinkccl.simulate.summary import Summary
from blinkccl.simulate.training import Step
from blinkccl.topology.model import Topology

#: Links and hops that are shown.
_SHOWN = 4


def head_text(field: Field, conditions: Conditions) -> str:
    """What is asked, and under which assumptions."""
    request, calibration, settings = field.request, conditions.calibration, conditions.settings
    links = "the plan's links" if field.of_plan else f"--links {request.links}"
    streams = "a stream per link and tree" if settings.streams == "per-tree" else "streams shared at equal depth"
    lines = [
        f"{request.collective.name} among GPUs {ids(request.ranks)} of {request.topology.name}",
        f"calibration {calibration.name}: {calibration.about}; links {settings.sharing}, {streams}",
        f"no schedule of trees on {links} is faster than {gb_per_s_text(field.bound_gb_per_s)} (nominal rates)",
    ]
    return "\n".join(lines) + "\n"


def size_table(field: Field, row: Sequence[Estimate], paint: Paint) -> str:
    """One size: every contender, the fastest first."""
    nothing, size = moves_nothing(row), row[0].size_bytes
    table = [
        [
            estimate.name,
            seconds_text(estimate.seconds),
            f"{estimate.algbw_gb_per_s:.2f}",
            f"{estimate.busbw_gb_per_s:.2f}",
            _percent(estimate, field.bound_gb_per_s),
            bytes_text(estimate.chunk_bytes) if estimate.chunk_bytes else "-",
            estimate.detail,
        ]
        for estimate in sorted(row, key=lambda estimate: estimate.seconds)
    ]
    lines = columns(("algorithm", "time", "algbw", "busbw", "%bound", "chunk", "how"), table, left=(0, 6))
    if nothing:
        lines += ["", "moves nothing: fewer than one element per block"]
    else:
        lines = [paint(line, "bold") if n == 1 else line for n, line in enumerate(lines)]
    return f"\n{bytes_text(size)} ({size:,} bytes), GB/s:\n\n" + "\n".join(lines) + "\n"


def sweep_table(rows: Sequence[Sequence[Estimate]], paint: Paint) -> str:
    """All sizes: the time of every contender, the fastest marked, and who wins from which size."""
    names = [estimate.name for estimate in rows[0]]
    table = []
    for row in rows:
        best = None if moves_nothing(row) else min(row, key=lambda estimate: estimate.seconds)
        cells = [seconds_text(estimate.seconds) + ("*" if estimate is best else " ") for estimate in row]
        table.append([bytes_text(row[0].size_bytes), *cells])
    lines = columns(("size", *(f"{name} " for name in names)), table)
    text = "\n" + "\n".join(lines) + "\n\n* the fastest\n\nwho wins from which size:\n"
    for win in wins(rows):
        if win.first_bytes == win.last_bytes:
            text += f"  {bytes_text(win.first_bytes):>6}           {paint(win.name, 'bold')}\n"
        else:
            span = f"{bytes_text(win.first_bytes):>6} … {bytes_text(win.last_bytes)}"
            text += f"  {span:<16} {paint(win.name, 'bold')}\n"
    return text


def summary_text(name: str, topology: Topology, summary: Summary, seconds: float) -> str:
    """Which links were full, and what the time was spent on, for one contender."""
    if not summary.links or not seconds:
        return ""
    label = {v.id: v.label for v in topology.vertices}
    full = ", ".join(
        f"{label[use.src]} → {label[use.dst]} {use.busy:.0%} of {gb_per_s_text(use.gb_per_s)}"
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


def steps_table(model: str, gpu: str, overlap: bool, steps: Mapping[str, Step], paint: Paint) -> str:
    """A training step with each contender, the shortest first."""
    ordered = sorted(steps.items(), key=lambda item: item[1].total_s)
    table = [
        [
            name,
            seconds_text(step.total_s),
            seconds_text(step.exposed_s),
            seconds_text(step.communication_s),
            f"{step.overhead_percent:.1f}",
        ]
        for name, step in ordered
    ]
    lines = columns(("algorithm", "step", "exposed", "allreduce", "overhead %"), table, left=(0,))
    lines = [paint(line, "bold") if n == 1 else line for n, line in enumerate(lines)]
    compute = seconds_text(ordered[0][1].compute_s)
    how = "while the backward pass goes on" if overlap else "after the backward pass"
    head = f"a step of {model} on {gpu.upper()}s: {compute} of compute, gradients reduced in buckets of 25 MiB {how}"
    return f"\n{head}\n\n" + "\n".join(lines) + "\n"


def absent_text(field: Field) -> str:
    """Who is not in the table, and why."""
    if not field.absent:
        return ""
    return "\nnot here:\n" + "".join(f"  {name}: {why}\n" for name, why in field.absent.items())


def _percent(estimate: Estimate, bound_gb_per_s: float) -> str:
    return f"{100 * estimate.algbw_gb_per_s / bound_gb_per_s:.0f}"


def seconds_text(seconds: float) -> str:
    """``12.3 µs``, ``4.56 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.4g} s"


def bytes_text(size: int) -> str:
    """``64M`` where that is the number, else to three digits."""
    for unit, power in (("E", 60), ("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.3g}{unit}" if size < 1000 * 2**power else f"{size / 2**power:.0f}{unit}"
    return f"{size}"
