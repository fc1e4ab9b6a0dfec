"""``blink tune``: fill the table that ranks of this host choose by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from blinkccl.cli import console
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.runtime.tuned import Cell, TunedFile

HELP = """
Examples:

\b
  blink tune                              2 ranks of this host, the five collectives of training, 2 minutes
  blink tune -g 4 --budget 60
  blink tune allreduce -b 64K -e 16M      only these sizes; what was measured of others stays
  blink tune --again                      from the beginning
  blink tune --show                       what was measured, without measuring

Measure which algorithm, in which messages, is the fastest at each size between processes of this host, and
write a table that later jobs of this user read: communicators, torch.distributed, and MPI programs under
blink run --mpi. What is not faster by 3 % stays as it is built in. The file is written after every size;
a run that was ended goes on where it was. BLINK_TUNED=0 makes a job do without.
"""

#: What data-parallel training calls.
_NAMES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")


def tune(
    names: Annotated[
        list[str] | None, Argument(metavar="[COLLECTIVE]...", help=f"Default: {', '.join(_NAMES)}.")
    ] = None,
    ranks: Annotated[int, Option("-g", "--ranks", metavar="N", min=2, max=64, help="Ranks of this host.")] = 2,
    begin: Annotated[str, Option("-b", "--minbytes", metavar="SIZE", help="Smallest size.")] = "1K",
    end: Annotated[str, Option("-e", "--maxbytes", metavar="SIZE", help="Largest size.")] = "64M",
    factor: Annotated[int, Option("-f", "--stepfactor", metavar="F", min=2, help="Factor between sizes.")] = 4,
    budget_s: Annotated[
        float, Option("--budget", metavar="SECONDS", min=0.1, help="For all sizes that are measured, about.")
    ] = 120.0,
    again: Annotated[bool, Option("--again", help="Measure also what was measured before.")] = False,
    show: Annotated[bool, Option("--show", help="Print the table there is, and measure nothing.")] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Measure, write after each cell, print."""
    from blinkccl.bench.sizes import sweep
    from blinkccl.bench.tune import ranges
    from blinkccl.collectives.spec import COLLECTIVES
    from blinkccl.runtime import tuned

    wanted = list(dict.fromkeys(names or _NAMES))
    for name in wanted:
        if name not in COLLECTIVES or name == "sendrecv":
            known = ", ".join(other for other in COLLECTIVES if other != "sendrecv")
            raise UsageError(f"{name[:40]}: expected some of {known}")
    path = tuned.path_of(ranks)
    if path is None:
        raise UsageError("a table needs a directory: set BLINK_CACHE to one, or HOME")
    file = _there(path, ranks)
    if not show:
        cells = [(name, at) for name in wanted for at in ranges(sweep(begin, end, factor, None).sizes())]
        if not again:
            done = {(cell.collective, cell.size_bytes, cell.least, cell.below) for cell in file.cells}
            cells = [(name, at) for name, at in cells if (name, *at) not in done]
        file = _measured(file, path, cells, budget_s)
    if json:
        console.emit_json(_document(file, path))
    else:
        console.emit(_text(file, path))


def _there(path: Path, ranks: int) -> TunedFile:
    """The file that there is, or an empty one in its place, and a line that says why."""
    from blinkccl.runtime import tuned

    try:
        return tuned.read(path, ranks)
    except FileNotFoundError:
        pass
    except (OSError, UsageError) as error:
        console.note(f"{error}; what is measured takes its place")
    return tuned.TunedFile(tuned.machine(), ranks)


def _measured(file: TunedFile, path: Path, cells: list[tuple[str, tuple[int, int, int]]], budget_s: float) -> TunedFile:
    from blinkccl.bench.candidate import RunningCandidate, ended_by_signals
    from blinkccl.bench.peers.registry import own
    from blinkccl.bench.tune import collective_of, confirmed, tuned_cell
    from blinkccl.engines.native_library import load
    from blinkccl.runtime import tuned

    if not cells and all(cell.confirmed for cell in file.cells):
        console.note("all of this was measured before (--again measures it once more)")
        return file
    load()  # Refused here, it is said once and not by every rank.
    with console.Progress("tuning") as progress, ended_by_signals(), RunningCandidate(own(file.ranks, 60)) as ours:
        for number, (name, at) in enumerate(cells):
            progress(number, len(cells))
            cell = tuned_cell(ours, collective_of(name, file.ranks), at, budget_s / len(cells))
            file = file.with_cell(cell)
            tuned.write(path, file)
        faster = [cell for cell in file.cells if not cell.confirmed]
        for number, cell in enumerate(faster):
            progress(len(cells) + number, len(cells) + len(faster))
            file = file.with_cell(confirmed(ours, collective_of(cell.collective, file.ranks), cell))
            tuned.write(path, file)
    console.note(f"wrote {path}")
    return file


def _text(file: TunedFile, path: Path) -> str:
    from blinkccl.report.text import bytes_text, columns, seconds_text

    rows = [
        [
            cell.collective,
            bytes_text(cell.size_bytes),
            seconds_text(cell.built_in_seconds),
            seconds_text(cell.seconds),
            f"{cell.built_in_seconds / cell.seconds:.2f}" if cell.rows else "",
            _choice(cell),
        ]
        for cell in file.cells
    ]
    head = f"{file.ranks} ranks on {file.machine}: {path}\n"
    if not rows:
        return head + "nothing was measured yet\n"
    faster = sum(bool(cell.rows) and cell.confirmed for cell in file.cells)
    header = ("collective", "size", "built in", "now", "times", "choice")
    table = "\n".join(columns(header, rows, left=(0, 5)))
    return f"{head}\n{table}\n\n{faster} of {len(rows)} are faster than what is built in\n"


def _choice(cell: Cell) -> str:
    from blinkccl.choice.host_table import label

    found = " or ".join(label(row) for row in cell.rows) or "built in"
    return found if cell.confirmed else f"{found}, not confirmed yet"


def _document(file: TunedFile, path: Path) -> dict[str, Any]:
    import msgspec

    from blinkccl.schema import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "path": str(path), **msgspec.to_builtins(file)}
