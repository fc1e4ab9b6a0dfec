"""Tests of PyTorch's conformance suite that pass on gloo pass on blink."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("expecttest", reason="PyTorch's suite needs expecttest")
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

LIMIT_S = 800
#: Twenty quick and different tests; BLINK_ALL_TESTS=1 runs all.
SMOKE = (
    "DistributedDataParallelCPU accumulate_gradients_no_sync_allreduce_hook all_gather all_gather_coalesced_simple "
    "all_gather_object_subgroup all_reduce_full_group_max all_reduce_sum_async all_reduce_sum_complex barrier "
    "batch_isend_irecv_gloo_tags broadcast_full_group destroy_group gather_checks get_future irecv "
    "monitored_barrier_gloo reduce_sum_twice scatter send_recv_any_source_torch_profiler sparse_all_reduce_sum"
)


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("size", "chosen", "passes", "calls", "place"),
    [
        (2, SMOKE, 20, 50, []),
        *(pytest.param(size, "", 80, 500, [], marks=pytest.mark.slow) for size in (2, 3, 4)),
        *(pytest.param(size, "", 80, 500, ["--hosts"], marks=pytest.mark.slow) for size in (2, 4)),
    ],
)
def test_tests_that_pass_on_gloo_pass_on_blink(
    size: int, chosen: str, passes: int, calls: int, place: list[str]
) -> None:
    if place and os.geteuid():
        pytest.skip("two hosts on this machine need root")
    only = ["--tests", f"^test_({chosen.replace(' ', '|')})$"] if chosen else []
    ended = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("run.py")),
            "--world-size",
            str(size),
            "--recorded",
            *only,
            *place,
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if "netns add" in ended.stderr:
        pytest.skip(f"no network namespace can be made here: {ended.stderr.strip()}")
    if "gloo has no record" in ended.stdout or ended.stdout.startswith("0 pass,"):
        pytest.skip(f"gloo's outcome on torch {torch.__version__} with {size} ranks is not recorded in gloo.json")
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-4000:]
    passed = re.search(r"^(\d+) pass, 0 skip, 0 fail on blink$", ended.stdout, re.MULTILINE)
    ran = re.search(r"^ran by blink: calls (\d+),", ended.stdout, re.MULTILINE)
    assert passed is not None
    assert ran is not None
    assert int(passed[1]) >= passes
    assert int(ran[1]) > calls, "gloo did the work"
