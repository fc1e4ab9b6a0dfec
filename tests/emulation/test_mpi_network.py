"""MPI as the network between hosts, in a job of mpirun; both hosts are this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("mpi4py") is None or shutil.which("mpirun") is None, reason="needs mpi4py and Open MPI's mpirun"
    ),
    pytest.mark.timeout(120),
]
RANKS = Path(__file__).with_name("mpi_ranks.py")


@pytest.mark.parametrize(("what", "done"), [([], "012"), (["kill"], "01")])
def test_ranks_of_an_mpi_job_on_several_hosts(what: list[str], done: str) -> None:
    options = ["-np", "3", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    command = ["mpirun", *options, sys.executable, str(RANKS), *what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert sorted(line for line in ran.stdout.splitlines() if line) == [f"rank {r} is done" for r in done], ran.stderr
