"""Generated code for GPUs, compiled by NVIDIA's run-time compiler: one library, no toolkit and no host compiler.

It comes with PyTorch's wheels. The library runs in a process of its own, which can be ended when it takes too long.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from blinkccl.codegen.command import compiled, run
from blinkccl.codegen.device_files import include_directory
from blinkccl.errors import UnsupportedError

FLAGS = ("--std=c++17", "--fmad=false")
OVERRIDE = "BLINK_NVRTC_LIB"
#: Of site-packages: the wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc.
_WHEELS = ("nvidia/cuda_nvrtc/lib", "nvidia/cu*/lib")
_DIRECTORIES = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_CHILD = (sys.executable, "-m", "blinkccl.codegen.nvrtc_child")


@dataclass(frozen=True)
class Nvrtc:
    """NVRTC for one kind of GPU, like ``sm_70``."""

    library: Path
    architecture: str
    include: Path
    flags: tuple[str, ...] = FLAGS
    suffix: str = ".cubin"

    def fingerprint(self) -> str:
        return "\n".join(["nvrtc", str(nvrtc_facts(self.library)), *self.flags, self.architecture])

    def compile(self, text: str, deadline_s: float) -> bytes:
        options = [*self.flags, f"--gpu-architecture={self.architecture}", f"--include-path={self.include}"]

        def command(source: Path, output: Path) -> list[str]:
            return [*_CHILD, "compile", str(self.library), str(source), str(output)]

        return compiled(text, ".cu", command, deadline_s, json.dumps(options))


def find_nvrtc() -> Path | None:
    """The library that ``BLINK_NVRTC_LIB`` names, or the newest of the wheels on sys.path, or that of the system."""
    named = os.environ.get(OVERRIDE)
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
    """Version and architectures of ``library``.

    Raises
    ------
    UnsupportedError
        If it cannot be loaded.
    """
    code, said = run([*_CHILD, "facts", str(library)], 30.0)
    if code:
        raise UnsupportedError(f"{library} cannot be used: {said.strip()[:300]}")
    facts = json.loads(said)
    return NvrtcFacts(tuple(facts["version"]), tuple(f"sm_{number}" for number in facts["architectures"]))


def nvrtc(architecture: str) -> Nvrtc:
    """NVRTC for ``architecture``, like ``sm_70`` (which is known up to CUDA 12).

    Raises
    ------
    UnsupportedError
        If there is no NVRTC, or it does not know the GPU.
    """
    library = find_nvrtc()
    if library is None:
        raise UnsupportedError(
            f"there is no libnvrtc: {OVERRIDE} is not set, and no wheel on sys.path, no directory of LD_LIBRARY_PATH "
            "and no usual one has it; pip install nvidia-cuda-nvrtc"
        )
    known = nvrtc_facts(library).architectures
    if architecture not in known:
        raise UnsupportedError(f"{library} does not compile for {architecture}: expected one of {', '.join(known)}")
    return Nvrtc(library, architecture, include_directory())
