"""From programs to code that a GPU loads: several files, compiled side by side, what reduces first.

A file is one kernel, with one wire, and runs all programs that reduce, or all that only move data: the call says which.
A program is rows in it (``native/device/blink/rows.h``), so a compiler's time goes with the kernels, and what moves and
combines data is compiled once per wire; where nothing is combined the text leaves out all arithmetic. docs/gpu.md has
the times. What is not compiled when the time is up is left to NCCL; compiled code is kept
(:mod:`blinkccl.codegen.build`), so the next job begins where this one ended.

What copy engines run is compiled twice: for the GPU, whose image holds the reduce kernel and the protocol simple, which
captured calls take; and for this host, whose object puts the schedule into streams.
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
#: For a compilation when the time is up: it is not to succeed.
_NOTHING_S = 0.02


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A program, the protocols of it that one file has, and its number among the programs of the file's kernel."""

    candidate: CandidateProgram
    protocols: tuple[str, ...]
    number: int

    def entry(self, protocol: str) -> str:
        """The symbol that runs it: of all programs' kernel, or the program's own for copy engines."""
        return _entry(self.candidate, protocol)


@dataclass(frozen=True, slots=True)
class ImageText:
    """The generated code of one file. ``name`` is the file's, without what the compiler adds."""

    name: str
    parts: tuple[ImagePart, ...]
    text: str

    @property
    def copies(self) -> bool:
        """Whether copy engines run any of it."""
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
    """That this process may use."""
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
    """All files, the most wanted first: ``protocols`` gives those of a candidate that are ever launched."""
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
    """One by one, but simple with copies: a captured call goes from the one to the other of the same program."""
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
        # The fold also where nothing is combined: libblink.so asks every image of copy engines for it.
        entries += [*map(copy_entry, kernels), FOLD_ENTRY]
    return ImageText(name, parts, cuda_text(kernels, group, entries))


def compiler_for(arch: str, driver_version: int) -> Compiler:
    """The nvcc that BLINK_NVCC names, if it does, else what is found."""
    if os.environ.get(NVCC):
        return nvcc(arch)
    return gpu_compiler(arch, (driver_version // 1000, driver_version % 1000 // 10))


def compile_all(
    written: Sequence[ImageText], job: GpuJob, within_s: float, tell: Callable[[str], None] = lambda text: None
) -> tuple[Image, ...]:
    """Images of the texts for every architecture of the job, as many compilations at once as there are cores.

    Texts that are not compiled within ``within_s`` seconds, for every architecture, are left out, and that is told.
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
            # What is in the cache is had at any time.
            built = build(one.text, compilers[arch], max(left_s, _NOTHING_S))
        except UnsupportedError as error:
            tell(f"{one.name} for {arch} is left to NCCL: {error}")
            return None
        return Image(one, arch, f"{one.name}-{arch}{built.suffix}", built)

    work = [(one, arch) for one in written for arch in architectures_of(one, job)]
    with ThreadPoolExecutor(max(1, min(len(work), cores()))) as pool:
        made = [image for image in pool.map(one_image, work) if image is not None]
    there = {(image.text.name, image.arch) for image in made}
    whole = tuple(
        image for image in made if all((image.text.name, arch) in there for arch in architectures_of(image.text, job))
    )
    if not whole:
        raise UnsupportedError(f"no file of it within {within_s:.0f} s; give more time with BLINK_PLAN_TIMEOUT")
    return whole


def architectures_of(text: ImageText, job: GpuJob) -> tuple[str, ...]:
    """What ``text`` must be compiled for: all GPUs of the job and, for copy engines, this host."""
    return (*job.architectures, HOST) if text.copies else job.architectures
