"""``blink tune``: measure the table from which ranks of this host choose algorithms, on its CPUs or GPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import HardwareError
from blinkccl.errors import CommunicationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blinkccl.bench.gpu_tune import GpuTuner
    from blinkccl.bench.tune import At, HostTuner
    from blinkccl.trees.algorithms.tables import Cell, MeasuredTable, Way

HELP = """
Examples:

\b
  blink tune                              all GPUs of this host, or 2 ranks on its CPUs; 2 minutes
  blink tune --gpus 1,4,5,6               GPUs, numbered as nvidia-smi does
  blink tune -g 4 --budget 60             4 ranks on CPUs
  blink tune allreduce -b 64K -e 16M      only these sizes; measurements of others are kept
  blink tune --again                      measure everything again
  blink tune --show                       print the table, without measuring

Measure the fastest algorithm at each size, and write a table that later jobs of this user read. The file is written
after every size, so an interrupted run continues where it stopped. A job with BLINK_TUNED=0 ignores the table.

On GPUs, libblink.so's programs run in turns with NCCL, in each protocol. In blink run and blink explain, the measured
times then replace predictions. Planning and compiling are not part of the budget.

Between processes (-g), the size of messages is measured too. The table is used by communicators, torch.distributed,
and MPI programs under blink run --mpi. An algorithm replaces the built-in choice only if it is at least 3 % faster.
"""

#: The collectives of data-parallel training.
_NAMES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")


@dataclass(frozen=True)
class _TuneJob:
    """A tuning job: its machine and table, the tuner that measures it, and the function that prints it."""

    machine: str
    path: Path | None
    empty: MeasuredTable | None
    tuner: Callable[[], AbstractContextManager[HostTuner | GpuTuner]]
    text: Callable[[MeasuredTable | None, Path], str]


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
        float, Option("--budget", metavar="SECONDS", min=0.1, help="Approximate time for all measurements.")
    ] = 120.0,
    again: Annotated[bool, Option("--again", help="Also measure sizes that the table has.")] = False,
    show: Annotated[bool, Option("--show", help="Print the table without measuring.")] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Measure, write after each cell, print."""
    import msgspec

    from blinkccl.bench.sizes import sweep
    from blinkccl.bench.tune import ranges

    on_gpus = spec is not None or gpus is not None
    if ranks is not None and on_gpus:
        raise UsageError("-g is for ranks on this host's CPUs, --topo and --gpus for GPUs: leave one out")
    collectives = list(dict.fromkeys(names or _NAMES))
    if on_gpus or (ranks is None and arguments.has_gpus(arguments.this_machine())):
        job = _on_gpus(collectives, spec, gpus)
    else:
        job = _on_cpus(collectives, ranks or 2)
    if job.path is None:
        raise UsageError("no directory for the table: set BLINK_CACHE or HOME to one")
    table = _existing(job.path, job.machine) or job.empty
    if not show:
        cells = [(name, at) for name in collectives for at in ranges(sweep(begin, end, factor).sizes())]
        table = _measured(job.tuner(), job.path, table, cells, budget_s, again)
    if json:
        document = {} if table is None else msgspec.to_builtins(table)
        console.emit_json({"path": str(job.path), **document})
    else:
        console.emit(job.text(table, job.path))


def _existing(path: Path, machine: str) -> MeasuredTable | None:
    """The table in ``path``; None if it does not exist, or after a note if it cannot be used."""
    from blinkccl.trees.algorithms import tables

    try:
        return tables.read(path, machine)
    except FileNotFoundError:
        pass
    except (OSError, UsageError) as error:
        console.note(f"{error}; new measurements replace it")
    return None


def _measured(
    opened: AbstractContextManager[HostTuner | GpuTuner],
    path: Path,
    table: MeasuredTable | None,
    cells: Sequence[tuple[str, At]],
    budget_s: float,
    again: bool,
) -> MeasuredTable:
    """The table with all ``cells`` measured; those that it has are measured again only with ``again``."""
    from blinkccl.bench.candidate import ended_by_signals
    from blinkccl.private_files import private_directory
    from blinkccl.trees.algorithms import tables

    private_directory(path.parent)  # Fails before the work begins.
    with console.Progress("tuning") as progress, ended_by_signals():
        progress(0, len(cells))
        with opened as tuner:
            if table is None or not table.same_source(tuner.table):
                if table is not None:
                    console.note(f"{path}: new times of {tuner.table.by} replace those of {table.by}")
                table = tuner.table
            old = [] if again else [cell for cell in table.of(tuner.ranks) if tuner.knows(cell)]
            known = {(cell.collective, cell.size_bytes, cell.least, cell.below) for cell in old}
            left = [(name, at) for name, at in cells if (name, *at) not in known]
            if not left and all(cell.confirmed for cell in table.cells):
                console.note("all sizes were measured before: --again measures them again")
                return table
            for number, (name, at) in enumerate(left):
                progress(number, len(left))
                table = table.with_cell(tuner.cell(name, at, budget_s / len(left)))
                tables.write(path, table)
            unsure = [cell for cell in table.cells if not cell.confirmed]
            for number, cell in enumerate(unsure):
                progress(len(left) + number, len(left) + len(unsure))
                table = table.with_cell(tuner.confirmed(cell))
                tables.write(path, table)
    for reason in tuner.lost:
        console.note(f"not measured: {reason}")
    console.note(f"wrote {path}")
    return table


