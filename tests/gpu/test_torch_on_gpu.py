"""torch's CUDA tensors: by ``"cuda:blink"``, and by an unchanged program on NCCL with libblink.so preloaded."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE_S = 280


@pytest.fixture(scope="module")
def torch():
    found = pytest.importorskip("torch", reason="needs PyTorch")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA, or finds no GPU")
    return found


def said_by(commands: list[list[str]], environment: dict[str, str]) -> list[str]:
    """The last lines of the processes, which all must end well."""
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    said = []
    try:
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
    return [text.strip().splitlines()[-1] for text in said]


@pytest.mark.parametrize(
    "case", ["every_collective", "operations", "coalesced", "stream_order", "graphs", "subgroups", "missing_rank"]
)
def test_cuda_blink(torch, tmp_path, environment, case):
    command = [str(HERE / "torch_on_gpu.py"), case]
    said = said_by([[*command, str(rank), "2", str(tmp_path / "store")] for rank in range(2)], environment)
    assert said == ["ok"] * 2


def test_an_unchanged_program_under_ld_preload(torch, tmp_path, environment):
    if torch.cuda.device_count() < 2 and torch.cuda.nccl.version() < (2, 30):
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} puts one rank on a GPU; 2.30 and later several")
    library = import_module("blinkccl.runtime.gpu_group").find_library("libblink.so", "BLINK_LIBRARY")
    report = tmp_path / "report"
    settings = {"LD_PRELOAD": str(library), "BLINK_ALGO": "best", "BLINK_REPORT": str(report)}
    settings["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    command = str(HERE / "nccl_client_torch.py")
    commands = [[command, str(rank), "2", str(tmp_path / "store")] for rank in range(2)]
    assert said_by(commands, {**environment, **settings}) == ["ok"] * 2
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert lines, "libblink.so was not there: it tells of every communicator"
