"""``blink --version``: the versions installed here, for bug reports."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blinkccl.cli import console
from blinkccl.errors import BlinkError

#: Packages whose version a bug may depend on.
_PACKAGES = ("numpy", "highspy", "torch")


def print_version(json: bool) -> None:
    """The version and the facts of this installation, as text or as one JSON object."""
    facts = _facts()
    if json:
        console.emit_json(facts)
        return
    native = facts["native"]["library"] or f"none: {facts['native']['why_not']}"
    packages = ", ".join(f"{name} {number or 'not installed'}" for name, number in facts["packages"].items())
    lines = [
        f"blink {facts['blink']}",
        f"python    {facts['python']}",
        f"platform  {facts['platform']}",
        f"native    {native}",
        f"packages  {packages}",
    ]
    console.emit_sentences("\n".join(lines) + "\n")


def _facts() -> dict[str, Any]:
    return {
        "blink": version("blink-ccl"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.platform()}, {platform.machine()}",
        "native": _native(),
        "packages": {name: _installed(name) for name in _PACKAGES},
    }


def _native() -> dict[str, str | None]:
    """The native library for communication between processes, which is loaded to test it, or the reason against it."""
    from blinkccl.engines import native_library

    try:
        native_library.load()
    except BlinkError as error:
        return {"library": None, "why_not": str(error)}
    return {"library": str(native_library.find()), "why_not": None}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
