"""What the tests under LD_PRELOAD share: the files of a run, a runner, and planners that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from preloaded import Built, Preloaded, built

from doubles.build import Doubles


@pytest.fixture(scope="session")
def files(doubles: Doubles) -> Built:
    found = built()
    if found.library is None or found.device_library is None:
        pytest.skip("this installation has no libblink.so: it is built where a C++ compiler is found")
    return found


@pytest.fixture
def preloaded(files: Built, session_cache: Path, tmp_path: Path) -> Preloaded:
    return Preloaded(files, tmp_path, session_cache)


@pytest.fixture
def planner(tmp_path: Path) -> Callable[[str], Path]:
    """Something else than Python, for BLINK_PYTHON."""

    def write(text: str) -> Path:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write
