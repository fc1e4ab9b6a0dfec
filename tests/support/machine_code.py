"""The output of NVIDIA's compilers for generated code: registers, memory, and instructions per function.

A kernel's numbers are in the cubin itself, from nvcc and NVRTC. Spills come from ptxas, per function. Instructions come
from the PTX and, if nvdisasm is installed, from the machine code.
"""

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blinkccl.native.headers import header

_CALL = header("call.h").constants
THREAD_REGISTERS, BLOCK_BYTES = _CALL["kThreadRegisters"], _CALL["kBlockBytes"]
#: Attributes in .nv.info: (function, registers) and (function, bytes of stack).
_REGISTERS, _STACK = 0x2F, 0x11
_WIDE = r"\.v2\.[ub]64"
#: The 16-byte moves of a fold, per wire; it has no other moves of 8 bytes or more.
_MESSAGES = {
    "Simple": (rf"ld\.global\.L1::no_allocate{_WIDE}", rf"st\.global{_WIDE}"),
    "LL": (rf"ld\.relaxed\.sys\.global{_WIDE}", rf"st\.relaxed\.sys\.global{_WIDE}"),
    "LL128": (rf"ld\.relaxed\.sys\.global{_WIDE}", rf"st\.relaxed\.sys\.global{_WIDE}"),
}
_SINGLE_WORD = r"\b(?:ld|st)(?:\.global)?(?:\.L1::no_allocate)?\.[ub]64\b"
#: Instructions that order memory: their number per kernel, for counted messages and for messages with flags. One
#: release and the atomics report why a launch gave up.
ORDERING = {
    r"\bfence\.|\bmembar\.": (0, 0),
    r"\bld\.acquire\.": (1, 0),
    r"\bst\.release\.": (2, 1),
    r"\batom\.": (1, 1),
    # Accesses outside of the memory model: read-only data, textures and asynchronous copies.
    r"\bld\.global\.(?:\S*\.)?nc\b|\b(?:tex|cp\.async)\.": (0, 0),
}


@dataclass(frozen=True, slots=True)
class KernelNumbers:
    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class MachineCode:
    """One compiled file: its kernels; function → (bytes stored, bytes loaded) of spills, PTX, and SASS if available."""

    kernels: Mapping[str, KernelNumbers]
    spills: Mapping[str, tuple[int, int]]
    ptx: Mapping[str, str]
    sass: Mapping[str, str]


def kernel_numbers(cubin: bytes) -> dict[str, KernelNumbers]:
    """Return the numbers of every kernel of a cubin."""
    table, count, names = (struct.unpack_from(kind, cubin, at)[0] for kind, at in (("<Q", 40), ("<H", 60), ("<H", 62)))
    rows = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * index) for index in range(count)]

    def text(at: int) -> str:
        return cubin[at : cubin.index(b"\0", at)].decode()

    sections = {text(rows[names][4] + row[0]): row for row in rows}
    symbols, strings = sections[".symtab"], sections[".strtab"]

    def symbol(index: int) -> str:
        return text(strings[4] + struct.unpack_from("<I", cubin, symbols[4] + 24 * index)[0])

    info = sections[".nv.info"]
    registers = {symbol(index): value for index, value in _attributes(cubin, info[4], info[5], _REGISTERS)}
    stack = {symbol(index): value for index, value in _attributes(cubin, info[4], info[5], _STACK)}
    shared = {name: sections[f".nv.shared.{name}"][5] for name in registers if f".nv.shared.{name}" in sections}
    return {
        name: KernelNumbers(registers[name], stack.get(name, 0), shared.get(name, 0))
        for name in registers
        if f".text.{name}" in sections
    }


def _attributes(cubin: bytes, at: int, size: int, wanted: int) -> Iterator[tuple[int, int]]:
    end = at + size
    while at < end:
        kind, attribute, length = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if kind == 4:
            if attribute == wanted:
                yield struct.unpack_from("<II", cubin, at)
            at += length


