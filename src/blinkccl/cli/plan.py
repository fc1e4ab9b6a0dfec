"""``blink plan``: the forest of a collective on a topology, with its proof."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.algorithms.registry import Request
    from blinkccl.packing.clock import Clock

#: Steps of the bar of a trade-off: about as many as there are options.
MOST_POINTS = 10

HELP = """
Examples:

\b
  blink plan allreduce --topo dgx-1v --gpus 1,4,5,6
  blink plan broadcast --topo dgx-1v --root 3 --algo blink
  blink plan broadcast --topo dgx-1v --fewest-trees -o plan.json
  blink plan allgather --topo "2x dgx-a100 @ 200Gbps" --json
  blink plan sendrecv --topo dgx-1v --src 0 --dst 7 --relays
  blink plan allreduce --topo dgx-1v --without 0-3            what is left when a link or a GPU fails
  blink plan allreduce --topo dgx-1v --without-rank 5
  blink plan allreduce --topo dgx-1p --gpus 0-3 --size 64M    the fastest algorithm at that size
  blink plan allgather --topo "16x dgx-a100" --exact --deadline 30
  blink plan allreduce --topo dgx-1v --trade-off              rate against depth, trees and weights
  blink plan allreduce --topo dgx-1v --deterministic order    the same bits at every size, and what that costs
  blink plan allreduce --topo "4x hgx-h100" --algo in_switch  switches add up and multicast (SHARP)

Pack spanning trees into the links until a bottleneck is full, and prove that nothing is faster.

