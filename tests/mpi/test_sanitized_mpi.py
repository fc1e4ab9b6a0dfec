"""libblink_mpi.so and its binding have no memory errors and no races: both and the program are built with a sanitizer.

The MPI libraries are not, so reports from inside them are suppressed. MPICH 4.0.2 aborts under the thread sanitizer
without Blink, too.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from blinkccl.native.headers import DIRECTORY

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
BUILD_S = 280

CASES = ["progress", "unexpected", "threads", "handles", "kinds", "one_way", "between"]


def sanitized(mpi, sanitizers: str, source: str) -> list[str]:
    """The command line of a program of this folder, with all of Blink's code built with ``sanitizers``."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    build = ROOT / "build" / "native-tests" / f"mpi-{sanitizers}"
    quiet = {"check": True, "capture_output": True, "timeout": BUILD_S}
    subprocess.run(["cmake", "-S", NATIVE, "-B", build, f"-DBLINK_SANITIZE={sanitizers}"], **quiet)
    subprocess.run(["cmake", "--build", build, "--target", "blink_mpi", "blink_mpi4", "-j", "2"], **quiet)
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    includes = ["-I", NATIVE / "mpi", "-I", DIRECTORY]
    compiled, binding, program = (mpi.room / f"{sanitizers}-{name}" for name in ("binding.o", "binding.so", "program"))
    shape = ["-std=gnu11", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-fno-optimize-sibling-calls"]
    subprocess.run(
        [*mpi.installed.compiler, *flags, *shape, *includes, "-c", NATIVE / "mpi/binding.c", "-o", compiled], **quiet
    )
    subprocess.run(["gcc", "-shared", f"-fsanitize={sanitizers}", compiled, "-o", binding], **quiet)
    file = Path(__file__).with_name(source)
    line = [*mpi.installed.compiler, *flags, file, "-o", program, *mpi.installed.options, "-lpthread"]
    subprocess.run(line, **quiet)
    options = [
        "ASAN_OPTIONS=detect_leaks=0 exitcode=66 detect_stack_use_after_return=1",
        "UBSAN_OPTIONS=halt_on_error=1 print_stacktrace=1 exitcode=66",
        f"TSAN_OPTIONS=halt_on_error=1 exitcode=66 suppressions={Path(__file__).with_name('tsan.supp')}",
    ]
    preload = str(build / "libblink_mpi.so")
    if mpi.name != "openmpi":  # its version 4 has no functions of MPI 4
        preload += f":{build / 'libblink_mpi4.so'}"
    if "address" in sanitizers:  # its library must come first
        runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], text=True, **quiet)
        preload = f"{runtime.stdout.strip()}:{preload}"
    # The launcher has no sanitizer.
    start = ["env", f"LD_PRELOAD={preload}", f"BLINK_MPI_BINDING={binding}", *options]
    return [*start, *(["setarch", "-R"] if sanitizers == "thread" else []), str(program)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_memory_and_undefined_behaviour(mpi, ranks):
    if mpi.name != "openmpi" and ranks > 2:
        pytest.skip("MPICH's own half of the calls takes minutes where ranks are more than cores")
    done = mpi.run(mpi.launch(ranks, *sanitized(mpi, "address,undefined", "checked.c"), "5003"), deadline_s=200)
    assert done.code == 0, done.err
    assert ", 0 wrong" in done.out
    assert done.rows("blink")


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_threads_and_handles(mpi, sanitizers):
    if mpi.name != "openmpi" and sanitizers == "thread":
        pytest.skip("MPICH ends under the thread sanitizer without Blink as well")
    line = mpi.launch(2, *sanitized(mpi, sanitizers, "behaviour.c"), *CASES)
    done = mpi.run(line, {"BLINK_TIMEOUT": "60"}, deadline_s=200)
    assert done.code == 0, done.err
    assert done.out.split("\n")[:-1] == [f"{name} is done" for name in CASES]
    assert done.rows("blink")
