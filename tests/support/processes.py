"""Processes that tests start, and what they wait for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

#: For programs that import what tests share.
TESTS = Path(__file__).parents[1]


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Waits for ``condition``, and fails where that takes longer."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.02)


def gone(pid: int | str) -> bool:
    """Whether the process has ended: whoever inherits an ended one may be late to ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until_gone(pids: Collection[int | str], within_s: float = 5.0) -> None:
    """Waits until none of the processes runs."""
    until(lambda: all(map(gone, pids)), within_s)


def open_files() -> set[tuple[int, int, int]]:
    """What this process has open: each descriptor, with the device and the inode behind it.

    What is in a later set and not in an earlier one was opened between, and is still open. How many there are says
    less: what earlier tests left to the garbage collector is closed at any time.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            row = os.fstat(int(name))
        except OSError:  # the listing's own
            continue
        found.add((int(name), row.st_dev, row.st_ino))
    return found


def said_with_any_hash_seed(code: str, *arguments: str) -> str:
    """What a Python says that runs ``code``, after two with different hash seeds have said the same."""
    one, other = (
        subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert one == other
    return one


def readelf(option: str, path: Path) -> str:
    """What binutils say of a library; where they are not, the test is skipped."""
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run([tool, "-W", option, path], check=True, capture_output=True, text=True, timeout=60).stdout


def fixed_addresses() -> list[str]:
    """ThreadSanitizer of GCC 12 and 13 does not start where the kernel puts memory at more than 2^28 random places."""
    setarch = shutil.which("setarch")
    works = setarch and subprocess.run([setarch, "-R", "true"], capture_output=True).returncode == 0
    return [str(setarch), "-R"] if works else []
