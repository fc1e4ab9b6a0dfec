"""Generated code compiled for GPUs, by NVIDIA's nvcc or by NVRTC, its run-time compiler.

NVRTC is one library, needs no toolkit and no host compiler, and comes with PyTorch's wheels. It runs in its own process
(:mod:`blinkccl.codegen.nvrtc_child`), which is killed after the timeout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from blinkccl.codegen.command import compiled, run, version_of
from blinkccl.codegen.device_files import include_directory, searched
from blinkccl.errors import UnsupportedError

#: A product and the sum that it enters are rounded separately, as in blinkccl.collectives.ops.
NVCC_FLAGS = ("-std=c++17", "-O3", "-fmad=false")
NVRTC_FLAGS = ("--std=c++17", "--fmad=false")
#: Environment variables that name an nvcc and an NVRTC.
NVCC, NVRTC = "BLINK_NVCC", "BLINK_NVRTC_LIB"
#: Paths in site-packages: the wheels nvidia-cuda-nvrtc and (in cuda_nvrtc) nvidia-cuda-nvrtc-cu12; and
#: nvidia-cuda-nvcc, for CUDA 13 and later, since nvidia-cuda-nvcc-cu12 has ptxas but no nvcc.
_NVRTC_WHEELS, _NVCC_WHEEL = "nvidia/cu*/lib", "nvidia/cu*/bin"
_DIRECTORIES = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
#: The newest CUDA at the time of writing, and its first GPU, sm_75.
_NEWEST, _FIRST_OF_13 = 13, 75
_CHILD = (sys.executable, "-m", "blinkccl.codegen.nvrtc_child")


def gpu_compiler(architecture: str, driver: tuple[int, int] | None = None) -> Nvcc | Nvrtc:
    """An installed NVRTC or nvcc that serves ``architecture``, like ``sm_90``; else UnsupportedError.

    ``driver`` is the CUDA version of the driver that will load the code. A driver need not know the code of a compiler
    of a later major version, so compilers that are not later are preferred. The error contains an installation command.
    """
    late: Nvcc | Nvrtc | None = None
    reasons: list[str] = []
    for version, compiler in _serving(architecture, reasons):
        if driver is None or version[0] <= driver[0]:
            return compiler
        late = late or compiler
    if late is None:
        raise UnsupportedError(
            f"no compiler for {architecture}; install one: {install_line(architecture, driver)} ({'; '.join(reasons)})"
        )
    return late


def _serving(architecture: str, reasons: list[str]) -> Iterator[tuple[tuple[int, int], Nvcc | Nvrtc]]:
    """Each compiler that serves ``architecture`` with its CUDA version; the others' reasons go to ``reasons``."""
    for library in nvrtc_libraries() or (None,):
        try:
            compiler = nvrtc(architecture, library)
            yield nvrtc_facts(compiler.library).version, compiler
        except UnsupportedError as error:
            reasons.append(error.reason)
    try:
        offline = nvcc(architecture)
        yield nvcc_version(offline.command), offline
    except UnsupportedError as error:
        reasons.append(error.reason)


def install_line(architecture: str, driver: tuple[int, int] | None = None) -> str:
    """The command that installs an NVRTC for this process, of a CUDA version that serves the GPU and the driver.

    CUDA 13 serves no GPU before sm_75; up to CUDA 12 a wheel's name ends with the version.
    """
    major = driver[0] if driver else _NEWEST
    if int(re.sub(r"\D", "", architecture) or _FIRST_OF_13) < _FIRST_OF_13:
        major = min(major, _NEWEST - 1)
    wheel = f"nvidia-cuda-nvrtc-cu{major}" if major < _NEWEST else f'"nvidia-cuda-nvrtc<{major + 1}"'
    return f"{sys.executable} -m pip install --upgrade {wheel}"


# ---- nvcc


@dataclass(frozen=True)
class Nvcc:
    """An nvcc for some architectures: ``("sm_90",)`` gives a cubin, several give a fatbin."""

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
    """The nvcc in ``BLINK_NVCC``, or that of CUDA_HOME, PATH, /usr/local/cuda or a wheel, newest wheel first."""
    named = os.environ.get(NVCC)
    if named:
        return named
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for path in ([f"{home}/bin/nvcc"] if home else []) + ["nvcc", "/usr/local/cuda/bin/nvcc"]:
        executable = shutil.which(path)
        if executable:
            return executable
    wheels = (path for base in sys.path for path in _newest_first(Path(base or ".").glob(f"{_NVCC_WHEEL}/nvcc")))
    return next((str(path) for path in wheels if os.access(path, os.X_OK)), None)


