"""``blink sim``: how long it would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blinkccl.cli import arguments, console
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

#: What a sweep takes where -b and -e do not say, and its factor between sizes.
_BEGIN, _END, _FACTOR = "4K", "1G", 4
#: GPUs by the architecture that links tell.
_GPUS = {"pascal": "p100", "volta": "v100", "ampere": "a100", "hopper": "h100"}
#: From which difference between links that are fifo and fair on people are told.
_DIFFERS = 0.05
#: Memories that a path of libblink.so's messages crosses.
_MOST_MEMORIES = 1
_NO_TIMELINE = "--timeline: none of these is one plan with a timeline (models, and hybrid's two runs, have none)"

HELP = """
Examples:

\b
  blink sim allreduce --topo dgx-1v --gpus 1,4,5,6 --size 500M
  blink sim broadcast --topo dgx-1p -b 4K -e 1G --plot f.svg
  blink sim broadcast --topo dgx-1p --code copies                   as in the paper
  blink sim allreduce --topo "2x dgx-a100" --algo optimal,ring --size 1G --timeline t.json
  blink sim allreduce --topo dgx-1v --gpus 0,1,3 --model alexnet
  blink sim plan.json --size 64M                                    what blink plan -o wrote
  blink sim graph.xml --topo dgx-1v                                 what NCCL_GRAPH_DUMP_FILE wrote
  blink sim sendrecv --topo mist --algo multi_path,one_hop -b 4K -e 1G
  blink sim sendrecv --topo dgx-1v --gpus 0,1 --relays --algo multi_path -o paths.json

Time plans as our code runs them, event by event: kernels, each size by the fastest protocol, beside NCCL as a model, at
the same costs of a hop. Copy engines run messages, machines without NVIDIA's GPUs, jobs on several servers, and all
with --code copies, on the machine's calibration.

