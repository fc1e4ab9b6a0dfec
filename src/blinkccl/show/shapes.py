"""Pictures made of a few kinds of shapes, and their output as SVG.

The look of a shape follows from the names of its styles (``"link load3"``). One table here, with light and dark
colours, defines the styles for SVG files and for pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import hypot

from blinkccl.show.layout import Point

#: Colours by name, light and dark. Meaningful ones are distinguishable for colour-blind readers; text has a contrast of
#: at least 4.5.
PALETTE = {
    "paper": ("#ffffff", "#15181d"),
    "panel": ("#f5f7f9", "#1d2128"),
    "ink": ("#1b2430", "#e6e9ee"),
    "soft": ("#55606e", "#a3adba"),
    "rule": ("#ccd3db", "#3a424e"),
    "gpu": ("#e3edf7", "#22344a"),
    "gpu-line": ("#3f6c9b", "#7fb0e3"),
    "switch": ("#e7e9ec", "#333a44"),
    "host": ("#f6ecd9", "#43391f"),
    "nic": ("#efe6f4", "#3d2f49"),
    "idle": ("#b9c1ca", "#4d5662"),
    "load1": ("#a9cde8", "#2c4f6e"),
    "load2": ("#6fabd8", "#3a739f"),
    "load3": ("#3583bd", "#4f9ad2"),
    "load4": ("#14578f", "#83c0f2"),
    "full": ("#d55e00", "#ff8f3f"),
    "nvlink": ("#2e7d32", "#7cc47f"),
    "pcie": ("#7a828c", "#8b95a1"),
    "smp": ("#a8620c", "#dba04f"),
    "net": ("#7a3c96", "#c48be0"),
    "chip": ("#00777c", "#4fc3c8"),
    "up": ("#8a3ffc", "#c3a0ff"),
    "down": ("#007d79", "#3ddbd9"),
    "cut": ("#b3123f", "#ff7d9c"),
    "s0": ("#0072b2", "#58b0e8"),
    "s1": ("#d98200", "#f0b040"),
    "s2": ("#009e73", "#3fd0a5"),
    "s3": ("#b0508a", "#e69ac8"),
    "s4": ("#6b6b00", "#d8d256"),
    "s5": ("#56606b", "#aab4c0"),
}
KIND_STYLES = {
    "nvlink": "nvlink",
    "xgmi": "nvlink",
    "c2c": "chip",
    "shm": "chip",
    "pcie": "pcie",
    "smp": "smp",
    "net": "net",
}
#: Styles of links by load.
LOADS = ("idle", "load1", "load2", "load3", "load4", "full")
#: Colours of curves, and of shares.
SERIES = 6
#: Height of the title of a picture among others.
_HEADING = 24.0
_FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
#: Style → CSS properties; ``@x`` is a colour of the palette.
STYLES: dict[str, dict[str, str]] = {
    "server": {"fill": "@panel", "stroke": "@rule"},
    "gpu": {"fill": "@gpu", "stroke": "@gpu-line"},
    "cpu": {"fill": "@gpu", "stroke": "@gpu-line"},
    "switch": {"fill": "@switch", "stroke": "@soft"},
    "host": {"fill": "@host", "stroke": "@soft"},
    "memory": {"fill": "@host", "stroke": "@soft"},
    "nic": {"fill": "@nic", "stroke": "@soft"},
    "away": {"fill": "@paper", "stroke": "@rule", "stroke-dasharray": "3 3"},
    "link": {"fill": "none", "stroke-linecap": "butt"},
    **{name: {"stroke": f"@{name}", "color": f"@{name}"} for name in (*dict.fromkeys(KIND_STYLES.values()), *LOADS)},
    "faint": {"opacity": "0.45"},
    "up": {"stroke": "@up", "fill": "none"},
    "down": {"stroke": "@down", "fill": "none"},
    "tip": {"fill": "currentColor"},
    "head": {"stroke": "none", "fill": "@ink"},
    "head-up": {"stroke": "none", "fill": "@up"},
    "head-down": {"stroke": "none", "fill": "@down"},
    "cut": {"fill": "none", "stroke": "@cut", "stroke-dasharray": "7 4"},
    "cutmark": {"stroke": "@cut", "fill": "none"},
    "axis": {"stroke": "@rule", "fill": "none"},
    "level": {"stroke": "@ink", "fill": "none", "stroke-dasharray": "5 4"},
    **{f"s{i}": {"stroke": f"@s{i}", "fill": f"@s{i}"} for i in range(SERIES)},
    "curve": {"fill": "none"},
    "dashed": {"stroke-dasharray": "6 3"},
    "blank": {"fill": "@paper", "stroke": "none"},
    "text": {"fill": "@ink", "stroke": "none"},
    "soft": {"fill": "@soft", "stroke": "none"},
    "cuttext": {"fill": "@cut", "stroke": "none", "font-weight": "600"},
    "strong": {"font-weight": "600"},
}


@dataclass(frozen=True, slots=True)
class Rect:
    """A box with round corners; ``x`` and ``y`` are its upper left corner."""

    x: float
    y: float
    w: float
    h: float
    style: str
    radius: float = 4.0
    width: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through ``points``; if ``bent``, a curve from the first to the second with the third as control point.

    ``head``: the style of the arrow's head at its end, "" for none.
    """

    points: tuple[Point, ...]
    style: str
    width: float = 1.0
    bent: bool = False
    head: str = ""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Words; ``y`` is their base line, and ``anchor`` is the part of them at ``x``: start, middle or end."""

    x: float
    y: float
    words: str
    style: str = "text"
    size: float = 12.0
    anchor: str = "middle"

    @property
    def width(self) -> float:
        """Approximate width in px, in a wide font."""
        bold = 1.14 if "strong" in self.style or "cuttext" in self.style else 1.0
        return (
            bold
            * self.size
            * sum(
                0.36 if c in " .,:;|iljtf'()[]/-" else 0.76 if c.isupper() or c in "mw→%" else 0.61 for c in self.words
            )
        )

    @property
    def right(self) -> float:
        """The right end of the words."""
        return self.x + self.width * {"start": 1.0, "middle": 0.5, "end": 0.0}[self.anchor]


@dataclass(frozen=True)
class ShapeGroup:
    """Shapes that belong together, with ids and data for scripts and a title for readers."""

    items: Sequence[Shape]
    name: str = ""
    style: str = ""
    title: str = ""
    data: Mapping[str, str] | None = None


Shape = Rect | Line | Text | ShapeGroup


@dataclass(frozen=True)
class Picture:
    """Shapes on ``width`` × ``height`` px; ``title`` and ``about`` are for screen readers."""

    shapes: Sequence[Shape]
    width: float
    height: float
    title: str
    about: str = ""


def stacked(pictures: Sequence[Picture], columns: int, gap: float = 24.0) -> Picture:
    """Pictures side by side and in rows, each below its title."""
    shapes: list[Shape] = []
    top, width = gap, 0.0
    for first in range(0, len(pictures), columns):
        row, left = pictures[first : first + columns], gap
        for picture in row:
            title = Text(left, top + 14, picture.title, "text strong", 14.0, "start")
            shapes += [title, ShapeGroup([moved(shape, left, top + _HEADING) for shape in picture.shapes])]
            left += max(picture.width, title.width) + gap
        top += max(picture.height for picture in row) + _HEADING + gap
        width = max(width, left)
    return Picture(shapes, width, top, pictures[0].title, pictures[0].about)


def moved(shape: Shape, dx: float, dy: float) -> Shape:
    """The shape, shifted."""
    match shape:
        case Rect():
            return Rect(
                shape.x + dx, shape.y + dy, shape.w, shape.h, shape.style, shape.radius, shape.width, shape.title
            )
        case Line():
            points = tuple((x + dx, y + dy) for x, y in shape.points)
            return Line(points, shape.style, shape.width, shape.bent, shape.head, shape.closed)
        case Text():
            return Text(shape.x + dx, shape.y + dy, shape.words, shape.style, shape.size, shape.anchor)
        case ShapeGroup():
            items = [moved(item, dx, dy) for item in shape.items]
            return ShapeGroup(items, shape.name, shape.style, shape.title, shape.data)


# SVG.
def styles_css() -> str:
    """The table of styles as CSS, with colours as variables."""
    return "\n".join(
        f".fig .{name}{{{';'.join(f'{key}:{_variable(value)}' for key, value in rules.items())}}}"
        for name, rules in STYLES.items()
    )


def _variable(value: str) -> str:
    return f"var(--{value[1:]})" if value.startswith("@") else value


def palette_css(dark: bool) -> str:
    """The palette as CSS variables."""
    return "".join(f"--{name}:{colours[dark]};" for name, colours in PALETTE.items())


def svg_file(picture: Picture) -> str:
    """A picture as a file, light or dark by the reader's system."""
    css = styles_css()
    style = (
        f"svg{{{palette_css(False)}background:var(--paper)}}\n"
        f"@media (prefers-color-scheme:dark){{svg{{{palette_css(True)}}}}}\n{css}"
    )
    return svg(picture, f"<style>\n{style}\n</style>\n") + "\n"


