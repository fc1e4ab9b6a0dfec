"""``blink bench``: run a collective for real, in nccl-tests' manner."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
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
    from blinkccl.bench.timeline import BenchTimeline
    from blinkccl.collectives.spec import Collective
    from blinkccl.trees.algorithms.request import Request

HELP = """
Examples:

\b
  blink bench allreduce -g 4 -b 4K -e 256M                 4 rank processes on this host
  blink bench allreduce -b 4K -e 64M --peer gloo,openmpi   beside other libraries, with ratios
  blink bench broadcast --shared -b 1M                     tensors in shared memory
  blink bench allreduce -b 64K -e 1M --timeline t.json     what each rank did and waited for: ui.perfetto.dev
  torchrun --nproc-per-node 2 --no-python blink bench allreduce
  blink bench allreduce -g 4 -b 4K -e 64M -f 4 --algo all  which algorithm is the fastest at which size
  blink bench allreduce -g 4 --topo dgx-1v --gpus 0-3 --algo ring,optimal
  blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M

Flags, columns and footer are nccl-tests'. Results are checked; wrong elements exit with 1.

Ranks are processes of this host, as many as -g says (2), or those that torchrun, mpirun or srun started.
--algo ring runs that algorithm's plan between them instead of what communicators choose; several, or all,
stand beside each other. The plan is for a switch, which this host's memory is like; with --topo, for that
topology. With --topo and no -g, a plan is run in this process. Times are always of this host's memory, never
of the topology's links.
"""
#: Seconds for one run of a plan in this process, and for one size of processes.
DEADLINE_S = 60

Processes = Annotated[
    int | None,
    Option("-g", "--ngpus", metavar="N", min=2, max=250, help="Rank processes on this host; default: 2."),
]
Begin = Annotated[str, Option("-b", "--minbytes", metavar="SIZE", help="Smallest size.")]
End = Annotated[str | None, Option("-e", "--maxbytes", metavar="SIZE", help="Largest size; default: the smallest.")]
Factor = Annotated[int, Option("-f", "--stepfactor", metavar="F", help="Factor between sizes.")]
Iterations = Annotated[int, Option("-n", "--iters", metavar="N", help="Timed runs per size (and round).")]
Rounds = Annotated[int | None, Option("--rounds", metavar="N", help="Rounds of processes; default: 5.")]
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
        help="Run these in turns with ours: gloo, openmpi, mpich, impi; openmpi=/prefix for one that is not on PATH.",
    ),
]
Shared = Annotated[bool, Option("--shared", help="Our tensors lie in shared memory (blinkccl.empty).")]
TimelineFile = Annotated[
    Path | None,
    Option("--timeline", metavar="FILE", help="Also write what ranks did in some more calls, as Chrome's trace."),
]


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
    rounds: Rounds = None,
    dtype: ElementType = "float",
    op: Operation = "sum",
    peers: Peers = None,
    shared: Shared = False,
    timeline: TimelineFile = None,
    json: arguments.Json = False,
) -> None:
    """Run, and print the table; exit with 1 if a result was wrong."""
    from blinkccl.bench import host
    from blinkccl.bench.interleave import BenchSettings
    from blinkccl.bench.sizes import sweep

    for peer in (peers or "").split(","):
        refuse_removed(f"bench --peer {peer.partition('=')[0].strip()}")
    output = _Output(sweep(begin, end, factor), json, timeline)
    console.check_files(timeline)
    dtype, op = _names(dtype, op)
    on_topology = spec is not None or gpus is not None
    request = arguments.request(name, spec, gpus, root, None, False) if on_topology else None
    if request is not None and processes is None and host.launcher(os.environ) is None:
        used = arguments.typed(peer=peers, rounds=rounds, timeline=timeline, shared=shared)
        if used:
            raise UsageError(f"{used[0]} is for processes; here a plan is run in one, as --topo says: add -g N")
        _run_plan(request, algo or "auto", output, BenchSettings(dtype, op, iterations, rounds=1))
        return
    settings = BenchSettings(
        dtype, op, iterations, rounds=5 if rounds is None else rounds, shared=shared, deadline_s=DEADLINE_S
    )
    _on_processes(processes, _jobs(request, name, root, algo), peers or "", output, settings)


def _names(dtype: str, op: str) -> tuple[str, str]:
    """Our names of the element type and of the operation."""
    from blinkccl.bench.output import DTYPE_OF, OP_OF
    from blinkccl.collectives.ops import DTYPES, OPS

    return _known("-d", dtype, DTYPE_OF, DTYPES), _known("--op", op, OP_OF, OPS)


def _jobs(request: Request | None, name: str, root: int | None, algo: str | None) -> Callable[[int | None], Job]:
    """What so many processes are to run, once their number is known."""
    from blinkccl.bench.host import DEFAULT_RANKS

    def job(size: int | None) -> Job:
        return _job(request or arguments.collective(name, range(size or DEFAULT_RANKS), root), size, algo)

    return job


def _job(asked: Request | Collective, size: int | None, algo: str | None) -> Job:
    """What ``size`` (None: as many as there are) rank processes are to run: plans, or what communicators choose."""
    from blinkccl.bench.algorithms import Job, plan_algorithms, this_host
    from blinkccl.collectives.spec import Collective

    if isinstance(asked, Collective):
        if algo is None:
            return Job(asked)
        request = this_host(asked)
        planned = plan_algorithms(algo, request, here=True, note=console.note)
        return Job(asked, tuple(planned), f"{request.topology.name} (a switch)")
    ranks = len(asked.ranks)
    if size not in (None, ranks):
        raise UsageError(f"{size} processes, but {ranks} GPUs of {asked.topology.name}: choose them with --gpus")
    planned = plan_algorithms(algo or "auto", asked, here=False, note=console.note)
    gpus = ",".join(map(str, asked.ranks))
    return Job(asked.collective, tuple(planned), f"GPUs {gpus} of {asked.topology.name}")


def _known(option: str, typed: str, theirs: dict[str, str], ours: Iterable[str]) -> str:
    """Our name of what was typed, which is that or nccl-tests' name."""
    if typed not in theirs and typed not in ours:
        shown = {name: other for other, name in theirs.items()}
        raise UsageError(f"{option} {typed}: expected one of {', '.join(shown.get(name, name) for name in ours)}")
    return theirs.get(typed, typed)


