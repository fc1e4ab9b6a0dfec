"""``python -m reproduction``: every claim of the papers, published, ours, verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console, run_command
from reproduction import table
from reproduction.claim import Context, judge
from reproduction.registry import chosen

HELP = """
Examples:

\b
  python -m reproduction                     every claim: published, ours, verdict
  python -m reproduction A B6 R5             those of a document, or single ones
  python -m reproduction --markdown c.md     the same as tables of Markdown

All our numbers are computed now, from plans, calibrations and the simulator; each row names them.
"""


def claims(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[CLAIM]...", help="Documents (A to E) or ids (B6, P1, U1, R1, N1); default: all."),
    ] = None,
    markdown: Annotated[Path | None, Option("--markdown", metavar="FILE", help="Write the table as Markdown.")] = None,
    json: arguments.Json = False,
) -> None:
    """Compute, compare, print."""
    console.check_files(markdown)
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


def main() -> None:
    """Run the command line, and exit with a code of :mod:`blinkccl.cli.exits`."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command(help=HELP)(claims)
    run_command(lambda: app(prog_name="python -m reproduction"))


if __name__ == "__main__":
    main()
