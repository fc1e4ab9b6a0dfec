"""``blink bench``: run a collective for real, in nccl-tests' manner."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.algorithms.registry import Request
    from blinkccl.bench.about import About
    from blinkccl.bench.host import Benchmark
    from blinkccl.bench.interleave import ProcessSettings
    from blinkccl.bench.measure import PlanSettings
    from blinkccl.bench.rows import SizeRow
    from blinkccl.bench.sizes import Sweep
    from blinkccl.collectives.spec import Collective

HELP = """
Examples:

\b
  blink bench allreduce -g 4 -b 4K -e 256M                 4 rank processes on this host
  blink bench allreduce -b 4K -e 64M --peer gloo,openmpi   beside other libraries, with ratios
  blink bench broadcast --shared -b 1M -I 1 --plot b.png   tensors in shared memory, percentiles
  torchrun --nproc-per-node 2 --no-python blink bench allreduce
  blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M

Flags, columns and footer are nccl-tests'. Results are checked; wrong elements exit with 1.

Ranks are processes of this host, as many as -g says (2), or those that torchrun, mpirun or srun started.
With --topo, --gpus or --engine, a plan for that topology is run in this process instead: the times
are then of this host's memory, not of the topology's links.
"""
_CHUNK = "256K"
_SLOWEST = 3


def bench(
    name: arguments.CollectiveName,
    spec: Annotated[
        str | None,
        typer.Option("--topo", metavar="SPEC", show_default=False, help="Run a plan for this topology."),
    ] = None,
    gpus: arguments.Gpus = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "-g",
            "--ngpus",
            metavar="N",
            min=2,
            max=250,
            show_default=False,
            help="Rank processes on this host; default: 2.",
        ),
    ] = None,
    root: arguments.Root = None,
    src: arguments.Source = None,
    dst: arguments.Destination = None,
    algo: arguments.Algorithm = "auto",
    links: arguments.Links = "fast",
    relays: arguments.Relays = False,
    begin: Annotated[str, typer.Option("-b", "--minbytes", metavar="SIZE", help="Smallest size.")] = "32M",
    end: Annotated[
        str | None,
        typer.Option(
            "-e", "--maxbytes", metavar="SIZE", show_default=False, help="Largest size; default: the smallest."
        ),
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option("-f", "--stepfactor", metavar="F", show_default=False, help="Factor between sizes; default: 2."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            "-i", "--stepbytes", metavar="SIZE", show_default=False, help="Step between sizes, instead of a factor."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("-n", "--iters", metavar="N", help="Timed runs per size (and round).")
    ] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", metavar="N", help="Runs before them.")] = 1,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", show_default=False, help="Rounds of processes; default: 5.")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "-d",
            "--datatype",
            metavar="TYPE",
            help="half, float, double, bfloat16, f8e4m3, f8e5m2, bool, int8, uint8, ... uint64.",
        ),
    ] = "float",
    op: Annotated[
        str, typer.Option("-o", "--op", metavar="OP", help="sum, prod, min, max, avg, mulsum, band, bor or bxor.")
    ] = "sum",
    average: Annotated[
        int,
        typer.Option(
            "-a",
            "--average",
            metavar="0|1|2|3",
            min=0,
            max=3,
            help="Time of an iteration: rank 0's, the mean, the least, or the largest of all ranks.",
        ),
    ] = _SLOWEST,
    check: Annotated[int, typer.Option("-c", "--check", metavar="0|1", min=0, max=1, help="Check results.")] = 1,
    percentiles: Annotated[
        int, typer.Option("-I", "--percentiles", metavar="0|1", min=0, max=1, help="Add percentiles of the iterations.")
    ] = 0,
    peers: Annotated[
        str | None,
        typer.Option(
            "--peer",
            metavar="NAMES",
            show_default=False,
            help="Run these in turns with ours: gloo, openmpi, mpich, impi, "
            "oneccl; openmpi=/prefix for one that is not on PATH.",
        ),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Our tensors lie in shared memory (blinkccl.empty).")
    ] = False,
    chunk: Annotated[str, typer.Option("--chunk", metavar="SIZE", help="Size of a message, of a plan.")] = _CHUNK,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="NAME", show_default=False, help="reference (the default) for a plan; host: processes."
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For one run; for one size of processes.")
    ] = 60.0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", show_default=False, help="Draw time over size (png, svg, pdf)."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "-J",
            "--json-file",
            metavar="FILE",
            show_default=False,
            help="Also write nccl-tests' JSON; an earlier FILE is kept as FILE.1.",
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Run, and print the table; exit with 1 if a result was wrong."""
    from blinkccl.bench.about import DTYPE_OF, OP_OF
    from blinkccl.bench.sizes import size_in_bytes, sweep
    from blinkccl.collectives.ops import DTYPES, OPS

    output = _Output(sweep(begin, end, factor, step), json, record, plot)
    output.check()
    dtype, op = _known("-d", dtype, DTYPE_OF, DTYPES), _known("--op", op, OP_OF, OPS)
    chunk_bytes = size_in_bytes("--chunk", chunk)
    of_plan = engine != "host" if engine is not None else spec is not None or gpus is not None
    if of_plan:
        _refuse(
            "is for processes; here a plan is run, as --topo, --gpus or --engine say",
            {
                "-g": processes is not None,
                "--peer": peers is not None,
                "--shared": shared,
                "-I": bool(percentiles),
                "-a": average != _SLOWEST,
                "--rounds": rounds is not None,
            },
        )
        from blinkccl.bench.measure import PlanSettings

        topology, ranks = arguments.load(spec, gpus)
        coll = arguments.collective(name, ranks, root, src, dst)
        _run_plan(
            arguments.request(coll, topology, ranks, links, relays),
            algo,
            output,
            PlanSettings(iterations, warmup, dtype, op, bool(check), chunk_bytes, engine or "reference", timeout_s),
        )
        return
    _refuse(
        "is for plans, and --engine host runs processes; leave one of them out"
        if engine == "host"
        else "is for plans; give --topo SPEC with it, or leave it out",
        {
            "--topo": spec is not None,
            "--gpus": gpus is not None,
            "--algo": algo != "auto",
            "--relays": relays,
            "--links": links != "fast",
            "--chunk": chunk != _CHUNK,
        },
    )
    from blinkccl.bench.interleave import ProcessSettings

    _on_processes(
        processes,
        lambda size: arguments.collective(name, range(size), root, src, dst),
        peers or "",
        output,
        ProcessSettings(
            dtype,
            op,
            iterations,
            warmup,
            5 if rounds is None else rounds,
            average,
            bool(check),
            bool(percentiles),
            shared,
            _whole_seconds(timeout_s),
        ),
    )


