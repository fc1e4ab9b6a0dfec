"""Charts in files: SVG is our own, PNG and PDF take the plotting library, which is asked for before any work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from blinkccl.errors import UnsupportedError
from blinkccl.report.shapes import Picture, stacked, svg_file, write_drawn

#: What the end of a file's name asks for.
FORMS = (".svg", ".png", ".pdf")


def pyplot(what: str = "--plot") -> Any:
    """matplotlib's pyplot; that it is not installed, but needed for ``what``, is an :class:`UnsupportedError`."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        raise UnsupportedError(f"{what} needs matplotlib: pip install 'blink-ccl[plot]'") from None


def check(path: Path) -> None:
    """Refuse, before any work, a picture that could not be drawn: in a form we have not, or without matplotlib."""
    form = path.suffix.lower()
    if form not in FORMS:
        raise UnsupportedError(f"--plot {path}: expected a name that ends in {', '.join(FORMS)}")
    if form != ".svg":
        pyplot(f"--plot with {form}, unlike .svg,")


def write(path: Path, picture: Picture) -> None:
    """Write ``picture`` below its title in the form that the name's end asks for; raises as :func:`check`."""
    check(path)
    titled = stacked([picture], 1)
    if path.suffix.lower() == ".svg":
        path.write_text(svg_file(titled), encoding="utf-8", newline="\n")
        return
    with path.open("wb") as file:
        write_drawn(titled, file, pyplot(), path.suffix.lower().lstrip("."))
