"""``blink sim``: predict the time of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.removed import refuse_removed
from blinkccl.errors import UsageError
from blinkccl.show.text import fit

if TYPE_CHECKING:
    from blinkccl.cost.baselines.candidate import Conditions, Estimate
    from blinkccl.cost.baselines.registry import JobCandidates
    from blinkccl.cost.choice.candidates import Code
    from blinkccl.show.training import StepTable
    from blinkccl.topology.model import Topology
    from blinkccl.trees.algorithms.request import Request
    from blinkccl.trees.forest.model import Forest

#: Default sizes of a sweep, and its factor between sizes.
_BEGIN, _END, _FACTOR = "4K", "1G", 4
#: GPUs by their architecture, which the links of a topology determine.
_GPUS = {"pascal": "p100", "volta": "v100", "ampere": "a100", "hopper": "h100"}
#: Least relative difference between fifo and fair sharing of links that is reported.
_DIFFERS = 0.05
#: Most memories on a path of libblink.so's messages.
_MOST_MEMORIES = 1
_NO_TIMELINE = "--timeline: no algorithm here has one (NCCL's models and hybrid have none); add another with --algo"

HELP = """
Examples:

\b
  blink sim allreduce --topo dgx-1v --gpus 1,4,5,6 --size 500M
  blink sim broadcast --topo dgx-1p -b 4K -e 1G --plot f.svg
  blink sim broadcast --topo dgx-1p --code copies                   as in the paper
  blink sim allreduce --topo "2x dgx-a100" --algo optimal,ring --size 1G --timeline t.json
  blink sim allreduce --topo dgx-1v --gpus 0,1,3 --model alexnet
  blink sim plan.json --size 64M                                    a file of blink plan -o
  blink sim graph.xml --topo dgx-1v                                 a file of NCCL_GRAPH_DUMP_FILE
  blink sim sendrecv --topo mist --algo multi_path,one_hop -b 4K -e 1G
  blink sim sendrecv --topo dgx-1v --gpus 0,1 --relays --algo multi_path -o paths.json

Simulate plans event by event, as blink's kernels run them, with the fastest protocol at each size, beside a model of
NCCL with the same cost per hop. Copy engines, with the machine's calibration, run sendrecv, machines without NVIDIA
GPUs, jobs on several servers, and everything with --code copies.

