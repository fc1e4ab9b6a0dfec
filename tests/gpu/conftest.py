"""Tests that need an NVIDIA GPU. Without one, a driver, the library or a compiler all are skipped, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

# Ranks of one process on one GPU must not wait for each other in one of its queues.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE_S = 280


@cache
def reason() -> str | None:
    """Why nothing can run here; None: it can."""
    from cuda_driver import Cuda, CudaError
    from gpu_group import gpu_library

    from blinkccl.codegen.gpu_compiler import gpu_compiler
    from blinkccl.errors import BlinkError

    try:
        cuda = Cuda()
        gpu_library()
        gpu_compiler(cuda.architecture, cuda.driver)
    except (CudaError, BlinkError) as error:
        return " ".join(str(error).split())
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.nodeid.startswith("tests/gpu/")]
    why = reason() if ours else None
    for item in ours:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {why}"))


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of the processes that tests start."""
    paths = [str(ROOT / "benchmarks"), str(HERE), os.environ.get("PYTHONPATH", "")]
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "BLINK_PYTHON": sys.executable}
    return {**os.environ, **settings, "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}


@pytest.fixture(scope="session")
def all_ok(environment: dict[str, str]) -> Callable[..., None]:
    """Runs Python programs side by side, which must all end well with the line "ok"."""

    def run(*commands: Sequence[str | Path], **variables: str) -> None:
        given = environment | variables
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started = [subprocess.Popen([sys.executable, "-W", "ignore", *one], env=given, **pipes) for one in commands]
        said = []
        try:
            said = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
        assert [text.strip().splitlines()[-1] for text in said] == ["ok"] * len(started)

    return run
