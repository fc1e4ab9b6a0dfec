"""Charts as pictures made of :mod:`~blinkccl.show.shapes`: curves over size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from blinkccl.show.shapes import SERIES, Line, Picture, Rect, Shape, ShapeGroup, Text, stacked, svg_file
from blinkccl.units import size_text

#: Pairs of a size in bytes and the value drawn over it.
Points = Sequence[tuple[int, float]]
#: Narrow enough for words to be legible on a phone; charts are enlarged if there is room.
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560.0, 340.0, 62.0, 30.0, 46.0


def chart_file(picture: Picture) -> str:
    """A chart below its title as an SVG file, for ``--plot``."""
    return svg_file(stacked([picture], 1))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart over sizes; a ``dashed`` one has the colour of the previous line, for comparison."""

    name: str
    points: Points
    dashed: bool = False


def curves_picture(title: str, what: str, curves: Sequence[Curve], level: tuple[str, float] | None = None) -> Picture:
    """Curves on two logarithmic axes, named at their ends; ``level`` is a horizontal line, such as a proved bound."""
    drawn = [curve for curve in curves if any(value > 0 for _, value in curve.points)]
    sizes = [size for curve in drawn for size, value in curve.points if value > 0] or [1, 2]
    values = [value for curve in drawn for _, value in curve.points if value > 0] or [1.0]
    values += [level[1]] if level else []
    low, high = floor(log10(min(values)) * 3) / 3, ceil(log10(max(values)) * 3) / 3
    first, last = log2(min(sizes)), max(log2(max(sizes)), log2(min(sizes)) + 1)
    right = _WIDTH - max([Text(0, 0, curve.name).width for curve in drawn] or [0]) - 38

    def x(size: float) -> float:
        return _LEFT + (log2(size) - first) / (last - first) * (right - _LEFT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (log10(value) - low) / max(high - low, 1 / 3) * (_HEIGHT - _BOTTOM - _TOP)

    shapes: list[Shape] = [Text(_LEFT - 44, 16, what, "soft", 12.0, "start"), *_value_axis(low, high, y, right)]
    shapes += _size_axis(first, last, x)
    ends = _spread_ends([y(_last(curve)) for curve in drawn])
    if level is not None:
        shapes.append(Line(((_LEFT, y(level[1])), (right, y(level[1]))), "level", 1.2))
        words = Text(_LEFT + 6, y(level[1]) - 5, level[0], "text", 12.0, "start")
        shapes += [Rect(words.x - 2, words.y - 10, words.width, 13.0, "blank", 0.0, 0.0), words]
    for curve, end, look in zip(drawn, ends, _looks(drawn), strict=True):
        at = tuple((x(size), y(value)) for size, value in curve.points if value > 0)
        items: list[Shape] = [Line(at, look, 2.2)] if len(at) > 1 else []
        items += [Rect(px - 2.6, py - 2.6, 5.2, 5.2, look.split()[0], 2.6) for px, py in at]
        items.append(Line((at[-1], (right + 10, end)), "axis", 1.0))
        items.append(Line(((right + 12, end), (right + 27, end)), look, 3.0))
        items.append(Text(right + 31, end + 4, curve.name, "text", 12.0, "start"))
        shapes.append(ShapeGroup(items, title=f"{curve.name}: {_range_text(curve)}"))
    shapes.append(Text((_LEFT + right) / 2, _HEIGHT - 8, "size of the data", "soft", 12.0))
    about = "; ".join(f"{curve.name}: {_range_text(curve)}" for curve in drawn)
    return Picture(shapes, _WIDTH, max(_HEIGHT, max(ends, default=0.0) + 12), title, about)


def _looks(curves: Sequence[Curve]) -> list[str]:
    """One colour per curve; dashed after all colours are used."""
    looks: list[str] = []
    number = -1
    for curve in curves:
        number += not curve.dashed
        dashed = curve.dashed or number >= SERIES
        looks.append(f"s{max(number, 0) % SERIES} curve{' dashed' if dashed else ''}")
    return looks


def _last(curve: Curve) -> float:
    return next(value for _, value in reversed(curve.points) if value > 0)


def _range_text(curve: Curve) -> str:
    moving = [(size, value) for size, value in curve.points if value > 0]
    return f"{moving[0][1]:.4g} at {size_text(moving[0][0])} to {moving[-1][1]:.4g} at {size_text(moving[-1][0])}"


def _spread_ends(heights: Sequence[float], step: float = 14.0) -> list[float]:
    """Heights of names near the desired ones, without overlaps."""
    placed: dict[int, float] = {}
    below = -1e9
    for i in sorted(range(len(heights)), key=lambda i: (heights[i], i)):
        below = placed[i] = max(heights[i], below + step)
    shift = max(0.0, below - (_HEIGHT - _BOTTOM)) if placed else 0.0
    top = min(placed.values(), default=0.0)
    shift = min(shift, max(0.0, top - _TOP))
    return [placed[i] - shift for i in range(len(heights))]


def _value_axis(low: float, high: float, y: Callable[[float], float], right: float) -> list[Shape]:
    shapes: list[Shape] = []
    digits = (1, 2, 5) if high - low > 1 else range(1, 10)
    for value in (digit * 10.0**power for power in range(floor(low), ceil(high) + 1) for digit in digits):
        if low - 1e-9 <= log10(value) <= high + 1e-9:
            shapes.append(Line(((_LEFT, y(value)), (right, y(value))), "axis", 0.8))
            shapes.append(Text(_LEFT - 6, y(value) + 4, f"{value:g}", "soft", 12.0, "end"))
    return shapes


#: Width of a size label below its axis.
_PER_SIZE = 40.0


def _size_axis(first: float, last: float, x: Callable[[float], float]) -> list[Shape]:
    step = max(1, ceil((last - first) * _PER_SIZE / (x(2**last) - x(2**first))))
    shapes: list[Shape] = []
    for power in range(ceil(first), floor(last + 1e-9) + 1, step):
        shapes.append(Line(((x(2**power), _HEIGHT - _BOTTOM), (x(2**power), _HEIGHT - _BOTTOM + 4)), "axis", 1.0))
        shapes.append(Text(x(2**power), _HEIGHT - _BOTTOM + 18, size_text(2**power), "soft", 12.0))
    return shapes
