"""Formatting of text: rates, counts and ids; optional colour; tables and sentences wrapped to a terminal's width."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinkccl.topology.model import Topology

_LANE_GB_PER_S = {"nvlink": (20.0, 25.0, 50.0), "xgmi": (50.0, 64.0)}
#: ``paint(text, style)`` with a style as rich names it: "green", "bold red", "dim".
Paint = Callable[[str, str], str]
#: ``look(row, cell)``: the style of a table's cell, as rich names it.
Look = Callable[[int, str], str]
#: Least width with room for sentences beside their labels.
LEAST_WIDTH = 40
#: Least width of a last column of words beside others.
_FEW_WORDS = 20
#: Width of the labels in front of sentences ("rate    …", "proof   …").
_LABEL = 8
_GAP = re.compile(r"(?<=\S) {3,}(?=\S)")
#: A private-use character in place of a blank.
_BLANK = "\ue000"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def seconds_text(seconds: float) -> str:
    """``12.3 µs``, ``4.56 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.4g} s"


def gb_per_s_text(gb_per_s: float) -> str:
    """GB/s with four significant digits: ``85.7 GB/s``."""
    return f"{gb_per_s:.4g} GB/s" if gb_per_s < 1000 else f"{gb_per_s:.0f} GB/s"


def times_of_nccl(ratio: float) -> str:
    """A plan's speed relative to NCCL's: ``1.49 times as fast``; below 1, NCCL's relative to the plan's."""
    if abs(ratio - 1) < 0.005:
        return "as fast"
    return f"{ratio:.3g} times as fast" if ratio > 1 else f"NCCL is {1 / ratio:.3g} times as fast"


def rate_text(rate: Fraction, topology: Topology) -> str:
    """A rate in the topology's units and in GB/s: ``24/7 lanes = 85.71 GB/s``."""
    unit = unit_name(topology)
    return f"{rate} {unit if rate == 1 else unit + 's'} = {gb_per_s_text(float(rate) * topology.unit_gb_per_s)}"


def unit_name(topology: Topology) -> str:
    """``lane`` if one unit of capacity is one lane of the only kind of links, else ``unit``."""
    kinds = list(dict.fromkeys(link.kind for link in topology.links))
    lane = len(kinds) == 1 and topology.unit_gb_per_s in _LANE_GB_PER_S.get(kinds[0], ())
    return "lane" if lane else "unit"


def count(number: int, noun: str) -> str:
    """``1 share``, ``2 shares``, ``2 switches``, ``2 processes``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def ids(vertices: Iterable[int]) -> str:
    """Vertex ids as typed for ``--gpus``, runs abbreviated: ``0-3,6``. Their order is kept."""
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


def plain(text: str, style: str) -> str:
    """``text`` without style."""
    return text


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (),
    width: int | None = None,
    keys: int = 1,
    look: Look = lambda row, cell: "",
    paint: Paint = plain,
) -> list[str]:
    """Lines of a table: numbers right-aligned; columns in ``left`` (by index) left-aligned, with wrapped words.

    Columns beyond ``width`` continue below, with the first ``keys`` columns repeated, so nothing is left out. ``look``
    gives the style of a cell in row 0 (the header), 1, 2, …
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    room = sum(widths) + 2 * len(widths) if width is None else max(width, LEAST_WIDTH)
    lines: list[str] = []
    for block in _blocks(widths, room, keys):
        page = io.StringIO()
        console = Console(
            file=page, width=room, force_terminal=True, color_system=None if paint is plain else "standard"
        )
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for i in block:
            grid.add_column(justify="left" if i in left else "right", no_wrap=i not in left, overflow="fold")
        for number, row in enumerate(table):
            # A blank at the end of a number is in place of a mark; rich would remove it.
            cells = [row[i] if i in left else row[i].replace(" ", _BLANK) for i in block]
            grid.add_row(*(Text(cell, look(number, row[i])) for i, cell in zip(block, cells, strict=True)))
        console.print(grid)
        lines += [""] if lines else []
        lines += [line.replace(_BLANK, " ").rstrip() for line in page.getvalue().splitlines()]
    return lines


def _blocks(widths: Sequence[int], room: int, keys: int) -> list[list[int]]:
    """Groups of columns that fit beside each other; the last column may be broken."""
    blocks = [list(range(keys))]
    for i in range(keys, len(widths)):
        needed = min(widths[i], _FEW_WORDS) if i == len(widths) - 1 else widths[i]
        taken = sum(widths[j] + 2 for j in blocks[-1])
        if len(blocks[-1]) > keys and taken + needed > room:
            blocks.append(list(range(keys)))
        blocks[-1].append(i)
    return blocks


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def terminal(text: str, style: str) -> str:
    """``text`` in the terminal's escape codes."""
    from rich.style import Style  # imported only for a terminal

    return Style.parse(style).render(text)


def painter(coloured: bool) -> Paint:
    """Return :func:`terminal` if coloured, else :func:`plain`."""
    return terminal if coloured else plain


def fit(text: str, width: int | None) -> str:
    """``text`` with lines broken between words at ``width`` (None: unbroken); escape codes count as characters."""
    if width is None:
        return text
    return "\n".join(_broken(line, max(width, LEAST_WIDTH)) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    if len(_ESCAPE.sub("", line)) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    # Alignment with other lines is lost, except after labels.
    line = _GAP.sub(lambda gap: gap[0] if gap.end() <= _LABEL else "  ", line)
    return "\n".join(_wrapped(line, width, " " * max(indent, _LABEL)))