Prints the trees, the rate, the bound and its certificate, the load of every link, and what NCCL gets: today's
at --size (64M), and that of 2019, with which Blink's paper compares. With --size, auto is the algorithm that
blink sim finds fastest, and the runner-up is named with its time. With --trade-off it prints what fewer,
shallower or simpler trees cost instead, with their times (at --size alone, if that is given).
"""


def plan(
    name: arguments.CollectiveName,
    behind: arguments.SpecBehind = None,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    src: arguments.Source = None,
    dst: arguments.Destination = None,
    algo: arguments.Algorithm = "auto",
    links: arguments.Links = None,
    relays: arguments.Relays = False,
    without: arguments.Without = None,
    without_rank: arguments.WithoutRank = None,
    fewest_trees: Annotated[
        bool, Option("--fewest-trees", help="As few trees as the search finds, at the optimal rate.")
    ] = False,
    least_depth: Annotated[
        bool, Option("--least-depth", help="The least depth found, for a hundredth of the rate at most.")
    ] = False,
    max_trees: Annotated[
        int | None,
        Option("--max-trees", metavar="N", min=1, help="At most N trees for each block, whatever that costs."),
    ] = None,
    exact: Annotated[
        bool, Option("--exact", help="The optimal rate to the last digit, whatever trees and weights it takes.")
    ] = False,
    deadline: Annotated[
        float | None,
        Option("--deadline", metavar="SECONDS", help="The best plan that is known after so long, with its gap."),
    ] = None,
    deterministic: Annotated[
        str | None,
        Option(
            "--deterministic", metavar="order", help="Every element summed in one order, whatever the size; its price."
        ),
    ] = None,
    epsilon: Annotated[
        str, Option("--epsilon", metavar="E", help="blink: the (1-E) of its multiplicative weights.")
    ] = "1/20",
    threshold: Annotated[
        str, Option("--threshold", metavar="T", help="blink: the part of the rate that it may give up for fewer trees.")
    ] = "1/20",
    size: Annotated[
        str | None, Option("--size", "-s", metavar="SIZE", help="auto: the fastest at S, as nccl-tests counts it.")
    ] = None,
    trade_off: Annotated[
        bool, Option("--trade-off", help="A table of plans: rate, depth, trees, denominators, and times by size.")
    ] = False,
    plot: Annotated[
        Path | None, Option("--plot", metavar="FILE", help="--trade-off: draw bandwidth over size (svg).")
    ] = None,
    measured: arguments.MeasuredFile = None,
    sharp: Annotated[
        bool,
        Option("--sharp", help="As if every switch combined (SHARP): what that gains, or --algo in_switch's trees."),
    ] = False,
    trees: Annotated[
        int | None, Option("--trees", metavar="N", min=0, help="Draw at most so many shares; default: 16.")
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print rate, bound and what NCCL gets alone.")] = False,
    json: arguments.Json = False,
    output: arguments.Output = None,
) -> None:
    """Plan, print as text or JSON, and write the plan to a file."""
    asked = {"fewest-trees": fewest_trees, "least-depth": least_depth, "exact": exact}
    objectives = [objective for objective, wanted in asked.items() if wanted]
    if len(objectives) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{each}' for each in objectives)} exclude each other: give one")
    if size is not None and algo != "auto":
        raise UsageError(f"--size is for --algo auto, which chooses by it, got --algo {algo}: leave one out")
    if trade_off:
        _refuse_beside_trade_off(objectives, algo, max_trees, output, measured, deadline, deterministic)
    spec = arguments.one_spec(behind, spec)
    if measured is not None and size is None:
        raise UsageError("--measured is for --size: a plan's rate is not measured, leave it out or give a size")
    if output is not None:
        _check_output(output)
    if plot is not None and not trade_off:
        raise UsageError("--plot draws --trade-off: add that, or draw this plan by blink show")
    if plot is not None and size is not None:
        raise UsageError("--plot draws bandwidth over sizes, --size is one: leave one out")
    console.check_files(plot=plot)
    from blinkccl.algorithms import in_switch
    from blinkccl.algorithms.registry import algorithm
    from blinkccl.api.plan import bytes_of, plan_of
    from blinkccl.forest.document import dumps, to_document
    from blinkccl.packing.solver import loading_seconds

    wanted = replace(
        arguments.request(name, spec, gpus, (root, src, dst), links, relays, (without, without_rank)),
        objective=next(iter(objectives), "shallow"),
        max_trees=max_trees,
        deterministic=deterministic,
        threshold=arguments.part("--threshold", threshold),
        epsilon=arguments.part("--epsilon", epsilon),
    )
    size_bytes = None if size is None else bytes_of(size, "--size")
    if sharp and algo == in_switch.NAME:
        wanted = replace(wanted, topology=in_switch.with_every_switch(wanted.topology))
    if trade_off:
        _print_trade_off(wanted, size_bytes, json, plot)
        return
    import_module(algorithm(algo).module)  # Loading modules is not planning, nor is loading the solver.
    table = arguments.measured(measured, wanted.topology)
    began = time.perf_counter() - loading_seconds()
    with console.Progress("planning") as progress:
        cells = () if table is None else table.of(wanted.ranks)
        found = plan_of(wanted, algo, size_bytes, cells, deadline, lambda clock: progress.tell(_known(clock, wanted)))
    seconds = time.perf_counter() - loading_seconds() - began
    if str(output) == "-":
        console.emit_json(to_document(found.forest))
        return
    if output is not None:
        console.write_file(output, dumps(to_document(found.forest)))
    if json:
        console.emit_json(found.document(seconds, sharp))
    else:
        console.emit(found.text(console.paint(), console.width(), sharp, trees, quiet, size_bytes))


def _known(clock: Clock, request: Request) -> str:
    """What a search knows: ``planning: bound 213.3 GB/s, best so far 99.1 %``."""
    from blinkccl.report.text import gb_per_s_text

    known = []
    if clock.bound is not None:
        known.append(f"bound {gb_per_s_text(float(clock.bound) * request.network.unit_gb_per_s)}")
    if clock.part is not None:
        known.append(f"best so far {100 * float(clock.part):.3g} %")
    return f"planning: {', '.join(known)}" if known else "planning"


def _refuse_beside_trade_off(
    objectives: list[str],
    algo: str,
    max_trees: int | None,
    output: Path | None,
    measured: Path | None,
    deadline: float | None,
    deterministic: str | None,
) -> None:
    given = [f"--{each}" for each in objectives]
    given += [f"--algo {algo}"] if algo not in ("auto", "optimal") else []
    asked: dict[str, object] = {"--max-trees": max_trees, "-o": output, "--measured": measured, "--deadline": deadline}
    asked["--deterministic"] = deterministic
    given += [option for option, value in asked.items() if value is not None]
    if given:
        raise UsageError(f"--trade-off prints what all options come to: leave {' and '.join(given)} out")


def _print_trade_off(wanted: Request, size_bytes: int | None, json: bool, plot: Path | None) -> None:
    """Plan and time all points of the job, print them, and draw them where that is asked for."""
    from blinkccl.baselines.candidate import Conditions
    from blinkccl.choice.candidates import code_of
    from blinkccl.choice.trade_off import DRAWN_SIZES, SIZES, trade_off
    from blinkccl.report.trade_off_text import trade_off_document, trade_off_picture, trade_off_text
    from blinkccl.simulate.calibration import calibration_for

    sizes = (SIZES if plot is None else DRAWN_SIZES) if size_bytes is None else (size_bytes,)
    done = 0
    with console.Progress("planning") as progress:

        def tell(option: str) -> None:
            nonlocal done
            done += 1
            progress(done, MOST_POINTS)

        found = trade_off(wanted, Conditions(calibration_for(wanted.topology)), code_of(wanted), sizes, tell)
    if plot is not None:
        from blinkccl.report.charts import chart_file

        console.write_file(plot, chart_file(trade_off_picture(found, wanted)))
    if json:
        console.emit_json(trade_off_document(found))
    else:
        console.emit(trade_off_text(found, wanted, console.width()))


def _check_output(path: Path) -> None:
    """Refuse a file that is not to be JSON or could not be written, before any work; ``-`` is standard output."""
    if path.suffix not in ("", ".json"):
        raise typer.BadParameter(
            f"-o {path}: a plan is written as JSON; expected a name that ends in .json, or - for standard output "
            "(blink show makes a picture or a page of it)"
        )
    if str(path) != "-":
        console.check_writable(path)
