"""Backend "blink" in real processes: every collective, messages, groups, faults, and what torch builds on them.

What the ranks do is in torch_programs.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError

distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")
if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

PROGRAMS = Path(__file__).with_name("torch_programs.py")
#: The programs stop their ranks after 100 s.
LIMIT_S = 120

pytestmark = pytest.mark.timeout(LIMIT_S + 30)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("reductions", 3),
        ("other_reductions", 2),
        ("movements", 3),
        ("scattered_sums", 3),
        ("unequal_blocks", 3),
        ("layouts", 2),
        ("in_order", 2),
        ("background", 3),
        ("futures", 2),
        ("coalescing", 2),
        ("messages", 3),
        ("objects", 3),
        ("groups", 3),
        ("mixed_devices", 2),
        ("timeouts", 3),
        ("a_rank_dies", 3),
        ("data_parallel", 2),
        ("data_parallel", 3),
        ("sharded", 2),
        ("sharded", 4),
        ("functional", 2),
        ("compiled", 2),
        ("profiled", 2),
        ("over_hosts", 4),
    ],
)
def test_program(name: str, size: int) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAMS), name, str(size)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, f"{name} on {size} ranks:\n{ended.stdout[-2000:]}\n{ended.stderr[-8000:]}"
