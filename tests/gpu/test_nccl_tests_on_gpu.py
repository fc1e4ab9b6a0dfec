"""NVIDIA's nccl-tests, which check every element, with libblink.so preloaded. Their programs must be on PATH."""

import os
import shutil
import subprocess

import pytest

from blinkccl.native import find_library

PROGRAMS = {
    "all_reduce_perf": ["-o", "all", "-d", "all"],
    "broadcast_perf": [],
    "reduce_perf": ["-o", "sum"],
    "all_gather_perf": [],
    "reduce_scatter_perf": ["-o", "sum"],
    "alltoall_perf": [],
    "gather_perf": [],
    "scatter_perf": [],
}
DEADLINE_S = 280


def launcher() -> list[str]:
    """The launcher of two ranks: none for two GPUs, MPI for two processes on one GPU."""
    count = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")
    if count >= 2:
        return []
    if shutil.which("mpirun") is None:
        pytest.skip("one GPU and no mpirun: without it, nccl-tests needs a GPU per rank")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nccl_tests(environment, name):
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} of nccl-tests is not on PATH")
    start = launcher()
    library = find_library("libblink.so", "BLINK_LIBRARY")
    settings = {
        "BLINK_ALGO": "best",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        **({"NCCL_TESTS_DEVICE": "0"} if start else {}),
    }
    arguments = ["-b", "8", "-e", "8M", "-f", "8", "-n", "5", "-c", "1", "-g", "1" if start else "2", *PROGRAMS[name]]
    ended = subprocess.run(
        # Only the started program needs the library, not the launcher, which uses no GPU.
        [*start, "env", f"LD_PRELOAD={library}", program, *arguments],
        env={**environment, **settings, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "Out of bounds values : 0 OK" in ended.stdout
