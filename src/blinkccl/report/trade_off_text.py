"""The trade-off of a job: a row per point, a curve per point, and as JSON."""

from __future__ import annotations

from typing import Any

from blinkccl.algorithms.registry import Request
from blinkccl.choice.trade_off import TimedPoint, TradeOff
from blinkccl.report.charts import Curve, curves_picture
from blinkccl.report.shapes import Picture
from blinkccl.report.text import bytes_text, columns, count, fit, gb_per_s_text, ids, seconds_text
from blinkccl.schema import SCHEMA_VERSION


def trade_off_text(found: TradeOff, request: Request, width: int | None = None) -> str:
    """The points by falling rate, the fastest of each size marked, and what was left out."""
    head = f"{_job(request)}: {count(len(found.points), 'plan')} worth a choice; bound {gb_per_s_text(_bound(found))}"
    header = ["option", "GB/s", "%bound", "depth", "trees", "1/", *(f"{bytes_text(size)} " for size in found.sizes)]
    rows = [_row(found, one) for one in found.points]
    text = fit(head, width) + "\n\n" + "\n".join(columns(header, rows, (0,), width)) + "\n"
    notes = [
        "trees: that share one block of the data; 1/: the largest denominator of a weight, as a part of a block; "
        "* the fastest at that size, of these plans"
    ]
    if found.dominated:
        notes.append(f"no better in anything than one of these: {', '.join(found.dominated)}")
    return text + "".join(fit(f"\n{note}\n", width) for note in notes)


def trade_off_picture(found: TradeOff, request: Request) -> Picture:
    """The bandwidth (algbw) of every point over size, below the bound: what ``--plot`` draws."""
    curves = []
    for one in found.points:
        forest, timed = one.point.forest, zip(found.sizes, one.seconds, strict=True)
        trees = count(forest.trees_per_block, "tree")
        curves.append(
            Curve(f"{one.point.option}: {trees}, depth {forest.depth}", [(size, size / s / 1e9) for size, s in timed])
        )
    bound = _bound(found)
    return curves_picture(_job(request), "GB/s (algbw)", curves, (f"bound {gb_per_s_text(bound)}", bound))


def _job(request: Request) -> str:
    ranks = f"{count(len(request.ranks), 'rank')} ({ids(request.ranks)})"
    return f"{request.collective.name} among {ranks} of {request.topology.name}"


def _bound(found: TradeOff) -> float:
    """GB/s, algbw."""
    best = found.points[0].point.forest
    return float(best.bound) * best.topology.unit_gb_per_s


def _row(found: TradeOff, one: TimedPoint) -> list[str]:
    forest = one.point.forest
    marks = ["*" if found.fastest(place) is one else " " for place in range(len(found.sizes))]
    return [
        one.point.option,
        f"{forest.algbw_gb_per_s:.4g}",
        f"{100 * float(forest.rate / forest.bound):.4g}",
        str(forest.depth),
        str(forest.trees_per_block),
        str(forest.longest_weight),
        *(seconds_text(seconds) + mark for seconds, mark in zip(one.seconds, marks, strict=True)),
    ]


def trade_off_document(found: TradeOff) -> dict[str, Any]:
    """The object of ``--json``."""
    best = found.points[0].point.forest
    return {
        "schema_version": SCHEMA_VERSION,
        "collective": best.collective.name,
        "ranks": list(best.ranks),
        "bound_gb_per_s": _bound(found),
        "sizes_bytes": list(found.sizes),
        "points": [
            {
                "option": one.point.option,
                "algbw_gb_per_s": one.point.forest.algbw_gb_per_s,
                "rate": str(one.point.forest.rate),
                "bound": str(one.point.forest.bound),
                "depth": one.point.forest.depth,
                "trees_per_block": one.point.forest.trees_per_block,
                "largest_denominator": one.point.forest.longest_weight,
                "seconds": list(one.seconds),
            }
            for one in found.points
        ],
        "dominated": list(found.dominated),
    }
