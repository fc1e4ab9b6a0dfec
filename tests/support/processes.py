"""Processes of tests, and waits for their states."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

#: Import path for programs that use the tests' shared modules.
TESTS = Path(__file__).parents[1]


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for ``condition``; fail after ``within_s``."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.02)


def gone(pid: int | str) -> bool:
    """Return whether the process has ended; a zombie has, as its new parent may be late to collect its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until_gone(pids: Collection[int | str], within_s: float = 5.0) -> None:
    """Wait until none of the processes runs."""
    until(lambda: all(map(gone, pids)), within_s)


def open_files() -> set[tuple[int, int, int]]:
    """Return this process's descriptors, each with the device and the inode of its file.

    An entry of a later set that an earlier one lacks was opened in between, and is still open. Numbers of entries are
    less reliable, because the garbage collector closes files of earlier tests at any time.
    """
    files = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            row = os.fstat(int(name))
        except OSError:  # the descriptor of the listing itself
            continue
        files.add((int(name), row.st_dev, row.st_ino))
    return files


def said_with_any_hash_seed(code: str, *arguments: str) -> str:
    """Return the output of a Python that runs ``code``, after checking that it is equal for two hash seeds."""
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
    """Return binutils' output for a library; skip the test without binutils."""
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run([tool, "-W", option, path], check=True, capture_output=True, text=True, timeout=60).stdout


def fixed_addresses() -> list[str]:
    """ThreadSanitizer of GCC 12 and 13 does not start where the kernel puts memory at more than 2^28 random places."""
    setarch = shutil.which("setarch")
    works = setarch and subprocess.run([setarch, "-R", "true"], capture_output=True).returncode == 0
    return [str(setarch), "-R"] if works else []


def family(pid: int) -> Iterator[int]:
    """Yield ``pid`` and its descendants: torchrun's ranks are not in its process group."""
    yield pid
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from family(int(child))


def end_family(pid: int) -> None:
    """Kill ``pid`` and its descendants."""
    for each in list(family(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