def _refuse(why: str, given: dict[str, bool]) -> None:
    for option, used in given.items():
        if used:
            raise UsageError(f"{option} {why}")


def _known(option: str, typed: str, theirs: dict[str, str], ours: Iterable[str]) -> str:
    """Our name of what was typed, which is that or nccl-tests' name."""
    if typed not in theirs and typed not in ours:
        shown = {name: other for other, name in theirs.items()}
        raise UsageError(f"{option} {typed}: expected one of {', '.join(shown.get(name, name) for name in ours)}")
    return theirs.get(typed, typed)


def _whole_seconds(timeout_s: float) -> int:
    from blinkccl.bench.protocol import MAX_DEADLINE_S

    if not 0 < timeout_s <= MAX_DEADLINE_S:
        raise UsageError(f"--timeout must be a positive number of seconds up to {MAX_DEADLINE_S:,}, got {timeout_s}")
    if timeout_s < 1:
        raise UsageError(f"--timeout must be at least 1 for processes, which count whole seconds, got {timeout_s}")
    return math.ceil(timeout_s)


@dataclass(frozen=True, slots=True)
class _Output:
    """Which sizes are measured, and where the numbers go."""

    sizes: Sweep
    json: bool
    record: Path | None
    plot: Path | None

    def check(self) -> None:
        """Refuse what could not be written, before any work."""
        if self.record is not None:
            console.check_writable(self.record)
        if self.plot is not None:
            from blinkccl.report import plotting

            plotting.check(self.plot)
            console.check_writable(self.plot)

    def report(self, about: About, rows: Iterable[SizeRow], progress: console.Progress) -> None:
        """Print the table as it grows, or the JSON at the end, and write the files.

        Raises
        ------
        typer.Exit
            With 1, if a result was wrong.
        """
        from blinkccl.bench import output as printed
        from blinkccl.bench.rows import failed
        from blinkccl.forest.document import dumps

        began, done = printed.now(), []
        if not self.json:
            console.emit(printed.header(about, self.sizes))
        try:
            for row in rows:
                done.append(row)
                if not self.json:
                    with progress.aside():
                        console.emit(printed.line(about, row))
        finally:
            progress.close()
        recorded = printed.record(about, self.sizes, done, sys.argv[1:], began, printed.now())
        console.emit(dumps(printed.document(recorded, about)) if self.json else printed.footer(about, done))
        if self.record is not None:
            console.keep_earlier(self.record)
            console.write_file(self.record, dumps(recorded))
        if self.plot is not None:
            _draw(self.plot, about, done)
        if failed(done):
            console.error(f"{failed(done)} measurement(s) had wrong elements: see #wrong")
            raise typer.Exit(CHECK_FAILED)


