"""Results of a laboratory, as text, JSON and pictures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from blinkccl.apps.lab.experiment import Field, Measured
from blinkccl.apps.lab.layout import Layout
from blinkccl.show.charts import Curve, curves_picture
from blinkccl.show.shapes import Picture
from blinkccl.show.text import Paint, columns, count, gb_per_s_text, ids, seconds_text
from blinkccl.show.words import collective_name
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.tables import Cell, Time
from blinkccl.units import size_text

#: Engine of plans in a laboratory.
ENGINE = "host"


def head_text(field: Field, layout: Layout) -> str:
    """The job, the machine and the scale of its links."""
    request = field.request
    shaped = f"{field.lane_mbit_per_s:.4g} Mbit/s for a lane of {gb_per_s_text(field.lane_gb_per_s)}"
    return (
        f"{request.collective.name} among {len(request.ranks)} ranks ({ids(request.ranks)}) of "
        f"{request.topology.name}, in the laboratory\n"
        f"links   {count(len(layout.links), 'link')} between {count(len(layout.vertices), 'namespace')}, {shaped}\n"
        "algbw   as if links had the machine's rates; plan: its rating; %sim: what the simulator finds of that\n"
    )


def table_text(rows: Sequence[Sequence[Measured]], paint: Paint, width: int | None = None) -> str:
    """A line per size and algorithm."""
    header = ["size", "algorithm", "time", "algbw", "plan", "%plan", "%sim", "chunk", "busy", "#wrong"]
    lines = [
        [
            f"{one.pattern.size:,}",
            one.candidate.name,
            seconds_text(one.seconds),
            gb_per_s_text(one.gb_per_s),
            gb_per_s_text(one.candidate.forest.algbw_gb_per_s),
            f"{100 * one.part:.1f}",
            f"{100 * one.simulated:.1f}",
            size_text(one.chunk_bytes),
            f"{100 * one.busy:.0f}%",
            str(one.wrong),
        ]
        for row in rows
        for one in row
    ]
    text = columns(header, lines, (1,), width, 2, lambda row, _: "" if row else "bold", paint)
    return "\n".join(text) + "\n"


def ratio_text(rows: Sequence[Sequence[Measured]]) -> str:
    """Ratios of the first candidate to the others: measured, and by the plans."""
    first, *others = rows[-1]
    lines = [
        f"{first.candidate.name} over {one.candidate.name}: {first.gb_per_s / one.gb_per_s:.3g} times measured, "
        f"{first.candidate.forest.algbw_gb_per_s / one.candidate.forest.algbw_gb_per_s:.3g} by the plans\n"
        for one in others
    ]
    return "".join(lines)


def measured_cell(row: Sequence[Measured], ranks: Sequence[int], at: tuple[int, int, int]) -> Cell:
    """A row for a table of measurements, for the range ``at`` of :func:`blinkccl.bench.tune.ranges`.

    Seconds are scaled to the machine's rates.
    """
    size, least, below = at
    collective = row[0].candidate.forest.collective
    root = -1 if collective.root is None else collective.root
    times = [
        Time(one.candidate.name, ENGINE, one.seconds / one.slower, len(one.runs), one.chunk_bytes)
        for one in row
        if one.candidate.name in ALGORITHMS
    ]
    ranked = tuple(sorted(times, key=lambda one: one.seconds))
    day = datetime.date.today().isoformat()
    return Cell(collective.name, root, tuple(ranks), size, least, below, day, ranked)


def absent_text(field: Field) -> str:
    return "".join(f"without {name}: {reason}\n" for name, reason in field.absent)


def document(field: Field, layout: Layout, rows: Sequence[Sequence[Measured]]) -> dict[str, Any]:
    """The JSON object of ``blink lab --json``."""
    request = field.request
    return {
        "topology": request.topology.name,
        "collective": request.collective.name,
        "ranks": list(request.ranks),
        "links": request.links,
        "lane_gb_per_s": field.lane_gb_per_s,
        "lane_mbit_per_s": field.lane_mbit_per_s,
        "namespaces": len(layout.vertices),
        "rows": [entry(one) for row in rows for one in row],
        "absent": [{"algorithm": name, "reason": reason} for name, reason in field.absent],
    }


def entry(one: Measured) -> dict[str, Any]:
    """One candidate at one size; rates are those of the machine's links."""
    return {
        "algorithm": one.candidate.name,
        "size_bytes": one.pattern.size,
        "chunk_bytes": one.chunk_bytes,
        "seconds": [run.seconds for run in one.runs],
        "algbw_gb_per_s": one.gb_per_s,
        "plan_algbw_gb_per_s": one.candidate.forest.algbw_gb_per_s,
        "part_of_plan": one.part,
        "simulated_part_of_plan": one.simulated,
        "busy": one.busy,
        "wrong": one.wrong,
    }


def picture(field: Field, rows: Sequence[Sequence[Measured]]) -> Picture:
    """Measured and predicted rates over size."""
    request = field.request
    title = (
        f"{collective_name(request.collective.name)} among {count(len(request.ranks), 'rank')} ({ids(request.ranks)}) "
        f"of {request.topology.name}, in the laboratory"
    )
    curves = []
    for column in zip(*rows, strict=True):
        name = column[0].candidate.name
        curves.append(Curve(name, [(one.pattern.size, one.gb_per_s) for one in column]))
        simulated = [(one.pattern.size, one.candidate.forest.algbw_gb_per_s * one.simulated) for one in column]
        curves.append(Curve(f"{name}, simulated", simulated, dashed=True))
    return curves_picture(title, "algbw, GB/s", curves)
