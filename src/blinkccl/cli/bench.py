"""``blink bench``: measure a collective on this machine, in nccl-tests' format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.cli.removed import refuse_removed
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.bench.algorithms import Job
    from blinkccl.bench.interleave import BenchSettings, Interleaved
    from blinkccl.bench.output import About
    from blinkccl.bench.sizes import Sweep
    from blinkccl.collectives.spec import Collective
    from blinkccl.trees.algorithms.request import Request

HELP = """
Examples:

\b
  blink bench allreduce -g 4 -b 4K -e 256M                 4 rank processes on this host
  blink bench allreduce -b 4K -e 64M --peer gloo,openmpi   beside other libraries, with ratios
  blink bench broadcast --shared -b 1M                     tensors in shared memory
  torchrun --nproc-per-node 2 --no-python blink bench allreduce
  blink bench allreduce -g 4 -b 4K -e 64M -f 4 --algo all  the fastest algorithm at each size
  blink bench allreduce -g 4 --topo dgx-1v --gpus 0-3 --algo ring,optimal
  blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M

Flags, columns and footer are those of nccl-tests. Every result is checked; with wrong elements the exit code is 1.

Ranks are -g processes of this host (2 by default), or the processes that torchrun, mpirun or srun started.
Without --algo, communicators choose the algorithm. --algo ring runs the plan of that algorithm instead; several
names, or all, are compared. The plan is for one switch, a model of this host's memory, or with --topo for that
topology, with a process per GPU. Times are always those of this host's memory, never of the topology's links.
"""
#: Timeout in seconds of one size.
DEADLINE_S = 60

Processes = Annotated[
    int | None,
    Option(
        "-g",
        "--ngpus",
        metavar="N",
        min=2,
        max=250,
        help="Rank processes on this host; default: 2, or the GPUs of --topo.",
    ),
]
Begin = Annotated[str, Option("-b", "--minbytes", metavar="SIZE", help="Smallest size.")]
End = Annotated[str | None, Option("-e", "--maxbytes", metavar="SIZE", help="Largest size; default: the smallest.")]
Factor = Annotated[int, Option("-f", "--stepfactor", metavar="F", help="Factor between sizes.")]
Iterations = Annotated[int, Option("-n", "--iters", metavar="N", help="Timed runs per size (and round).")]
Rounds = Annotated[int, Option("--rounds", metavar="N", help="Rounds of processes.")]
ElementType = Annotated[
    str,
    Option(
        "-d",
        "--datatype",
        metavar="TYPE",
        help="half, float, double, bfloat16, f8e4m3, f8e5m2, bool, int8, uint8, ... uint64.",
    ),
]
Operation = Annotated[
    str, Option("-o", "--op", metavar="OP", help="sum, prod, min, max, avg, mulsum, band, bor or bxor.")
]
Peers = Annotated[
    str | None,
    Option(
        "--peer",
        metavar="NAMES",
        help="Other libraries to run in turns with blink: gloo, openmpi, mpich, impi; openmpi=/prefix if not on PATH.",
    ),
]
Shared = Annotated[bool, Option("--shared", help="Allocate blink's tensors in shared memory (blinkccl.empty).")]


def bench(
    name: arguments.CollectiveName,
    spec: Annotated[str | None, Option("--topo", metavar="SPEC", help="Run a plan for this topology.")] = None,
    gpus: arguments.Gpus = None,
    processes: Processes = None,
    root: arguments.Root = None,
    algo: arguments.Algorithms = None,
    begin: Begin = "32M",
    end: End = None,
    factor: Factor = 2,
    iterations: Iterations = 20,
    rounds: Rounds = 5,
    dtype: ElementType = "float",
    op: Operation = "sum",
    peers: Peers = None,
    shared: Shared = False,
    json: arguments.Json = False,
) -> None:
    """Measure and print the table; exit with 1 if a result is wrong."""
    from blinkccl.bench.interleave import BenchSettings
    from blinkccl.bench.sizes import sweep

    for peer in (peers or "").split(","):
        refuse_removed(f"bench --peer {peer.partition('=')[0].strip()}")
    output = _Output(sweep(begin, end, factor), json)
    dtype, op = _names(dtype, op)
    on_topology = spec is not None or gpus is not None
    request = arguments.request(name, spec, gpus, root, None, False) if on_topology else None
    settings = BenchSettings(dtype, op, iterations, rounds=rounds, shared=shared, deadline_s=DEADLINE_S)
    _on_processes(processes, _jobs(request, name, root, algo), peers or "", output, settings)


def _names(dtype: str, op: str) -> tuple[str, str]:
    """The names of the element type and of the operation in blinkccl."""
    from blinkccl.bench.output import DTYPE_OF, OP_OF
    from blinkccl.collectives.ops import DTYPES, OPS

    return _known("-d", dtype, DTYPE_OF, DTYPES), _known("--op", op, OP_OF, OPS)


def _jobs(request: Request | None, name: str, root: int | None, algo: str | None) -> Callable[[int | None], Job]:
    """The function from the number of processes to their job: the number is known only after they start."""
    from blinkccl.bench.host import DEFAULT_RANKS

    def job(size: int | None) -> Job:
        return _job(request or arguments.collective(name, range(size or DEFAULT_RANKS), root), size, algo)

    return job


def _job(job: Request | Collective, size: int | None, algo: str | None) -> Job:
    """The job of ``size`` rank processes (None: one per rank): plans, or the choice of communicators."""
    from blinkccl.bench.algorithms import Job, plan_algorithms, this_host
    from blinkccl.collectives.spec import Collective

    if isinstance(job, Collective):
        if algo is None:
            return Job(job)
        request = this_host(job)
        planned = plan_algorithms(algo, request, here=True, note=console.note)
        return Job(job, tuple(planned), f"{request.topology.name} (a switch)")
    ranks = len(job.ranks)
    if size not in (None, ranks):
        raise UsageError(
            f"{size} processes for {ranks} GPUs of {job.topology.name}: choose {size} with --gpus, or start {ranks}"
        )
    planned = plan_algorithms(algo or "auto", job, here=False, note=console.note)
    gpus = ",".join(map(str, job.ranks))
    return Job(job.collective, tuple(planned), f"GPUs {gpus} of {job.topology.name}")


def _known(option: str, typed: str, nccl_names: dict[str, str], names: Iterable[str]) -> str:
    """The name in blinkccl of a typed name, which is that or nccl-tests' name."""
    if typed not in nccl_names and typed not in names:
        shown = {name: other for other, name in nccl_names.items()}
        raise UsageError(f"{option} {typed}: expected one of {', '.join(shown.get(name, name) for name in names)}")
    return nccl_names.get(typed, typed)


