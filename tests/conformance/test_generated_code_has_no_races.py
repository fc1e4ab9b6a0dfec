"""Generated code and the device layer, as one program under sanitizers, have no data race and no invalid address."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from blinkccl.codegen.layout import Geometry, ProgramGroup
from blinkccl.codegen.text import INCLUDE, WIRES, Kernel, code
from blinkccl.collectives.oracle import make_inputs, oracle
from blinkccl.native.headers import DIRECTORY, abi
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from support.engines import Array
from support.planned import asked, planned
from support.processes import fixed_addresses

HERE = Path(__file__).parent
DEVICE, EMULATE = HERE.parents[1] / "native" / "device", HERE.parent / "emulate"
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
#: Plans with trees, rings and stars; reductions in one and in several hops; one slot and more.
PLANS = (
    ("dgx-1v", "1,4,5,6", "optimal", "allreduce", 2),
    ("dgx-1v", "0,1,2,3", "blink", "reduce", 1),
    ("ring:4", None, "ring", "allgather", 1),
    ("dgx-a100", "0,1,2", "one_shot", "allreduce", 1),
    ("clique:4", None, "double_binary_tree", "broadcast", 2),
    ("ring:4", None, "optimal", "alltoall", 2),
)
COUNT = 300


def programs() -> list[Program]:
    return [lower(planned(how, asked(spec, name, gpus, root=1)), slots) for spec, gpus, how, name, slots in PLANS]


def source(programs: list[Program]) -> str:
    """The code of all programs in one file, with the table of entries to which the cases refer by index."""
    text = [INCLUDE, *(code(Kernel(f"p{i}", program), ProgramGroup([program])) for i, program in enumerate(programs))]
    entries = ", ".join(Kernel(f"p{i}", p).entry(protocol) for i, p in enumerate(programs) for protocol in WIRES)
    main = f"int main() {{\n  const Entry entries[] = {{{entries}}};\n  return run_cases(entries);\n}}\n"
    return "\n".join([*text, '#include "run_generated.h"\n', main])


def case(index: int, program: Program) -> str:
    """The input line of ``run_generated.h``: two parts, and many more messages of 48 bytes than slots."""
    geometry = Geometry(2, max(channel.slots for channel in program.channels), 128, 128)
    layout = ProgramGroup([program]).layout(geometry)
    inputs = make_inputs(program.collective, COUNT, "int32")
    numbers = [index, len(program.ranks), len(program.channels) * geometry.parts]
    numbers += [geometry.parts, geometry.slots, geometry.slot_bytes, geometry.line_bytes, COUNT, 48]
    numbers.append(len(layout.connections))
    for at in layout.connections:
        numbers += [at.src, at.dst, at.ring, at.lines, at.tail, at.dst_position, at.head, at.src_position]
    outputs = oracle(program.collective, inputs, "sum")
    numbers += chain.from_iterable(
        chain([size], _values(values), _values(expected))
        for size, values, expected in zip(layout.segment_bytes, inputs, outputs, strict=True)
    )
    return " ".join(map(str, numbers))


def _values(buffer: Array | None) -> Iterator[int]:
    yield 0 if buffer is None else len(buffer)
    yield from [] if buffer is None else map(int, buffer)


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler: neither CXX, g++ nor clang++")
@pytest.mark.parametrize(
    ("sanitizer", "emulated"),
    [
        ("thread", False),
        pytest.param("address,undefined", False, marks=pytest.mark.slow),
        pytest.param("thread", True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_generated_code_under_sanitizers(sanitizer: str, emulated: bool, tmp_path: Path) -> None:
    """Blocks have one thread, or if emulated 64 threads of this CPU, for the plans with few channels."""
    selected = [program for program in programs() if not emulated or len(program.channels) <= 2]
    (tmp_path / "generated.cpp").write_text(source(selected), encoding="utf-8")
    program = tmp_path / "run"
    flags = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    flags += ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
    machine = sorted((DEVICE / "host").glob("*.cpp"))
    if emulated:
        flags += ["-DBLINK_EMULATED", "-Wno-tsan"]
        machine = [EMULATE / "threads.cpp", EMULATE / "launch.cpp"]
    files = [tmp_path / "generated.cpp", *machine]
    named = ['-DBLINK_VERSION="test"', f"-DBLINK_ABI={abi()}u"]
    include = [f"-I{path}" for path in (DEVICE, DIRECTORY, HERE, EMULATE.parent)]
    assert CXX is not None
    built = subprocess.run(
        [*CXX.split(), *flags, *named, *include, *files, "-pthread", "-o", program],
        capture_output=True,
        text=True,
    )
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"{CXX} has no library for -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr[:4000]
    cases = [case(i, each) for i, each in enumerate(selected)]
    options = {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    ended = subprocess.run(
        [*fixed_addresses(), program],
        input="\n".join(cases),
        capture_output=True,
        text=True,
        timeout=1500 if emulated else 200,
        env={**os.environ, **options},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[:4000]
    assert ended.stdout == f"{len(cases)} cases\n"
