"""The documents' figures, drawn anew from computations of now.

To add a figure: write a function ``(figure, context) -> basis`` in the document's file of figures, and add its row
to that file's FIGURES. Of Blink, Fig 1 to 4, 6, 9 to 11, 23 and 25 are drawings of machines and ideas, or of data that
is not published; the poster's are drawings of its protocol, and bars without numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from blinkccl.errors import UsageError
from blinkccl.paper import (
    figures_of_allocations,
    figures_of_multipath,
    figures_of_nccl,
    figures_of_switches,
    figures_of_traffic,
    figures_of_training,
)
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.report.plotting import pyplot


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn."""

    name: str
    document: str
    title: str
    basis: str
    png: bytes


#: All figures, in the order of their documents; Blink's by number, which has two digits.
FIGURES: tuple[Figure, ...] = (
    *sorted(
        (
            *figures_of_allocations.FIGURES,
            *figures_of_switches.FIGURES,
            *figures_of_traffic.FIGURES,
            *figures_of_training.FIGURES,
        ),
        key=lambda figure: figure.name,
    ),
    *figures_of_multipath.FIGURES,
    *figures_of_nccl.FIGURES,
)


def draw(
    documents: Collection[str], context: Context, tick: Callable[[int, int], None] = lambda done, total: None
) -> list[Drawn]:
    """Draws the figures of these documents.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
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
    """Writes each figure into ``folder``, which is made if it is not there.

    Raises
    ------
    UsageError
        If the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in drawn:
            (folder / f"{one.name}.png").write_bytes(one.png)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None
