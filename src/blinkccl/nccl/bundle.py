"""The bundle that all ranks load: a directory with a text that says where everything is, and the compiled code.

::

    blink-bundle 2
    plan <sha256>                         what all ranks must agree on
    ranks <n>
    geometry parts P slots S slot_bytes B line_bytes L threads T
    segment <rank> <bytes>
    memory <number> <bytes>               of the host, in which connections are staged
    connection <id> src <rank> dst <rank> ring <off in dst> lines <off in dst> tail <off in dst> head <off in src> …
    connection <id> src <rank> dst <rank> pulled ring <off in src> lines <off in src> tail <off in dst> …
    connection <id> src <rank> dst <rank> memory <number> ring <off in it> lines … tail … head <off in it> …
    paths slots S slot_bytes B            of messages, where the planner has any
    path <id> src <rank> dst <rank> home <rank> ring <off in home> tail <off in dst> head <off in src>
    path <id> src <rank> dst <rank> memory <number> ring <off in it> tail … head <off in it>
    split src <rank> dst <rank> least <bytes> most <bytes> chunks <n> parts <path>:<end in 2^20ths>,… why …
    image <id> arch <sm_90> file <name in this directory>
    program <id> collective <name> root <r|-1> channels <k> image <ids> simple <kernel> ll <kernel|-> ll128 <kernel|->
    choice collective <name> root <r|-1> least <S> most <S> program <id|-1> protocol <p|-> chunk <c> search <0|1> why …
    choice collective … search <0|1> other <id> protocol <p> chunk <c> why …    two programs, which first calls compare

Where copy engines run something, the geometry ends with ``copy_slots N copy_slot_bytes B``, each connection that is not
pulled with ``copy_ring X copy_tail Y copy_head Z``, and with ``copy_landing W`` too where it is staged, their programs
with ``copies <entry>``, and these have an image of arch ``host`` too.

``bundle.h`` of libblink.so reads it. The directory's name is a hash of the question (topology, ranks, settings,
versions, budgets), so the next job with the same question finds it; it appears as a whole or not at all.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from blinkccl.codegen.layout import SegmentLayout
from blinkccl.codegen.text import COPIES
from blinkccl.errors import LaunchError
from blinkccl.nccl.choices import ChoiceRow, ChoiceTable
from blinkccl.nccl.geometry import THREADS
from blinkccl.nccl.images import Image, ImagePart, kernel_of
from blinkccl.nccl.message_paths import MessagePlan
from blinkccl.nccl.programs import CandidateProgram
from blinkccl.private_files import open_trusted, private_directory
from blinkccl.runtime.process import has_ended, mark

TEXT = "bundle.txt"
#: Longer ones are none of ours.
MAX_TEXT_BYTES, MAX_IMAGE_BYTES = 16 << 20, 64 << 20
#: So many are kept, and none goes that was used within a day: a job that runs may still be loading it.
MOST_BUNDLES, LEAST_AGE_S = 64, 86_400.0
_PREFIX = "blink-bundle-"
#: Order of the columns of a program; that for copy engines comes after them.
_PROTOCOLS = ("simple", "ll", "ll128")


@dataclass(frozen=True)
class Bundle:
    """Everything that is written. Its programs are the parts of images: a candidate in the protocols of one file."""

    layout: SegmentLayout
    images: tuple[Image, ...]
    table: ChoiceTable
    messages: MessagePlan = field(default_factory=MessagePlan)

    @cached_property
    def programs(self) -> tuple[tuple[ImagePart, tuple[int, ...]], ...]:
        """Each part, and the images that have it: one per architecture."""
        found: dict[tuple[str, int], tuple[ImagePart, list[int]]] = {}
        for number, image in enumerate(self.images):
            for place, part in enumerate(image.text.parts):
                found.setdefault((image.text.name, place), (part, []))[1].append(number)
        return tuple((part, tuple(images)) for part, images in found.values())

    def program_of(self, candidate: CandidateProgram, protocol: str) -> int:
        """The number of the program that runs ``candidate`` by ``protocol``."""
        return next(
            number
            for number, (part, _) in enumerate(self.programs)
            if part.candidate is candidate and protocol in part.protocols
        )

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def text(self) -> str:
        """The text of ``bundle.txt``; its plan is a hash of all else and of the compiled code."""
        body = "\n".join([*self._lines(), ""])
        plan = sha256(body.encode())
        for image in self.images:
            plan.update(image.built.read_bytes())
        return f"blink-bundle 2\nplan {plan.hexdigest()}\n{body}"

    def _lines(self) -> Iterator[str]:
        geometry = self.layout.geometry
        yield f"ranks {self.ranks}"
        copies = geometry.copy_slots > 0
        yield (
            f"geometry parts {geometry.parts} slots {geometry.slots} slot_bytes {geometry.slot_bytes} "
            f"line_bytes {geometry.line_bytes} threads {THREADS}"
            + (f" copy_slots {geometry.copy_slots} copy_slot_bytes {geometry.copy_slot_bytes}" if copies else "")
        )
        sizes = self.layout.segment_bytes
        yield from (f"segment {rank} {size}" for rank, size in enumerate(sizes[: self.ranks]))
        yield from (f"memory {number} {size}" for number, size in enumerate(sizes[self.ranks :]))
        for number, x in enumerate(self.layout.connections):
            home = "" if x.home == x.dst else " pulled" if x.home == x.src else f" memory {x.home - self.ranks}"
            yield (
                f"connection {number} src {x.src} dst {x.dst}{home} ring {x.ring} lines {x.lines} tail {x.tail} "
                f"head {x.head} src_position {x.src_position} dst_position {x.dst_position}"
                + (
                    f" copy_ring {x.copy_ring} copy_tail {x.copy_tail} copy_head {x.copy_head}"
                    if copies and x.home != x.src
                    else ""
                )
                + (f" copy_landing {x.copy_landing}" if copies and x.home >= self.ranks else "")
            )
        yield from self.messages.lines(self.ranks)
        yield from (f"image {number} arch {x.arch} file {x.file}" for number, x in enumerate(self.images))
        yield from (self._program(number, *one) for number, one in enumerate(self.programs))
        yield from (self._choice(row) for row in self.table.choices)

    def _program(self, number: int, part: ImagePart, images: Sequence[int]) -> str:
        collective, entry = part.candidate.collective, kernel_of(part.candidate).entry
        kernels = " ".join(f"{p} {entry(p) if p in part.protocols else '-'}" for p in _PROTOCOLS)
        by_copies = f" {COPIES} {entry(COPIES)}" if COPIES in part.protocols else ""
        return (
            f"program {number} collective {collective.name} root {-1 if collective.root is None else collective.root} "
            f"channels {part.candidate.channels} image {','.join(map(str, images))} {kernels}{by_copies}"
        )

    def _choice(self, row: ChoiceRow) -> str:
        program = -1 if row.candidate is None else self.program_of(row.candidate, row.protocol)
        other = ""
        if row.other is not None:
            number = self.program_of(row.other.candidate, row.other.protocol)
            other = f"other {number} protocol {row.other.protocol} chunk {row.other.chunk_bytes} "
        why = " ".join(row.why.split())
        return (
            f"choice collective {row.collective} root {row.root} least {row.least} most {row.most} program {program} "
            f"protocol {row.protocol} chunk {row.chunk_bytes} search {int(row.search)} {other}why {why}"
        )


class BundleCache:
    """Where bundles lie; without a directory every bundle gets a temporary one."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def find(self, digest: str) -> Path | None:
        """The bundle of an earlier job that asked the same; None where there is none that is whole and ours."""
        if self._directory is None:
            return None
        path = self._directory / digest
        try:
            private_directory(self._directory)
            text = _trusted(path / TEXT, MAX_TEXT_BYTES)
            names = [line.split()[5] for line in text.decode().splitlines() if line.startswith("image ")]
            for name in names:
                _trusted(path / Path(name).name, MAX_IMAGE_BYTES)
        except (OSError, LaunchError, UnicodeDecodeError, IndexError):
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def put(self, digest: str | None, bundle: Bundle) -> Path:
        """Writes a bundle and says where it lies: in the cache if that can be written, and nothing lacks (a digest)."""
        if self._directory is not None and digest is not None:
            with suppress(OSError, LaunchError):
                private_directory(self._directory)
                path = self._move_in(_write(self._directory / f".{secrets.token_hex(8)}", bundle), digest)
                _remove_unused(self._directory.iterdir(), MOST_BUNDLES)
                return path
        # Ranks load it after the planner has gone. Once the rank that asked has gone, too, other planners remove it.
        _remove_left(Path(tempfile.gettempdir()))
        return _write(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{mark(os.getppid())}-")), bundle)

    def _move_in(self, written: Path, digest: str) -> Path:
        assert self._directory is not None
        path = self._directory / digest
        try:
            os.rename(written, path)
        except OSError:
            # There is one already. If it is whole, a job with the same question was faster; else it is in the way.
            if self.find(digest) is None:
                old = self._directory / f".{secrets.token_hex(8)}"
                os.rename(path, old)
                os.rename(written, path)
                shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(written, ignore_errors=True)
        return path


def _write(directory: Path, bundle: Bundle) -> Path:
    """Fills ``directory``, which is made; a part of it is never left behind."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        for image in bundle.images:
            (directory / image.file).write_bytes(image.built.read_bytes())
        (directory / TEXT).write_text(bundle.text(), encoding="utf-8", newline="\n")
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def _trusted(path: Path, max_bytes: int) -> bytes:
    """The content of a file of ours; OSError says why it is none."""
    with open_trusted(path, max_bytes) as file:
        content = file.read()
    if not content:
        raise OSError("empty")
    return content


def _remove_unused(bundles: Iterable[Path], keep: int) -> None:
    """Those not used for longest, as far as there are more than ``keep``; none that was used within a day."""
    rows = []
    for path in bundles:
        with suppress(OSError):
            row = path.lstat()
            if row.st_uid == os.geteuid():
                rows.append((row.st_mtime, path))
    oldest = time.time() - LEAST_AGE_S
    for used, path in sorted(rows)[: max(0, len(rows) - keep)]:
        if used < oldest:
            shutil.rmtree(path, ignore_errors=True)


def _remove_left(directory: Path) -> None:
    """Temporary bundles of jobs that have ended."""
    every = list(directory.glob(f"{_PREFIX}*"))
    _remove_unused(every, 0)
    for path in every:
        if has_ended(path.name.removeprefix(_PREFIX)):
            shutil.rmtree(path, ignore_errors=True)


def digest_of(parts: Sequence[str]) -> str:
    """The name of a bundle: a hash of the question."""
    return sha256("\0".join(parts).encode()).hexdigest()[:40]
