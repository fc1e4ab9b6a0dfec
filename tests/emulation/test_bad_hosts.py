"""Hosts that start the wrong ranks, in two network namespaces: every rank reports the error, by the deadline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "several_hosts.py"
RANKS = Path(__file__).with_name("bad_hosts.py")

pytestmark = pytest.mark.timeout(60)


def said(ranks: str, size: int, wait_s: float) -> dict[tuple[str, int], str]:
    """Return the messages of the ranks of both hosts, by host and rank."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("needs root, ip and tc")
    command = f"exec {sys.executable} {RANKS} {ranks} {size} 29461 {wait_s}"
    options = ["--mbits", "1000", "--limit", "40", "--exec", command]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=50)
    if "netns add" in done.stderr:
        pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["late_s"] < 2 for row in rows), rows
    return {(row["host"], row["rank"]): row["text"] for row in rows}


def test_ranks_of_two_hosts_meet() -> None:
    texts = said("0,1/2", 3, 15)
    assert set(texts) == {("0", 0), ("0", 1), ("1", 2)}
    assert set(texts.values()) == {"met 2 hosts"}


@pytest.mark.parametrize(("ranks", "twice"), [("0,1/1", 1), ("0,1/0", 0)])
def test_a_rank_on_both_hosts_is_named_on_all(ranks: str, twice: int) -> None:
    texts = said(ranks, 3, 15)
    assert len(texts) == 3
    for text in texts.values():
        assert text.startswith(f"PlanMismatchError: rank {twice} is claimed by process "), text


def test_a_host_that_never_comes_is_named_by_its_ranks() -> None:
    for text in said("0,1/", 4, 2.5).values():
        assert text.startswith("RendezvousTimeout: missing ranks 2, 3, present ranks 0, 1: "), text
