"""Real collectives of "cuda:blink" between processes, by libblink.so and generated code; only the GPU is a double."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.codegen import device_files
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.gpu_group import LIBRARY, LIBRARY_OVERRIDE, find_library
from doubles.build import Doubles

pytest.importorskip("torch", reason="needs PyTorch")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEADLINE_S = 240


@pytest.fixture(scope="module")
def machine(doubles: Doubles, session_cache: Path) -> dict[str, str]:
    """The environment of a rank on four GPUs that are doubles; skips where something is not doubles."""
    library = find_library(LIBRARY, LIBRARY_OVERRIDE)
    if library is None:
        pytest.skip(f"{LIBRARY} is not installed: no C++ compiler at installation")
    try:
        device = device_files.host_library()
        include = device_files.include_directory()
    except UnsupportedError as error:
        pytest.skip(str(error))
    return {
        **os.environ,
        "BLINK_LIBRARY": str(library),
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "BLINK_NVCC": str(doubles.compiler),
        "BLINK_DOUBLE_DEVICE_LIB": str(device),
        "BLINK_DEVICE_LIBRARY": str(device),
        "BLINK_DEVICE_INCLUDE": str(include),
        "BLINK_TOPO": "dgx-1v",
        "BLINK_CACHE": str(session_cache),
        "BLINK_PYTHON": sys.executable,
        "BLINK_MAX_BLOCKS": "4",
        "NCCL_DEBUG": "WARN",
        "OMP_NUM_THREADS": "1",
    }


def ranks(machine: dict[str, str], case: str, size: int, store: Path, **settings: str) -> None:
    """Runs a case on ``size`` ranks; all must say ok."""
    command = [sys.executable, "-W", "error", "-W", "ignore::FutureWarning", str(HERE / "cuda_double_rank.py"), case]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(store)],
            env={**machine, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    said = []
    try:
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                said.append(process.communicate()[0])
    assert [process.returncode for process in started] == [0] * size, "\n".join(said)
    assert [text.strip().splitlines()[-1] for text in said] == ["ok"] * size


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_collective(machine, tmp_path, size):
    ranks(machine, "every_collective", size, tmp_path / "store")


@pytest.mark.parametrize("case", ["operations", "coalesced", "subgroups"])
def test_operations_and_groups(machine, tmp_path, case):
    ranks(machine, case, 3, tmp_path / "store")


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_streams_wait_for_each_other(machine, tmp_path, seed):
    ranks(machine, "stream_order", 2, tmp_path / "store", BLINK_DOUBLE_SEED=seed)


def test_replayed_graphs(machine, tmp_path):
    ranks(machine, "graphs", 2, tmp_path / "store", BLINK_DOUBLE_SEED="1")


@pytest.mark.parametrize("which", ["threads", "processes"])
def test_the_conformance_for_gpus_passes_on_the_double(machine, tmp_path, which):
    """What tests/gpu runs on a GPU; ranks share device 0."""
    environment = {**machine, "PYTHONPATH": str(ROOT / "benchmarks")}
    command = [sys.executable, str(ROOT / "tests/gpu/standalone_ranks.py"), str(tmp_path), "3"]
    started = [
        subprocess.Popen([*command, ranks_here, "all"], env=environment, stdout=subprocess.PIPE, text=True)
        for ranks_here in (["all"] if which == "threads" else ["0", "1", "2"])
    ]
    assert [process.communicate(timeout=DEADLINE_S)[0] for process in started] == ["ok\n"] * len(started)


def test_a_rank_that_does_not_come_ends_the_group_everywhere(machine, tmp_path):
    ranks(machine, "missing_rank", 3, tmp_path / "store")
