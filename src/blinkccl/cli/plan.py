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
    from blinkccl.trees.algorithms.request import Request
    from blinkccl.trees.packing.clock import Clock

HELP = """
Examples:

\b
  blink plan allreduce --topo dgx-1v --gpus 1,4,5,6
  blink plan broadcast --topo dgx-1v --root 3 --algo blink
  blink plan broadcast --topo dgx-1v --max-trees 2 -o plan.json
  blink plan allgather --topo "2x dgx-a100 @ 200Gbps" --json
  blink plan sendrecv --topo dgx-1v --gpus 0,7 --relays
  blink plan allreduce --topo dgx-1v --without 0-3            what is left when a link fails
  blink plan allreduce --topo dgx-1v --without 5              or a GPU
  blink plan allreduce --topo dgx-1p --gpus 0-3 --size 64M    the fastest algorithm at that size
  blink plan allgather --topo "16x dgx-a100" --objective exact --timeout 30
  blink plan allreduce --topo dgx-1v --deterministic order    the same bits at every size, and what that costs
  blink plan allreduce --topo "4x hgx-h100" --algo in_switch  switches add up and multicast (SHARP)

Pack spanning trees into the links until a bottleneck is full, and prove that nothing is faster.

Prints the trees, the rate, the bound and its certificate, the load of every link, and what NCCL gets: today's
at --size (64M), and that of 2019, with which Blink's paper compares. With --size, auto is the algorithm that
blink sim finds fastest, and the runner-up is named with its time.
"""


def plan(
    name: arguments.CollectiveName,
    behind: arguments.SpecBehind = None,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    algo: arguments.Algorithm = "auto",
    links: arguments.Links = None,
    relays: arguments.Relays = False,
    without: Annotated[
        str | None,
        Option(
            "--without",
            metavar="LINKS,IDS",
            help="Plan without these links (0-3) and GPUs (5), as if they had failed: 0-3,1-2,5.",
        ),
    ] = None,
    objective: Annotated[
        str,
        Option(
            "--objective",
            metavar="WHAT",
            help="shallow: a hundredth of the rate at most for fewer hops and short weights. exact: all of the rate. "
            "least-depth: the fewest hops found for a hundredth. fewest-trees: the fewest found at the optimal rate.",
        ),
    ] = "shallow",
    max_trees: Annotated[
        int | None,
        Option("--max-trees", metavar="N", min=1, help="At most N trees for each block, whatever that costs."),
    ] = None,
    deterministic: Annotated[
        str | None,
        Option(
            "--deterministic", metavar="order", help="Every element summed in one order, whatever the size; its price."
        ),
    ] = None,
    size: Annotated[
        str | None, Option("--size", "-s", metavar="SIZE", help="auto: the fastest at S, as nccl-tests counts it.")
    ] = None,
    timeout_s: Annotated[
        float | None, Option("--timeout", metavar="SECONDS", help="End with code 4 where planning takes longer.")
    ] = None,
    json: arguments.Json = False,
    output: arguments.Output = None,
) -> None:
    """Plan, print as text or JSON, and write the plan to a file."""
    if size is not None and algo != "auto":
        raise UsageError(f"--size is for --algo auto, which chooses by it, got --algo {algo}: leave one out")
    spec = arguments.one_spec(behind, spec)
    if output is not None:
        _check_output(output)
    from blinkccl.api.plan import bytes_of, plan_of
    from blinkccl.trees.algorithms.registry import algorithm
    from blinkccl.trees.forest.document import dumps, to_document
    from blinkccl.trees.packing.solver import loading_seconds

    wanted = replace(
        arguments.request(name, spec, gpus, root, links, relays, without),
        objective=objective,
        max_trees=max_trees,
        deterministic=deterministic,
    )
    size_bytes = None if size is None else bytes_of(size, "--size")
    import_module(algorithm(algo).module)  # Loading modules is not planning, nor is loading the solver.
    began = time.perf_counter() - loading_seconds()
    with console.Progress("planning") as progress:
        found = plan_of(wanted, algo, size_bytes, timeout_s, lambda clock: progress.tell(_known(clock, wanted)))
    seconds = time.perf_counter() - loading_seconds() - began
    if str(output) == "-":
        console.emit_json(to_document(found.forest))
        return
    if output is not None:
        console.write_file(output, dumps(to_document(found.forest)))
    if json:
        console.emit_json(found.document(seconds))
    else:
        console.emit(found.text(console.paint(), console.width(), size_bytes))


def _known(clock: Clock, request: Request) -> str:
    """What a search knows: ``planning: bound 213.3 GB/s, best so far 99.1 %``."""
    from blinkccl.show.text import gb_per_s_text

    known = []
    if clock.bound is not None:
        known.append(f"bound {gb_per_s_text(float(clock.bound) * request.network.unit_gb_per_s)}")
    if clock.part is not None:
        known.append(f"best so far {100 * float(clock.part):.3g} %")
    return f"planning: {', '.join(known)}" if known else "planning"


def _check_output(path: Path) -> None:
    """Refuse a file that is not to be JSON or could not be written, before any work; ``-`` is standard output."""
    if path.suffix not in ("", ".json"):
        raise typer.BadParameter(
            f"-o {path}: a plan is written as JSON; expected a name that ends in .json, or - for standard output "
            "(blink show makes a picture or a page of it)"
        )
    if str(path) != "-":
        console.check_writable(path)
