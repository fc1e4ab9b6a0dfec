"""The plotting library, drawing into files only; whether a picture can be drawn is asked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from blinkccl.errors import UnsupportedError
from blinkccl.report.text import bytes_text

#: Points of a line: bytes, and what is drawn over them.
Points = Sequence[tuple[int, float]]
_MARKERS = "osD^vP*X<>hd"


def pyplot(what: str = "--plot") -> Any:
    """matplotlib's pyplot; that it is not installed, but needed for ``what``, is an :class:`UnsupportedError`."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        raise UnsupportedError(f"{what} needs matplotlib: pip install 'blink-ccl[plot]'") from None


def check(path: Path) -> None:
    """Refuse, before any work, a picture that could not be drawn: without matplotlib, or in a format it has not."""
    figure = pyplot().figure()
    kinds = sorted(figure.canvas.get_supported_filetypes())
    pyplot().close(figure)
    if path.suffix.lstrip(".").lower() not in kinds:
        raise UnsupportedError(f"--plot {path}: expected a name that ends in .{', .'.join(kinds)}")


def draw_over_size(path: Path, title: str, what: str, lines: Mapping[str, Points], level: float | None = None) -> None:
    """Draw ``lines`` over size, both axes logarithmic; ``what`` names the vertical one, ``level`` is a proved bound."""
    figure, axes = pyplot().subplots(figsize=(9, 5.5), layout="constrained")
    for number, (name, points) in enumerate(lines.items()):
        sizes, values = [size for size, _ in points], [value for _, value in points]
        axes.plot(sizes, values, marker=_MARKERS[number % len(_MARKERS)], markersize=4, label=name)
    if level is not None:
        axes.axhline(level, color="black", linestyle="--", linewidth=1, label="proved bound (nominal rates)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(int(size)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(title=title, xlabel="size", ylabel=what)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
