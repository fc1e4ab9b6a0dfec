"""Generated code of every algorithm × collective compiles with NVIDIA's compilers without a warning."""

from functools import cache
from itertools import cycle
from pathlib import Path

import pytest

from blinkccl.codegen.command import compiled
from blinkccl.codegen.device_files import INCLUDE_OVERRIDE, include_directory, searched
from blinkccl.codegen.gpu_compiler import find_nvcc, nvcc_architectures, nvrtc, nvrtc_facts, nvrtc_libraries
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import INCLUDE, WIRES, Kernel, code
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest
from support.examples import ALL_TESTS
from support.planned import asked

#: Machines that together have a plan of every algorithm.
JOBS = {"dgx-a100": "0,3,5,6", "2x dgx-1v @ 40Gbps": "0,1+1,2"}
NVCC = find_nvcc()
NVRTC = next(iter(nvrtc_libraries()), None)
KNOWN = nvcc_architectures(NVCC) if NVCC else ("sm_90",)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc: neither BLINK_NVCC, CUDA_HOME nor PATH has one")
needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="no libnvrtc: neither BLINK_NVRTC_LIB nor a wheel has one")


@pytest.fixture(autouse=True)
def _headers_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the headers of this checkout, and not those that were installed last."""
    monkeypatch.setenv(INCLUDE_OVERRIDE, str(Path(__file__).parents[2] / "native" / "device"))


def plan(spec: str, algorithm: str, name: str) -> Forest | None:
    try:
        return ALGORITHMS[algorithm].plan(asked(spec, name, JOBS[spec], root=1))
    except UnsupportedError:
        return None


@cache
def everything() -> dict[tuple[str, str], str]:
    """(algorithm, collective) → code, each on the first machine that has a plan."""
    texts: dict[tuple[str, str], str] = {}
    for spec in JOBS:
        for algorithm in ALGORITHMS:
            for name in COLLECTIVES:
                forest = None if (algorithm, name) in texts else plan(spec, algorithm, name)
                if forest is not None:
                    program = lower(forest)
                    kernel = Kernel(f"{algorithm}_{name}", program, forest)
                    texts[algorithm, name] = code(kernel, ProgramGroup([program]))
    return texts


@cache
def chosen() -> dict[tuple[str, str], str]:
    """The part of :func:`everything` for ``make test``: every algorithm and every collective, most of them once."""
    if ALL_TESTS:
        return everything()
    texts, names = {}, cycle(COLLECTIVES)
    for algorithm in ALGORITHMS:
        served = [name for name in COLLECTIVES if (algorithm, name) in everything()]
        name = next(name for name in names if name in served)
        texts[algorithm, name] = everything()[algorithm, name]
    left = set(COLLECTIVES) - {name for _, name in texts}
    return texts | {("optimal", name): everything()["optimal", name] for name in COLLECTIVES if name in left}


def accepted(text: str, *options: str) -> bytes:
    """The output of nvcc for ``text``; warnings are errors."""
    include = [f"-I{path}" for path in searched(include_directory())]

    def command(source: Path, output: Path) -> list[str]:
        assert NVCC is not None
        start = [NVCC, "-std=c++17", "-fmad=false", "-Werror", "all-warnings", *include, *options]
        return [*start, str(source), "-o", str(output)]

    return compiled(text, ".cu", command, 1800)


def with_one_entry(algorithm: str, name: str, protocol: str) -> str:
    lines = (INCLUDE + everything()[algorithm, name]).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("BLINK_ENTRY") or f"_{protocol}," in line)


def test_no_algorithm_and_no_collective_is_left_out() -> None:
    assert {algorithm for algorithm, _ in everything()} == set(ALGORITHMS)
    assert {name for _, name in everything()} == set(COLLECTIVES)
    assert {algorithm for algorithm, _ in chosen()} == set(ALGORITHMS)
    assert {name for _, name in chosen()} == set(COLLECTIVES)


@needs_nvcc
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=[] if name == "sm_90" else [pytest.mark.slow]) for name in KNOWN],
)
def test_it_compiles_to_ptx(architecture: str) -> None:
    """All code is compiled in one file without optimization, which shows errors and warnings."""
    ptx = accepted("\n".join([INCLUDE, *chosen().values()]), "-ptx", f"-arch={architecture}", "-Xcicc", "-O0")
    assert ptx.count(b".visible .entry") == 3 * len(chosen())


@needs_nvcc
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_plan_compiles_for_every_gpu_that_nvcc_knows() -> None:
    """The protocols are used in turn."""
    for index, architecture in enumerate(KNOWN):
        text = with_one_entry("optimal", "sendrecv", list(WIRES)[index % len(WIRES)])
        ptx = accepted(text, "-ptx", f"-arch={architecture}")
        assert f".target {architecture}".encode() in ptx
        assert ptx.count(b".visible .entry") == 1


@needs_nvcc
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "protocol", [pytest.param(name, marks=[] if name == "ll128" else [pytest.mark.slow]) for name in WIRES]
)
def test_a_reducing_plan_compiles_for_one_gpu(protocol: str) -> None:
    cubin = accepted(with_one_entry("optimal", "reduce", protocol), "-cubin", "-arch=sm_90")
    assert f"blink_optimal_reduce_{protocol}".encode() in cubin


@needs_nvcc
@pytest.mark.timeout(7200)
@pytest.mark.slow
@pytest.mark.parametrize("architecture", KNOWN)
def test_everything_compiles_for_every_gpu(architecture: str) -> None:
    for text in everything().values():
        assert accepted(INCLUDE + text, "-cubin", f"-arch={architecture}")[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", ["sm_70", "sm_90"])
def test_nvrtc_compiles_it(architecture: str) -> None:
    """The planner uses NVRTC, without a toolkit or host compiler. CUDA 13 no longer supports the V100, sm_70."""
    assert NVRTC is not None
    try:
        known = nvrtc_facts(NVRTC).architectures
    except UnsupportedError as refusal:
        pytest.skip(refusal.reason)
    if architecture not in known:
        pytest.skip(f"{NVRTC.name} does not know {architecture}")
    compiler = nvrtc(architecture)
    cubin = compiler.compile(INCLUDE + everything()["blink", "broadcast"], 600)
    assert cubin[:4] == b"\x7fELF"
    assert b"blink_blink_broadcast_ll128" in cubin
