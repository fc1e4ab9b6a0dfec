"""``blink lab``: run plans on emulated links, between network namespaces of this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED, HardwareError
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.apps.lab.experiment import Field, Measured
    from blinkccl.trees.algorithms.request import Request

HELP = """
Examples:

\b
  blink lab broadcast --topo dgx-1v --gpus 1,4,5,6                  all algorithms at 16 MB
  blink lab allreduce --topo dgx-1v --algo optimal,ring -b 1M -e 32M --plot lab.svg
  blink lab allreduce --topo dgx-2 --gpus 0-3 --lane 50 --json
  blink lab allreduce --topo dgx-1v --fail cut:0-3                  cut a link, and continue without it
  blink lab allreduce --topo dgx-1v --algo optimal,ring -b 1M -e 16M -o table.json
  blink lab sendrecv --topo mist --gpus 0,1 --algo multi_path,one_hop -b 64K -e 32M

Emulate the machine with network namespaces and one rate-limited pair of devices per link, and run plans on it.

Every vertex is a namespace, with a process if it stores data; switches forward. The links keep their ratios.
All candidates run in turns on the same links. Every result is checked, and times are medians. -o writes them to a
table for blink explain --measured. Needs root, ip and tc. The namespaces are unnamed, so they end with this
process, even if it is killed.
"""


Candidates = Annotated[
    str,
    Option(
        "--algo",
        metavar="NAMES",
        help="Algorithms: optimal,ring or with links optimal@fast,hybrid@all; gloo_links, gloo_ranks, openmpi: those "
        "libraries; path:0-4-1: a message on one path; all: optimal,blink,ring,one_ring.",
    ),
]
Fault = Annotated[
    str | None,
    Option(
        "--fail",
        metavar="FAULT",
        help="Make a link (cut:0-3, slow:0-3, lossy:0-3) or a host (kill:5) fail while the first algorithm runs, and "
        "continue with a plan for the rest.",
    ),
]
Begin = Annotated[str, Option("-b", "--minbytes", "--size", metavar="SIZE", help="Smallest size.")]
End = Annotated[
    str | None,
    Option("-e", "--maxbytes", metavar="SIZE", help="Largest size; sizes double. Default: the smallest."),
]
Lane = Annotated[
    float | None,
    Option("--lane", metavar="MBIT/S", help="Emulated rate of one lane; default: as fast as the processors allow."),
]
Rounds = Annotated[int, Option("-n", "--rounds", metavar="N", min=1, max=1000, help="Runs per algorithm and size.")]
#: Timeout of one run, in seconds.
DEADLINE_S = 60.0
PlotFile = Annotated[Path | None, Option("--plot", metavar="FILE", help="Draw measured beside predicted (svg).")]


def lab(
    name: arguments.CollectiveName,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    algo: Candidates = "all",
    links: arguments.Links = None,
    relays: arguments.Relays = False,
    fail: Fault = None,
    begin: Begin = "16M",
    end: End = None,
    lane: Lane = None,
    rounds: Rounds = 5,
    plot: PlotFile = None,
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the times of each algorithm and size to a table of this machine; for multi_path, the paths of "
            "a message, for blink sim --paths alone.",
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Build, run, print; exit with 1 if a result is wrong."""
    from blinkccl.bench.sizes import sweep

    sizes = sweep(begin, end).sizes()
    if lane is not None and not 0 < lane < math.inf:
        raise UsageError(f"--lane {lane}: expected a positive number of Mbit/s")
    if output is not None and fail is not None:
        raise UsageError("-o writes measured times, and --fail measures none: leave one out")
    console.check_files(output, plot=plot)
    _check_machine()
    from blinkccl.apps.lab import experiment

    request = arguments.request(name, spec, gpus, root, links, relays)
    names = experiment.ALL if algo == "all" else algo.split(",")
    if fail is not None:
        _fail(request, names[0], lane, fail, sizes[0], rounds, json)
        return
    field, rows = _compare(experiment.prepare(request, names, lane), sizes, rounds, plot, json)
    if output is not None and field.path_row is not None:
        from blinkccl.trees.algorithms.path_table import LABORATORY

        source = f"measured in a laboratory, {field.slower:.0f} times slower"
        arguments.write_path_row(output, request.topology, field.path_row, source, LABORATORY)
    elif output is not None:
        _write(output, field, rows, sizes)


