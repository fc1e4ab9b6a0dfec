"""Budgets of the real machine code: registers, shared memory, spills, widths and fences, for every architecture.

The driver's double computes the blocks per multiprocessor from ``kThreadRegisters`` and ``kBlockBytes`` of ``call.h``.
These tests compare both numbers with the code of nvcc and NVRTC.
"""

import shutil
from pathlib import Path

import pytest

from blinkccl.codegen.gpu_compiler import find_nvcc, nvcc_architectures, nvrtc, nvrtc_facts, nvrtc_libraries
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import INCLUDE, WIRES, Kernel, code
from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import DIRECTORY
from blinkccl.schedule.lower import lower
from support.machine_code import (
    BLOCK_BYTES,
    THREAD_REGISTERS,
    MachineCode,
    compiled_code,
    find_nvdisasm,
    kernel_numbers,
    over_budget,
)
from support.planned import plan

DEVICE = Path(__file__).parents[2] / "native" / "device"
NVCC, NVRTC = find_nvcc(), next(iter(nvrtc_libraries()), None)
KNOWN = nvcc_architectures(NVCC) if NVCC else ("sm_80", "sm_90")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc: neither BLINK_NVCC, CUDA_HOME nor PATH has one")
#: Plans with few and many roles per loop: trees, stars with many ends, a ring with as many slices as ranks.
PLANS = {
    "trees": ("optimal", "dgx-1v", "1,4,5,6"),
    "more_trees": ("optimal", "dgx-1v", None),
    "stars": ("one_hop", "dgx-a100", None),
    "rings": ("ring", "dgx-a100", None),
}
#: The tightest case; the others run with BLINK_ALL_TESTS=1.
FIRST = {("trees", "ll128", "sm_90")}
#: A single fold, which compiles quickly.
FOLD = """
#include "blink/context.h"
extern "C" __global__ void __launch_bounds__(512, 2) fold_alone() {
  __shared__ blink::device::State state;
  blink::device::fold_as<blink::WIRE, blink::device::FORMAT>(state);
}
"""


def text_of(name: str, protocol: str) -> str:
    algorithm, spec, gpus = PLANS[name]
    program = lower(plan(algorithm, spec, gpus, "allreduce"), slots=4, channels=8)
    lines = code(Kernel(name, program, slots=4), ProgramGroup([program])).splitlines()
    with_entry = [line for line in lines if not line.startswith("BLINK_ENTRY") or f"_{protocol}," in line]
    return "\n".join([INCLUDE, *with_entry])


def compiled_for(text: str, architecture: str, directory: Path, device: Path = DEVICE) -> MachineCode:
    assert NVCC is not None
    return compiled_code(text, architecture, NVCC, [device, DIRECTORY], directory)


@needs_nvcc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "protocol", "architecture"),
    [
        pytest.param(*case, marks=[] if case in FIRST else [pytest.mark.slow])
        for case in ((name, protocol, arch) for name in PLANS for protocol in WIRES for arch in KNOWN)
    ],
)
def test_kernels_are_within_their_budgets(name: str, protocol: str, architecture: str, tmp_path: Path) -> None:
    binary = compiled_for(text_of(name, protocol), architecture, tmp_path)
    assert list(binary.kernels) == [f"blink_{name}_{protocol}"]
    folds = [sum("7fold_as" in function for function in functions) for functions in (binary.ptx, binary.spills)]
    assert folds == [13, 13]
    assert bool(binary.sass) == (find_nvdisasm() is not None)
    assert over_budget(binary) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("protocol", WIRES)
@pytest.mark.parametrize("name", PLANS)
def test_kernels_for_the_v100_are_within_their_budgets(
    name: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for sm_70 needs NVRTC of at most CUDA 12."""
    if NVRTC is None:
        pytest.skip("no libnvrtc: neither BLINK_NVRTC_LIB nor a wheel has one")
    try:
        known = nvrtc_facts(NVRTC).architectures
    except UnsupportedError as refusal:
        pytest.skip(refusal.reason)
    if "sm_70" not in known:
        pytest.skip(f"{NVRTC.name} does not know sm_70")
    monkeypatch.setenv("BLINK_DEVICE_INCLUDE", str(DEVICE))
    for kernel in kernel_numbers(nvrtc("sm_70").compile(text_of(name, protocol), 900)).values():
        assert kernel.registers <= THREAD_REGISTERS
        assert kernel.shared_bytes <= BLOCK_BYTES


FAULTS = {
    "eight units in flight": ("fold.h", "? 1 : 2;", "? 1 : 8;", "spills"),
    "stores of 8 bytes": (
        "platform_cuda.h",
        'asm volatile("st.global.v2.u64 [%0], {%1, %2};"',
        'asm volatile("st.global.u64 [%0], %1; st.global.u64 [%0+8], %2;"',
        "stores of 8 bytes",
    ),
    "loads of 8 bytes": (
        "platform_cuda.h",
        'asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"',
        'asm volatile("ld.global.u64 %0, [%2]; ld.global.u64 %1, [%2+8];"',
        "0 loads",
    ),
    "own data as read-only ones": (
        "platform_cuda.h",
        "return *reinterpret_cast<const T*>(at);",
        "return __ldg(reinterpret_cast<const T*>(at));",
        r"nc\b",
    ),
    "a fence in every batch": ("fold.h", "batch.put(data);", "__threadfence_system(); batch.put(data);", "fence"),
}


ALONE = FOLD.replace("WIRE", "Simple").replace("FORMAT", "Bfloat16")


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The findings of the unchanged fold: it publishes nothing, so it lacks the memory ordering of a kernel."""
    return over_budget(compiled_for(ALONE, "sm_90", tmp_path_factory.mktemp("right")))


@needs_nvcc
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_over_budget(name: str, right: list[str], tmp_path: Path) -> None:
    file, old, new, finding = FAULTS[name]
    shutil.copytree(DEVICE, tmp_path / "device")
    path = tmp_path / "device" / "blink" / file
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new), encoding="utf-8")
    findings = over_budget(compiled_for(ALONE, "sm_90", tmp_path, tmp_path / "device"))
    assert [one for one in findings if finding in one], findings
    assert not [one for one in right if finding in one], right
