"""The exports of libblink.so: NCCL's functions with NCCL's names and types, and no other symbols."""

import os
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from support.processes import readelf

HERE = Path(__file__).parent
SHIM = HERE.parents[2] / "native" / "shim"
#: Environment variable with the path of another build of the library.
LIBRARY = "BLINK_SHIM_LIBRARY"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
PLAIN_C = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux[-.\w]*\.so\.\d+")


#: All public functions of NCCL 2.32.3 from nm (weak symbols of the library in NVIDIA's wheel).
RECORDED = (HERE.parents[1] / "doubles" / "nccl" / "symbols-2.32.3.txt").read_text(encoding="utf-8").split()


@pytest.fixture(scope="module")
def library() -> Path:
    path = Path(os.environ.get(LIBRARY) or str(files("blinkccl").joinpath("_native").joinpath("libblink.so")))
    if not path.is_file():
        if COMPILER and sys.platform == "linux":
            pytest.fail(f"{COMPILER} is here but {path} is not: run `make native`")
        pytest.skip("no C++ compiler built a native library")
    return path


def exported(path: Path) -> dict[str, str]:
    """Bindings of the library's exported functions by name."""
    rows = [row.split() for row in readelf("--dyn-syms", path).splitlines()]
    return {row[7]: row[4] for row in rows if len(row) > 7 and row[6].isdigit()}


def test_every_function_of_nccl_is_exported_and_strong(library: Path) -> None:
    bindings = exported(library)
    assert len(RECORDED) == 96
    assert [name for name in RECORDED if bindings.get(name) != "GLOBAL"] == []


def test_nothing_else_leaves_the_library(library: Path) -> None:
    others = [name for name in exported(library) if name not in RECORDED]
    assert [name for name in others if not name.startswith("blink_shim_")] == []


def test_it_is_not_taken_for_nccl_and_brings_no_cuda(library: Path) -> None:
    table = readelf("-d", library)
    assert re.findall(r"\(SONAME\).*\[(.+)\]", table) == ["libblink.so"]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", table)
    assert needed
    assert [name for name in needed if not PLAIN_C.fullmatch(name)] == []
    assert "RPATH" not in table
    assert "RUNPATH" not in table
    symbols = (row.split() for row in readelf("--dyn-syms", library).splitlines())
    used = {row[7].split("@")[0] for row in symbols if len(row) > 7 and row[6] == "UND"}
    # No shared memory or file that outlives a killed process, and no fork of a process with many threads.
    assert used.isdisjoint({"shm_open", "mkstemp", "mkstemp64", "mkdtemp", "tmpfile", "fork", "vfork", "popen"})


def test_the_table_has_the_recorded_functions() -> None:
    text = (SHIM / "nccl_functions.def").read_text(encoding="utf-8")
    rows = re.findall(r"^BLINK_(?:(?:HANDLED|FORWARDED)\(|FUNCTION\([^,]*, )(nccl\w+),", text, re.MULTILINE)
    assert rows == sorted(RECORDED)
