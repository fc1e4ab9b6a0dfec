"""``blink check``: whether a plan is what it says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.formats.foreign.verify import ForeignAudit

HELP = """
Examples:

\b
  blink check plan.json
  blink check plan.json --topo dgx-1v     and the links it uses are there
  blink check graph.xml --topo dgx-1v     the rings of an NCCL graph file, as an AllReduce
  blink check mscclpp.json                an execution plan of MSCCL++
  blink plan reduce --topo dgx-2 --json | blink check - --json

Check every statement of a plan (trees, weights, loads, rate, bound, certificate) with code that shares
nothing with the planner; then lower it to a program and verify that: every contribution
exactly once, everything delivered, no deadlock with finite buffers, no link overloaded.

Of an MSCCL++ execution plan (JSON), whoever wrote it: which contributions every chunk of every output has at the end,
accesses that nothing orders, waits that are for ever.

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
    from blinkccl.formats.foreign import mscclpp
    from blinkccl.formats.foreign.verify import audit
    from blinkccl.trees.forest.document import MAX_BYTES

    content = console.read_file(path, MAX_BYTES)
    if mscclpp.looks_like(content):
        _report(audit(mscclpp.read(content, console.source_name(path))), json, spec, links)
        return
    _, found = arguments.audited(path, spec, links, content=content)
    if json:
        console.emit_json(found.document())
    else:
        from blinkccl.show.check_text import audit_text

        console.emit_sentences(audit_text(found, console.paint()))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _report(found: ForeignAudit, json: bool, spec: str | None, links: str | None) -> None:
    """The same for a plan of MSCCL++."""
    if spec is not None or links is not None:
        raise UsageError("a plan of MSCCL++ names no links: leave --topo and --links out")
    if json:
        console.emit_json({"ok": found.ok, "plans": [found.document()]})
    else:
        console.emit_sentences(found.text())
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)
