"""From programs to code that a GPU loads: several files, compiled side by side, the most wanted first.

A compiler's time goes with the number of kernels and the length of their loops. nvcc 13.0 for ``sm_80`` takes 2 to
11 s of a core for a kernel that reduces, and 0.3 to 3 s for one that only moves, whose text leaves out all arithmetic:
so the two kinds never share a file. Everything for GPUs 1, 4, 5, 6 of a DGX-1V takes 33 s of a core as a file per
collective, the longest of them 9 s, and 38 s as a file per kernel; for all eight GPUs 83 s, the longest 23 s, and
108 s, the longest 11 s. So there is a file per collective where there are few cores, and one per program and protocol
where there are so many that the longest file would decide. What is not compiled when the time is up is left to NCCL;
compiled code is kept (:mod:`blinkccl.codegen.build`), so the next job begins where this one ended.

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

from blinkccl.choice.programs import SERVED, SLOTS, CandidateProgram
from blinkccl.codegen.build import Compiler, build
from blinkccl.codegen.gpu_compiler import NVCC, gpu_compiler, nvcc
from blinkccl.codegen.host_compiler import copies_compiler
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.codegen.text import COPIES, FOLD, WIRES, Kernel, cuda_text
from blinkccl.errors import UnsupportedError
from blinkccl.nccl.peer_info import GpuJob

#: From so many cores on, every kernel is a file of its own: 108 s on 8 cores is less than the longest file's 23 s.
MANY_CORES = 8
#: The architecture of an object for copy engines: ``bundle.h`` of libblink.so.
HOST = "host"
#: For a compilation when the time is up: it is not to succeed.
_NOTHING_S = 0.02


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A program, and the protocols of it that one file has."""

    candidate: CandidateProgram
    protocols: tuple[str, ...]


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


def texts(
    candidates: Sequence[CandidateProgram],
    group: ProgramGroup,
    protocols: Callable[[CandidateProgram], Sequence[str]],
    processors: int | None = None,
) -> tuple[ImageText, ...]:
    """All files, the most wanted first: root 0 before others, and collectives in the order of ``SERVED``.

    ``protocols`` gives those of a candidate that are ever launched; ``processors`` are by default this process's cores.
    """
    ordered = sorted(candidates, key=lambda one: ((one.collective.root or 0) > 0, SERVED.index(one.collective.name)))
    if (cores() if processors is None else processors) >= MANY_CORES:
        single = [(one, some) for one in ordered for some in _inseparable(protocols(one))]
        return tuple(_text(f"{one.name}-{some[-1]}", (ImagePart(one, some),), group) for one, some in single)
    names = dict.fromkeys((one.collective.name, (one.collective.root or 0) > 0) for one in ordered)
    return tuple(
        _text(
            f"{name}-other-roots" if others else name,
            tuple(
                ImagePart(one, tuple(protocols(one)))
                for one in ordered
                if (one.collective.name, (one.collective.root or 0) > 0) == (name, others)
            ),
            group,
        )
        for name, others in names
    )


def _inseparable(protocols: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """One by one, but simple with copies: a captured call goes from the one to the other of the same program."""
    for protocol in protocols:
        if protocol == COPIES:
            yield (COPIES, "simple")
        elif protocol != "simple" or COPIES not in protocols:
            yield (protocol,)


def _text(name: str, parts: tuple[ImagePart, ...], group: ProgramGroup) -> ImageText:
    """With the entries that somebody launches and no others: compilers spend their time on those."""
    kernels = [kernel_of(part.candidate) for part in parts]
    unused = set()
    for part, kernel in zip(parts, kernels, strict=True):
        unused |= {
            f"BLINK_ENTRY({kernel.entry(protocol)}, {wire}, {kernel.name}::run)"
            for protocol, wire in WIRES.items()
            if protocol not in part.protocols
        }
        if COPIES not in part.protocols:
            unused.add(f"BLINK_COPY_ENTRY({kernel.entry(COPIES)}, {kernel.name}::run)")
    fold = f"BLINK_FOLD_ENTRY({FOLD})"
    lines = [line for line in cuda_text(kernels, group).split("\n") if line not in unused and line != fold]
    if any(COPIES in part.protocols for part in parts):
        # Also where nothing is combined: libblink.so asks every image of copy engines for it.
        lines += [fold, ""]
    return ImageText(name, parts, "\n".join(lines))


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
        raise UnsupportedError(f"no code was compiled within {within_s:.0f} s; give more time with BLINK_PLAN_TIMEOUT")
    return whole


def architectures_of(text: ImageText, job: GpuJob) -> tuple[str, ...]:
    """What ``text`` must be compiled for: all GPUs of the job and, for copy engines, this host."""
    return (*job.architectures, HOST) if text.copies else job.architectures
