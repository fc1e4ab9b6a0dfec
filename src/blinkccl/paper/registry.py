"""All claims and all figures, in the order of their documents.

To add a claim or a figure, write the function that computes or draws it in its document's file, with the decorator
``@PAGE.claim`` or ``@PAGE.figure``. Of Blink, Fig 1 to 4, 6, 9 to 11, 23 and 25 are drawings of machines and ideas, or
of data that is not published; the poster's are drawings of its protocol, and bars without numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from blinkccl.errors import UsageError
from blinkccl.paper import (
    blink,
    blink_graph,
    blink_microbenchmarks,
    blink_protocols,
    blink_throughput,
    blink_training,
    multipath,
    notes,
    poster,
    ring_vs_tree,
)
from blinkccl.paper.claim import Claim, Context, Figure
from blinkccl.report.plotting import pyplot

_PAGES = (
    blink.PAGE,
    blink_graph.PAGE,
    blink_microbenchmarks.PAGE,
    blink_protocols.PAGE,
    blink_throughput.PAGE,
    blink_training.PAGE,
    poster.PAGE,
    multipath.PAGE,
    ring_vs_tree.PAGE,
    notes.PAGE,
)
#: Every claim: by document, what it prints that cannot be right (E1, E3, ...) last, by number.
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (claim for page in _PAGES for claim in page.claims),
        key=lambda claim: (claim.document, claim.id[0] == "E", int(claim.id[1:])),
    )
)
#: Every figure; Blink's by number, which has two digits, the others as their files have them.
FIGURES: tuple[Figure, ...] = tuple(
    sorted(
        (figure for page in _PAGES for figure in page.figures),
        key=lambda figure: figure.name if figure.document == "A" else figure.document,
    )
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn."""

    name: str
    document: str
    title: str
    basis: str
    png: bytes


def chosen(names: list[str]) -> tuple[Claim, ...]:
    """The claims with these ids, or of these documents (letters); all for an empty list."""
    if not names:
        return CLAIMS
    wanted = {name.upper() for name in names}
    known = {claim.id for claim in CLAIMS} | {claim.document for claim in CLAIMS}
    for name in sorted(wanted - known):
        raise UsageError(f"no claim {name!r}; expected a document (A, B, C, D, E) or an id like B6, P1, U1, R1, N1")
    # A claim's id may begin with another document's letter (B6 is of document A), so the whole name counts.
    return tuple(claim for claim in CLAIMS if claim.id in wanted or claim.document in wanted)


def draw(
    documents: Collection[str], context: Context, tick: Callable[[int, int], None] = lambda done, total: None
) -> list[Drawn]:
    """Draws the figures of these documents."""
    wanted = [figure for figure in FIGURES if figure.document in documents]
    drawn = []
    for done, figure in enumerate(wanted):
        canvas = pyplot().figure(figsize=(figure.width_in, figure.height_in), layout="constrained")
        basis = figure.draw(canvas, context)
        file = io.BytesIO()
        # Without the date and version that matplotlib writes by itself: the same numbers give the same bytes.
        canvas.savefig(file, format="png", dpi=110, metadata={"Software": None})
        pyplot().close(canvas)
        drawn.append(Drawn(figure.name, figure.document, figure.title, basis, file.getvalue()))
        tick(done + 1, len(wanted))
    return drawn


def save(folder: Path, drawn: Collection[Drawn]) -> None:
    """Writes each figure into ``folder``, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in drawn:
            (folder / f"{one.name}.png").write_bytes(one.png)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None
