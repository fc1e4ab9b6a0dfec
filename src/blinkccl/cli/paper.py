"""``blink paper``: what the papers claimed, and what we find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blinkccl.cli import arguments, console

if TYPE_CHECKING:
    from blinkccl.paper.claim import Context, JudgedClaim

HELP = """
Examples:

\b
  blink paper                     every claim: published, ours, verdict
  blink paper A B6 R5             those of a document, or single ones
  blink paper --html paper.html   with the figures, drawn anew
  blink paper --plot figures/     the figures as files

Every number of ours is computed now, from plans, calibrations and the simulator; each says which.
"""


def paper(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[CLAIM]...", help="Documents (A to E) or ids (B6, P1, U1, R1, N1); default: all."),
    ] = None,
    html: Annotated[
        Path | None, Option("--html", metavar="FILE", help="Write one page with the table and the figures.")
    ] = None,
    plot: Annotated[
        Path | None, Option("--plot", metavar="FOLDER", help="Draw the figures into this folder, as png.")
    ] = None,
    markdown: Annotated[Path | None, Option("--markdown", metavar="FILE", help="Write the table as Markdown.")] = None,
    json: arguments.Json = False,
) -> None:
    """Compute, compare, print."""
    console.check_files(html, markdown)
    from blinkccl.paper import table
    from blinkccl.paper.claim import Context, judge
    from blinkccl.paper.registry import chosen

    if html is not None or plot is not None:
        from blinkccl.report.plotting import pyplot

        pyplot()
    wanted, rows = chosen(names or []), []
    context = Context()
    with console.Progress("claims") as progress:
        for done, claim in enumerate(wanted):
            rows.append(judge(claim, context))
            progress(done + 1, len(wanted))
    if html is not None or plot is not None:
        _figures(html, plot, rows, context)
    if markdown is not None:
        console.write_file(markdown, table.markdown(rows))
    if json:
        console.emit_json(table.document(rows))
    else:
        console.emit_sentences(table.text(rows, console.paint()))


def _figures(html: Path | None, plot: Path | None, rows: Sequence[JudgedClaim], context: Context) -> None:
    """Draw those of the rows' documents, and write them."""
    from blinkccl.paper import registry
    from blinkccl.paper.table import page

    with console.Progress("figures") as progress:
        drawn = registry.draw({row.claim.document for row in rows}, context, progress)
    if html is not None:
        console.write_file(html, page(rows, drawn))
    if plot is not None:
        registry.save(plot, drawn)
        console.note(f"wrote {len(drawn)} figures to {plot}")
