"""PyTorch's own conformance suite passes on blink where it passes on gloo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("expecttest", reason="PyTorch's suite needs expecttest")
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

LIMIT_S = 800


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_what_passes_on_gloo_passes_on_blink(size: int) -> None:
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run.py")), "--world-size", str(size), "--recorded"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if "gloo has no record" in ended.stdout:
        pytest.skip(f"gloo's outcome on torch {torch.__version__} with {size} ranks is not recorded in gloo.json")
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-4000:]
    passed = re.search(r"^(\d+) pass, 0 skip, 0 fail on blink$", ended.stdout, re.MULTILINE)
    ran = re.search(r"^ran by blink: calls (\d+),", ended.stdout, re.MULTILINE)
    assert passed is not None
    assert ran is not None
    assert int(passed[1]) >= 80
    assert int(ran[1]) > 500, "gloo did the work"
