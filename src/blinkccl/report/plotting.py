"""The plotting library, drawing into files only; whether a picture can be drawn is asked before any work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from blinkccl.errors import UnsupportedError


def pyplot() -> Any:
    """matplotlib's pyplot.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        raise UnsupportedError("--plot needs matplotlib: pip install 'blink-ccl[plot]'") from None


def check(path: Path) -> None:
    """Refuse, before any work, a picture that could not be drawn.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed, or the name ends in no format that it writes.
    """
    figure = pyplot().figure()
    kinds = sorted(figure.canvas.get_supported_filetypes())
    pyplot().close(figure)
    if path.suffix.lstrip(".").lower() not in kinds:
        raise UnsupportedError(f"--plot {path}: expected a name that ends in .{', .'.join(kinds)}")


def save(figure: Any, path: Path) -> None:
    """Write a figure; the format follows from the name.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
