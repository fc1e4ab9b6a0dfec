"""Text as people read it: rates, counts and ids; colour, or none; tables and sentences folded to a terminal's width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinkccl.topology.model import Topology

_LANE_GB_PER_S = {"nvlink": (20.0, 25.0, 50.0), "xgmi": (50.0, 64.0)}
#: ``paint(text, style)`` with a style as rich names it: "green", "bold red", "dim".
Paint = Callable[[str, str], str]
#: ``look(row, line)``: a line of a table's row as it is shown.
Look = Callable[[int, str], str]
#: Below this there is no room for sentences beside their labels.
LEAST_WIDTH = 40
#: A last column of words stands beside others if there is as much room.
_FEW_WORDS = 20
#: As deep as the labels in front of sentences ("rate    …", "proof   …").
_LABEL = 8
_GAP = re.compile(r"(?<=\S) {3,}(?=\S)")
_WORD = re.compile(r"^\s*\S+|\S+")
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


def times_of_nccl(ratio: float) -> str:
    """A plan's speed over NCCL's: ``1.49 times as fast``; below 1 the other way round."""
    if abs(ratio - 1) < 0.005:
        return "as fast"
    return f"{ratio:.3g} times as fast" if ratio > 1 else f"NCCL is {1 / ratio:.3g} times as fast"


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


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (),
    width: int | None = None,
    keys: int = 1,
    look: Look = lambda row, line: line,
) -> list[str]:
    """Lines of a table: numbers to the right, the columns named in ``left`` (by index) to the left.

    What is wider than ``width`` goes on below, with the first ``keys`` columns again, and sentences take several lines;
    nothing is left out. ``look`` colours a line of row 0 (the header), 1, 2, …
    """
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    blocks = [dict(enumerate(widths))]
    if width is not None and _taken(blocks[0]) > width:
        blocks = _blocks(widths, _least_widths(table, left), max(width, LEAST_WIDTH), keys)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        for number, row in enumerate(table):
            lines += [look(number, line) for line in _row_lines(row, block, left)]
    return lines


def _taken(block: dict[int, int]) -> int:
    """Columns of text that a block of a table takes, with two between its columns."""
    return sum(block.values()) + 2 * (len(block) - 1)


def _least_widths(table: Sequence[Sequence[str]], left: Collection[int]) -> list[int]:
    """How wide each column is at least: one of words as its longest word."""
    cells = [[row[i] for row in table] for i in range(len(table[0]))]
    return [
        max(len(part) for cell in column for part in (_WORD.findall(cell) or [""] if i in left else [cell]))
        for i, column in enumerate(cells)
    ]


def _blocks(widths: Sequence[int], least: Sequence[int], width: int, keys: int) -> list[dict[int, int]]:
    """Which columns stand beside each other how wide, below one another; the last of a block may be broken."""
    key = dict(enumerate(widths[:keys]))
    for i in range(keys):
        key[i] = max(least[i], min(key[i], key[i] + width // 2 - _taken(key)))
    blocks = [dict(key)]
    for i, wanted in enumerate(widths[keys:], keys):
        needed = max(least[i], min(wanted, _FEW_WORDS)) if i == len(widths) - 1 else wanted
        if len(blocks[-1]) > keys and _taken(blocks[-1] | {i: needed}) > width:
            blocks.append(dict(key))
        blocks[-1][i] = max(least[i], min(wanted, width - _taken(blocks[-1]) - 2))
    return blocks


def _row_lines(row: Sequence[str], block: dict[int, int], left: Collection[int]) -> Iterator[str]:
    """A row's cells of a block, in as many lines as its longest one takes."""
    cells = {i: [row[i]] if len(row[i]) <= wide else _wrapped(row[i], wide) for i, wide in block.items()}
    for level in range(max(map(len, cells.values()))):
        parts = ((i, cells[i][level] if level < len(cells[i]) else "") for i in block)
        yield "  ".join(part.ljust(block[i]) if i in left else part.rjust(block[i]) for i, part in parts).rstrip()


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    # What stood below something else does not any more, but for what stands behind labels.
    line = _GAP.sub(lambda gap: gap[0] if gap.end() <= _LABEL else "  ", line)
    return "\n".join(_wrapped(line, width, " " * max(indent, _LABEL)))
