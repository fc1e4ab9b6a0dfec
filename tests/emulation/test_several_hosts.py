"""The benchmark of ranks in network namespaces, benchmarks/several_hosts.py, with its clean-up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.extras import needs

distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "several_hosts.py"
PROBE = "blink-bench-0-probe"

pytestmark = [needs("torch"), pytest.mark.timeout(150)]


def why_not() -> str | None:
    """Return the reason why namespaces are unavailable; None if they work."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        return "needs root, ip and tc"
    made = subprocess.run(["ip", "netns", "add", PROBE], capture_output=True, text=True, timeout=30)
    subprocess.run(["ip", "netns", "del", PROBE], capture_output=True, timeout=30)
    return f"no network namespace can be made here: {made.stderr.strip()}" if made.returncode else None


def test_a_shaped_pair_is_measured_and_nothing_is_left() -> None:
    if reason := why_not():
        pytest.skip(reason)
    options = ["--layout", "1+1", "--mbits", "1000", "--sizes", "64K,1M", "--rounds", "1", "--road", "torch", "--json"]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)["rows"]
    assert [(row["layout"], row["collective"], row["bytes"], row["wrong"], sorted(row["peers"])) for row in rows] == [
        ("1+1", "allreduce", size, 0, ["gloo"]) for size in (1 << 16, 1 << 20)
    ]
    assert all(0 < row["of_bound"] < 1.5 and row["peers"]["gloo"]["ratio"] > 0 for row in rows), rows
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    mine = [line for line in listed.splitlines() if line.startswith("blink-bench-")]
    assert all(Path(f"/proc/{line.split('-')[2]}").exists() for line in mine), mine  # of concurrent runs
