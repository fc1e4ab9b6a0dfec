"""Conformance on a GPU: every collective, type and operation, ranks as threads with streams and as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("standalone_ranks.py")
DEADLINE_S = 280


def test_ranks_as_streams_of_one_process(tmp_path, size, all_ok):
    all_ok([PROGRAM, tmp_path, str(size), "all", "all"])


def test_ranks_as_processes(tmp_path, all_ok):
    # Without MPS processes take turns on the GPU: every wait for a peer is a time slice. Two of them, then.
    all_ok(*([PROGRAM, tmp_path, "2", which, "all"] for which in "01"))


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tmp_path, environment, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(PROGRAM)]
    ended = subprocess.run(
        [*command, str(tmp_path), "2", "all", "sanitizer"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert "ok" in ended.stdout.splitlines()


def test_replays_of_a_graph_give_the_same_bits_on_all_ranks(size):
    from cuda_driver import Cuda
    from gpu_ranks import latency

    cuda = Cuda()
    for nbytes in (4096, 1 << 20):
        found = latency(cuda, size, nbytes, 20)
        assert found["right"]
        assert found["same_bits"]


def test_graphs_and_calls_keep_their_order(size):
    """A graph, a call and a graph, each in streams of its own, read what the one before wrote: only the groups order
    them. The first is held up, so that what does not wait for it comes too early."""
    from cuda_driver import Cuda
    from gpu_ranks import Ours

    cuda, count, hold_bytes = Cuda(), 25_000, 1 << 26
    ranks, every = Ours(cuda, size), range(size)
    source = cuda.put(np.ones(count, np.float32))
    scratch = cuda.empty(hold_bytes)
    at = [[cuda.empty(4 * count) for _ in range(4)] for _ in every]
    streams = [[cuda.stream() for _ in every] for _ in range(3)]

    def step(rank: int, number: int) -> None:
        ranks.all_reduce(rank, at[rank][number], at[rank][number + 1], count, streams[number][rank])

    def captured(rank: int, number: int) -> int:
        cuda.begin_capture(streams[number][rank])
        step(rank, number)
        return cuda.end_capture(streams[number][rank])

    graphs = {number: [captured(rank, number) for rank in every] for number in (0, 2)}
    for _ in range(5):
        for rank in every:
            for address in at[rank]:
                cuda.fill(address, 0xFF, 4 * count, streams[0][rank])  # not a number
            cuda.synchronize(streams[0][rank])
        for rank, stream in enumerate(streams[0]):
            for _ in range(40):
                cuda.fill(scratch, 0, hold_bytes, stream)
            cuda.copy(at[rank][0], source, 4 * count, stream)
        for rank in every:
            cuda.replay(graphs[0][rank], streams[0][rank])
            step(rank, 1)
            cuda.replay(graphs[2][rank], streams[2][rank])
        for rank in every:
            for number in range(3):
                cuda.synchronize(streams[number][rank])
            found = [cuda.get(address, count, np.float32) for address in at[rank]]
            assert [(one == size**number).all() for number, one in enumerate(found)] == [True] * 4
    ranks.close()
