"""The optional packages of some tests: `make test-more` installs them and runs only these tests.

A test that needs one is marked ``@needs("torch")``, or its file is, by ``pytestmark``; without torch it is skipped.
``pytest -m needs`` selects them.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import pytest

from support.browser import browser_path

needs = pytest.mark.needs

MARKERS = ("needs(extra): cannot run without it (support/extras.py)",)


def _imports(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) for module in modules)


#: Name → a check whether the extra is installed, and its source.
EXTRAS: dict[str, tuple[Callable[[], bool], str]] = {
    "torch": (_imports("torch"), "pip install 'blink-ccl[torch]'"),
    "jupyter": (_imports("nbclient", "ipykernel"), "pip install 'blink-ccl[notebook]'"),
    "sphinx": (_imports("sphinx", "furo", "myst_parser"), "pip install 'blink-ccl[docs]'"),
    # The file of its tests is only beside those tests.
    "simgrid": (lambda: import_module("simgrid_answers").interpreter(), "3.32; Debian: apt install python3-simgrid"),
    "chromium": (lambda: browser_path() is not None, "Debian: apt install chromium"),
}
#: Module → the extra that provides it.
MODULES = {"torch": "torch", "nbclient": "jupyter", "ipykernel": "jupyter", "furo": "sphinx", "myst_parser": "sphinx"}


@cache
def missing(extra: str) -> str | None:
    """Return the reason why tests that need it cannot run; None if they can."""
    is_here, how = EXTRAS[extra]
    return None if is_here() else f"needs {extra} ({how})"


def skip_what_needs_more(items: list[pytest.Item]) -> None:
    """Skip tests whose extra is missing."""
    for item in items:
        for mark in item.iter_markers("needs"):
            if why := missing(*mark.args):
                item.add_marker(pytest.mark.skip(reason=why))
