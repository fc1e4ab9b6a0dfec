"""CUDA tensors of torch, in an unchanged NCCL program with libblink.so preloaded."""

import json
from pathlib import Path

import pytest

from blinkccl.native import find_library
from support.extras import needs

HERE = Path(__file__).parent

pytestmark = needs("torch")


@pytest.fixture(scope="module")
def torch():
    import torch as module

    if not module.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA, or finds no GPU")
    return module


def test_an_unchanged_program_under_ld_preload(torch, tmp_path, all_ok):
    if torch.cuda.device_count() < 2 and torch.cuda.nccl.version() < (2, 30):
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} puts one rank on a GPU; 2.30 and later several")
    library = find_library("libblink.so", "BLINK_LIBRARY")
    report = tmp_path / "report"
    settings = {"LD_PRELOAD": str(library), "BLINK_ALGO": "best", "BLINK_REPORT": str(report)}
    commands = ([HERE / "nccl_client_torch.py", rank, "2", tmp_path / "store"] for rank in "01")
    all_ok(*commands, **settings, NCCL_MULTI_RANK_GPU_ENABLE="1")
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert lines, "libblink.so, which reports every communicator, was not loaded"
