"""The doubles themselves do not race: ranks as threads, all cases, under ThreadSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from doubles.build import Doubles, build

SUPPRESSIONS = Path(__file__).resolve().parents[2] / "doubles" / "tsan.supp"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 9])
def test_no_races(doubles: Doubles, environment: dict[str, str], seed: int) -> None:
    doubles = build(sanitizer="thread")
    given = environment | {
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "LD_LIBRARY_PATH": str(doubles.nccl.parent),
        "BLINK_DOUBLE_SEED": str(seed),
        "TSAN_OPTIONS": f"halt_on_error=1 print_suppressions=0 suppressions={SUPPRESSIONS}",
    }
    command = [doubles.client, "--mode", "threads", "--ranks", "3", "--sizes", "0,3,1000"]
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
