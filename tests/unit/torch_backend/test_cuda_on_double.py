"""Real collectives of "cuda:blink" between processes, by libblink.so and generated code; only the GPU is a double."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blinkccl.codegen import device_files
from blinkccl.errors import UnsupportedError
from blinkccl.native import absent
from blinkccl.runtime.gpu_group import LIBRARY, LIBRARY_OVERRIDE, find_library
from doubles.build import Doubles
from support.extras import needs
from support.forked_ranks import RankServer

pytestmark = needs("torch")
pytest.importorskip("torch", reason="needs PyTorch")

RANK = Path(__file__).with_name("cuda_double_rank.py")
ROOT = RANK.parents[3]
STRICT = ["-W", "error", "-W", "ignore::FutureWarning"]
DEADLINE_S = 240


@pytest.fixture(scope="module")
def machine(doubles: Doubles, session_cache: Path) -> dict[str, str]:
    """The environment of a rank on four GPUs that are doubles; skips where something is not doubles."""
    library = find_library(LIBRARY, LIBRARY_OVERRIDE)
    if library is None:
        pytest.skip(absent(LIBRARY))
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


@pytest.fixture(scope="module")
def failure(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str | None]]:
    """Runs a case, in ranks of a process that imports torch once for all of them, and says what failed."""
    said = tmp_path_factory.mktemp("cases") / "stderr"
    with RankServer(RANK, said, machine, STRICT) as server:
        yield server.failure


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_collective(failure, size):
    assert failure("every_collective", size) is None


@pytest.mark.parametrize("case", ["operations", "coalesced", "subgroups"])
def test_operations_and_groups(failure, case):
    assert failure(case, 3) is None


def test_one_order(failure):
    """On four GPUs of a DGX-1V, whose free plan has several."""
    assert failure("one_order", 4, BLINK_DETERMINISTIC="order") is None
    assert " tiles: tensor(" in failure("one_order", 4)


@pytest.mark.parametrize(("size", "seed"), [(2, "1"), (4, "0")])
def test_messages(failure, size, seed):
    assert failure("messages", size, BLINK_DOUBLE_SEED=seed, BLINK_STAGING_BYTES="2M") is None


@pytest.mark.parametrize("seed", ["1", *(pytest.param(seed, marks=pytest.mark.slow) for seed in "02")])
def test_streams_wait_for_each_other(failure, seed):
    assert failure("stream_order", 2, BLINK_DOUBLE_SEED=seed) is None


def test_replayed_graphs_in_processes_that_end_as_programs_do(machine, tmp_path):
    environment = {**machine, "BLINK_DOUBLE_SEED": "1", "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, *STRICT, str(RANK), "graphs"]
    started = [
        subprocess.Popen([*command, str(rank), "2", str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=DEADLINE_S)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)


@pytest.mark.parametrize("which", ["threads", "processes"])
def test_the_conformance_for_gpus_passes_on_the_double(machine, tmp_path, which):
    """What tests/gpu runs on a GPU; ranks share device 0."""
    environment = {**machine, "PYTHONPATH": str(ROOT / "benchmarks")}
    command = [sys.executable, str(ROOT / "benchmarks/gpu_conformance.py"), "3", "all"]
    alone = [[]] if which == "threads" else [[str(rank), str(tmp_path / "store")] for rank in range(3)]
    started = [
        subprocess.Popen([*command, *words], env=environment, stdout=subprocess.PIPE, text=True) for words in alone
    ]
    assert [process.communicate(timeout=DEADLINE_S)[0] for process in started] == ["ok\n"] * len(started)


def test_a_rank_that_does_not_come_ends_the_group_everywhere(failure):
    assert failure("missing_rank", 3) is None
