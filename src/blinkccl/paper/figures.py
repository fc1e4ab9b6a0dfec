"""The documents' figures, drawn anew from computations of now.

To add a figure: write a function ``(figure, context) -> basis`` in the document's file of figures, and add its row
to that file's FIGURES.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkccl.errors import UsageError
from blinkccl.paper.claim import Context
from blinkccl.report.plotting import pyplot


@dataclass(frozen=True, slots=True)
class Figure:
    """A registry row.

    ``draw(figure, context)`` draws into a matplotlib figure and returns in a sentence what it was computed with.
    ``name`` becomes the file's, like ``A-fig-15``.
    """

    name: str
    document: str
    title: str
    draw: Callable[[Any, Context], str]
    width_in: float = 8.0
    height_in: float = 4.5


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn."""

    name: str
    document: str
    title: str
    basis: str
    png: bytes


def figures() -> tuple[Figure, ...]:
    """All figures, in the order of their documents."""
    from blinkccl.paper import figures_of_blink, figures_of_others

    return (*figures_of_blink.FIGURES, *figures_of_others.FIGURES)


def draw(
    documents: Collection[str], context: Context, tick: Callable[[int, int], None] = lambda done, total: None
) -> list[Drawn]:
    """Draws the figures of these documents.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    wanted = [figure for figure in figures() if figure.document in documents]
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
