"""The extras that some tests need and Python alone lacks: `make test-more` installs them and runs these tests alone.

A test that cannot do without is marked ``@needs("torch")``, or its file is, by ``pytestmark``: where torch is missing
it is skipped. One that plays whatever engines are there, and so does more where torch is, is marked
``@more_with("torch")``. ``pytest -m "needs or more_with"`` selects both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import pytest

from support.browser import browser_path

needs = pytest.mark.needs
more_with = pytest.mark.more_with

MARKERS = (
    "needs(extra): cannot run without it (support/extras.py)",
    "more_with(extra): runs without it, and does more with it (support/extras.py)",
)
#: The engine between ranks that torch brings. A test that plays it has it in its name.
TORCHS_ENGINE = "torch-p2p"


def _imports(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) for module in modules)


#: Name → whether it is here, and what brings it.
EXTRAS: dict[str, tuple[Callable[[], bool], str]] = {
    "torch": (_imports("torch"), "pip install 'blink-ccl[torch]'"),
    "jupyter": (_imports("nbclient", "ipykernel"), "pip install 'blink-ccl[notebook]'"),
    "sphinx": (_imports("sphinx", "furo", "myst_parser"), "pip install 'blink-ccl[docs]'"),
    # The file of its tests is beside those alone.
    "simgrid": (lambda: import_module("simgrid_answers").interpreter(), "3.32; Debian: apt install python3-simgrid"),
    "chromium": (lambda: browser_path() is not None, "Debian: apt install chromium"),
}
#: Module → the extra that brings it.
MODULES = {"torch": "torch", "nbclient": "jupyter", "ipykernel": "jupyter", "furo": "sphinx", "myst_parser": "sphinx"}


@cache
def missing(extra: str) -> str | None:
    """Why tests that need it cannot run here; None: they can."""
    is_here, how = EXTRAS[extra]
    return None if is_here() else f"needs {extra} ({how})"


def skip_what_needs_more(items: list[pytest.Item]) -> None:
    """Adds the mark of torch's engine, and skips what needs something that is missing."""
    for item in items:
        if TORCHS_ENGINE in item.name:
            item.add_marker(needs("torch"))
        for mark in item.iter_markers("needs"):
            if why := missing(*mark.args):
                item.add_marker(pytest.mark.skip(reason=why))
