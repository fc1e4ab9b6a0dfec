"""``blink check``: whether a plan is what it says it is."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED

HELP = """
Examples:

\b
  blink check plan.json
  blink check plan.json --topo dgx-1v     and the links it uses are there
  blink check graph.xml --topo dgx-1v     the rings of an NCCL graph file, as an AllReduce
  blink plan reduce --topo dgx-2 --json | blink check - --json

Check every statement of a plan (trees, weights, loads, rate, bound, certificate) with code that shares
nothing with the planner; then lower it to a program and verify that: every contribution
exactly once, everything delivered, no deadlock with finite buffers, no link overloaded.

Exit code 0: all is proved. 1: something is false; each violation is named. 2: it is no plan.
"""


def check(
    path: arguments.Plan,
    spec: Annotated[
        str | None,
        Option(
            "--topo",
            metavar="SPEC",
            help="A topology that must have the plan's links; needed where the plan brings none.",
        ),
    ] = None,
    links: Annotated[
        str | None,
        Option(
            "--links",
            metavar="fast|pcie|staged|all",
            help="Which links of --topo; default: those that the plan was made for.",
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Check, print what was proved or broken, and exit with 0 or 1."""
    _, found = arguments.audited(path, spec, links)
    if json:
        console.emit_json(found.document())
    else:
        console.emit_sentences(found.text(console.paint()))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)
