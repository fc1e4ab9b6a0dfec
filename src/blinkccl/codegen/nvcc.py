"""Generated code for GPUs, compiled by NVIDIA's nvcc."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from blinkccl.codegen.command import compiled, run, version_of
from blinkccl.codegen.device_files import include_directory
from blinkccl.errors import UnsupportedError

#: A product and the sum that it enters are rounded one after the other: the bits of blinkccl.collectives.ops.
FLAGS = ("-std=c++17", "-O3", "-fmad=false")
OVERRIDE = "BLINK_NVCC"


@dataclass(frozen=True)
class Nvcc:
    """nvcc for certain GPUs.

    Parameters
    ----------
    architectures
        ``("sm_90",)`` makes a cubin, several a fatbin.
    """

    command: str
    architectures: tuple[str, ...]
    include: Path
    flags: tuple[str, ...] = FLAGS

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
            return [self.command, *self.flags, *target, f"-I{self.include}", str(source), "-o", str(output)]

        return compiled(text, ".cu", command, deadline_s)


def find_nvcc() -> str | None:
    """The nvcc that ``BLINK_NVCC`` names, or that of CUDA_HOME, of PATH or of /usr/local/cuda."""
    named = os.environ.get(OVERRIDE)
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
    """nvcc for ``architectures``, like ``sm_90``.

    Raises
    ------
    UnsupportedError
        If there is no nvcc, or it does not know them.
    """
    command = find_nvcc()
    if command is None:
        raise UnsupportedError(
            f"there is no nvcc: {OVERRIDE} is not set, and neither CUDA_HOME, PATH nor /usr/local/cuda has one; "
            "install NVIDIA's CUDA toolkit, or pip install nvidia-cuda-nvrtc for the compiler alone"
        )
    known = nvcc_architectures(command)
    for name in architectures:
        if name not in known:
            raise UnsupportedError(f"{command} does not compile for {name}: expected one of {', '.join(known)}")
    return Nvcc(command, architectures, include_directory())