Prints each algorithm's time, algbw and busbw (GB/s), its percentage of the proved bound, the fullest links, and the
critical path of the fastest plan. With -b or -e it prints the fastest algorithm of each range of sizes. A timeline
opens in ui.perfetto.dev and chrome://tracing: a process per rank, an arrow per message, the load of each link.
"""


Job = Annotated[
    str,
    Argument(
        metavar="COLLECTIVE|PLAN",
        callback=arguments.spelled,
        help="A collective of blink plan; or a plan: x.json, an NCCL graph file x.xml (with --topo), - for stdin.",
    ),
]
Algorithms = Annotated[
    str | None,
    Option(
        "--algo",
        metavar="NAMES",
        help="Algorithms and baselines, separated by commas; auto: the fastest algorithm at each size. Default: all "
        "that can serve the job.",
    ),
]
Size = Annotated[
    str | None, Option("--size", "-s", metavar="SIZE", help="Bytes as nccl-tests counts them; default: 64M.")
]
Begin = Annotated[
    str | None,
    Option("-b", "--minbytes", metavar="SIZE", help=f"Smallest of several sizes with factor 4; default: {_BEGIN}."),
]
End = Annotated[str | None, Option("-e", "--maxbytes", metavar="SIZE", help=f"Largest of them; default: {_END}.")]
CodeName = Annotated[
    str | None,
    Option(
        "--code",
        metavar="kernels|copies",
        help="Execution of plans; default: kernels if they can run the job and no option for copies is given.",
    ),
]
CalibrationName = Annotated[
    str | None,
    Option(
        "--calibration",
        metavar="NAME",
        help="copies: a built-in calibration, or a TOML file; default: the machine's, else nominal.",
    ),
]
Chunk = Annotated[
    str | None,
    Option(
        "--chunk",
        metavar="SIZE|near|miad",
        help="copies: size of a chunk, or its choice. near: the fastest near the pipeline model's (default); miad: the "
        "result of the search in Blink's paper.",
    ),
]
Model = Annotated[
    str | None,
    Option(
        "--model",
        metavar="NAME",
        help="Also time a training step with each AllReduce, of alexnet, resnet18, resnet50, resnet152, densenet201 or "
        "vgg16 on P100s or V100s, or of transformer:PARAMETERS:BLOCKS:TOKENS (per GPU), such as "
        "transformer:7B:32:4096.",
    ),
]
TimelineFile = Annotated[
    Path | None,
    Option("--timeline", metavar="FILE", help="Write the fastest plan's timeline, in Chrome's trace format."),
]
PlotFile = Annotated[Path | None, Option("--plot", metavar="FILE", help="Draw bandwidth over size (svg).")]
PathsFile = Annotated[
    Path | None,
    Option(
        "--paths",
        metavar="FILE",
        help="Table of multi_path's splits, written by blink sim -o or blink lab -o. A table of another machine, or "
        "one that cannot be read, is ignored with a note.",
    ),
]
PathTableFile = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write multi_path's table for this pair, for blink run --paths: per size the paths, the part of each, "
        "streams and chunks. Paths cross at most one memory, like libblink.so's messages. Rows of other pairs of this "
        "machine are kept.",
    ),
]


def sim(
    job: Job,
    behind: arguments.SpecBehind = None,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    algo: Algorithms = None,
    links: arguments.Links = None,
    relays: arguments.Relays = False,
    size: Size = None,
    begin: Begin = None,
    end: End = None,
    code: CodeName = None,
    calibration: CalibrationName = None,
    chunk: Chunk = None,
    model: Model = None,
    timeline: TimelineFile = None,
    plot: PlotFile = None,
    paths: PathsFile = None,
    output: PathTableFile = None,
    json: arguments.Json = False,
) -> None:
    """Prepare, simulate and print."""
    spec = arguments.one_spec(behind, spec)
    console.check_files(timeline, output, plot=plot)
    swept = any(option is not None for option in (plot, begin, end))
    sizes = _sizes(size, swept, begin, end)
    from blinkccl.cost.baselines.registry import time_all
    from blinkccl.show.training import training_steps
    from blinkccl.trees.algorithms import in_switch

    of_copies = arguments.typed(calibration=calibration, chunk=chunk)
    of_copies += [in_switch.NAME] if algo is not None and in_switch.NAME in algo.split(",") else []
    with console.Progress("simulating") as progress:
        if _is_plan(job):
            own = None if arguments.may_be_graph_file(Path(job)) else spec
            used = arguments.typed(root=root, algo=algo, links=links, relays=relays, gpus=gpus, topo=own)
            if used:
                raise UsageError(f"a plan has its own collective, links and ranks: leave {', '.join(used)} out")
            request, forest = _job_of_plan(Path(job), spec)
        else:
            request, forest = arguments.request(job, spec, gpus, root, links, relays), None
        of_copies += [in_switch.NAME] if forest is not None and forest.combining else []
        gpu = None if model is None else _gpu(request.topology)
        runs = _code(request, code, of_copies)
        conditions = _conditions(request.topology, calibration, "near" if chunk is None else chunk, paths, output)
        field = _field(request, forest, runs, conditions, algo, progress)
        _check_files_serve(field, timeline, output)
        field, rows = time_all(field, sizes, progress)
        steps = None if model is None or gpu is None else training_steps(field, model, gpu)
    _report(field, runs, conditions, rows, swept, json, steps)
    if output is not None and field.path_row is not None:
        from blinkccl.trees.algorithms.path_table import SIMULATED

        source = f"simulated on calibration {conditions.calibration.name}"
        arguments.write_path_row(output, request.topology, field.path_row, source, SIMULATED)
    if timeline is not None:
        _write_timeline(timeline, rows[-1])
    if plot is not None:
        _draw(plot, field, runs, rows)


def _is_plan(job: str) -> bool:
    """True if a file was typed and no collective; by its name, so that a missing file is reported as such."""
    return job == "-" or job.endswith((".json", ".xml")) or Path(job).is_file()


def _conditions(
    topology: Topology, calibration: str | None, chunk: str, paths: Path | None, output: Path | None
) -> Conditions:
    from blinkccl.cost.baselines.candidate import Conditions
    from blinkccl.cost.simulate import calibration as calibrations

    own = calibrations.calibration_for(topology) if calibration is None else calibrations.calibration(calibration)
    chunk_bytes, choice = _chunk(chunk)
    return Conditions(
        own,
        chunk_bytes=chunk_bytes,
        chunk_choice=choice,
        paths=None if paths is None else arguments.path_table(paths, topology),
        most_memories=None if output is None else _MOST_MEMORIES,
    )


def _code(request: Request, code: str | None, of_copies: Sequence[str]) -> Code:
    """The execution of plans; options for copies select copy engines."""
    from blinkccl.cost.choice.candidates import COPY_ENGINES, KERNELS, code_of

    if code == KERNELS and of_copies:
        raise UsageError(f"--code {KERNELS}: {', '.join(of_copies)} is for copies; leave one out")
    return code_of(request, COPY_ENGINES if of_copies else code, ", ".join(of_copies))


def _field(
    request: Request,
    forest: Forest | None,
    code: Code,
    conditions: Conditions,
    algo: str | None,
    progress: console.Progress,
) -> JobCandidates:
    """All that is timed: the plan ``forest``, or the candidates that serve the request."""
    from blinkccl.cost.baselines.registry import JobCandidates, candidates_not_run, enter
    from blinkccl.cost.choice import auto
    from blinkccl.cost.choice.candidates import candidates, of_forest

    if forest is None:
        names = [] if algo is None else [part.strip() for part in algo.split(",")]
        known = candidates(code)
        # Only if named: beside all others, auto would repeat the fastest.
        unlisted = {auto.NAME: auto.as_candidate(code), **candidates_not_run()}
        return enter(request, conditions, names, progress, unlisted | known if names else known)
    return JobCandidates(request, (of_forest(forest, code, conditions),), {}, named=True, of_plan=True)


def _check_files_serve(field: JobCandidates, timeline: Path | None, output: Path | None) -> None:
    if timeline is not None and all(one.forest is None for one in field.prepared):
        raise UsageError(_NO_TIMELINE)
    if output is not None and field.path_row is None:
        raise UsageError("-o writes the table of multi_path: use it with blink sim sendrecv --algo multi_path")


def _sizes(size: str | None, swept: bool, begin: str | None, end: str | None) -> list[int]:
    from blinkccl.bench.sizes import sweep
    from blinkccl.cost.simulate.run import MAX_SIZE_BYTES, parse_size

    if not swept:
        return [parse_size("--size", "64M" if size is None else size)]
    if size is not None:
        raise UsageError("--size is for one size, and --plot, -b and -e are for several: leave one out")
    begin, end = _BEGIN if begin is None else begin, _END if end is None else end
    return sweep(begin, end, _FACTOR, MAX_SIZE_BYTES).sizes()


def _chunk(text: str) -> tuple[int | None, str]:
    """The size of a chunk in bytes (None: to be chosen), and the rule of the choice."""
    from blinkccl.cost.baselines.candidate import CHUNK_CHOICES
    from blinkccl.cost.simulate.run import parse_size

    refuse_removed(f"sim --chunk {text}")
    if text in CHUNK_CHOICES:
        return None, text
    chunk = parse_size("--chunk", text)
    if chunk < 1:
        raise UsageError("--chunk 0: expected at least one byte")
    return chunk, "near"


def _job_of_plan(path: Path, spec: str | None) -> tuple[Request, Forest]:
    """The request and the forest of a plan file; exits with code 1 if a statement of the plan is false.

    ``spec`` is the machine of an NCCL graph file, which has none; a plan is checked on the links of ``spec``.
    """
    from blinkccl.trees.algorithms.request import Request

    source, checked = arguments.audited(path, spec)
    arguments.refuse_false(source, checked.all_faults)
    forest = checked.forest
    return Request(forest.topology, forest.collective, forest.ranks), forest


def _gpu(topology: Topology) -> str:
    """The GPU whose rate of arithmetic --model uses."""
    from blinkccl.topology.gpus import guess_arch

    arch = guess_arch(topology)
    if arch not in _GPUS:
        raise UsageError(f"--model: no throughput is known for {arch} GPUs, only for {', '.join(_GPUS)}")
    return _GPUS[arch]


def _report(
    field: JobCandidates,
    code: Code,
    conditions: Conditions,
    rows: Sequence[Sequence[Estimate]],
    swept: bool,
    json: bool,
    steps: StepTable | None,
) -> None:
    from blinkccl.cost.simulate.timeline import summarise

    best = _fastest_plan(rows[-1])
    # A table over sizes has no summary, and a summary takes one more run.
    simulation = best.simulation if best is not None and (json or not swept) else None
    summary = None if simulation is None else summarise(simulation.traced())
    from blinkccl.show import sim_text

    fair = None if best is None or swept else _shared_fairly(field, best)
    if json:
        step_rows = steps.document() if steps else []
        document = sim_text.sim_document(field, code, conditions, rows, best, summary, step_rows)
        if fair is not None:
            document["other_sharing"] = {"algorithm": fair.name, "sharing": "fair", "seconds": fair.seconds}
        console.emit_json(document)
        return
    paint, width = console.paint(), console.width()
    text = fit(sim_text.head_text(field, code, conditions), width)
    text += sim_text.sweep_table(rows, paint, width) if swept else sim_text.size_table(field, rows[0], paint, width)
    if best is not None and summary is not None:
        text += fit(sim_text.summary_text(best.name, summary, best.seconds), width)
    if best is not None and fair is not None:
        text += fit(sim_text.sharing_text(best, fair), width)
    if steps is not None:
        text += steps.text(paint, width)
    if field.named and field.path_row is not None:
        text += sim_text.path_text(field.path_row, width)
    console.emit(text + fit(sim_text.absent_text(field), width))


def _shared_fairly(field: JobCandidates, best: Estimate) -> Estimate | None:
    """The fastest plan's estimate with fair sharing of links, if it differs by more than :data:`_DIFFERS`.

    Hardware shares links in some unpublished way between fifo and fair.
    """
    from blinkccl.cost.choice.candidates import shared_fairly

    if not best.seconds:
        return None
    plan = shared_fairly(next(one for one in field.prepared if one.name == best.name))
    fair = None if plan is None else plan.at(best.size_bytes)
    return fair if fair is not None and abs(fair.seconds / best.seconds - 1) > _DIFFERS else None


def _fastest_plan(row: Sequence[Estimate]) -> Estimate | None:
    plans = [estimate for estimate in row if estimate.simulation is not None]
    return min(plans, key=lambda estimate: estimate.seconds) if plans else None


def _write_timeline(path: Path, row: Sequence[Estimate]) -> None:
    from blinkccl.cost.simulate.timeline import add_simulation
    from blinkccl.trace_events import TraceEvents

    best = _fastest_plan(row)
    if best is None or best.simulation is None:
        raise UsageError(_NO_TIMELINE)
    events = TraceEvents()
    add_simulation(events, best.simulation.traced())
    console.write_timeline(path, events, f"it shows {best.name} at {best.size_bytes:,} bytes")


def _draw(path: Path, field: JobCandidates, code: Code, rows: Sequence[Sequence[Estimate]]) -> None:
    from blinkccl.show.charts import chart_file
    from blinkccl.show.sim_text import sim_picture

    if not any(estimate.algbw_gb_per_s > 0 for row in rows for estimate in row):
        raise UsageError("--plot: every size is smaller than one element per block; give a larger -b or -e")
    console.write_file(path, chart_file(sim_picture(field, code, rows)))