def _compare(
    field: Field,
    sizes: Sequence[int],
    rounds: int,
    plot: Path | None,
    json: bool,
) -> tuple[Field, list[list[Measured]]]:
    """Measure and print all candidates; exit with 1 if a result is wrong. Returns candidates and times."""
    from blinkccl.apps.lab import experiment, output
    from blinkccl.show.text import fit

    with console.Progress("laboratory") as progress, field.laboratory() as laboratory:
        field = field.ready(laboratory, DEADLINE_S)
        rows = list(experiment.measure(field, laboratory, sizes, rounds, DEADLINE_S, progress))
        layout = laboratory.layout
    if json:
        console.emit_json(output.document(field, layout, rows))
    else:
        width = console.width()
        notes = output.ratio_text(rows) + output.absent_text(field)
        table = output.table_text(rows, console.paint(), width)
        console.emit(fit(output.head_text(field, layout), width) + f"\n{table}\n" + fit(notes, width))
    if plot is not None:
        from blinkccl.show.charts import chart_file

        console.write_file(plot, chart_file(output.picture(field, rows)))
    wrong = sum(one.wrong for row in rows for one in row)
    if wrong:
        console.error(f"{wrong} elements were wrong: see column #wrong")
        raise typer.Exit(CHECK_FAILED)
    return field, rows


def _write(path: Path, field: Field, rows: Sequence[Sequence[Measured]], sizes: Sequence[int]) -> None:
    """Add the measured times to the table in ``path``; a table of another machine or --lane is replaced."""
    from blinkccl.apps.lab.output import measured_cell
    from blinkccl.bench.tune import ranges
    from blinkccl.private_files import write_or_replace
    from blinkccl.trees.algorithms import tables as measured
    from blinkccl.trees.algorithms.path_table import machine_key

    topology, slower = field.request.topology, round(field.slower, 3)
    by = f"a laboratory, links {slower:g} times slower"
    old = arguments.measured(path, topology) if path.is_file() and path.stat().st_size else None
    table = measured.MeasuredTable(machine_key(topology), topology.name, measured.LABORATORY, by, slower)
    if old is not None and old.same_source(table):
        table = old
    elif old is not None:
        console.note(f"{path}: new times of {by} replace those of {old.by}; use the same --lane to keep both")
    for row, at in zip(rows, ranges(sizes), strict=True):
        table = table.with_cell(measured_cell(row, field.request.ranks, at))
    with console.written(path):
        write_or_replace(path, measured.to_json(table))


def _fail(request: Request, name: str, lane: float | None, text: str, size: int, rounds: int, json: bool) -> None:
    """Run a job before, during and after a fault; exit with 1 if a result after it is wrong."""
    from blinkccl.apps.lab import experiment, faults, output

    fault = faults.Fault.parse(text)
    field = experiment.prepare(request, (name,), lane)
    around = faults.plan_around(field, fault, name)
    candidates = [*field.candidates, *([] if isinstance(around, str) else [around])]
    built = experiment.laboratory(candidates, field.slower)
    fault.check(built.layout)
    with built as laboratory:
        story = faults.tell(field, around, laboratory, fault, size, rounds, DEADLINE_S)
    if json:
        console.emit_json(story.document())
    else:
        console.emit_sentences(output.head_text(field, laboratory.layout) + "\n" + story.text())
    if not isinstance(story.after, str) and story.after.wrong:
        raise typer.Exit(CHECK_FAILED)


def _check_machine() -> None:
    """Refuse, before any work, a machine on which links cannot be emulated."""
    from blinkccl.apps.lab.namespaces import lacking

    reason = lacking()
    if reason is not None:
        raise HardwareError(f"links cannot be emulated here: {reason}")
