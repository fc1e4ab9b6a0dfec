"""Each NVRTC, as its wheel installs it, compiles a plan on a machine with PyTorch's wheels and without a toolkit."""

import sys
from pathlib import Path

import pytest

from blinkccl.codegen import gpu_compiler as gpu_compilers
from blinkccl.codegen.device_files import INCLUDE_OVERRIDE
from blinkccl.codegen.gpu_compiler import NVRTC, Nvrtc, gpu_compiler, nvrtc_facts
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import INCLUDE, Kernel, code
from blinkccl.schedule.lower import lower
from support.nvrtc_wheels import nvrtc_wheel
from support.planned import plan

DEVICE = Path(__file__).parents[2] / "native" / "device"
#: torch 2.11 pins 13.0.88, whose wheel has no run path. The GPUs are V100 (70), A100 (80), H100 (90) and B200 (100).
ALWAYS = "13.0.88"
GPUS = {"12.6.77": (70, 80, 90), "12.9.86": (70, 80, 90, 100), ALWAYS: (80, 90, 100), "newest": (80, 90, 100)}


def text() -> str:
    """The code of trees that only move data, with LL, which compiles in a few seconds."""
    forest = plan("optimal", "dgx-1v", "1,4,5,6", "broadcast")
    program = lower(forest)
    lines = code(Kernel("trees", program, forest), ProgramGroup([program])).splitlines()
    with_entry = [line for line in lines if not line.startswith("BLINK_ENTRY") or "_ll," in line]
    return "\n".join([INCLUDE, *with_entry])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("version", "number"),
    [
        pytest.param(version, number, marks=[] if (version, number) == (ALWAYS, 90) else [pytest.mark.slow])
        for version, numbers in GPUS.items()
        for number in numbers
    ],
)
def test_a_wheel_compiles_a_plan(version: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc_wheel(version, tmp_path)
    monkeypatch.delenv(NVRTC, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(gpu_compilers, "find_nvcc", lambda: None)
    monkeypatch.setattr(gpu_compilers, "_DIRECTORIES", ())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(one for one in sys.path if not Path(one, "nvidia").exists())])
    monkeypatch.setenv(INCLUDE_OVERRIDE, str(DEVICE))
    compiler = gpu_compiler(f"sm_{number}")
    assert isinstance(compiler, Nvrtc)
    assert tmp_path in compiler.library.parents
    if version != "newest":
        assert nvrtc_facts(compiler.library).version == tuple(map(int, version.split(".")[:2]))
    cubin = compiler.compile(text(), 900)
    assert cubin[:4] == b"\x7fELF"
    assert b"blink_trees_ll" in cubin
