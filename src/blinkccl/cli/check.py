"""``blink check``: whether a plan is what it says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.errors import UsageError
from blinkccl.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from blinkccl.foreign.verify import ForeignAudit

HELP = """
Examples:

\b
  blink check plan.json
  blink check plan.json --topo dgx-1v     and the links it uses are there
  blink check graph.xml --topo dgx-1v     the rings of an NCCL graph file, as an AllReduce
  blink check algorithm.xml               an MSCCL algorithm, or an MSCCL++ execution plan
  blink plan reduce --topo dgx-2 --json | blink check - --json

Check every statement of a plan (trees, weights, loads, rate, bound, certificate) with code that shares
nothing with the planner; then lower it to a program and verify that: every contribution
exactly once, everything delivered, no deadlock with finite buffers, no link overloaded.

Of an MSCCL algorithm (XML) or an MSCCL++ execution plan (JSON), whoever wrote it: which contributions every chunk of
every output has at the end, accesses that nothing orders, waits that are for ever, counts that differ.

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
    from blinkccl.foreign.formats import audits
    from blinkccl.forest.document import MAX_BYTES

    content = console.read_file(path, MAX_BYTES)
    foreign = audits(content, console.source_name(path))
    if foreign is not None:
        _report(foreign, json, spec, links)
        return
    _, found = arguments.audited(path, spec, links, content=content)
    if json:
        console.emit_json(found.document())
    else:
        console.emit_sentences(found.text(console.paint()))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _report(foreign: tuple[ForeignAudit, ...], json: bool, spec: str | None, links: str | None) -> None:
    """The same for a plan of another runtime."""
    if spec is not None or links is not None:
        raise UsageError("the plan of another runtime names no links: leave --topo and --links out")
    ok = all(found.ok for found in foreign)
    if json:
        console.emit_json({"schema_version": SCHEMA_VERSION, "ok": ok, "plans": [one.document() for one in foreign]})
    else:
        console.emit_sentences("\n".join(found.text() for found in foreign))
    if not ok:
        raise typer.Exit(CHECK_FAILED)
