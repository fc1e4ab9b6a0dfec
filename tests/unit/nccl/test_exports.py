"""libblink.so offers what NCCL offers, with NCCL's names and types, and nothing that gets in the way."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
SHIM = HERE.parents[2] / "native" / "shim"
#: Names another build of the library, and a directory with nccl.h.
LIBRARY, INCLUDE = "BLINK_SHIM_LIBRARY", "BLINK_NCCL_INCLUDE"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
PLAIN_C = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux[-.\w]*\.so\.\d+")


#: All public functions of NCCL 2.32.3, as nm lists them (weak symbols of the library in NVIDIA's wheel).
RECORDED = (HERE.parents[1] / "doubles" / "nccl" / "symbols-2.32.3.txt").read_text(encoding="utf-8").split()


@pytest.fixture(scope="module")
def library() -> Path:
    path = Path(os.environ.get(LIBRARY) or str(files("blinkccl").joinpath("_native").joinpath("libblink.so")))
    if not path.is_file():
        if COMPILER and sys.platform == "linux":
            pytest.fail(f"{COMPILER} is here but {path} is not: run `make native`")
        pytest.skip("no C++ compiler built a native library")
    return path


def readelf(option: str, path: Path) -> str:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run([tool, "-W", option, path], check=True, capture_output=True, text=True, timeout=60).stdout


def exported(path: Path) -> dict[str, str]:
    """Name → binding of the functions that leave the library."""
    rows = [row.split() for row in readelf("--dyn-syms", path).splitlines()]
    return {row[7]: row[4] for row in rows if len(row) > 7 and row[6].isdigit()}


def test_every_function_of_nccl_is_there_and_strong(library: Path) -> None:
    found = exported(library)
    assert len(RECORDED) == 96
    assert [name for name in RECORDED if found.get(name) != "GLOBAL"] == []


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
    # Nothing that could be left over when a process is killed, and no copy of a process with many threads.
    assert used.isdisjoint({"shm_open", "mkstemp", "mkstemp64", "mkdtemp", "tmpfile", "fork", "vfork", "popen"})


# --- the table that the wrappers are made from ---


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_functions", SHIM / "generate_functions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)  # native/ holds sources alone
        spec.loader.exec_module(module)
    return module


def includes() -> Iterator[Path]:
    """Directories that may hold nccl.h: the one named, those of NVIDIA's wheels, the system's."""
    if os.environ.get(INCLUDE):
        yield Path(os.environ[INCLUDE])
    yield from (Path(entry) / "nvidia" / "nccl" / "include" for entry in sys.path)
    yield Path("/usr/include")


@pytest.fixture(scope="module")
def headers() -> Path:
    for directory in includes():
        if (directory / "nccl.h").is_file():
            return directory
    pytest.skip(f"no nccl.h here (pip install nvidia-nccl-cu13 --no-deps, or {INCLUDE})")


def test_the_table_has_the_recorded_functions(generator: ModuleType) -> None:
    text = generator.TABLE.read_text(encoding="utf-8")
    assert "from the headers of 2.32.3." in text
    assert re.findall(r"^BLINK_\w+\([^,]*, (nccl\w+),", text, re.MULTILINE) == sorted(RECORDED)


def test_the_table_is_what_the_headers_say(generator: ModuleType, headers: Path) -> None:
    """All of it for the version that it was made from; of another version, what both have is the same."""
    functions = generator.functions_of(headers)
    text = generator.TABLE.read_text(encoding="utf-8")
    version = generator.version_of(headers)
    if version == "2.32.3":
        assert generator.table_of(version, functions) == text
    else:
        known = [function for function in functions if function.name in RECORDED]
        assert len(known) > 50

        def types(row: str) -> str:  # headers up to 2.28 leave out some names of parameters
            return re.sub(r"\s+", " ", row.split("), (")[0])

        for function in known:
            named = all(not argument.startswith("argument") for argument in function.arguments)
            assert not named or types(function.row()) in re.sub(r"\s+", " ", text), function.name


SAMPLE = """
#define NCCL_MAJOR 2
#define NCCL_MINOR 33
#define NCCL_PATCH 0
typedef struct ncclNew_v1 { size_t size; } ncclNew_t;
/* ncclResult_t ncclInAComment(int a); */
ncclResult_t  ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);
__attribute__ ((deprecated("say (nothing)"))) void  ncclResetDebugInit();
ncclResult_t ncclBrandNew(ncclComm_t comm, ncclNew_t const* with, unsigned int flags, ncclDataType_t type = ncclInt8);
static inline int ncclInlined(int a) { return ncclNotDeclared(a); }
"""


def test_a_newer_header_gives_another_table(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nccl.h").write_text(SAMPLE, encoding="utf-8")
    monkeypatch.setattr(generator, "TABLE", tmp_path / "table")
    assert generator.main([str(tmp_path)]) == 0
    assert (tmp_path / "table").read_text(encoding="utf-8").splitlines()[3:6] == [
        "BLINK_FORWARDED(ncclResult_t, ncclBrandNew, (ncclComm_t comm, const void* with, unsigned int flags,",
        "    ncclDataType_t type), (comm, with, flags, type), refusal)",
        "BLINK_FORWARDED(ncclResult_t, ncclGetVersion, (int* version), (version), refusal)",
    ]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("ncclResult_t ncclBrandNew(ncclNew_t with);", "ncclBrandNew: 'ncclNew_t' is passed by value"),
        ("unsigned ncclBrandNew(int a);", "say in ABSENT what ncclBrandNew returns"),
    ],
)
def test_what_must_be_said_by_hand_is_asked_for(
    generator: ModuleType, tmp_path: Path, declared: str, said: str
) -> None:
    (tmp_path / "nccl.h").write_text(f"{declared}\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=said):
        generator.table_of("2.33.0", generator.functions_of(tmp_path))


def test_a_directory_without_nccl_is_refused(
    generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generator.main([str(tmp_path)]) == 2
    assert "expected the directory that holds nccl.h" in capsys.readouterr().err
