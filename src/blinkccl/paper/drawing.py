"""The looks of the documents' figures: colours, axes of sizes, and marks for published numbers.

Only figure objects are used, no state of the plotting library, and every size is a tick of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Colours that colour-blind eyes tell apart, too (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
BLACK, GREY = "#000000", "#777777"
#: One side of a comparison each; ``MANY`` where lines only need to differ.
OURS, THEIRS = BLUE, ORANGE
MANY = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)
MARKERS = "osD^vP"
#: Units that sizes are written in, largest first: powers of 1000 and of 1024 are told apart.
_UNITS = (
    ("GiB", 1 << 30),
    ("GB", 10**9),
    ("MiB", 1 << 20),
    ("MB", 10**6),
    ("KiB", 1 << 10),
    ("kB", 10**3),
)
_SMALL, _TINY = 8, 7

Points = Sequence[tuple[float, float]]


def size_text(size_bytes: int) -> str:
    """``64 MiB``, ``500 MB``: a whole number of the largest unit that divides the size, else of bytes."""
    for unit, worth in _UNITS:
        if size_bytes and size_bytes % worth == 0:
            return f"{size_bytes // worth} {unit}"
    return f"{size_bytes} B"


def over_sizes(axes: Any, sizes: Sequence[int], every: int = 1) -> None:
    """Makes x an axis of these sizes in bytes, of which each ``every``-th is named."""
    named = sizes[::every]
    axes.set_xscale("log")
    axes.set_xticks(list(named), labels=[size_text(size) for size in named])
    axes.minorticks_off()
    axes.set_xlabel("size")


def plain_numbers(axis: Any, ticks: Sequence[float] = ()) -> None:
    """Writes numbers of a logarithmic axis in full, at ``ticks`` only where these are given."""
    if ticks:
        axis.set_ticks(list(ticks))
    axis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_minor_formatter(lambda number, _: "")


def lines(
    axes: Any, curves: Mapping[str, Points], colours: Sequence[str] = MANY, styles: Sequence[str] = ("-",)
) -> None:
    """A line with markers per entry, named as it is; ``styles`` in turn, for lines that may lie on one another."""
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(
            *zip(*points, strict=True),
            styles[number % len(styles)],
            color=colours[number % len(colours)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.5,
            label=name,
        )


def curve(sizes: Sequence[int], value: Callable[[int], float]) -> list[tuple[float, float]]:
    """The points of a line over sizes."""
    return [(float(size), value(size)) for size in sizes]


def published(axes: Any, points: Points, label: str = "published", colour: str = BLACK, marker: str = "*") -> None:
    """Marks numbers that a document prints."""
    places = zip(*points, strict=True)
    axes.scatter(*places, s=90, marker=marker, color=colour, edgecolors=BLACK, linewidths=0.8, zorder=10, label=label)


def published_level(axes: Any, level: float, label: str, style: str = ":") -> None:
    """A line across for a number that a document prints without a place on the other axis."""
    axes.axhline(level, color=BLACK, linestyle=style, linewidth=1.2, label=label, zorder=1)


def bars(axes: Any, groups: Sequence[str], heights: Mapping[str, Sequence[float]], colours: Sequence[str]) -> float:
    """Bars side by side in each group, below which its name is; returns how wide one bar is."""
    width = 0.8 / len(heights)
    for number, (name, values) in enumerate(heights.items()):
        places = [place + (number - (len(heights) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, values, width, color=colours[number % len(colours)], label=name, zorder=2)
    axes.set_xticks(range(len(groups)), labels=groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    return width


def upright(axes: Any) -> None:
    """Turns the names below an axis on their side."""
    axes.tick_params(axis="x", labelrotation=90, labelsize=_TINY)


def finish(
    axes: Any, title: str = "", ylabel: str = "", *, legend: str = "best", columns: int = 1, grid: str = "both"
) -> None:
    """Grid, labels, and a legend at ``legend`` ("" for none); bars need a ``grid`` of "y" only."""
    axes.grid(axis=grid, alpha=0.3, zorder=0)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=10)
    if ylabel:
        axes.set_ylabel(ylabel)
    if legend:
        axes.legend(loc=legend, fontsize=_SMALL, ncols=columns, framealpha=0.9)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=_SMALL)
