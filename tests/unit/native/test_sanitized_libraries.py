"""Packing and simulation in native code have no memory errors, leaks or races: their tests run under sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.cost.simulate import kernel
from blinkccl.native.headers import abi
from blinkccl.trees.packing import native_flows
from doubles.build import COMPILER, ROOT, SHARED, compile_library, have_compiler
from support.processes import fixed_addresses

UNIT = ROOT / "tests" / "unit"
PACKING = ("maxflow", "native_flows", "integral", "flatten", "splitting", "equal_trees")
#: The variable that names another build of a library, and tests that reach every function of it.
LIBRARIES = {
    "packing": (
        native_flows.OVERRIDE,
        [
            *(UNIT / "trees/packing" / f"test_{name}.py" for name in PACKING),
            UNIT / "trees/algorithms/test_hop_limited.py",
        ],
    ),
    "simulate": (kernel.OVERRIDE, [UNIT / "cost/simulate/test_kernel.py", UNIT / "cost/simulate/test_miad.py"]),
}
OPTIONS = {
    # Python itself keeps memory until its end, so a leak is a fault only if the library stands in its report.
    "ASAN_OPTIONS": "detect_leaks=1 exitcode=66",
    "LSAN_OPTIONS": "exitcode=0 max_leaks=0",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1 exitcode=66",
    "TSAN_OPTIONS": "halt_on_error=1 exitcode=66",
}
#: Runs are independent: threads may simulate at the same time. Python gives up its lock during a run.
SIDE_BY_SIDE = """
from concurrent.futures import ThreadPoolExecutor
from random import Random
from blinkccl.cost.simulate.run import run
from support.random_workloads import random_workload

workloads = [random_workload(Random(seed)) for seed in range(16)] * 8
alone = [run(workload, "fair").seconds for workload in workloads]
with ThreadPoolExecutor(4) as threads:
    assert list(threads.map(lambda workload: run(workload, "fair").seconds, workloads)) == alone
"""


def sanitized(
    directory: Path, name: str, sanitizer: str, command: list[str], timeout_s: int = 280
) -> subprocess.CompletedProcess[str]:
    """The end of a Python ``command`` with a build of library ``name`` under ``sanitizer``."""
    flags = (f"-I{SHARED}", f"-DBLINK_ABI={abi()}u", "-g")
    sources = sorted((ROOT / "native" / name).glob("*.cpp"))
    built = compile_library(sources, directory / f"libblink_{name}.so", flags=flags, sanitizer=sanitizer)
    runtime = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    preload = subprocess.run([COMPILER, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {"LD_PRELOAD": preload.stdout.strip(), LIBRARIES[name][0]: str(built), "PYTHONPATH": str(ROOT / "tests")}
    launched = [*fixed_addresses(), sys.executable, *command]
    return subprocess.run(
        launched, env=own | OPTIONS, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.skipif(not have_compiler(), reason="needs Linux, gcc and g++")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LIBRARIES)
def test_sanitizers_report_nothing(tmp_path: Path, name: str) -> None:
    command = ["-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *map(str, LIBRARIES[name][1])]
    ended = sanitized(tmp_path, name, "address,undefined", command)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert " passed" in ended.stdout
    assert f"native/{name}/" not in ended.stderr
    assert f"libblink_{name}" not in ended.stderr, "a leak"


@pytest.mark.skipif(not have_compiler(), reason="needs Linux, gcc and g++")
def test_simulations_side_by_side_have_no_races(tmp_path: Path) -> None:
    ended = sanitized(tmp_path, "simulate", "thread", ["-c", SIDE_BY_SIDE], 60)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
