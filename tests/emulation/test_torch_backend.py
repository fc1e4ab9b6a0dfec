"""Backend "blink" in real processes: every collective, messages, groups, faults, and torch's own layers on top.

The ranks' programs are in torch_calls.py, torch_small_calls.py, torch_wrappers.py, torch_training.py and
torch_hosts.py.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError
from support.extras import needs
from support.forked_ranks import RankServer

distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")
if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

PROGRAMS = Path(__file__).with_name("torch_programs.py")
#: The programs end their ranks after 100 s.
pytestmark = [needs("torch"), pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def failure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], str | None]]:
    """Return a function that runs a program in ranks forked from a process with torch, and returns the failure."""
    errors = tmp_path_factory.mktemp("programs") / "stderr"
    with RankServer(PROGRAMS, errors, {**os.environ, "OMP_NUM_THREADS": "1"}) as server:
        yield server.failure


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("reductions", 3),
        ("other_reductions", 2),
        ("movements", 3),
        ("scattered_sums", 3),
        ("unequal_blocks", 3),
        ("layouts", 2),
        ("wrappers", 2),
        ("zeros_without_memory", 2),
        ("transformed", 2),
        ("negative_bits", 2),
        ("conjugate_bits", 2),
        ("later_calls_name_the_first_failure", 2),
        ("in_order", 2),
        ("background", 3),
        ("futures", 2),
        ("coalescing", 2),
        ("small_calls", 2),
        ("small_calls", 3),
        ("groups_that_are_small", 2),
        ("small_calls_left", 2),
        ("small_calls_fail", 2),
        ("watched", 2),
        ("forked", 2),
        ("messages", 3),
        ("objects", 3),
        ("groups", 3),
        ("mixed_devices", 2),
        ("timeouts", 3),
        ("a_rank_dies", 3),
        pytest.param("data_parallel", 2, marks=pytest.mark.slow),
        ("data_parallel", 3),
        pytest.param("shared_buckets", 2, marks=pytest.mark.slow),
        ("shared_buckets", 3),
        ("shared_shards", 2),
        pytest.param("shared_shards", 4, marks=pytest.mark.slow),
        pytest.param("sharded", 2, marks=pytest.mark.slow),
        ("sharded", 4),
        ("sharded_state", 2),
        ("checkpoints", 2),
        ("in_place_of_gloo", 3),
        ("functional", 2),
        ("compiled", 2),
        ("profiled", 2),
        ("over_hosts", 4),
        ("failures_over_hosts", 5),
        ("dies_while_made", 4),
        ("hierarchical", 3),
        ("hierarchical", 4),
        ("hierarchical", 5),
        ("hierarchical", 6),
        ("one_order", 5),
    ],
)
def test_program(failure: Callable[[str, int], str | None], name: str, size: int) -> None:
    assert failure(name, size) is None
