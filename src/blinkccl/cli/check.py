"""``blink check``: whether a plan is what it says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED

HELP = """
Examples:

\b
  blink check plan.json
  blink check plan.json --topo dgx-1v     and the links it uses are there
  blink plan reduce --topo dgx-2 --json | blink check - --json

Check every statement of a plan (trees, weights, loads, rate, bound, certificate) with code that shares
nothing with the planner; then lower it to a program and verify that: every contribution
exactly once, everything delivered, no deadlock with finite buffers, no link overloaded.

Exit code 0: all is proved. 1: something is false; each violation is named. 2: it is no plan.
"""


def check(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="What blink plan -o wrote; - reads stdin.")],
    spec: Annotated[
        str | None,
        typer.Option(
            "--topo",
            metavar="SPEC",
            show_default=False,
            help="A topology that must have the plan's links; needed where the plan brings none.",
        ),
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(
            "--links",
            metavar="fast|pcie|all",
            show_default=False,
            help="Which links of --topo; default: those that the plan was made for.",
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Check, print what was proved or broken, and exit with 0 or 1."""
    from blinkccl.advice.audit import audit
    from blinkccl.forest.document import MAX_BYTES, dumps, loads

    if str(path) == "-" and spec == "-":
        raise typer.BadParameter("both the plan and --topo are -, and standard input can be read once")
    source = console.source_name(path)
    document = loads(console.read_file(path, MAX_BYTES), source)
    topology = None if spec is None else arguments.load(spec)[0]
    found = audit(document, topology, links, source)
    if json:
        console.emit(dumps(found.document()))
    else:
        from blinkccl.report.fit import fit
        from blinkccl.report.paint import painter
        from blinkccl.report.plan_text import check_text

        paint = painter(console.coloured())
        text = check_text(
            found.forest, found.verdict, found.program, found.faults, paint, found.scope, found.schema_version
        )
        console.emit(fit(text, console.width()))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)
