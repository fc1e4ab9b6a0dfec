"""``blink tune``: fill the tables that ranks of this host choose by, on its CPUs and on its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import HardwareError
from blinkccl.errors import CommunicationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from blinkccl.bench.gpu_tune import MeasuredWay
    from blinkccl.cost.choice.measured import Cell, MeasuredTable
    from blinkccl.runtime.tuned import TunedCell, TunedFile

HELP = """
Examples:

\b
  blink tune                              all GPUs of this host, or 2 ranks on its CPUs; 2 minutes
  blink tune --gpus 1,4,5,6               GPUs, numbered as nvidia-smi does
  blink tune -g 4 --budget 60             4 ranks on CPUs
  blink tune allreduce -b 64K -e 16M      only these sizes; what was measured of others stays
  blink tune --again                      from the beginning
  blink tune --show                       what was measured, without measuring

Measure which algorithm is the fastest at each size, and write a table that later jobs of this user read.
The file is written after every size; a run that was ended goes on where it was. BLINK_TUNED=0 makes a job
do without.

On GPUs libblink.so's programs, in each protocol, run in turns with NCCL. What was measured then takes the
place of predictions, in blink run and blink explain. Planning and compiling come on top of the
budget.

Between processes (-g) it is in which messages, too; for communicators, torch.distributed, and MPI programs
under blink run --mpi. What is not faster by 3 % stays as it is built in.
"""

#: What data-parallel training calls.
_NAMES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")


def tune(
    names: Annotated[
        list[str] | None, Argument(metavar="[COLLECTIVE]...", help=f"Default: {', '.join(_NAMES)}.")
    ] = None,
    ranks: Annotated[
        int | None, Option("-g", "--ranks", metavar="N", min=2, max=64, help="Ranks on this host's CPUs.")
    ] = None,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
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

    on_gpus = spec is not None or gpus is not None
    if ranks is not None and on_gpus:
        raise UsageError("-g is for ranks on this host's CPUs, --topo and --gpus for GPUs: leave one out")
    wanted = list(dict.fromkeys(names or _NAMES))
    if on_gpus or (ranks is None and arguments.has_gpus(arguments.this_machine())):
        at = ranges(sweep(begin, end, factor).sizes())
        _on_gpus(spec, gpus, [(name, one) for name in wanted for one in at], budget_s, again, show, json)
        return
    ranks = ranks or 2
    for name in wanted:
        if name not in COLLECTIVES or name == "sendrecv":
            known = ", ".join(other for other in COLLECTIVES if other != "sendrecv")
            raise UsageError(f"{name[:40]}: expected some of {known}")
    path = tuned.path_of(ranks)
    if path is None:
        raise UsageError("a table needs a directory: set BLINK_CACHE to one, or HOME")
    file = _there(path, ranks)
    if not show:
        cells = [(name, at) for name in wanted for at in ranges(sweep(begin, end, factor).sizes())]
        if not again:
            done = {(cell.collective, cell.size_bytes, cell.least, cell.below) for cell in file.cells}
            cells = [(name, at) for name, at in cells if (name, *at) not in done]
        file = _measured(file, path, cells, budget_s)
    if json:
        console.emit_json(_document(file, path))
    else:
        console.emit(_text(file, path, console.width()))


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


def _text(file: TunedFile, path: Path, width: int | None) -> str:
    from blinkccl.show.text import bytes_text, columns, fit, seconds_text

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
    head = fit(f"{file.ranks} ranks on {file.machine}: {path}\n", width)
    if not rows:
        return head + "nothing was measured yet\n"
    faster = sum(bool(cell.rows) and cell.confirmed for cell in file.cells)
    header = ("collective", "size", "built in", "now", "times", "choice")
    table = "\n".join(columns(header, rows, (0, 5), width, 2))
    return f"{head}\n{table}\n\n" + fit(f"{faster} of {len(rows)} are faster than what is built in\n", width)


def _choice(cell: TunedCell) -> str:
    from blinkccl.cost.choice.host_table import label

    found = " or ".join(label(row) for row in cell.rows) or "built in"
    return found if cell.confirmed else f"{found}, not confirmed yet"


def _document(file: TunedFile, path: Path) -> dict[str, Any]:
    import msgspec

    from blinkccl.schema import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "path": str(path), **msgspec.to_builtins(file)}


def _on_gpus(
    spec: str | None,
    gpus: str | None,
    cells: list[tuple[str, tuple[int, int, int]]],
    budget_s: float,
    again: bool,
    show: bool,
    json: bool,
) -> None:
    """The same on GPUs."""
    import msgspec

    from blinkccl.bench.gpu_client import SERVED
    from blinkccl.cost.choice import measured
    from blinkccl.private_files import private_directory
    from blinkccl.schema import SCHEMA_VERSION
    from blinkccl.trees.algorithms.path_table import machine_key

    strangers = [name for name, _ in cells if name not in SERVED]
    if strangers:
        raise UsageError(f"{strangers[0][:40]}: on GPUs, expected some of {', '.join(SERVED)}")
    topology, ranks = arguments.load(spec, gpus)
    if not arguments.has_gpus(topology) or len(ranks) < 2:
        raise UsageError(f"{topology.name} has {len(ranks)} rank(s) to tune: expected at least 2 GPUs")
    machine = machine_key(topology)
    path = measured.path_of(machine)
    if path is None:
        raise UsageError("a table needs a directory: set BLINK_CACHE to one, or HOME")
    table: MeasuredTable | None = None
    try:
        table = measured.read(path, machine)
    except FileNotFoundError:
        pass
    except (OSError, UsageError) as error:
        console.note(f"{error}; what is measured takes its place")
    if not show:
        private_directory(path.parent)  # tried before the work begins
        ordinals = [topology.ranks.index(rank) for rank in ranks]
        table = _measured_on_gpus(spec, ordinals, cells, budget_s, table, again)
    if json:
        there = {} if table is None else msgspec.to_builtins(table)
        console.emit_json({"schema_version": SCHEMA_VERSION, "path": str(path), **there})
    else:
        console.emit(f"{path}\nnothing yet\n" if table is None else _gpu_text(table, ranks, path, console.width()))


def _measured_on_gpus(
    spec: str | None,
    ordinals: list[int],
    cells: list[tuple[str, tuple[int, int, int]]],
    budget_s: float,
    table: MeasuredTable | None,
    again: bool,
) -> MeasuredTable:
    """The table with what was measured; what it has is not measured again, unless that is wanted."""
    import tempfile

    from blinkccl.bench import gpu_tune
    from blinkccl.bench.candidate import ended_by_signals
    from blinkccl.cost.choice import measured

    names = dict.fromkeys(name for name, _ in cells)
    with (
        console.Progress("tuning") as progress,
        ended_by_signals(),
        tempfile.TemporaryDirectory(prefix="blink-tune-") as directory,
        gpu_tune.Ways(ordinals, tuple(names), _environments(spec), Path(directory)) as ways,
    ):
        progress(0, len(cells))
        try:
            job = ways.job()
        except CommunicationError as error:
            raise HardwareError(f"NCCL alone cannot run on these GPUs: {error}") from None
        fresh, where = gpu_tune.job_table(job)
        if table is None or not table.same_source(fresh):
            if table is not None:
                console.note(
                    f"there are times of {table.by}, and this is {fresh.by}: what is measured takes their place"
                )
            table = fresh
        # What has times of NCCL alone is tried again: there may be a compiler now.
        there = [] if again else [one for one in table.of(where.ranks) if any(x.protocol for x in one.times)]
        known = {(one.collective, one.size_bytes, one.least, one.below) for one in there}
        left = [(name, at) for name, at in cells if (name, *at) not in known]
        path = measured.path_of(table.machine)
        if not left or path is None:
            console.note("all of this was measured before (--again measures it once more)")
            return table
        seeds = gpu_tune.Seeds.of(where, job)
        for number, (name, at) in enumerate(left):
            progress(number, len(left))
            table = table.with_cell(gpu_tune.gpu_cell(ways, seeds, where.ranks, name, at, budget_s / len(left)))
            measured.write(path, table)
    for reason in ways.lost:
        console.note(f"not measured: {reason}")
    console.note(f"wrote {path}")
    return table


def _environments(spec: str | None) -> Callable[[MeasuredWay, Path], dict[str, str]]:
    """Of processes that time a way on the GPUs of ``spec``."""
    import os

    from blinkccl.cli.run import LIBRARY, OVERRIDE, environment, library_file

    if spec == "-":
        raise UsageError("--topo -: every process reads the topology itself, so give a file or a name")
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise UsageError("CUDA_VISIBLE_DEVICES is set: unset it, and name GPUs by --gpus as nvidia-smi numbers them")
    library = library_file(LIBRARY, OVERRIDE)
    # By place on the bus, as NVML numbers them.
    base = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if spec is not None:
        base["BLINK_TOPO"] = str(Path(spec).absolute()) if Path(spec).is_file() else spec
    return lambda way, report: environment(base, [library], report, way.settings)


def _gpu_text(table: MeasuredTable, ranks: tuple[int, ...], path: Path, width: int | None) -> str:
    from blinkccl.show.text import bytes_text, columns, fit, ids, seconds_text

    def taken(cell: Cell) -> str:
        ways = ((f"{one.algorithm} {one.protocol}".strip(), seconds_text(one.seconds)) for one in cell.times)
        return ", ".join(f"{way} {seconds}" for way, seconds in ways)

    rows = [[cell.collective, bytes_text(cell.size_bytes), taken(cell)] for cell in table.of(ranks)]
    header = ("collective", "size", "the fastest first")
    lines = columns(header, rows, (0, 2), width, 2) if rows else ["nothing yet"]
    return fit(f"GPUs {ids(ranks)} of {table.name}: {table.by}\n{path}\n\n", width) + "\n".join(lines) + "\n"
