"""What libblink.so takes NCCL's structures to be is what NCCL's own header says, in any version that is at hand.

Headers: those of ``BLINK_NCCL_INCLUDE`` (directories, separated by colons), of NVIDIA's wheels and of the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = os.environ.get("CXX", "g++")
#: As native/shim/nccl_types.h has it; fields of the configuration by the version that brought them.
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


def test_structures_are_laid_out_as_we_read_them(tmp_path: Path) -> None:
    found = headers()
    if not found or shutil.which(COMPILER) is None:
        pytest.skip("no nccl.h here (pip install nvidia-nccl-cu13 --no-deps, or BLINK_NCCL_INCLUDE), or no compiler")
    # What the header wants of CUDA's, as far as these structures need it.
    (tmp_path / "cuda_runtime.h").write_text(
        "#pragma once\ntypedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    )
    for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).write_text("")
    source = tmp_path / "layouts.cpp"
    source.write_text(SOURCE)
    for place in found:
        program = tmp_path / "layouts"
        command = [COMPILER, "-std=c++17", f"-I{tmp_path}", f"-I{place}", str(source), "-o", str(program)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"{place}:\n{made.stderr[-2000:]}"
        assert subprocess.run([program], check=False).returncode == 0, place