Prints each algorithm's time, algbw and busbw (GB/s), what part of the proved bound that is, the fullest links and what
decided the time of the fastest plan. With -b or -e it prints who wins from which size. A timeline opens in
ui.perfetto.dev and chrome://tracing: a process per rank, an arrow per message, the load of each link.
"""


Job = Annotated[
    str,
    Argument(
        metavar="COLLECTIVE|PLAN",
        help="As for blink plan; or a plan: x.json, the rings of an NCCL graph file x.xml (with --topo), - for stdin.",
    ),
]
Algorithms = Annotated[
    str | None,
    Option(
        "--algo",
        metavar="NAMES",
        help="Algorithms and baselines, separated by commas, or auto, the fastest algorithm at each size; default: all "
        "that serve the job.",
    ),
]
Size = Annotated[str | None, Option("--size", "-s", metavar="SIZE", help="S as nccl-tests counts it; default: 64M.")]
Begin = Annotated[
    str | None,
    Option(
        "-b", "--minbytes", metavar="SIZE", help=f"Smallest of several sizes, each 4 times the last; default: {_BEGIN}."
    ),
]
End = Annotated[str | None, Option("-e", "--maxbytes", metavar="SIZE", help=f"Largest of them; default: {_END}.")]
CodeName = Annotated[
    str | None,
    Option(
        "--code",
        metavar="kernels|copies",
        help="What runs plans; default: kernels where they can, unless an option below is for copies.",
    ),
]
CalibrationName = Annotated[
    str | None,
    Option(
        "--calibration",
        metavar="NAME",
        help="copies: one of ours, or a TOML file; default: the machine's, else nominal.",
    ),
]
Chunk = Annotated[
    str | None,
    Option(
        "--chunk",
        metavar="SIZE|near|model|best|miad",
        help="copies: size of a chunk, or how it is chosen: the fastest near the pipeline model's (default), the "
        "model's own, the fastest of some 15 simulations, or what Blink's search ends with.",
    ),
]
Model = Annotated[
    str | None,
    Option(
        "--model",
        metavar="NAME",
        help="Also a training step with each AllReduce: of alexnet, resnet18, resnet50, resnet152, densenet201 or "
        "vgg16 on P100s or V100s, or of transformer:PARAMETERS:BLOCKS:TOKENS (per GPU), as transformer:7B:32:4096.",
    ),
]
TimelineFile = Annotated[
    Path | None, Option("--timeline", metavar="FILE", help="Write the fastest plan's timeline, as Chrome's trace.")
]
PlotFile = Annotated[Path | None, Option("--plot", metavar="FILE", help="Draw bandwidth over size (svg).")]
PathsFile = Annotated[
    Path | None,
    Option(
        "--paths",
        metavar="FILE",
        help="How multi_path splits messages: a table that -o wrote, here or in blink lab. One that is for another "
        "machine or cannot be read is ignored, with a line.",
    ),
]
PathTableFile = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write multi_path's table for these two ends, for blink run --paths: which paths at which size, how much "
        "on each, streams and chunks. They cross one memory at most, as libblink.so's messages do. What the file has "
        "for other ends of this machine stays.",
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
    """Prepare, simulate, print."""
    spec = arguments.one_spec(behind, spec)
    console.check_files(timeline, output, plot=plot)
    swept = any(given is not None for given in (plot, begin, end))
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
                raise UsageError(f"a plan brings its own collective, links and ranks: leave {', '.join(used)} out")
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
    """Whether a file was typed, and no collective: one that is not there is complained of by its name."""
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


def _code(request: Request, wanted: str | None, of_copies: Sequence[str]) -> Code:
    """What runs plans; options that are for copies ask for these."""
    from blinkccl.cost.choice.candidates import COPY_ENGINES, KERNELS, code_of

    if wanted == KERNELS and of_copies:
        raise UsageError(f"--code {KERNELS}: {', '.join(of_copies)} is for copies; leave one out")
    return code_of(request, COPY_ENGINES if of_copies else wanted, ", ".join(of_copies))


def _field(
    request: Request,
    forest: Forest | None,
    code: Code,
    conditions: Conditions,
    algo: str | None,
    progress: console.Progress,
) -> JobCandidates:
    """All that is timed: the plan that was given, or who serves the request."""
    from blinkccl.cost.baselines.registry import JobCandidates, candidates_not_run, enter
    from blinkccl.cost.choice import auto
    from blinkccl.cost.choice.candidates import candidates, of_forest

    if forest is None:
        names = [] if algo is None else [part.strip() for part in algo.split(",")]
        known = candidates(code)
        # Beside all others it would only repeat the fastest.
        unlisted = {auto.NAME: auto.as_candidate(code), **candidates_not_run()}
        return enter(request, conditions, names, progress, unlisted | known if names else known)
    return JobCandidates(request, (of_forest(forest, code, conditions),), {}, named=True, of_plan=True)


def _check_files_serve(field: JobCandidates, timeline: Path | None, output: Path | None) -> None:
    if timeline is not None and all(one.forest is None for one in field.prepared):
        raise UsageError(_NO_TIMELINE)
    if output is not None and field.path_row is None:
        raise UsageError("-o writes the table of multi_path, which is none of these: blink sim sendrecv")


def _sizes(size: str | None, swept: bool, begin: str | None, end: str | None) -> list[int]:
    from blinkccl.bench.sizes import sweep
    from blinkccl.cost.simulate.run import MAX_SIZE_BYTES, parse_size

    if not swept:
        return [parse_size("--size", "64M" if size is None else size)]
    if size is not None:
        raise UsageError("--size is one size, --plot, -b and -e take several: give one of them")
    begin, end = _BEGIN if begin is None else begin, _END if end is None else end
    return sweep(begin, end, _FACTOR, MAX_SIZE_BYTES).sizes()


def _chunk(text: str) -> tuple[int | None, str]:
    """Its size, or None and how it is chosen."""
    from blinkccl.cost.baselines.candidate import CHUNK_CHOICES
    from blinkccl.cost.simulate.run import parse_size

    if text in CHUNK_CHOICES:
        return None, text
    chunk = parse_size("--chunk", text)
    if chunk < 1:
        raise UsageError("--chunk 0: expected at least one byte")
    return chunk, "model"


def _job_of_plan(path: Path, spec: str | None) -> tuple[Request, Forest]:
    """What a plan file is for, and its forest; ends with code 1 where its content states what is not so.

    ``spec`` is what an NCCL graph file lacks; a plan is checked on the links of ``spec``.
    """
    from blinkccl.trees.algorithms.request import Request

    source, found = arguments.audited(path, spec)
    arguments.refuse_false(source, found.all_faults)
    return Request(found.forest.topology, found.forest.collective, found.forest.ranks), found.forest


def _gpu(topology: Topology) -> str:
    """Whose arithmetic --model takes."""
    from blinkccl.cost.baselines.nccl_links import guess_arch

    arch = guess_arch(topology)
    if arch not in _GPUS:
        raise UsageError(f"--model: nothing is known of {arch} GPUs' arithmetic, only of {', '.join(_GPUS)} ones")
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
    # A table over sizes does not show it, and it takes one more run.
    wanted = best.simulation if best is not None and (json or not swept) else None
    summary = None if wanted is None else summarise(wanted.traced())
    from blinkccl.show import sim_text

    fair = None if best is None or swept else _shared_fairly(field, best)
    if json:
        document = steps.document() if steps else []
        found = sim_text.sim_document(field, code, conditions, rows, best, summary, document)
        if fair is not None:
            found["other_sharing"] = {"algorithm": fair.name, "sharing": "fair", "seconds": fair.seconds}
        console.emit_json(found)
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
    """What the fastest plan takes where transfers share links fairly, if that differs.

    Hardware does something between fifo and fair, and nobody publishes what.
    """
    from blinkccl.cost.choice.candidates import shared_fairly

    if not best.seconds:
        return None
    plan = shared_fairly(next(one for one in field.prepared if one.name == best.name))
    found = None if plan is None else plan.at(best.size_bytes)
    return found if found is not None and abs(found.seconds / best.seconds - 1) > _DIFFERS else None


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
        raise UsageError("no size moves any data; take larger ones (-b)")
    console.write_file(path, chart_file(sim_picture(field, code, rows)))
