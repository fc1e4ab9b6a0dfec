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
from blinkccl.report.text import fit

if TYPE_CHECKING:
    from blinkccl.algorithms.registry import Request
    from blinkccl.choice.auto import Choice

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

Pack spanning trees into the links until a bottleneck is full, and prove that nothing is faster.

Prints the trees, the rate, the bound and its certificate, the load of every link, and what a ring would get. With
--size, auto is the algorithm that blink sim finds fastest, and the runner-up is named with its time.
"""


def plan(
    name: arguments.CollectiveName,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    src: arguments.Source = None,
    dst: arguments.Destination = None,
    algo: arguments.Algorithm = "auto",
    links: arguments.Links = "fast",
    relays: arguments.Relays = False,
    without: arguments.Without = None,
    without_rank: arguments.WithoutRank = None,
    fewest_trees: Annotated[
        bool, Option("--fewest-trees", help="As few trees as the search finds, at the optimal rate.")
    ] = False,
    least_depth: Annotated[bool, Option("--least-depth", help="The least depth found at the optimal rate.")] = False,
    epsilon: Annotated[
        str, Option("--epsilon", metavar="E", help="blink: the (1-E) of its multiplicative weights.")
    ] = "1/20",
    threshold: Annotated[
        str, Option("--threshold", metavar="T", help="blink: the part of the rate that it may give up for fewer trees.")
    ] = "1/20",
    size: Annotated[
        str | None, Option("--size", "-s", metavar="SIZE", help="auto: the fastest at S, as nccl-tests counts it.")
    ] = None,
    sharp: Annotated[
        bool, Option("--sharp", help="allreduce: say what it could reach if every switch combined (SHARP) too.")
    ] = False,
    json: arguments.Json = False,
    output: arguments.Output = None,
) -> None:
    """Plan, print as text or JSON, and write the plan to a file."""
    if fewest_trees and least_depth:
        raise typer.BadParameter("--fewest-trees and --least-depth exclude each other: give one")
    if size is not None and algo != "auto":
        raise UsageError(f"--size is for --algo auto, which chooses by it, got --algo {algo}: leave one out")
    if output is not None:
        _check_output(output)
    from blinkccl.algorithms.registry import algorithm
    from blinkccl.forest.document import dumps, to_document
    from blinkccl.packing.solver import loading_seconds
    from blinkccl.report.choice_text import choice_document, choice_text

    row = algorithm(algo)
    wanted = replace(
        arguments.request(name, spec, gpus, (root, src, dst), links, relays, (without, without_rank)),
        objective="fewest-trees" if fewest_trees else "least-depth" if least_depth else "shallow",
        threshold=arguments.part("--threshold", threshold),
        epsilon=arguments.part("--epsilon", epsilon),
    )
    import_module(row.module)  # Loading modules is not planning, nor is loading the solver where it is needed.
    began = time.perf_counter() - loading_seconds()
    chosen = None if size is None else _chosen(wanted, size)
    forest = row.plan(wanted) if chosen is None else chosen.best.forest
    seconds = time.perf_counter() - loading_seconds() - began
    if str(output) == "-":
        json = True
    elif output is not None:
        console.write_file(output, dumps(to_document(forest)))
    from blinkccl.advice.in_switch import in_switch, in_switch_document, in_switch_sentence

    combined = in_switch(wanted, sharp)
    if json:
        stated = {} if chosen is None else {"choice": choice_document(chosen)}
        if combined is not None:
            stated["in_switch"] = in_switch_document(combined)
        if str(output) == "-":
            stated = {}
        console.emit_json(to_document(forest, None if str(output) == "-" else seconds) | stated)
        return
    from blinkccl.advice.ring_baseline import ring_baseline
    from blinkccl.report.plan_text import plan_text

    ring, width = ring_baseline(wanted).sentence(forest), console.width()
    switch = "" if combined is None else in_switch_sentence(combined, wanted, forest)
    lines = [choice_text(chosen) if chosen else "", ring, switch]
    console.emit(plan_text(forest, console.paint(), width) + "".join(fit(f"\n{x}\n", width) for x in lines if x))


def _chosen(request: Request, text: str) -> Choice:
    from blinkccl.baselines.candidate import Conditions
    from blinkccl.choice.auto import prepare
    from blinkccl.choice.candidates import code_of
    from blinkccl.simulate.calibration import calibration_for
    from blinkccl.simulate.run import parse_size

    size_bytes = parse_size("--size", text)
    with console.Progress("choosing") as progress:
        progress(0, 1)
        found = prepare(request, Conditions(calibration_for(request.topology)), code_of(request))
        chosen = found.choose(size_bytes, places=2)
        progress(1, 1)
    return chosen


def _check_output(path: Path) -> None:
    """Refuse a file that is not to be JSON or could not be written, before any work; ``-`` is standard output."""
    if path.suffix not in ("", ".json"):
        raise typer.BadParameter(
            f"-o {path}: a plan is written as JSON; expected a name that ends in .json, or - for standard output"
        )
    if str(path) != "-":
        console.check_writable(path)
