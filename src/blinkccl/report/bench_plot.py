"""A benchmark as a picture: time over size, ours and every peer's, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from blinkccl.report.plotting import pyplot, save

#: Points of a line: bytes and seconds.
Points = Sequence[tuple[int, float]]


def plot(path: Path, title: str, lines: Mapping[str, Points]) -> None:
    """Draw ``lines`` into ``path``; the format follows from its name.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    OSError
        If the file cannot be written.
    """
    figure, axes = pyplot().subplots(figsize=(8, 5), layout="constrained")
    for number, (name, points) in enumerate(lines.items()):
        shown = [(size, seconds * 1e6) for size, seconds in points if size > 0 and seconds > 0]
        axes.plot(
            [size for size, _ in shown],
            [micros for _, micros in shown],
            marker="o",
            markersize=3,
            label=name,
            linewidth=2.5 if number == 0 else 1.2,
            zorder=10 - number,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: _size_text(size))
    axes.set(title=title, xlabel="size", ylabel="time (µs)")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def _size_text(size: float) -> str:
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size >= 2**power:
            return f"{size / 2**power:g}{unit}"
    return f"{size:g}"