def svg(picture: Picture, head: str = "", name: str = "", role: str = "img") -> str:
    """A picture as an element; ``name`` is its id, which its title and description refer to."""
    ids = f' id="{name}" aria-labelledby="{name}-t {name}-d"' if name else ""
    title_id, about_id = (f' id="{name}-t"', f' id="{name}-d"') if name else ("", "")
    about = f"<desc{about_id}>{escape(picture.about or picture.title)}</desc>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig"{ids} role="{role}" '
        f'viewBox="0 0 {_n(picture.width)} {_n(picture.height)}" width="{_n(picture.width)}" '
        f'height="{_n(picture.height)}" font-family="{_FONT}">\n'
        f"<title{title_id}>{escape(picture.title)}</title>{about}\n{head}"
        + "\n".join(_element(shape) for shape in picture.shapes)
        + "\n</svg>"
    )


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _element(shape: Shape) -> str:
    match shape:
        case Rect():
            inner = f"><title>{escape(shape.title)}</title></rect>" if shape.title else "/>"
            return (
                f'<rect class="{shape.style}" x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.w)}" '
                f'height="{_n(shape.h)}" rx="{_n(shape.radius)}" stroke-width="{_n(shape.width)}"{inner}'
            )
        case Line():
            path = f'<path class="{shape.style}" d="{_path(shape)}" stroke-width="{_n(shape.width)}"/>'
            return path + (f'<path class="{shape.head}" d="{_head(shape)}"/>' if shape.head else "")
        case Text():
            return (
                f'<text class="{shape.style}" x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" '
                f'text-anchor="{shape.anchor}">{escape(shape.words)}</text>'
            )
        case ShapeGroup():
            marks = {"id": shape.name, "class": shape.style, **(shape.data or {})}
            attributes = "".join(f' {key}="{escape(value)}"' for key, value in marks.items() if value)
            title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
            return f"<g{attributes}>{title}{''.join(_element(item) for item in shape.items)}</g>"


def _path(line: Line) -> str:
    first, *others = (f"{_n(x)} {_n(y)}" for x, y in line.points)
    if line.bent:
        return f"M{first}Q{others[1]} {others[0]}"
    return f"M{first}{''.join(f'L{point}' for point in others)}{'Z' if line.closed else ''}"


def _head(line: Line) -> str:
    """An arrow's head, tip first."""
    tip = line.points[1] if line.bent else line.points[-1]
    from_ = line.points[2] if line.bent else line.points[-2]
    length = hypot(tip[0] - from_[0], tip[1] - from_[1]) or 1.0
    ux, uy = (tip[0] - from_[0]) / length, (tip[1] - from_[1]) / length
    long, half = 6.0 + line.width, 2.6 + 0.6 * line.width
    base = (tip[0] - ux * long, tip[1] - uy * long)
    corners = (tip, (base[0] - uy * half, base[1] + ux * half), (base[0] + uy * half, base[1] - ux * half))
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in corners) + "Z"