def _draw(path: Path, about: About, rows: Sequence[SizeRow]) -> None:
    """In place where there is such a thing: that is what training does."""
    from blinkccl.bench.output import plot
    from blinkccl.bench.rows import lines

    try:
        plot(path, f"{about.collective.name}, {about.collective.world_size} ranks, {about.type_name}", lines(rows))
    except OSError as problem:
        raise typer.BadParameter(f"{path} cannot be written: {problem.strerror or problem}") from None
    console.note(f"wrote {path}")


def _say_empty(sizes: Sequence[int], collective: Collective, dtype: str) -> None:
    from blinkccl.bench.about import TYPE_NAMES
    from blinkccl.bench.sizes import empty_sizes

    empty = empty_sizes(collective, sizes, dtype)
    if empty:
        console.note(
            f"{', '.join(map(str, empty[:8]))}{', …' if len(empty) > 8 else ''} bytes hold no whole "
            f"block of {TYPE_NAMES.get(dtype, dtype)}: 0 elements are measured there"
        )


def _run_plan(request: Request, algo: str, output: _Output, settings: PlanSettings) -> None:
    """Plan, verify, and run the plan in this process."""
    from blinkccl.algorithms.registry import algorithm
    from blinkccl.bench.about import of_plan
    from blinkccl.bench.measure import Bench

    prepared, sizes = Bench(algorithm(algo).plan(request), settings), output.sizes.sizes()
    prepared.check_sizes(sizes)
    _say_empty(sizes, prepared.collective, prepared.dtype.name)
    progress = console.Progress(prepared.collective.name)
    output.report(of_plan(prepared), prepared.rows(sizes, progress), progress)


def _on_processes(
    wanted: int | None, collective: Callable[[int], Collective], peers: str, output: _Output, settings: ProcessSettings
) -> None:
    """Run on processes: those of a launcher, or ours."""
    from blinkccl.bench import host
    from blinkccl.bench.peers.registry import parse

    host.check(settings)
    chosen, started_by = parse(peers), host.launcher(os.environ)
    if started_by is None:
        coll = collective(wanted or host.DEFAULT_RANKS)
        _check_sizes(output.sizes.sizes(), coll, settings)
        with host.spawned(coll, settings, chosen, console.note) as benchmark:
            _interleaved(benchmark, output)
        return
    _refuse(
        f"starts processes, but {started_by} has started this one already: leave it out",
        {"-g": wanted is not None, "--peer": bool(chosen)},
    )
    _launched(started_by, collective, output, settings)


def _check_sizes(sizes: Sequence[int], collective: Collective, settings: ProcessSettings) -> None:
    from blinkccl.bench import host

    host.check_sizes(collective, settings, sizes)
    _say_empty(sizes, collective, settings.dtype)


def _launched(
    started_by: str, collective: Callable[[int], Collective], output: _Output, settings: ProcessSettings
) -> None:
    """This process is one rank; rank 0 measures and prints."""
    from blinkccl.bench import host
    from blinkccl.bench.libraries import OwnLibrary

    library = OwnLibrary.join(settings.deadline_s)
    try:
        if library.rank != 0:
            host.follow(library.communicator, library)
            return
        leader = host.Leader(library.communicator, library)
        try:
            coll = collective(library.size)
            _check_sizes(output.sizes.sizes(), coll, settings)
            with host.led(coll, settings, leader, leader.pids, started_by, console.note) as benchmark:
                _interleaved(benchmark, output)
        finally:
            leader.close()
    finally:
        library.close()


def _interleaved(benchmark: Benchmark, output: _Output) -> None:
    sizes = output.sizes.sizes()
    progress = console.Progress(benchmark.about.collective.name)
    steps = iter(range(1, 1 + benchmark.interleaved.ticks(sizes)))
    benchmark.interleaved.tick = lambda: progress(next(steps), benchmark.interleaved.ticks(sizes))
    output.report(benchmark.about, benchmark.interleaved.rows(sizes), progress)