@lru_cache(maxsize=8)
def nvcc_version(command: str) -> tuple[int, int]:
    """Its CUDA version, (major, minor)."""
    release = re.search(r"release (\d+)\.(\d+)", version_of(command))
    if release is None:
        raise UnsupportedError(f"{command} --version names no release; is it nvcc?")
    return int(release[1]), int(release[2])


@lru_cache(maxsize=8)
def nvcc_architectures(command: str) -> tuple[str, ...]:
    """The architectures that it serves: ``("sm_75", …)``."""
    code, text = run([command, "--list-gpu-code"], 20.0)
    if code:
        raise UnsupportedError(f"{command} --list-gpu-code fails (exit code {code}): {text[:200]}")
    return tuple(dict.fromkeys(re.findall(r"\bsm_\d+\b", text)))


def nvcc(*architectures: str) -> Nvcc:
    """An nvcc for ``architectures``, like ``sm_90``; UnsupportedError without an nvcc that serves them."""
    command = find_nvcc()
    if command is None:
        raise UnsupportedError(
            f"there is no nvcc: {NVCC} is not set, and CUDA_HOME, PATH, /usr/local/cuda and the wheels have none"
        )
    known = nvcc_architectures(command)
    for name in architectures:
        if name not in known:
            raise UnsupportedError(f"{command} does not compile for {name}: expected one of {', '.join(known)}")
    return Nvcc(command, architectures, include_directory())


# ---- NVRTC


@dataclass(frozen=True)
class Nvrtc:
    """An NVRTC for one architecture, like ``sm_70``."""

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

        return compiled(text, ".cu", command, deadline_s, json.dumps(options), self.library.name)


def nvrtc_libraries() -> tuple[Path, ...]:
    """The library in ``BLINK_NVRTC_LIB``, or all in the wheels on sys.path, in LD_LIBRARY_PATH and in the system.

    Within a directory the newest comes first.
    """
    named = os.environ.get(NVRTC)
    if named:
        return (Path(named),)
    places = [place for base in sys.path for place in _newest_first(Path(base or ".").glob(_NVRTC_WHEELS))]
    directories = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    places += map(Path, [*filter(None, directories), *_DIRECTORIES])
    libraries = (path for place in places for path in _newest_first(place.glob("libnvrtc.so.*")))
    return tuple({path.resolve(): path for path in libraries}.values())


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))], reverse=True)


@dataclass(frozen=True, slots=True)
class NvrtcFacts:
    """A library's own data: its CUDA version, and the architectures that it serves."""

    version: tuple[int, int]
    architectures: tuple[str, ...]


@lru_cache(maxsize=8)
def nvrtc_facts(library: Path) -> NvrtcFacts:
    """Version and architectures of ``library``; UnsupportedError if it cannot be loaded."""
    code, text = run([*_CHILD, "facts", str(library)], 30.0)
    if code:
        raise UnsupportedError(f"{library} cannot be used: {text.strip()[:300]}")
    facts = json.loads(text)
    return NvrtcFacts(tuple(facts["version"]), tuple(f"sm_{number}" for number in facts["architectures"]))


def nvrtc(architecture: str, library: Path | None = None) -> Nvrtc:
    """An NVRTC for ``architecture``: ``library``, or the first installed one; sm_70 is served up to CUDA 12.

    UnsupportedError if there is no library, or it does not serve the architecture.
    """
    library = library or next(iter(nvrtc_libraries()), None)
    if library is None:
        raise UnsupportedError(
            f"there is no libnvrtc: {NVRTC} is not set, and the wheels on sys.path, the directories of LD_LIBRARY_PATH "
            "and the system's directories have none"
        )
    known = nvrtc_facts(library).architectures
    if architecture not in known:
        raise UnsupportedError(f"{library} does not compile for {architecture}: expected one of {', '.join(known)}")
    return Nvrtc(library, architecture, include_directory())
