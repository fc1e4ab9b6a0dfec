"""The example of document D: Programs over torch's send and receive have the reference engine's bits."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.extras import needs


@needs("torch")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ring_and_trees_run_over_send_and_receive(ranks: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, "-m", "reproduction.send_and_recv", "--sizes=4K,3M", "--iterations=1"],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    heading, columns, *rows = done.stdout.splitlines()
    assert heading == f"ms among {ranks} ranks"
    assert columns.split() == ["bytes", "ring", "trees", "library"]
    assert [row.split()[0] for row in rows] == ["4096", "3145728"]
