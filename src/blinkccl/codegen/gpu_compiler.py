"""Generated code compiled for GPUs, by NVIDIA's nvcc or by NVRTC, its run-time compiler.

NVRTC is one library, without toolkit and host compiler, and comes with PyTorch's wheels. It runs in a process of its
own (:mod:`blinkccl.codegen.nvrtc_child`), which can be ended when it takes too long.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from blinkccl.codegen.command import compiled, run, version_of
from blinkccl.codegen.device_files import include_directory, searched
from blinkccl.errors import UnsupportedError

#: A product and the sum that it enters are rounded one after the other: the bits of blinkccl.collectives.ops.
NVCC_FLAGS = ("-std=c++17", "-O3", "-fmad=false")
NVRTC_FLAGS = ("--std=c++17", "--fmad=false")
#: Environment variables that name the one and the other.
NVCC, NVRTC = "BLINK_NVCC", "BLINK_NVRTC_LIB"
#: Of site-packages: the wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc.
_WHEELS = ("nvidia/cuda_nvrtc/lib", "nvidia/cu*/lib")
_DIRECTORIES = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_CHILD = (sys.executable, "-m", "blinkccl.codegen.nvrtc_child")


def gpu_compiler(architecture: str, driver: tuple[int, int] | None = None) -> Nvcc | Nvrtc:
    """NVRTC or nvcc, whichever is here and serves ``architecture``, like ``sm_90``; else UnsupportedError.

    ``driver`` is the CUDA version of the driver that will load the code, which need not know the code of a compiler of
    a later major version: one that is not later is preferred.
    """
    found: list[tuple[bool, Nvcc | Nvrtc]] = []
    reasons = []
    try:
        runtime = nvrtc(architecture)
        found.append((_loads(nvrtc_facts(runtime.library).version, driver), runtime))
    except UnsupportedError as error:
        reasons.append(error.reason)
    try:
        offline = nvcc(architecture)
        found.append((_loads(nvcc_version(offline.command), driver), offline))
    except UnsupportedError as error:
        reasons.append(error.reason)
    if not found:
        raise UnsupportedError(f"no compiler for {architecture}: {'; '.join(reasons)}")
    return next((compiler for loads, compiler in found if loads), found[0][1])


def _loads(version: tuple[int, int], driver: tuple[int, int] | None) -> bool:
    return driver is None or version[0] <= driver[0]


# ---- nvcc


@dataclass(frozen=True)
class Nvcc:
    """nvcc for certain GPUs: ``("sm_90",)`` makes a cubin, several a fatbin."""

    command: str
    architectures: tuple[str, ...]
    include: Path
    flags: tuple[str, ...] = NVCC_FLAGS

    @property
    def suffix(self) -> str:
        return ".cubin" if len(self.architectures) == 1 else ".fatbin"

    def fingerprint(self) -> str:
        return "\n".join([version_of(self.command), *self.flags, *self.architectures])

    def compile(self, text: str, deadline_s: float) -> bytes:
        if len(self.architectures) == 1:
            target = ["-cubin", f"-arch={self.architectures[0]}"]
        else:
            target = ["-fatbin"]
            for name in self.architectures:
                target += ["-gencode", f"arch={name.replace('sm_', 'compute_')},code={name}"]

        def command(source: Path, output: Path) -> list[str]:
            include = (f"-I{path}" for path in searched(self.include))
            return [self.command, *self.flags, *target, *include, str(source), "-o", str(output)]

        return compiled(text, ".cu", command, deadline_s)


def find_nvcc() -> str | None:
    """The nvcc that ``BLINK_NVCC`` names, or that of CUDA_HOME, of PATH or of /usr/local/cuda."""
    named = os.environ.get(NVCC)
    if named:
        return named
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for path in ([f"{home}/bin/nvcc"] if home else []) + ["nvcc", "/usr/local/cuda/bin/nvcc"]:
        found = shutil.which(path)
        if found:
            return found
    return None


@lru_cache(maxsize=8)
def nvcc_version(command: str) -> tuple[int, int]:
    """(major, minor) of its CUDA."""
    found = re.search(r"release (\d+)\.(\d+)", version_of(command))
    if found is None:
        raise UnsupportedError(f"{command} --version names no release; is it nvcc?")
    return int(found[1]), int(found[2])


@lru_cache(maxsize=8)
def nvcc_architectures(command: str) -> tuple[str, ...]:
    """The GPUs it compiles for: ``("sm_75", …)``."""
    code, said = run([command, "--list-gpu-code"], 20.0)
    if code:
        raise UnsupportedError(f"{command} --list-gpu-code fails (exit code {code}): {said[:200]}")
    return tuple(dict.fromkeys(re.findall(r"\bsm_\d+\b", said)))


def nvcc(*architectures: str) -> Nvcc:
    """nvcc for ``architectures``, like ``sm_90``; UnsupportedError if there is none, or it does not know them."""
    command = find_nvcc()
    if command is None:
        raise UnsupportedError(
            f"there is no nvcc: {NVCC} is not set, and neither CUDA_HOME, PATH nor /usr/local/cuda has one; "
            "install NVIDIA's CUDA toolkit, or pip install nvidia-cuda-nvrtc for the compiler alone"
        )
    known = nvcc_architectures(command)
    for name in architectures:
        if name not in known:
            raise UnsupportedError(f"{command} does not compile for {name}: expected one of {', '.join(known)}")
    return Nvcc(command, architectures, include_directory())


# ---- NVRTC


@dataclass(frozen=True)
class Nvrtc:
    """NVRTC for one kind of GPU, like ``sm_70``."""

    library: Path
    architecture: str
    include: Path
    flags: tuple[str, ...] = NVRTC_FLAGS
    suffix: str = ".cubin"

    def fingerprint(self) -> str:
        return "\n".join(["nvrtc", str(nvrtc_facts(self.library)), *self.flags, self.architecture])

    def compile(self, text: str, deadline_s: float) -> bytes:
        include = (f"--include-path={path}" for path in searched(self.include))
        options = [*self.flags, f"--gpu-architecture={self.architecture}", *include]

        def command(source: Path, output: Path) -> list[str]:
            return [*_CHILD, "compile", str(self.library), str(source), str(output)]

        return compiled(text, ".cu", command, deadline_s, json.dumps(options))


def find_nvrtc() -> Path | None:
    """The library that ``BLINK_NVRTC_LIB`` names, or the newest of the wheels on sys.path, or that of the system."""
    named = os.environ.get(NVRTC)
    if named:
        return Path(named)
    for base in sys.path:
        for wheel in _WHEELS:
            found = _libraries(Path(base or "."), wheel)
            if found:
                return found[-1]
    ours = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for directory in [*filter(None, ours), *_DIRECTORIES]:
        found = _libraries(Path(directory), ".")
        if found:
            return found[-1]
    return None


def _libraries(base: Path, below: str) -> list[Path]:
    """The versions of libnvrtc in a directory, oldest first."""
    found = []
    for directory in sorted(base.glob(below)) if below != "." else [base]:
        found += [path for path in directory.glob("libnvrtc.so.*") if "alt" not in path.name]
    return sorted(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])


@dataclass(frozen=True, slots=True)
class NvrtcFacts:
    """What a library says of itself: its CUDA version, and the GPUs it compiles for."""

    version: tuple[int, int]
    architectures: tuple[str, ...]


@lru_cache(maxsize=8)
def nvrtc_facts(library: Path) -> NvrtcFacts:
    """Version and architectures of ``library``; UnsupportedError if it cannot be loaded."""
    code, said = run([*_CHILD, "facts", str(library)], 30.0)
    if code:
        raise UnsupportedError(f"{library} cannot be used: {said.strip()[:300]}")
    facts = json.loads(said)
    return NvrtcFacts(tuple(facts["version"]), tuple(f"sm_{number}" for number in facts["architectures"]))


def nvrtc(architecture: str) -> Nvrtc:
    """NVRTC for ``architecture``, like ``sm_70`` (which is known up to CUDA 12); UnsupportedError if it is not here."""
    library = find_nvrtc()
    if library is None:
        raise UnsupportedError(
            f"there is no libnvrtc: {NVRTC} is not set, and no wheel on sys.path, no directory of LD_LIBRARY_PATH "
            "and no usual one has it; pip install nvidia-cuda-nvrtc"
        )
    known = nvrtc_facts(library).architectures
    if architecture not in known:
        raise UnsupportedError(f"{library} does not compile for {architecture}: expected one of {', '.join(known)}")
    return Nvrtc(library, architecture, include_directory())
