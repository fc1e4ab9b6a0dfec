"""libblink.so's layouts of NCCL's structures and functions equal NCCL's headers, in every available version.

Headers come from ``BLINK_NCCL_INCLUDE`` (directories, separated by colons), from NVIDIA's wheels and from the system.
With ``BLINK_ALL_TESTS=1`` pip also fetches every known version and the newest on the index.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_wheel import FETCH_S, WHEELS

from support.nccl_wheels import wheel

#: Timeout in seconds, because a wheel has to be fetched.
pytestmark = pytest.mark.timeout(FETCH_S)
COMPILER = os.environ.get("CXX", "g++")
#: Layouts of native/shim/nccl_types.h; fields of the configuration by the version that introduced them.
SOURCE = """
#include <cstddef>
#include "nccl.h"
static_assert(sizeof(ncclUniqueId) == 128);
static_assert(offsetof(ncclConfig_t, magic) == 8 && offsetof(ncclConfig_t, version) == 12);
static_assert(offsetof(ncclConfig_t, blocking) == 16 && offsetof(ncclConfig_t, cgaClusterSize) == 20);
static_assert(offsetof(ncclConfig_t, minCTAs) == 24 && offsetof(ncclConfig_t, maxCTAs) == 28);
static_assert(NCCL_CONFIG_UNDEF_INT == -2147483647 - 1);
#if NCCL_VERSION_CODE >= 22700
static_assert(offsetof(ncclConfig_t, CTAPolicy) == 60 && sizeof(ncclConfig_t) >= 72);
#endif
#if NCCL_VERSION_CODE >= 23200
static_assert(sizeof(ncclCollConfig_t) == 72 && offsetof(ncclCollConfig_t, minCTAs) == 24);
static_assert(offsetof(ncclCollConfig_t, algSelection) == 40 && offsetof(ncclCollConfig_t, CTAPolicy) == 52);
static_assert(offsetof(ncclCollConfig_t, launchCompletionEvent) == 64);
#endif
const unsigned magic = ((ncclConfig_t)NCCL_CONFIG_INITIALIZER).magic;
int main() { return magic == 0xcafebeef ? 0 : 1; }
"""


def headers() -> list[Path]:
    named = [Path(entry) for entry in os.environ.get("BLINK_NCCL_INCLUDE", "").split(":") if entry]
    wheels = [Path(entry) / "nvidia" / "nccl" / "include" for entry in sys.path]
    return [place for place in (*named, *wheels, Path("/usr/include")) if (place / "nccl.h").is_file()]


def compiles(text: str, place: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Compile C++ that includes the headers in ``place``, with declarations of the CUDA types that they need."""
    streams = "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    (directory / "cuda_runtime.h").write_text(f"#pragma once\n#include <cstddef>\n#include <cstdint>\n{streams}")
    (directory / "cuda.h").write_text("#pragma once\nenum CUmemLocationType {};\n")
    (directory / "cuda_fp16.h").write_text("#pragma once\nstruct half {};\nstruct half2 {};\n")
    for name in ("cuda_bf16.h", "cuda_fp8.h"):
        (directory / name).write_text("")
    (directory / "source.cpp").write_text(text)
    command = [COMPILER, "-std=c++17", f"-I{directory}", f"-I{place}", str(directory / "source.cpp")]
    return subprocess.run([*command, "-o", str(directory / "program")], capture_output=True, text=True, check=False)


@pytest.fixture(
    scope="module",
    params=["here", *(pytest.param(version, marks=pytest.mark.slow) for version in [*WHEELS, "newest"])],
)
def places(request: pytest.FixtureRequest) -> list[Path]:
    directories = headers() if request.param == "here" else [wheel(request.param).with_name("include")]
    if not directories or shutil.which(COMPILER) is None:
        pytest.skip("no nccl.h here (pip install nvidia-nccl-cu13 --no-deps, or BLINK_NCCL_INCLUDE), or no compiler")
    return directories


def test_structures_are_laid_out_as_we_read_them(places: list[Path], tmp_path: Path) -> None:
    for place in places:
        result = compiles(SOURCE, place, tmp_path)
        assert result.returncode == 0, f"{place}:\n{result.stderr[-2000:]}"
        assert subprocess.run([tmp_path / "program"], check=False).returncode == 0, place


#: Declared, but in no library up to 2.32.3, so a lookup must fail.
DECLARED_ONLY = {"ncclCftBarrierCreateRequirement"}
TABLE = Path(__file__).resolve().parents[3] / "native" / "shim" / "nccl_functions.def"
ROW = re.compile(r"^BLINK_(?:HANDLED\(|FORWARDED\(|FUNCTION\(([^,]+), )(nccl\w+), \d+, (\([^()]*\))", re.MULTILINE)
DECLARED = re.compile(
    r"^(?!.*(?:typedef|INLINE|inline|IR_EXTERN))[\w *]+?[ *](nccl[A-Z]\w*)(?<!Session)\s*\(", re.MULTILINE
)


def interface(place: Path) -> dict[str, str]:
    """Texts of the headers with host functions by name; before 2.32 the device interface's were spread over its own."""
    own = (
        ["host.h"]
        if (place / "nccl_device" / "host.h").is_file()
        else ["core.h", "lsa_barrier.h", "gin_barrier.h", "ll_a2a.h"]
    )
    files = ["nccl.h", *(f"nccl_device/{name}" for name in own)]
    read = {name: (place / name).read_text(encoding="utf-8") for name in files if (place / name).is_file()}
    return {name: re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL) for name, text in read.items()}


def test_functions_are_those_of_the_headers(places: list[Path], tmp_path: Path) -> None:
    """A second C declaration of a function has the same types, or does not compile."""
    rows = {
        name: f"{result or 'ncclResult_t'} {name}{types};" for result, name, types in ROW.findall(TABLE.read_text())
    }
    for place in places:
        texts = interface(place)
        declared = {name for text in texts.values() for name in DECLARED.findall(text)} - DECLARED_ONLY
        assert len(declared) > 35
        assert declared <= rows.keys(), f"{place}: {TABLE.name} lacks {sorted(declared - rows.keys())}"
        included = [f'#include "{name}"' for name in texts]
        named = [f"typedef struct {name} {name}_t;" for name in ("ncclGinInboxA2AHandle", "ncclGinOutboxHandle")]
        redeclared = [f"#undef {name}\n{rows[name]}" for name in sorted(declared)]  # one is a macro, too
        source = "\n".join([*included, *named, 'extern "C" {', *redeclared, "}", "int main() {}"])
        result = compiles(source, place, tmp_path)
        assert result.returncode == 0, f"{place}:\n{result.stderr[-2000:]}"
