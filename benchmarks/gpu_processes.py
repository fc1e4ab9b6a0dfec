"""Ranks as processes that share one GPU by CUDA IPC; and one that is killed while another waits for it.

    gpu_processes.py KEY RANK                  # one of two ranks, of which the last is killed

Without MPS processes take turns on a GPU, so nothing here is measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import gpu_conformance
import numpy as np
from cuda_driver import Cuda, CudaError
from gpu_group import GpuGroup

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import BlinkError

#: Timeout of a kernel that waits for a killed rank, and the time after it within which its process must report.
PATIENCE_S, GRACE_S = 3, 5.0
_COUNT = 1000


class Said(NamedTuple):
    """True if the remaining rank named the killed one in time; and its output."""

    named: bool
    words: str


def conformance(size: int, case: str) -> str:
    """Faults of the calls of ``gpu_conformance.py`` by processes, or ""."""
    key = gpu_conformance.new_key()
    texts = _run([[gpu_conformance.__file__, str(size), case, str(rank), key] for rank in range(size)])
    return " ".join(text for text in texts if text.strip().split("\n")[-1] != "ok")[-300:]


def killed() -> Said:
    """Output of rank 0 of two after rank 1 was killed before its second call."""
    began = time.monotonic()
    settings = {"BLINK_TIMEOUT": str(PATIENCE_S), "BLINK_DEBUG": "WARN"}
    key = gpu_conformance.new_key()
    left, gone = _run([[__file__, key, str(rank)] for rank in range(2)], settings)
    lines = [line for line in left.splitlines() if "waited" in line or "said after" in line]
    if "killed" not in gone:
        return Said(False, f"rank 1 never came to be killed: {gone[-200:]}")
    took = next((float(line.split()[-2]) for line in lines if line.startswith("said after")), np.inf)
    named = any("from rank 1" in line for line in lines) and took < PATIENCE_S + GRACE_S
    return Said(named, f"{' '.join(lines[:2]) or left[-200:]}; all in {time.monotonic() - began:.0f} s")


def _run(programs: Sequence[Sequence[str]], settings: dict[str, str] | None = None) -> list[str]:
    """Output of all processes after their end; the step's timeout ends them too."""
    environment = os.environ | (settings or {})
    started = [
        subprocess.Popen(
            [sys.executable, *one], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for one in programs
    ]
    return [process.communicate()[0] for process in started]


def rank_of_two(key: str, rank: int) -> None:
    """Call twice; rank 1 is killed in between."""
    cuda = Cuda(int(os.environ.get("BLINK_TEST_DEVICE", "0")))
    group = GpuGroup(key, rank, 2, 0)
    stream, buffer = cuda.stream(), cuda.put(np.ones(_COUNT, np.float32))
    began, error = time.monotonic(), None
    for number in range(2):
        if rank == 1 and number == 1:
            print("killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            group.run(CollectiveCall("allreduce", "float32", _COUNT), buffer, buffer, stream)
            cuda.synchronize(stream)
        except (BlinkError, CudaError) as failure:
            error = failure
    try:
        group.check()
    except BlinkError as failure:
        error = failure
    print(f"said after {time.monotonic() - began:.1f} s" if error else "nobody noticed", flush=True)
    # A kernel gave up in the context, so it is not used again.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    rank_of_two(sys.argv[1], int(sys.argv[2]))