@dataclass(frozen=True, slots=True)
class _Output:
    """The sizes to measure, and the format of the numbers."""

    sizes: Sweep
    json: bool

    def report(self, interleaved: Interleaved, about: About) -> None:
        """Measure, and print each row of the table, or JSON at the end; exit with 1 if a result is wrong."""
        from blinkccl.bench import output as printed
        from blinkccl.bench.rows import crossovers, failed
        from blinkccl.bench.table import BenchTable
        from blinkccl.trees.forest.document import dumps

        sizes = self.sizes.sizes()
        began, done, table = printed.now(), [], BenchTable(about, console.width())
        if not self.json:
            console.emit(table.header(self.sizes))
        with console.Progress(about.collective.name) as progress:
            steps = iter(range(1, 1 + interleaved.ticks(sizes)))
            interleaved.tick = lambda: progress(next(steps), interleaved.ticks(sizes))
            for row in interleaved.rows(sizes):
                done.append(row)
                if not self.json:
                    with progress.aside():
                        console.emit(table.line(row))
        recorded = printed.record(about, self.sizes, done, sys.argv[1:], began, printed.now())
        if about.several:
            recorded["crossovers"] = [asdict(each) for each in crossovers(done, about.algorithms[0])]
        console.emit(dumps(printed.document(recorded, about)) if self.json else table.footer(done))
        if wrong := failed(done, about.algorithms):
            console.error(f"{wrong} measurement(s) had wrong elements: see column #wrong, or nwrong in --json")
            raise typer.Exit(CHECK_FAILED)


def _check_sizes(sizes: Sequence[int], collective: Collective, dtype: str) -> None:
    """Refuse sizes beyond the memory, and note those that hold no element."""
    from blinkccl.bench.output import TYPE_NAMES
    from blinkccl.bench.sizes import check_memory, empty_sizes

    check_memory(collective, sizes, dtype)
    empty = empty_sizes(collective, sizes, dtype)
    if empty:
        console.note(
            f"{', '.join(map(str, empty[:8]))}{', …' if len(empty) > 8 else ''} bytes hold less than one element of "
            f"{TYPE_NAMES.get(dtype, dtype)} per block: these rows have 0 elements"
        )


def _on_processes(
    size: int | None, job_of: Callable[[int | None], Job], peers: str, output: _Output, settings: BenchSettings
) -> None:
    """Measure between processes: those of a launcher, or new ones."""
    from blinkccl.bench import host
    from blinkccl.bench.peers.registry import parse

    libraries, started_by = parse(peers), host.launcher(os.environ)
    if started_by is None:
        job = job_of(size)
        _check_sizes(output.sizes.sizes(), job.collective, settings.dtype)
        with host.spawned(job, settings, libraries, console.note) as benchmark:
            output.report(*benchmark)
        return
    if size is not None or libraries:
        option = "--peer" if size is None else "-g"
        raise UsageError(f"{option} starts processes, but {started_by} has started them already: leave {option} out")
    _launched(started_by, job_of, output, settings)


def _launched(started_by: str, job_of: Callable[[int | None], Job], output: _Output, settings: BenchSettings) -> None:
    """Take part as one rank of a launcher's job; rank 0 measures and prints."""
    from blinkccl.bench import host
    from blinkccl.bench.libraries import OwnLibrary

    with closing(OwnLibrary(settings.deadline_s)) as library:
        if library.rank != 0:
            host.follow(library.communicator, library)
            return
        with closing(host.Leader(library.communicator, library)) as leader:
            job = job_of(library.size)
            _check_sizes(output.sizes.sizes(), job.collective, settings.dtype)
            with host.led(job, settings, leader, started_by) as benchmark:
                output.report(*benchmark)