def compiled_code(text: str, architecture: str, nvcc: str, include: list[Path], directory: Path) -> MachineCode:
    """Compile ``text`` with nvcc, and return its output and that of ptxas."""
    source, cubin = directory / "kernel.cu", directory / "kernel.cubin"
    source.write_text(text, encoding="utf-8")
    command: list[str | Path] = [nvcc, "-std=c++17", "-O3", "-fmad=false", "-cubin", f"-arch={architecture}"]
    command += ["-Xptxas", "-v", "--keep", "--keep-dir", directory, *(f"-I{path}" for path in include)]
    done = subprocess.run([*command, source, "-o", cubin], capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    spills = re.findall(
        r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+)", done.stderr
    )
    return MachineCode(
        kernel_numbers(cubin.read_bytes()),
        {name: (int(stored), int(loaded)) for name, stored, loaded in spills},
        ptx_functions((directory / "kernel.ptx").read_text(encoding="utf-8")),
        sass_functions(cubin),
    )


def ptx_functions(ptx: str) -> dict[str, str]:
    """Return function or kernel → body."""
    start = r"^(?:\.visible |\.weak )?\.(?:func|entry)\b"
    head = start + r"[^;{]*?(\w+)\s*\([^;{]*?\)[^;{()]*"
    # A body extends to the next head, because its assembly may also have lines that begin with a brace.
    matches = re.finditer(head + rf"\{{(.*?)(?={start}|\Z)", ptx, re.M | re.S)
    return {each[1]: each[2] for each in matches}


def find_nvdisasm() -> str | None:
    """Return nvdisasm on PATH, or in the wheel nvidia-cuda-nvdisasm."""
    wheels = (path for base in sys.path for path in Path(base or ".").glob("nvidia/cu*/bin/nvdisasm"))
    return shutil.which("nvdisasm") or next(map(str, wheels), None)


def sass_functions(cubin: Path) -> dict[str, str]:
    """Return function → machine code; empty without nvdisasm."""
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return {}
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True, timeout=600).stdout
    parts = re.split(r"^(?:\.text\.|\$\w+\$)(\w+):$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def wire_of(function: str) -> str | None:
    """Return the wire of a fold, which is the first one in its mangled name."""
    match = re.search(r"7fold_asINS_\d+(Simple|LL128|LL)E", function)
    return match[1] if match else None


def over_budget(code: MachineCode) -> list[str]:
    """Return a sentence per number that exceeds its limit or differs from the expected one."""
    excesses = []
    for name, kernel in code.kernels.items():
        if kernel.registers > THREAD_REGISTERS:
            excesses.append(f"{name}: {kernel.registers} registers, at most {THREAD_REGISTERS}")
        if kernel.shared_bytes > BLOCK_BYTES:
            excesses.append(f"{name}: {kernel.shared_bytes} bytes of shared memory, at most {BLOCK_BYTES}")
    for name, (stored, loaded) in code.spills.items():
        if wire_of(name) and (stored or loaded):
            excesses.append(f"{name}: spills {stored} bytes and loads {loaded}")
    for name, body in code.ptx.items():
        wire = wire_of(name)
        if wire is None:
            continue
        loads, stores = (len(re.findall(rf"\b{kind}\b", body)) for kind in _MESSAGES[wire])
        if not loads or not stores:
            excesses.append(f"{name}: {loads} loads and {stores} stores of 16 bytes")
        if wire == "Simple" and re.search(_SINGLE_WORD, body):
            excesses.append(f"{name}: {len(re.findall(_SINGLE_WORD, body))} loads and stores of 8 bytes")
    whole = "\n".join(code.ptx.values())
    for kind, (counted, flagged) in ORDERING.items():
        number = len(re.findall(kind, whole))
        wanted = sum(flagged if re.search(r"_ll(128)?$", name) else counted for name in code.kernels)
        if number != wanted:
            excesses.append(f"{number} of {kind}, expected {wanted} in {', '.join(code.kernels)}")
    for name, body in code.ptx.items():
        if "st.release." in body and not re.search("7publish|11look_around", name):
            excesses.append(f"{name}: a release where nothing is published, and nobody gives up")
    for name, body in code.sass.items():
        local = len(re.findall(r"\b(?:LDL|STL)\b", body))
        if wire_of(name) and local:
            excesses.append(f"{name}: {local} instructions of local memory")
    return excesses
