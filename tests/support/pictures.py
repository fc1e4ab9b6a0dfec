"""Check whether words of a picture end within it, as a browser on Linux draws them, in DejaVu Sans."""

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest

from blinkccl.show.shapes import STYLES, Line, Rect, Shape, ShapeGroup, Text

_TEXT = "{http://www.w3.org/2000/svg}text"
_BEFORE = {"start": 0.0, "middle": 0.5, "end": 1.0}


def flat(shapes: Iterable[Shape]) -> Iterable[Rect | Line | Text]:
    """Yield all shapes, without groups."""
    for shape in shapes:
        if isinstance(shape, ShapeGroup):
            yield from flat(shape.items)
        else:
            yield shape


def words_beyond(svg: str) -> list[str]:
    """Return the words of an SVG that reach beyond its edges."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    fonts, beyond = [_dejavu_sans(weight) for weight in ("normal", "bold")], []
    for text in root.iter(_TEXT):
        words, at = text.text or "", text.attrib
        font = fonts[any("font-weight" in STYLES[style] for style in at["class"].split())]
        font.set_text(words, 0)
        wide = font.get_width_height()[0] / 64 / 100 * float(at["font-size"])
        left = float(at["x"]) - wide * _BEFORE[at["text-anchor"]]
        if left < 0 or left + wide > width or not 0 < float(at["y"]) < height:
            beyond.append(words)
    return beyond


def _dejavu_sans(weight: str) -> Any:
    manager = pytest.importorskip("matplotlib.font_manager", reason="widths of words come with matplotlib's fonts")
    ft2font = pytest.importorskip("matplotlib.ft2font")
    font = ft2font.FT2Font(manager.findfont(f"DejaVu Sans:{weight}", fallback_to_default=False))
    font.set_size(100, 72)
    return font
