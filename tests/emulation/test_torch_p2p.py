"""``engines/torch_p2p`` over gloo with a thread per rank: deadlines and refusals.

torch_hosts.py tests processes, tensors and a rank that dies. The conformance suite runs all plans, types and
operations, tests/property runs random programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines import torch_p2p
from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.errors import CommunicationError, DeadlineError, UsageError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.extras import needs
from support.planned import asked

torch = pytest.importorskip("torch", reason="needs PyTorch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

pytestmark = [needs("torch"), pytest.mark.timeout(120)]


def ring(n: int = 4) -> Program:
    return lower(ALGORITHMS["ring"].plan(asked(f"ring:{n}")))


@pytest.mark.parametrize("fault", ["makes no call", "another size"])
def test_ranks_time_out_when_one_makes_no_call_or_another(fault: str) -> None:
    program, call = ring(3), CollectiveCall("allreduce", "float32", 90)

    def one(group: object) -> Exception | None:
        execution = TorchP2P(program, group)
        faulty = execution._rank == 2
        if faulty and fault == "makes no call":
            return None
        tensor = torch.ones(100 if faulty else 90)
        own = call._replace(elements=tensor.numel())
        with pytest.raises(CommunicationError) as failed:
            execution.run(own, tensor, tensor, deadline_s=1.0)
        with pytest.raises(CommunicationError, match="this execution failed before"):
            execution.run(own, tensor, tensor)
        return failed.value

    with ThreadPoolExecutor(3) as pool:
        began = time.monotonic()
        errors = list(pool.map(one, torch_p2p._local_groups(3, pool)))
    del torch_p2p._local[3]
    assert time.monotonic() - began < 20
    late = [str(error) for error in errors if isinstance(error, DeadlineError)]
    assert any("waited past the deadline for chunk" in text and "rank 2 (" in text for text in late), errors


def test_a_program_for_another_number_of_ranks_is_rejected() -> None:
    with ThreadPoolExecutor(2) as pool:
        group, _ = torch_p2p._local_groups(2, pool)
    with pytest.raises(UsageError, match="the program has 3 ranks, the process group 2"):
        TorchP2P(ring(3), group)


def test_ring_against_library_reports_all_plans_and_sizes() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "ring_against_library.py"
    options = ["--nproc", "2", "--sizes", "4K,1M", "--iterations", "2", "--json"]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["size_bytes"], row["plan"]) for row in rows] == [
        (size, plan) for size in (4096, 1 << 20) for plan in ("ring", "trees", "library")
    ]
    assert [row["wrong"] for row in rows] == [0] * 6
    assert all(row["ratio"] == pytest.approx(row["ms"] / rows[i // 3 * 3 + 2]["ms"]) for i, row in enumerate(rows))
