"""Conformance on a GPU: every collective, type and operation, ranks as threads with streams and as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE_S = 280


def ranks(store: Path, size: int, environment: dict[str, str], *, processes: bool, case: str = "all") -> None:
    """Runs all ranks; each process must say ok."""
    command = [sys.executable, str(HERE / "standalone_ranks.py"), str(store), str(size)]
    started = [
        subprocess.Popen([*command, which, case], env=environment, stdout=subprocess.PIPE, text=True)
        for which in (map(str, range(size)) if processes else ["all"])
    ]
    said = []
    try:
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [text.strip() for text in said] == ["ok"] * len(started)


def test_ranks_as_streams_of_one_process(tmp_path, size, environment):
    ranks(tmp_path, size, environment, processes=False)


def test_ranks_as_processes(tmp_path, environment):
    # Without MPS processes take turns on the GPU: every wait for a peer is a time slice. Two of them, then.
    ranks(tmp_path, 2, environment, processes=True)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tmp_path, environment, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(HERE / "standalone_ranks.py")]
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
