"""The same tables on a terminal, in as many columns as it has; scripts read pipes, which keep nccl-tests' lines.

A row is a line out of place and a line in place, with the columns that find room, the more important ones first; above
the header stands which do not. What compares algorithms goes on below. Comments are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from blinkccl.bench import compare, output
from blinkccl.bench.output import About, footer, line, preface, titles
from blinkccl.bench.rows import SizeRow, SizeTiming
from blinkccl.bench.sizes import Sweep
from blinkccl.show.text import LEAST_WIDTH

#: Columns of text of a size or a peer's name, and with the place beside it.
_FIRST, _PLACED = 10, 15


@dataclass(frozen=True, slots=True)
class _Column:
    """The less its ``rank``, the more important."""

    rank: int
    name: str
    unit: str
    width: int
    cell: Callable[[SizeRow, SizeTiming], str]


@dataclass(frozen=True, slots=True)
class TerminalTable:
    """What :mod:`~.output` and :mod:`~.compare` print, in ``width`` columns."""

    width: int

    def header(self, about: About, sweep: Sweep) -> str:
        """What comes before the first row."""
        before = self._folded(compare.preface_of(about, sweep) if about.several else preface(about, sweep))
        if about.several:
            return f"{before}\n{compare.titles(about, self._room)}\n"
        return f"{before}\n" + (titles(about) if self._is_wide(about) else self._titles(about))

    def line(self, about: About, row: SizeRow) -> str:
        """One row, and those of the peers."""
        if about.several:
            return compare.line(about, row, self._room)
        if self._is_wide(about):
            return line(about, row)
        lines = self._placed(about, row, f"{row.size}", row.out_of_place, row.in_place)
        for name, out, into in row.peers:
            lines += self._placed(about, row, f"# {name}"[:_FIRST], out, into)
        return "\n".join(lines) + "\n"

    def footer(self, about: About, rows: Sequence[SizeRow]) -> str:
        """What comes after the last row."""
        return self._folded(compare.footer(about, rows) if about.several else footer(about, rows)) + "\n"

    @property
    def _room(self) -> int:
        return max(self.width, LEAST_WIDTH)

    def _folded(self, comments: str) -> str:
        found: list[str] = []
        for comment in comments.rstrip("\n").split("\n"):
            found += wrap(comment, self._room, subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False)
        return "\n".join(found)

    def _is_wide(self, about: About) -> bool:
        return max(len(title.rstrip()) for title in titles(about).split("\n")) <= self.width

    def _shown(self, about: About) -> tuple[list[_Column], list[_Column]]:
        """The columns that find room, and those that do not."""
        left, shown = self._room - _PLACED, []
        every = _columns(about)
        for column in sorted(every, key=lambda column: column.rank):
            if column.width + 2 <= left:
                shown.append(column.rank)
                left -= column.width + 2
        return [one for one in every if one.rank in shown], [one for one in every if one.rank not in shown]

    def _titles(self, about: About) -> str:
        shown, hidden = self._shown(about)
        told = f"# {about.type_name}, {about.redop}, root {about.root}; out of place, in place"
        if hidden:
            names = ", ".join(one.name for one in hidden)
            told += f". Without {names}: a wider terminal, a pipe and --json have them"
        above, below = (f"#{text:>{_FIRST - 1}}{'':{_PLACED - _FIRST}}" for text in ("size", "(B)"))
        for one in shown:
            above += f"  {one.name:>{one.width}}"
            below += f"  {one.unit:>{one.width}}"
        return f"{self._folded(told)}\n#\n{above}\n{below.rstrip()}\n"

    def _placed(
        self, about: About, row: SizeRow, first: str, out: SizeTiming | None, into: SizeTiming | None
    ) -> list[str]:
        """A line out of place, and where there is an in place, one below it."""
        lines = []
        for label, place, timing in ((first, "out", out), ("#" if first.startswith("#") else "", "in", into)):
            cells = (
                f"  {'N/A' if timing is None else one.cell(row, timing):>{one.width}}" for one in self._shown(about)[0]
            )
            name = label.ljust(_FIRST) if label.startswith("#") else label.rjust(_FIRST)
            lines.append(f"{name}  {place:<3}{''.join(cells)}".rstrip())
        return lines


def _columns(about: About) -> list[_Column]:
    """All columns, as they stand beside each other."""
    found = [
        _Column(20, "count", "", 12, lambda row, _: f"{row.count}"),
        _Column(0, "time", "(us)", 7, lambda _, timing: output.microseconds(timing.seconds)),
        _Column(4, "algbw", "(GB/s)", 6, lambda _, timing: f"{timing.algbw_gb_per_s:.2f}"),
        _Column(2, "busbw", "(GB/s)", 6, lambda _, timing: f"{timing.busbw_gb_per_s:.2f}"),
        _Column(3, "#wrong", "", 6, lambda _, timing: f"{timing.wrong:g}"),
    ]
    if about.bound:
        found.append(_Column(5, "%bound", "", 6, lambda _, timing: _or_none(timing.bound_percent, ".1f")))
    if about.more.get("peers"):
        found.append(_Column(1, "ratio", "", 8, lambda _, timing: _or_none(timing.ratio, ".2f", "x")))
    return found


def _or_none(number: float | None, form: str, unit: str = "") -> str:
    return "" if number is None else f"{number:{form}}{unit}"
