"""Several algorithms beside each other: a table of times, and at which sizes another one becomes the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from blinkccl.bench.output import About, preface, verdict
from blinkccl.bench.rows import SizeRow, by_candidate
from blinkccl.bench.sizes import Sweep
from blinkccl.show.text import bytes_text

#: Who is faster by less than this part is not another winner: it would be the other one in the next run.
TIE = 0.05
#: Columns of text: at most nine candidates fit into a hundred.
_SIZE, _WIDTH = 9, 9


@dataclass(frozen=True, slots=True)
class Crossover:
    """From ``size`` bytes on ``name`` is the fastest; ``before``, which was until there, takes ``ratio`` times as long.

    The first has nobody before it: ``before`` is None; and ``ratio`` where that one was not measured here.
    """

    size: int
    name: str
    before: str | None = None
    ratio: float | None = None


def crossovers(rows: Sequence[SizeRow], own: str) -> list[Crossover]:
    """Who is the fastest from which size on; who holds that keeps it until somebody is faster by more than a tie."""
    found: list[Crossover] = []
    for row in rows:
        taken = _taken(row, own)
        best = min(taken, key=lambda name: taken[name])
        if not found:
            found.append(Crossover(row.size, best))
            continue
        holder = found[-1].name
        if holder not in taken or taken[holder] > taken[best] * (1 + TIE):
            ratio = taken[holder] / taken[best] if holder in taken else None
            found.append(Crossover(row.size, best, holder, ratio))
    return found


def _taken(row: SizeRow, own: str) -> dict[str, float]:
    """Seconds of those that were measured: medians, which one interrupted run does not move."""
    return {name: timing.median_s for name, timing in by_candidate(row, own).items() if timing is not None}


def header(about: About, sweep: Sweep) -> str:
    """What comes before the first row."""
    return f"{preface_of(about, sweep)}\n{titles(about)}\n"


def preface_of(about: About, sweep: Sweep) -> str:
    """The circumstances, and what the numbers are."""
    place = "" if about.collective.name == "alltoall" else ", in place (--json: out of place too)"
    what = f"# Median time (us){place}; * the fastest, and what comes within {TIE:.0%} of it"
    return "\n".join([preface(about, sweep), what, "#"])


def titles(about: About, width: int | None = None) -> str:
    """The lines over the columns: one per algorithm, its name broken at its underscores."""
    names = [*about.algorithms, *about.more.get("peers", ())]
    parts = [wrap(name.replace("_", " "), _WIDTH) for name in names]
    depth = max(map(len, parts))
    rows = (
        _folded(
            f"#{'' if level < depth - 1 else 'size (B)':>{_SIZE - 1}}",
            [f"{_part(part, level, depth):>{_WIDTH}} " for part in parts],
            width,
        )
        for level in range(depth)
    )
    # Line by line of a row that is folded, and in each the words of the names.
    return "\n".join("\n".join(lines) for lines in zip(*rows, strict=True))


def _folded(first: str, cells: Sequence[str], width: int | None) -> list[str]:
    """``cells`` behind ``first``, in as many lines as they take in ``width`` columns (None: in one)."""
    each = len(cells) if width is None else max(1, (width + 1 - _SIZE) // (_WIDTH + 1))
    below = f"{'#' if first.startswith('#') else '':<{_SIZE}}"
    return [
        ((below if begin else first) + "".join(cells[begin : begin + each])).rstrip()
        for begin in range(0, len(cells), each)
    ]


def _part(words: Sequence[str], level: int, depth: int) -> str:
    """The word at ``level`` of ``depth`` lines; names stand at the bottom."""
    at = level - (depth - len(words))
    return words[at] if at >= 0 else ""


def line(about: About, row: SizeRow, width: int | None = None) -> str:
    """One row: a time per algorithm, stars beside the best."""
    own = about.algorithms[0]
    taken = _taken(row, own)
    least = min(taken.values())
    cells = []
    for name in by_candidate(row, own):
        seconds = taken.get(name)
        shown = "-" if seconds is None else f"{seconds * 1e6:.{1 if seconds < 9.9995e-4 else 0}f}"
        cells.append(f"{shown:>{_WIDTH}}{'*' if seconds is not None and seconds <= least * (1 + TIE) else ' '}")
    return "\n".join(_folded(f"{row.size:>{_SIZE}}", cells, width)) + "\n"


def footer(about: About, rows: Sequence[SizeRow]) -> str:
    """The crossovers in words, and whether all results were right."""
    lines = [verdict(about, rows), "# Crossovers (the fastest by more than a tie):"]
    for each in crossovers(rows, about.algorithms[0]):
        beaten = "" if each.ratio is None else f" ({each.before} takes {each.ratio:.2f} times as long there)"
        lines.append(f"#   from {bytes_text(each.size)}: {each.name}{beaten}")
    return "\n".join(lines) + "\n"