def _on_cpus(names: Sequence[str], ranks: int) -> _TuneJob:
    """The job of ``ranks`` processes of this host."""
    from blinkccl.bench.tune import HostTuner
    from blinkccl.collectives.spec import COLLECTIVES
    from blinkccl.runtime.host_table import path_of_host

    known = [name for name in COLLECTIVES if name != "sendrecv"]
    for name in names:
        if name not in known:
            raise UsageError(f"collective {name[:40]!r}: expected some of {', '.join(known)}")
    tuner = HostTuner(ranks)
    return _TuneJob(tuner.table.machine, path_of_host(ranks), tuner.table, lambda: tuner, _host_text)


def _host_text(table: MeasuredTable | None, path: Path) -> str:
    from blinkccl.runtime.host_table import label
    from blinkccl.show.text import columns, fit, seconds_text
    from blinkccl.trees.algorithms.tables import BUILT_IN
    from blinkccl.units import size_text

    assert table is not None, "CPU jobs begin with an empty table"
    width, rows, faster = console.width(), [], 0
    for cell in table.cells:
        best, built_in_s = cell.times[0], cell.times[-1].seconds
        won = best.algorithm != BUILT_IN
        faster += won and cell.confirmed
        speedup = f"{built_in_s / best.seconds:.2f}" if won else ""
        choice = " or ".join(map(label, best.ways)) if won else BUILT_IN
        choice += "" if cell.confirmed else ", not confirmed yet"
        shown = [size_text(cell.size_bytes), seconds_text(built_in_s), seconds_text(best.seconds)]
        rows.append([cell.collective, *shown, speedup, choice])
    head = fit(f"{table.name} on {table.machine}: {path}\n", width)
    if not rows:
        return head + "nothing is measured yet\n"
    header = ("collective", "size", "built in", "tuned", "speedup", "choice")
    lines = "\n".join(columns(header, rows, (0, 5), width, 2))
    return f"{head}\n{lines}\n\n" + fit(f"{faster} of {len(rows)} are faster than the built-in choice\n", width)


def _on_gpus(names: Sequence[str], spec: str | None, gpus: str | None) -> _TuneJob:
    """The job of the GPUs ``gpus`` (None: all) of ``spec`` (None: this host)."""
    from blinkccl.bench.gpu_client import SERVED
    from blinkccl.trees.algorithms.path_table import machine_key
    from blinkccl.trees.algorithms.tables import path_of_gpus

    unknown = [name for name in names if name not in SERVED]
    if unknown:
        raise UsageError(f"collective {unknown[0][:40]!r}: on GPUs, expected some of {', '.join(SERVED)}")
    topology, ranks = arguments.load(spec, gpus)
    if not arguments.has_gpus(topology) or len(ranks) < 2:
        raise UsageError(f"expected at least 2 GPUs, got {len(ranks)} rank(s) of {topology.name}")
    ordinals = [topology.ranks.index(rank) for rank in ranks]
    machine = machine_key(topology)

    def text(table: MeasuredTable | None, path: Path) -> str:
        return f"{path}\nnothing is measured yet\n" if table is None else _gpu_text(table, ranks, path)

    return _TuneJob(machine, path_of_gpus(machine), None, lambda: _gpu_tuner(spec, ordinals, names), text)


@contextmanager
def _gpu_tuner(spec: str | None, ordinals: Sequence[int], names: Sequence[str]) -> Iterator[GpuTuner]:
    import tempfile

    from blinkccl.bench.gpu_tune import GpuTuner, Ways

    with (
        tempfile.TemporaryDirectory(prefix="blink-tune-") as directory,
        Ways(ordinals, names, _environments(spec), Path(directory)) as ways,
    ):
        try:
            tuner = GpuTuner(ways)
        except CommunicationError as error:
            raise HardwareError(f"NCCL, without blink, fails on these GPUs: {error}") from None
        yield tuner


def _environments(spec: str | None) -> Callable[[Way, Path], dict[str, str]]:
    """The environment of processes that time a way on the GPUs of ``spec``."""
    import os

    from blinkccl.bench.gpu_tune import settings_of
    from blinkccl.cli.run import LIBRARY, OVERRIDE, environment, library_file

    if spec == "-":
        raise UsageError("--topo -: every process reads the topology itself; give a file or a name")
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise UsageError("CUDA_VISIBLE_DEVICES is set: unset it, and name GPUs by --gpus as nvidia-smi numbers them")
    library = library_file(LIBRARY, OVERRIDE)
    # In the order of the PCI bus, like NVML.
    base = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if spec is not None:
        base["BLINK_TOPO"] = str(Path(spec).absolute()) if Path(spec).is_file() else spec
    return lambda way, report: environment(base, [library], report, settings_of(way))


def _gpu_text(table: MeasuredTable, ranks: tuple[int, ...], path: Path) -> str:
    from blinkccl.show.text import columns, fit, ids, seconds_text
    from blinkccl.units import size_text

    def times(cell: Cell) -> str:
        return ", ".join(f"{one.ways[0].name} {seconds_text(one.seconds)}" for one in cell.times)

    width = console.width()
    rows = [[cell.collective, size_text(cell.size_bytes), times(cell)] for cell in table.of(ranks)]
    header = ("collective", "size", "times, fastest first")
    lines = columns(header, rows, (0, 2), width, 2) if rows else ["nothing is measured yet"]
    return fit(f"GPUs {ids(ranks)} of {table.name}: {table.by}\n{path}\n\n", width) + "\n".join(lines) + "\n"
