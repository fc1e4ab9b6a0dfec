"""Shared parts of the tests under LD_PRELOAD: the files of a run, a runner, and fake planners."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from preloaded import Built, Preloaded, built
from variants import sanitized, with_sanitizer

from blinkccl.native import absent
from doubles.build import Doubles

#: "thread" or "address,undefined": all but the interpreter is built with it.
SANITIZERS = os.environ.get("BLINK_SANITIZE", "")


@pytest.fixture(scope="session")
def files(doubles: Doubles) -> Built:
    files = built()
    if files.library is None or files.device_library is None:
        pytest.skip(absent("libblink.so"))
    return with_sanitizer(SANITIZERS) if SANITIZERS else files


@pytest.fixture
def preloaded(files: Built, session_cache: Path, tmp_path: Path) -> Preloaded:
    if SANITIZERS:
        return sanitized(Preloaded(built(), tmp_path, session_cache), SANITIZERS)
    return Preloaded(files, tmp_path, session_cache)


@pytest.fixture
def planner(tmp_path: Path) -> Callable[[str], Path]:
    """A factory of shell scripts that replace Python in BLINK_PYTHON."""

    def write(text: str) -> Path:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write
