"""Simulated bandwidth over size, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blinkccl.report.plotting import pyplot, save
from blinkccl.report.sim_text import bytes_text
from blinkccl.simulate.contenders import Estimate


def plot(path: Path, title: str, rows: Sequence[Sequence[Estimate]], bound_gbps: float) -> None:
    """Draw algbw over size into ``path``; ``rows`` by size, ascending.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    OSError
        If the file cannot be written.
    """
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(9, 5.5), layout="constrained")
    markers = "osD^vP*X<>hd"
    for number, first in enumerate(rows[0]):
        points = [(row[number].size_bytes, row[number].algbw_gbps) for row in rows if row[number].algbw_gbps > 0]
        axes.plot(*zip(*points, strict=True), marker=markers[number % len(markers)], markersize=4, label=first.name)
    axes.axhline(bound_gbps, color="black", linestyle="--", linewidth=1, label="proved bound (nominal rates)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([row[0].size_bytes for row in rows if row[0].size_bytes > 0])
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(int(size)))
    axes.yaxis.set_major_formatter(lambda gbps, _: f"{gbps:g}")
    axes.set(title=title, xlabel="size", ylabel="algbw (GB/s)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)
