"""A benchmark's table, printed row by row.

In a pipe it has the header, columns and footer of nccl-tests (2.19, formats of src/util.cu). %bound is to the right of
these columns, and peers are comment lines below their row, so programs that read nccl-tests' output can read it. With
several algorithms, a row has a time per algorithm, and the footer lists the sizes at which the fastest changes.

On a narrow terminal a row is a line out of place and a line in place, with as many columns as fit, the most important
first; the header names the others. Times of several algorithms are wrapped, and comments too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from textwrap import wrap

from blinkccl.bench.output import About
from blinkccl.bench.rows import (
    TIE,
    SizeRow,
    SizeTiming,
    average_busbw,
    by_candidate,
    crossovers,
    failed,
    medians_s,
)
from blinkccl.bench.sizes import Sweep
from blinkccl.show.text import LEAST_WIDTH
from blinkccl.units import size_text

_PREAMBLE = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_PREAMBLE_WIDTH = 52
#: Characters of a size or a peer's name on a narrow terminal, alone and with the placement.
_FIRST, _PLACED = 10, 15
#: Characters of the size and of each time of several algorithms; nine candidates fit into a hundred.
_SIZE, _WIDTH = 9, 9


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of numbers; a narrow terminal shows those of lowest ``rank``."""

    name: str
    unit: str
    width: int
    rank: int
    cell: Callable[[SizeRow, SizeTiming], str]

    def shown(self, row: SizeRow, timing: SizeTiming | None) -> str:
        return f"  {'N/A' if timing is None else self.cell(row, timing):>{self.width}}"


_COUNT = _Column("count", "", 12, 20, lambda row, _: f"{row.count}")
_TIMES = (
    _Column("time", "(us)", 7, 0, lambda _, timing: _microseconds(timing.seconds)),
    _Column("algbw", "(GB/s)", 6, 4, lambda _, timing: f"{timing.algbw_gb_per_s:.2f}"),
    _Column("busbw", "(GB/s)", 6, 2, lambda _, timing: f"{timing.busbw_gb_per_s:.2f}"),
    _Column("#wrong", "", 6, 3, lambda _, timing: f"{timing.wrong:g}"),
)
_BOUND = _Column("%bound", "", 6, 5, lambda _, timing: _or(timing.bound_percent, ".1f", "N/A"))
_RATIO = _Column("ratio", "", 8, 1, lambda _, timing: "" if timing.ratio is None else f"{timing.ratio:.2f}x")


