"""Simulated bandwidth over size, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blinkccl.errors import UsageError
from blinkccl.report.plotting import pyplot, save
from blinkccl.report.sim_text import bytes_text
from blinkccl.simulate.contenders import Estimate


def plot(path: Path, title: str, rows: Sequence[Sequence[Estimate]], bound_gb_per_s: float) -> None:
    """Draw algbw over size into ``path``; ``rows`` by size, ascending. Who moves nothing is left out.

    Raises
    ------
    UsageError
        If nobody moves anything at any size.
    UnsupportedError
        If matplotlib is not installed.
    OSError
        If the file cannot be written.
    """
    lines = _lines(rows)
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(9, 5.5), layout="constrained")
    markers = "osD^vP*X<>hd"
    for number, (name, points) in enumerate(lines.items()):
        axes.plot(*zip(*points, strict=True), marker=markers[number % len(markers)], markersize=4, label=name)
    axes.axhline(bound_gb_per_s, color="black", linestyle="--", linewidth=1, label="proved bound (nominal rates)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([row[0].size_bytes for row in rows if row[0].size_bytes > 0])
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(int(size)))
    axes.yaxis.set_major_formatter(lambda gb_per_s, _: f"{gb_per_s:g}")
    axes.set(title=title, xlabel="size", ylabel="algbw (GB/s)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)


def _lines(rows: Sequence[Sequence[Estimate]]) -> dict[str, list[tuple[int, float]]]:
    """Bytes and GB/s by contender, of those that have any: a logarithmic axis has no 0."""
    found = {
        first.name: [(row[n].size_bytes, row[n].algbw_gb_per_s) for row in rows if row[n].algbw_gb_per_s > 0]
        for n, first in enumerate(rows[0])
    }
    drawn = {name: points for name, points in found.items() if points}
    if not drawn:
        raise UsageError("no size moves any data; take larger ones (-b)")
    return drawn
