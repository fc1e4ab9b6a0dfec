"""Threads of a rank that share a call's large chunks: the same bits for any number, and only where it is worthwhile."""

import os
from hashlib import sha256

import numpy as np
import pytest
from job import Ran

import blinkccl
from blinkccl.collectives.ops import element_type
from blinkccl.errors import LaunchError
from blinkccl.runtime.communicator import Communicator

COUNTS = (1, 16_384, 300_001)
TYPES = ("float32", "bfloat16", "int8", "float64")
#: Bytes of a part at least; a chunk of fewer than two is not cut.
LEAST = 64 << 10


def bits(comm: Communicator, threads: str, cross: str) -> tuple[str, int]:
    """A hash of the results of every collective on all types and sizes, and the number of parts."""
    os.environ["BLINK_THREADS"], os.environ["BLINK_CROSS_MEMORY"] = threads, cross
    part = comm.split(0)
    seen = sha256()
    random = np.random.default_rng(comm.rank)
    for name in TYPES:
        for count in COUNTS:
            dtype = element_type(name).storage
            mine = (random.standard_normal(count) * 50).astype(dtype)
            blocks = (random.standard_normal(count * comm.size) * 50).astype(dtype)
            results = [
                part.allreduce(mine.copy(), op="avg"),
                part.allreduce(mine.copy(), op="premul_sum", scale=0.75),
                part.reduce_scatter(blocks, np.empty_like(mine)),
                part.allgather(mine, np.empty_like(blocks)),
                part.alltoall(blocks, np.empty_like(blocks)),
                part.broadcast(mine.copy(), root=1),
            ]
            for result in results:
                seen.update(result.view(np.uint8).tobytes())
    return seen.hexdigest(), part.stats()["parts"]


@pytest.mark.parametrize(("ranks", "numbers"), [(2, "234"), (3, "3")])
def test_the_bits_are_the_same_for_any_number_of_threads(ran: Ran, ranks: int, numbers: str) -> None:
    alone = ran(ranks, bits, "1", "0")
    assert [parts for _, parts in alone] == [0] * ranks
    for threads in numbers:
        for cross in ("0", "1"):
            shared = ran(ranks, bits, threads, cross)
            assert [digest for digest, _ in shared] == [digest for digest, _ in alone], (threads, cross)
            assert all(parts > 0 for _, parts in shared), (threads, cross)


def parts_of(comm: Communicator, threads: str, nbytes: int) -> int:
    os.environ["BLINK_THREADS"], os.environ["BLINK_CROSS_MEMORY"] = threads, "0"
    part = comm.split(0)
    part.allreduce(np.ones(nbytes, np.int8))
    return part.stats()["parts"]


def test_small_calls_stay_on_one_thread(ran: Ran) -> None:
    assert ran(2, parts_of, "4", LEAST) == [0, 0]
    assert min(ran(2, parts_of, "4", 64 * LEAST)) >= 2 * 4


@pytest.mark.parametrize("value", ["0", "2.5", "many", "1025", "-1"])
def test_a_wrong_number_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BLINK_THREADS", value)
    with pytest.raises(LaunchError, match="BLINK_THREADS="):
        blinkccl.init(rank=0, world_size=1)
