"""Text as people read it: rates, counts and ids; columns; colour, or none; lines broken on a narrow terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinkccl.topology.model import Topology

_LANE_GB_PER_S = {"nvlink": (20.0, 25.0, 50.0), "xgmi": (50.0, 64.0)}
#: ``paint(text, style)`` with a style as rich names it: "green", "bold red", "dim".
Paint = Callable[[str, str], str]
#: Below this there is no room for sentences beside their labels.
LEAST_WIDTH = 40
#: As deep as the labels in front of sentences ("rate    …", "proof   …").
_LABEL = 8
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def seconds_text(seconds: float) -> str:
    """``12.3 µs``, ``4.56 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.4g} s"


def bytes_text(size: int) -> str:
    """``64M`` where that is the number, else to three digits."""
    for unit, power in (("E", 60), ("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.3g}{unit}" if size < 1000 * 2**power else f"{size / 2**power:.0f}{unit}"
    return f"{size}"


def gb_per_s_text(gb_per_s: float) -> str:
    """GB/s with as many digits as matter: ``85.7 GB/s``."""
    return f"{gb_per_s:.4g} GB/s" if gb_per_s < 1000 else f"{gb_per_s:.0f} GB/s"


def rate_text(rate: Fraction, topology: Topology) -> str:
    """A rate in the topology's units and in GB/s: ``24/7 lanes = 85.71 GB/s``."""
    unit = unit_name(topology)
    return f"{rate} {unit if rate == 1 else unit + 's'} = {gb_per_s_text(float(rate) * topology.unit_gb_per_s)}"


def unit_name(topology: Topology) -> str:
    """``lane`` where one unit of capacity is one lane of the only kind of links, else ``unit``."""
    kinds = list(dict.fromkeys(link.kind for link in topology.links))
    lane = len(kinds) == 1 and topology.unit_gb_per_s in _LANE_GB_PER_S.get(kinds[0], ())
    return "lane" if lane else "unit"


def count(number: int, noun: str) -> str:
    """``1 share``, ``2 shares``, ``2 switches``, ``2 processes``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def ids(vertices: Iterable[int]) -> str:
    """Vertex ids as typed for ``--gpus``, runs folded: ``0-3,6``. Their order is kept."""
    runs: list[list[int]] = []
    for vertex in vertices:
        if runs and vertex == runs[-1][1] + 1:
            runs[-1][1] = vertex
        else:
            runs.append([vertex, vertex])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Lines of a table: numbers to the right, the columns named in ``left`` (by index) to the left."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        cells = enumerate(zip(row, widths, strict=True))
        lines.append(
            "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in cells).rstrip()
        )
    return lines


def plain(text: str, style: str) -> str:
    """``text`` as it is."""
    return text


def terminal(text: str, style: str) -> str:
    """``text`` in the terminal's escape codes."""
    from rich.style import Style  # loaded for a terminal only

    return Style.parse(style).render(text)


def painter(coloured: bool) -> Paint:
    """:func:`terminal` where colours are wanted, else :func:`plain`."""
    return terminal if coloured else plain


def fit(text: str, width: int | None) -> str:
    """``text`` with lines longer than ``width`` broken between words (None: none); escape codes count as characters."""
    if width is None:
        return text
    return "\n".join(_broken(line, max(width, LEAST_WIDTH)) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    if len(_ESCAPE.sub("", line)) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    lines = textwrap.wrap(
        line, width, subsequent_indent=" " * max(indent, _LABEL), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)
