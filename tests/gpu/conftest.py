"""Tests that need an NVIDIA GPU, its driver, the library and a compiler; else all are skipped with the reason."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

# With more queues, ranks of one process on one GPU do not wait for each other in a queue.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE_S = 280


@cache
def reason() -> str | None:
    """The reason why no test can run here; None if they can."""
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
    gpu_tests = [item for item in items if item.nodeid.startswith("tests/gpu/")]
    why = reason() if gpu_tests else None
    for item in gpu_tests:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {why}"))


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of processes that tests start."""
    paths = [str(ROOT / "benchmarks"), str(HERE), os.environ.get("PYTHONPATH", "")]
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "BLINK_PYTHON": sys.executable}
    return {**os.environ, **settings, "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}


@pytest.fixture(scope="session")
def all_ok(environment: dict[str, str]) -> Callable[..., None]:
    """A function that runs Python programs concurrently; all must exit with 0 and the line "ok"."""

    def run(*commands: Sequence[str | Path], **variables: str) -> None:
        settings = environment | variables
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started = [subprocess.Popen([sys.executable, "-W", "ignore", *one], env=settings, **pipes) for one in commands]
        outputs = []
        try:
            outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0] * len(started), "\n".join(outputs)
        assert [text.strip().splitlines()[-1] for text in outputs] == ["ok"] * len(started)

    return run
