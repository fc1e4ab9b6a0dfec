"""Where are the libraries of native code that were built with this package?"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path


def find_library(name: str, override: str) -> Path | None:
    """The file of ``name``: what the environment variable ``override`` names, or what is installed with the package.

    None where the package was installed without a compiler.
    """
    named = os.environ.get(override)
    if named:
        return Path(named)
    path = Path(str(files("blinkccl").joinpath("_native").joinpath(name)))
    return path if path.is_file() else None