@dataclass(frozen=True, slots=True)
class BenchTable:
    """The table of a run in ``width`` characters; None for a pipe."""

    about: About
    width: int | None = None

    def header(self, sweep: Sweep) -> str:
        """The lines before the first row."""
        about, before = self.about, _preface(self.about, sweep)
        if about.several:
            place = "" if about.collective.name == "alltoall" else ", in place (--json: out of place too)"
            unit = f"# Median time (us){place}; * marks the fastest, and all within {TIE:.0%} of it"
            return f"{self._folded(chr(10).join([before, unit, '#']))}\n{self._names()}\n"
        return f"{self._folded(before)}\n{self._narrow_titles() if self._is_narrow else _titles(about)}"

    def line(self, row: SizeRow) -> str:
        """The lines of one row and its peers."""
        if self.about.several:
            return self._compared(row)
        lines = self._placed(row) if self._is_narrow else _wide_lines(self.about, row)
        return "\n".join(lines) + "\n"

    def footer(self, rows: Sequence[SizeRow]) -> str:
        """The lines after the last row: the number of wrong results, and the average or the crossovers."""
        bad = failed(rows, self.about.algorithms)
        lines = [f"# {'Out of bounds values':<20} : {bad} {'OK' if bad == 0 else 'FAILED'}"]
        if self.about.several:
            lines.append(f"# Crossovers (the fastest by more than {TIE:.0%}):")
            for each in crossovers(rows, self.about.algorithms[0]):
                beaten = "" if each.ratio is None else f" ({each.before} takes {each.ratio:.2f} times as long there)"
                lines.append(f"#   from {size_text(each.size)}: {each.name}{beaten}")
        else:
            lines.append(f"# {'Avg bus bandwidth':<20} : {average_busbw(rows):g} ".rstrip())
            lines += ["#", f"# Collective test concluded: {self.about.collective.name}", "#"]
        return self._folded("\n".join(lines)) + "\n"

    @property
    def _room(self) -> int | None:
        return None if self.width is None else max(self.width, LEAST_WIDTH)

    @property
    def _is_narrow(self) -> bool:
        return self.width is not None and max(len(x.rstrip()) for x in _titles(self.about).split("\n")) > self.width

    def _folded(self, comments: str) -> str:
        if self._room is None:
            return comments
        lines = (
            wrap(line, self._room, subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False)
            for line in comments.split("\n")
        )
        return "\n".join(part for parts in lines for part in parts)

    # A narrow terminal.
    def _columns(self) -> tuple[list[_Column], list[_Column]]:
        """The columns that fit, and the others."""
        about = self.about
        every = [_COUNT, *_TIMES, *([_BOUND] if about.bound else []), *([_RATIO] if about.more.get("peers") else [])]
        left, shown = (self._room or 0) - _PLACED, set()
        for column in sorted(every, key=lambda column: column.rank):
            if column.width + 2 <= left:
                shown.add(column.rank)
                left -= column.width + 2
        return [one for one in every if one.rank in shown], [one for one in every if one.rank not in shown]

    def _narrow_titles(self) -> str:
        shown, hidden = self._columns()
        about = self.about
        head = f"# {about.type_name}, {about.redop}, root {about.root}; out of place, in place"
        if hidden:
            names = ", ".join(one.name for one in hidden)
            head += f". Without {names}: a wider terminal, a pipe and --json have them"
        above, below = (f"#{text:>{_FIRST - 1}}{'':{_PLACED - _FIRST}}" for text in ("size", "(B)"))
        above += "".join(f"  {one.name:>{one.width}}" for one in shown)
        below += "".join(f"  {one.unit:>{one.width}}" for one in shown)
        return f"{self._folded(head)}\n#\n{above}\n{below.rstrip()}\n"

    def _placed(self, row: SizeRow) -> Iterator[str]:
        """A line out of place and one in place, for blink and for each peer."""
        shown, _ = self._columns()
        for first, out, into in ((f"{row.size:>{_FIRST}}", row.out_of_place, row.in_place), *row.peers):
            own = out is row.out_of_place
            name = first if own else f"# {first}"[:_FIRST].ljust(_FIRST)
            below = " " * _FIRST if own else "#".ljust(_FIRST)
            for label, place, timing in ((name, "out", out), (below, "in", into)):
                yield f"{label}  {place:<3}{''.join(one.shown(row, timing) for one in shown)}".rstrip()

    # Several algorithms.
    def _names(self) -> str:
        """The lines above the columns: the names of algorithms, broken at underscores."""
        names = [*self.about.algorithms, *self.about.more.get("peers", ())]
        parts = [wrap(name.replace("_", " "), _WIDTH) for name in names]
        depth = max(map(len, parts))
        rows = (
            self._beside(
                f"#{'' if level < depth - 1 else 'size (B)':>{_SIZE - 1}}",
                [f"{([''] * (depth - len(part)) + part)[level]:>{_WIDTH}} " for part in parts],
            )
            for level in range(depth)
        )
        # The outer lines are those of a wrapped row, the inner ones the words of the names.
        return "\n".join("\n".join(lines) for lines in zip(*rows, strict=True))

    def _compared(self, row: SizeRow) -> str:
        """One row: a time per algorithm, with stars at the fastest."""
        own = self.about.algorithms[0]
        medians = medians_s(row, own)
        least = min(medians.values())
        cells = []
        for name in by_candidate(row, own):
            seconds = medians.get(name)
            shown = "-" if seconds is None else f"{seconds * 1e6:.{1 if seconds < 9.9995e-4 else 0}f}"
            cells.append(f"{shown:>{_WIDTH}}{'*' if seconds is not None and seconds <= least * (1 + TIE) else ' '}")
        return "\n".join(self._beside(f"{row.size:>{_SIZE}}", cells)) + "\n"

    def _beside(self, first: str, cells: Sequence[str]) -> list[str]:
        """``cells`` behind ``first``, in as many lines as needed."""
        each = len(cells) if self._room is None else max(1, (self._room + 1 - _SIZE) // (_WIDTH + 1))
        below = f"{'#' if first.startswith('#') else '':<{_SIZE}}"
        return [
            ((below if begin else first) + "".join(cells[begin : begin + each])).rstrip()
            for begin in range(0, len(cells), each)
        ]


def _preface(about: About, sweep: Sweep) -> str:
    """The conditions of the run.

    Differences from nccl-tests: the name of this program, notes on the times, and the vertex or rank as "device".
    """
    settings = about.settings
    lines = [
        f"# blink-ccl version {version('blink-ccl')} engine=host algorithm={about.algorithm}",
        f"# Collective test starting: {about.collective.name}",
        f"# nThread 1 nGpus {about.n_gpus} minBytes {sweep.first} maxBytes {sweep.last} "
        f"step: {sweep.step_text()} warmup iters: {settings.warmup} iters: {settings.iterations} agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0",
        "#",
        "# Using devices",
    ]
    host = socket.gethostname()[:10]
    for rank, (pid, number, name) in enumerate(about.devices):
        lines.append(
            f"#  Rank {rank:2d} Group {0:2d} Pid {pid:6d} on {host:>10} device {number:2d} [0000:00:00] {name}"
        )
    lines += ["#", *(f"# {note}" for note in about.notes), "#"]
    return "\n".join(lines)


def _titles(about: About) -> str:
    """The three lines above the columns; the first ends in blanks, like that of nccl-tests."""
    places = f"{'':11}out-of-place{'':23}in-place{'':10}"
    names, units = ("".join(f"  {getattr(one, key):>{one.width}}" for one in _TIMES) * 2 for key in ("name", "unit"))
    if about.bound:
        names += f"  {'%bound':>6}" * 2
        units += f"  {'out':>6}  {'in':>6}"
    return (
        f"{_PREAMBLE.format(*[''] * 5)}{places}\n"
        f"{_PREAMBLE.format('size', 'count', 'type', 'redop', 'root')}{names}\n"
        f"{_PREAMBLE.format('(B)', '(elements)', '', '', '')}{units}".rstrip()
        + "\n"
    )


def _wide_lines(about: About, row: SizeRow) -> Iterator[str]:
    """One row, and a comment line for each peer."""

    def cells(columns: Iterable[_Column], *timings: SizeTiming | None) -> str:
        return "".join(one.shown(row, timing) for timing in timings for one in columns)

    both = row.out_of_place, row.in_place
    preamble = f"{row.size:12d}  {row.count:12d}  {about.type_name:>8}  {about.redop:>6}  {about.root:6d}"
    yield f"{preamble}{cells(_TIMES, *both)}{cells([_BOUND], *both) if about.bound else ''}"
    for name, *peer in row.peers:
        chosen = " | ".join(dict.fromkeys(one.variant for one in peer if one is not None and one.variant))
        label = f"#   {name}{f' ({chosen})' if chosen else ''}"
        if len(label) > _PREAMBLE_WIDTH:
            label = label[: _PREAMBLE_WIDTH - 1] + "…"
        ratios = "".join(f"  {'N/A' if one is None else f'{one.ratio:.2f}x':>6}" for one in peer)
        yield f"{label:<{_PREAMBLE_WIDTH}}{cells(_TIMES, *peer)}{ratios}"


def _or(number: float | None, form: str, none: str) -> str:
    return none if number is None else f"{number:{form}}"


def _microseconds(seconds: float) -> str:
    """Microseconds with the digits of nccl-tests, four or five significant ones."""
    micros = seconds * 1e6
    return f"{micros:.0f}" if micros >= 10_000 else f"{micros:.1f}" if micros >= 100 else f"{micros:.2f}"
