"""``blink check``: verify the statements of a plan, and its program."""

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
  blink check plan.json --topo dgx-1v     also check its links against this machine
  blink check graph.xml --topo dgx-1v     the rings of an NCCL graph file, as an AllReduce
  blink check mscclpp.json                an execution plan of MSCCL++
  blink plan reduce --topo dgx-2 --json | blink check - --json

Check every statement of a plan (trees, weights, loads, rate, bound, certificate) with code that shares
nothing with the planner. Then lower the plan to a program and verify it: every contribution counts exactly once,
every block arrives, no deadlock with finite buffers, no link overloaded.

An MSCCL++ execution plan (JSON) may come from any tool. Checked are the contributions in every chunk of every
output, races, and deadlocks.

Exit code 0: everything is proved. 1: something is false, and each violation is listed. 2: the file is no plan.
"""


def check(
    path: arguments.Plan,
    spec: Annotated[
        str | None,
        Option(
            "--topo",
            metavar="SPEC",
            help="A topology that must have the plan's links; needed if the plan's file has no topology.",
        ),
    ] = None,
    links: Annotated[
        str | None,
        Option(
            "--links",
            metavar="fast|pcie|staged|all",
            help="Links of --topo to check against; default: those that the plan was made for.",
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Check, print a line per proof or violation, and exit with 0 or 1."""
    from blinkccl.formats.foreign import mscclpp
    from blinkccl.formats.foreign.verify import audit
    from blinkccl.trees.forest.document import MAX_BYTES

    content = console.read_file(path, MAX_BYTES)
    if mscclpp.looks_like(content):
        _report(audit(mscclpp.read(content, console.source_name(path))), json, spec, links)
        return
    _, checked = arguments.audited(path, spec, links, content=content)
    if json:
        console.emit_json(checked.document())
    else:
        from blinkccl.show.check_text import audit_text

        console.emit_sentences(audit_text(checked, console.paint()))
    if not checked.ok:
        raise typer.Exit(CHECK_FAILED)


def _report(checked: ForeignAudit, json: bool, spec: str | None, links: str | None) -> None:
    """Print the audit of an MSCCL++ execution plan, and exit with 1 if it is false."""
    if spec is not None or links is not None:
        raise UsageError("an MSCCL++ execution plan names no links: leave --topo and --links out")
    if json:
        console.emit_json({"ok": checked.ok, "plans": [checked.document()]})
    else:
        console.emit_sentences(checked.text())
    if not checked.ok:
        raise typer.Exit(CHECK_FAILED)
