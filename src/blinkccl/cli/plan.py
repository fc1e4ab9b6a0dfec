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
  blink plan allreduce --topo dgx-1v --without 0-3            without a failed link
  blink plan allreduce --topo dgx-1v --without 5              without a failed GPU
  blink plan allreduce --topo dgx-1p --gpus 0-3 --size 64M    the fastest algorithm at that size
  blink plan allgather --topo "16x dgx-a100" --objective exact --timeout 30
  blink plan allreduce --topo dgx-1v --deterministic order    bitwise equal sums at every size, and their cost
  blink plan allreduce --topo "4x hgx-h100" --algo in_switch  in-network reduction and multicast (SHARP)

Pack spanning trees into the links until a bottleneck is full, and prove that no trees are faster.

Prints the trees, the rate, the bound and its certificate, the load of every link, and NCCL's rate: that of today's
NCCL at --size (64M), and that of NCCL in 2019, the baseline of Blink's paper. With --size, auto is the algorithm that
blink sim finds fastest, and the next one is named with its time.
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
            metavar="NAME",
            help="shallow: give up at most 1 % of the rate for fewer hops and simpler weights. exact: the full "
            "rate. least-depth: the fewest hops found, for at most 1 %. fewest-trees: the fewest trees found at the "
            "optimal rate.",
        ),
    ] = "shallow",
    max_trees: Annotated[
        int | None,
        Option("--max-trees", metavar="N", min=1, help="At most N trees per block, at any cost in rate."),
    ] = None,
    deterministic: Annotated[
        str | None,
        Option(
            "--deterministic", metavar="order", help="Sum every element in one order at every size; print the cost."
        ),
    ] = None,
    size: Annotated[
        str | None,
        Option("--size", "-s", metavar="SIZE", help="auto: the fastest algorithm at this size, such as 64M."),
    ] = None,
    timeout_s: Annotated[
        float | None, Option("--timeout", metavar="SECONDS", help="Exit with code 4 if planning takes longer.")
    ] = None,
    json: arguments.Json = False,
    output: arguments.Output = None,
) -> None:
    """Plan, print as text or JSON, and write the plan to a file."""
    if size is not None and algo != "auto":
        raise UsageError(f"--size is for --algo auto, got --algo {algo}: leave one out")
    spec = arguments.one_spec(behind, spec)
    if output is not None:
        _check_output(output)
    from blinkccl.api.plan import bytes_of, plan_of
    from blinkccl.trees.algorithms.registry import algorithm
    from blinkccl.trees.forest.document import dumps, to_document
    from blinkccl.trees.packing.solver import loading_seconds

    request = replace(
        arguments.request(name, spec, gpus, root, links, relays, without),
        objective=objective,
        max_trees=max_trees,
        deterministic=deterministic,
    )
    size_bytes = None if size is None else bytes_of(size, "--size")
    import_module(algorithm(algo).module)  # Planning time excludes the loading of modules and of the solver.
    began = time.perf_counter() - loading_seconds()
    with console.Progress("planning") as progress:
        planned = plan_of(request, algo, size_bytes, timeout_s, lambda clock: progress.tell(_known(clock, request)))
    seconds = time.perf_counter() - loading_seconds() - began
    if str(output) == "-":
        console.emit_json(to_document(planned.forest))
        return
    if output is not None:
        console.write_file(output, dumps(to_document(planned.forest)))
    if json:
        console.emit_json(planned.document(seconds))
    else:
        console.emit(planned.text(console.paint(), console.width(), size_bytes))


def _known(clock: Clock, request: Request) -> str:
    """The state of a search for the progress line: ``planning: bound 213.3 GB/s, best so far 99.1 %``."""
    from blinkccl.show.text import gb_per_s_text

    known = []
    if clock.bound is not None:
        known.append(f"bound {gb_per_s_text(float(clock.bound) * request.network.unit_gb_per_s)}")
    if clock.part is not None:
        known.append(f"best so far {100 * float(clock.part):.3g} %")
    return f"planning: {', '.join(known)}" if known else "planning"


def _check_output(path: Path) -> None:
    """Refuse, before any work, a file not named .json or not writable; ``-`` is standard output."""
    if path.suffix not in ("", ".json"):
        raise typer.BadParameter(
            f"-o {path}: a plan is written as JSON; expected a name that ends in .json, or - for standard output "
            "(blink show draws a plan)"
        )
    if str(path) != "-":
        console.check_writable(path)
