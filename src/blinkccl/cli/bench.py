"""``blink bench``: run a collective for real, in nccl-tests' manner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED

if TYPE_CHECKING:
    from blinkccl.bench.measure import Bench, Row
    from blinkccl.bench.sizes import Sweep

HELP = """
Examples:

\b
  blink bench allreduce                                   this machine's CPUs, 32M
  blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M
  blink bench broadcast --topo ring:8 -d double -n 50 -J run.json

Plan a collective, verify the schedule, and run it with a thread per rank on real buffers of this machine.
Flags, columns and footer are nccl-tests'; every run's result is checked, wrong sums exit with 1.

The times are of this host's memory, not of the topology's links.
"""
_CHUNK = "256K"


def bench(
    name: arguments.CollectiveName,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    src: arguments.Source = None,
    dst: arguments.Destination = None,
    algo: arguments.Algorithm = "auto",
    links: arguments.Links = "fast",
    relays: arguments.Relays = False,
    begin: Annotated[str, typer.Option("-b", "--minbytes", metavar="SIZE", help="Smallest size.")] = "32M",
    end: Annotated[str | None, typer.Option("-e", "--maxbytes", metavar="SIZE", show_default=False,
                                            help="Largest size; default: the smallest.")] = None,
    factor: Annotated[int | None, typer.Option("-f", "--stepfactor", metavar="F", show_default=False,
                                               help="Factor between sizes; default: 2.")] = None,
    step: Annotated[str | None, typer.Option("-i", "--stepbytes", metavar="SIZE", show_default=False,
                                             help="Step between sizes, instead of a factor.")] = None,
    iterations: Annotated[int, typer.Option("-n", "--iters", metavar="N", help="Timed runs per size.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", metavar="N", help="Runs before them.")] = 1,
    dtype: Annotated[str, typer.Option("-d", "--datatype", metavar="TYPE",
                                       help="half, float, double, int8, uint8, ... uint64.")] = "float",
    op: Annotated[str, typer.Option("-o", "--op", metavar="OP", help="sum, prod, min, max or avg.")] = "sum",
    check: Annotated[int, typer.Option("-c", "--check", metavar="0|1", min=0, max=1,
                                       help="Check every run's result.")] = 1,
    chunk: Annotated[str, typer.Option("--chunk", metavar="SIZE", help="Size of a message.")] = _CHUNK,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME",
                                        help="threads or reference.")] = "threads",
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="For one run.")] = 60.0,
    record: Annotated[Path | None, typer.Option("-J", "--json-file", metavar="FILE", show_default=False,
                                                help="Also write nccl-tests' JSON.")] = None,
    json: arguments.Json = False,
) -> None:
    """Plan, verify, run, and print the table; exit with 1 if a result was wrong."""
    from blinkccl.algorithms.registry import algorithm
    from blinkccl.bench.measure import Bench, Settings
    from blinkccl.bench.sizes import size_in_bytes, sweep
    from blinkccl.bench.table import DTYPE_OF, failed
    if record is not None:
        console.check_writable(console.new_name(record))
    sizes = sweep(begin, end, factor, step)
    settings = Settings(iterations, warmup, DTYPE_OF.get(dtype, dtype), op, bool(check),
                        size_in_bytes("--chunk", chunk), engine, timeout_s)
    row = algorithm(algo)
    topology, ranks = arguments.load(spec, gpus)
    coll = arguments.collective(name, ranks, root, src, dst)
    prepared = Bench(row.plan(arguments.request(coll, topology, ranks, links, relays)), settings)
    rows = _run(prepared, sizes, record, json)
    if failed(rows):
        console.error(f"{failed(rows)} measurement(s) had wrong elements: see #wrong")
        raise typer.Exit(CHECK_FAILED)


def _run(prepared: Bench, sizes: Sweep, record: Path | None, json: bool) -> list[Row]:
    """Measure, and print the table as it grows or the JSON at the end."""
    from blinkccl.bench import record as records
    from blinkccl.bench import table
    from blinkccl.forest.document import dumps
    prepared.check_sizes(sizes.sizes())
    empty = prepared.empty_sizes(sizes.sizes())
    if empty:
        console.note(f"{', '.join(map(str, empty[:8]))}{', …' if len(empty) > 8 else ''} bytes hold no whole "
                     f"block of {table.type_name(prepared)}: 0 elements are measured there")
    began = records.now()
    if not json:
        console.emit(table.header(prepared, sizes))
    progress = console.Progress(prepared.collective.name)
    rows = []
    try:
        for row in prepared.rows(sizes.sizes(), progress):
            rows.append(row)
            if not json:
                with progress.aside():
                    console.emit(table.line(prepared, row))
    finally:
        progress.close()
    recorded = records.record(prepared, sizes, rows, sys.argv[1:], began, records.now())
    if json:
        console.emit(dumps(records.document(recorded, prepared)))
    else:
        console.emit(table.footer(prepared, rows))
    if record is not None:
        console.write_file(console.new_name(record), dumps(recorded))
    return rows
