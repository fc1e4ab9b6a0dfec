"""The libraries of packing and simulation have no memory errors: their tests run on builds with sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.cost.simulate import kernel
from blinkccl.native.headers import abi
from blinkccl.trees.packing import native_flows
from doubles.build import COMPILER, ROOT, SHARED, compile_library, have_compiler

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
    "ASAN_OPTIONS": "detect_leaks=0 exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1 exitcode=66",
}


@pytest.mark.skipif(not have_compiler(), reason="needs Linux, gcc and g++")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LIBRARIES)
def test_sanitizers_report_nothing(tmp_path: Path, name: str) -> None:
    override, tests = LIBRARIES[name]
    sources = sorted((ROOT / "native" / name).glob("*.cpp"))
    flags = (f"-I{SHARED}", f"-DBLINK_ABI={abi()}u")
    built = compile_library(sources, tmp_path / f"libblink_{name}.so", flags=flags, sanitizer="address,undefined")
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = own | {"LD_PRELOAD": runtime.stdout.strip(), override: str(built)} | OPTIONS
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *map(str, tests)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert " passed" in ended.stdout
