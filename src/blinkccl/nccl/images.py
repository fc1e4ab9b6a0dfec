"""Compilation of programs to GPU code: several files in parallel, those that reduce first.

A file is one kernel with one wire protocol. It runs all programs that reduce, or all that only move data; the call
selects the program. A program is rows in the file (``native/device/blink/rows.h``), so compile time depends on the
number of kernels. The code that moves and reduces data is compiled once per wire, without arithmetic in files that do
not reduce. docs/gpu.md has the times. NCCL runs programs that are not compiled before the timeout. Compiled code is
cached (:mod:`blinkccl.codegen.build`), so the next job continues where this one ended.

Programs of copy engines are compiled twice: for the GPU, whose image holds the reduce kernel and the protocol simple
for captured calls, and for this host, whose object puts the schedule into streams.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blinkccl.codegen.build import Compiler, build
from blinkccl.codegen.gpu_compiler import NVCC, gpu_compiler, nvcc
from blinkccl.codegen.host_compiler import copies_compiler
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import COPIES, FOLD_ENTRY, WIRES, Kernel, copy_entry, cuda_text, entry_name, kernel_entry
from blinkccl.cost.choice.programs import SERVED, SLOTS, CandidateProgram
from blinkccl.errors import UnsupportedError
from blinkccl.nccl.peer_info import GpuJob

#: The kernels of programs that reduce, and of those that do not.
REDUCES, MOVES = "reduces", "moves"
#: The architecture of an object for copy engines: ``bundle.h`` of libblink.so.
HOST = "host"
#: Timeout of a compilation after the deadline, too short to succeed.
_NOTHING_S = 0.02


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A program, its protocols in one file, and its number among the programs of the file's kernel."""

    candidate: CandidateProgram
    protocols: tuple[str, ...]
    number: int

    def entry(self, protocol: str) -> str:
        """The symbol that runs the program: the kernel of all programs, or its own entry for copy engines."""
        return _entry(self.candidate, protocol)


@dataclass(frozen=True, slots=True)
class ImageText:
    """The generated code of one file; ``name`` is the file's without the compiler's suffix."""

    name: str
    parts: tuple[ImagePart, ...]
    text: str

    @property
    def copies(self) -> bool:
        """True if copy engines run any of its parts."""
        return any(COPIES in part.protocols for part in self.parts)


@dataclass(frozen=True, slots=True)
class Image:
    """Compiled code for a GPU architecture or :data:`HOST`: ``file`` is its name in the bundle."""

    text: ImageText
    arch: str
    file: str
    built: Path


def kernel_of(candidate: CandidateProgram) -> Kernel:
    return Kernel(candidate.name, candidate.program, candidate.forest, SLOTS)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _entry(candidate: CandidateProgram, protocol: str) -> str:
    if protocol == COPIES:
        return kernel_of(candidate).entry(COPIES)
    return entry_name(REDUCES if candidate.collective.reduces else MOVES, protocol)


def texts(
    candidates: Sequence[CandidateProgram],
    group: ProgramGroup,
    protocols: Callable[[CandidateProgram], Sequence[str]],
) -> tuple[ImageText, ...]:
    """All files, those that reduce first; ``protocols`` returns the protocols with which a candidate is launched."""
    files: dict[tuple[bool, tuple[str, ...]], list[CandidateProgram]] = {}
    for one in sorted(candidates, key=lambda one: SERVED.index(one.collective.name)):
        for some in _inseparable(protocols(one)):
            files.setdefault((one.collective.reduces, some), []).append(one)
    ordered = sorted(files.items(), key=lambda item: not item[0][0])
    return tuple(
        _text(
            f"{REDUCES if reduces else MOVES}-{'-'.join(some)}",
            tuple(ImagePart(one, some, number) for number, one in enumerate(programs)),
            group,
        )
        for (reduces, some), programs in ordered
    )


def _inseparable(protocols: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The protocols one by one, but simple with copies, because captured calls switch between them in one program."""
    for protocol in protocols:
        if protocol == COPIES:
            yield (COPIES, "simple")
        elif protocol != "simple" or COPIES not in protocols:
            yield (protocol,)


def _text(name: str, parts: tuple[ImagePart, ...], group: ProgramGroup) -> ImageText:
    kernels, protocols = [kernel_of(part.candidate) for part in parts], parts[0].protocols
    entries = [
        kernel_entry(parts[0].entry(protocol), WIRES[protocol], kernels) for protocol in protocols if protocol in WIRES
    ]
    if COPIES in protocols:
        # Every image of copy engines needs the reduce kernel, because libblink.so looks it up in each.
        entries += [*map(copy_entry, kernels), FOLD_ENTRY]
    return ImageText(name, parts, cuda_text(kernels, group, entries))


def compiler_for(arch: str, driver_version: int) -> Compiler:
    """The nvcc of BLINK_NVCC if set, else the compiler that serves the architecture and driver."""
    if os.environ.get(NVCC):
        return nvcc(arch)
    return gpu_compiler(arch, (driver_version // 1000, driver_version % 1000 // 10))


def compile_all(
    written: Sequence[ImageText], job: GpuJob, within_s: float, tell: Callable[[str], None] = lambda text: None
) -> tuple[Image, ...]:
    """Images of the texts for every architecture of the job, with one compilation per core at a time.

    Texts that are not compiled for every architecture within ``within_s`` seconds are left out, and ``tell`` gets the
    reason. UnsupportedError if none is compiled.
    """
    ends = time.monotonic() + within_s
    compilers: dict[str, Compiler] = {
        arch: compiler_for(arch, job.peers[0].driver_version) for arch in job.architectures
    }
    for arch, compiler in compilers.items():
        tell(f"{len(written)} files for {arch} by {compiler.fingerprint().splitlines()[0]}, {cores()} at once")
    if any(one.copies for one in written):
        compilers[HOST] = copies_compiler()

    def one_image(item: tuple[ImageText, str]) -> Image | None:
        one, arch = item
        left_s = ends - time.monotonic()
        try:
            # Cached code needs no time.
            built = build(one.text, compilers[arch], max(left_s, _NOTHING_S))
        except UnsupportedError as error:
            tell(f"{one.name} for {arch} is left to NCCL: {error}")
            return None
        return Image(one, arch, f"{one.name}-{arch}{built.suffix}", built)

    work = [(one, arch) for one in written for arch in architectures_of(one, job)]
    with ThreadPoolExecutor(max(1, min(len(work), cores()))) as pool:
        images = [image for image in pool.map(one_image, work) if image is not None]
    names = {(image.text.name, image.arch) for image in images}
    whole = tuple(
        image for image in images if all((image.text.name, arch) in names for arch in architectures_of(image.text, job))
    )
    if not whole:
        raise UnsupportedError(f"no file was compiled within {within_s:.0f} s; raise BLINK_PLAN_TIMEOUT")
    return whole


def architectures_of(text: ImageText, job: GpuJob) -> tuple[str, ...]:
    """The targets of ``text``: all GPU architectures of the job and, for copy engines, this host."""
    return (*job.architectures, HOST) if text.copies else job.architectures