@dataclass(frozen=True, slots=True)
class _Output:
    """Which sizes are measured, and where the numbers go."""

    sizes: Sweep
    json: bool
    timeline: Path | None

    def recorder(self, job: Job) -> BenchTimeline | None:
        """What collects the timeline, where one is wanted."""
        from blinkccl.bench.timeline import BenchTimeline

        return None if self.timeline is None else BenchTimeline(job)

    def write_timeline(self, recorder: BenchTimeline | None) -> None:
        """Writes what was collected."""
        if recorder is not None and self.timeline is not None:
            what = f"{self.timeline} shows calls after those of the table"
            console.write_timeline(self.timeline, recorder.events(), what)

    def report(self, interleaved: Interleaved, about: About) -> None:
        """Measure; print the table as it grows, or JSON at the end; write the files; end with 1 if one was wrong."""
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
            console.error(f"{wrong} measurement(s) had wrong elements: see #wrong, or nwrong in --json")
            raise typer.Exit(CHECK_FAILED)


def _check_sizes(sizes: Sequence[int], collective: Collective, dtype: str) -> None:
    """Refuse sizes that there is no memory for, and say which hold no element."""
    from blinkccl.bench.output import TYPE_NAMES
    from blinkccl.bench.sizes import check_memory, empty_sizes

    check_memory(collective, sizes, dtype)
    empty = empty_sizes(collective, sizes, dtype)
    if empty:
        console.note(
            f"{', '.join(map(str, empty[:8]))}{', …' if len(empty) > 8 else ''} bytes hold no whole "
            f"block of {TYPE_NAMES.get(dtype, dtype)}: 0 elements are measured there"
        )


def _run_plan(request: Request, algo: str, output: _Output, settings: BenchSettings) -> None:
    """Run a plan in this process."""
    from blinkccl.bench.interleave import Interleaved, Participant
    from blinkccl.bench.measure import PlannedRanks
    from blinkccl.bench.output import of_plan
    from blinkccl.trees.algorithms.registry import algorithm

    if algo == "all" or "," in algo:
        raise UsageError(f"--algo {algo}: --algo takes one algorithm here; add -g N to compare several")
    planned = PlannedRanks(algorithm(algo).plan(request), deadline_s=DEADLINE_S)
    _check_sizes(output.sizes.sizes(), request.collective, settings.dtype)
    output.report(Interleaved(request.collective, settings, [Participant("", "", planned)]), of_plan(planned, settings))


def _on_processes(
    wanted: int | None, job: Callable[[int | None], Job], peers: str, output: _Output, settings: BenchSettings
) -> None:
    """Run on processes: those of a launcher, or ours."""
    from blinkccl.bench import host
    from blinkccl.bench.peers.registry import parse

    chosen, started_by = parse(peers), host.launcher(os.environ)
    if started_by is None:
        ours = job(wanted)
        _check_sizes(output.sizes.sizes(), ours.collective, settings.dtype)
        recorder = output.recorder(ours)
        with host.spawned(ours, settings, chosen, console.note, recorder) as benchmark:
            output.report(*benchmark)
        output.write_timeline(recorder)
        return
    if wanted is not None or chosen:
        option = "--peer" if wanted is None else "-g"
        raise UsageError(f"{option} starts processes, but {started_by} has started this one already: leave it out")
    _launched(started_by, job, output, settings)


def _launched(started_by: str, job: Callable[[int | None], Job], output: _Output, settings: BenchSettings) -> None:
    """This process is one rank; rank 0 measures and prints."""
    from blinkccl.bench import host
    from blinkccl.bench.libraries import OwnLibrary

    with closing(OwnLibrary(settings.deadline_s)) as library:
        if library.rank != 0:
            host.follow(library.communicator, library)
            return
        with closing(host.Leader(library.communicator, library)) as leader:
            ours = job(library.size)
            _check_sizes(output.sizes.sizes(), ours.collective, settings.dtype)
            recorder = output.recorder(ours)
            with host.led(ours, settings, leader, started_by, console.note, recorder) as benchmark:
                output.report(*benchmark)
            output.write_timeline(recorder)
