"""``blink paper``: what the papers claimed, and what we find."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from blinkccl.cli import arguments, console

HELP = """
Examples:

\b
  blink paper                     every claim: published, ours, verdict
  blink paper A B6 R5             those of a document, or single ones
  blink paper --markdown c.md     the same as tables of Markdown

Every number of ours is computed now, from plans, calibrations and the simulator; each says which.
"""


def paper(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[CLAIM]...", help="Documents (A to E) or ids (B6, P1, U1, R1, N1); default: all."),
    ] = None,
    markdown: Annotated[Path | None, Option("--markdown", metavar="FILE", help="Write the table as Markdown.")] = None,
    json: arguments.Json = False,
) -> None:
    """Compute, compare, print."""
    console.check_files(markdown)
    from blinkccl.paper import table
    from blinkccl.paper.claim import Context, judge
    from blinkccl.paper.registry import chosen

    wanted, rows = chosen(names or []), []
    context = Context()
    with console.Progress("claims") as progress:
        for done, claim in enumerate(wanted):
            rows.append(judge(claim, context))
            progress(done + 1, len(wanted))
    if markdown is not None:
        console.write_file(markdown, table.markdown(rows))
    if json:
        console.emit_json(table.document(rows))
    else:
        console.emit_sentences(table.text(rows, console.paint()))
