"""The bundle that all ranks load: a directory with compiled code and one file of tables.

``blink/gpu_bundle.h`` defines the layout of the file: a header with a digest of the rest, tables of rows, and texts.
The rows of images have digests of their files. ``native/shim/bundle.cpp`` reads the file, and :func:`read` does in
Python. The directory's name is a hash of the question (topology, ranks, settings, versions, budgets), so the next job
with the same question finds it. The directory appears complete or not at all.
"""

from __future__ import annotations

import ctypes as c
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from blinkccl.codegen.layout import SegmentLayout
from blinkccl.cost.choice.programs import SLOTS, CandidateProgram
from blinkccl.errors import LaunchError
from blinkccl.native.headers import abi, header
from blinkccl.nccl.choices import PROTOCOLS, ChoiceRow, ChoiceTable
from blinkccl.nccl.geometry import THREADS
from blinkccl.nccl.images import Image, ImagePart
from blinkccl.nccl.message_paths import MessagePlan
from blinkccl.private_files import open_trusted, private_directory
from blinkccl.runtime.process import has_ended, mark

FILE = "bundle"
#: Maximum sizes of files; Blink writes none that are larger.
MAX_FILE_BYTES, MAX_IMAGE_BYTES = 64 << 20, 64 << 20
#: Number of bundles to keep. A bundle that was used within a day stays, because a running job may still load it.
MOST_BUNDLES, LEAST_AGE_S = 64, 86_400.0
_PREFIX = "blink-bundle-"
_LAYOUT = header("gpu_bundle.h")
CODES = header("types.h").numbers("blink_collective")


def _struct(name: str) -> type[c.Structure]:
    return _LAYOUT.layout(name)(type(name, (c.Structure,), {}))


_Header = _struct("blink_gpu_bundle")
#: The tables, in the order of the file.
_ROWS = {
    name.removesuffix("_rows"): _struct(f"blink_gpu_{name.removesuffix('_rows')}")
    for name in _LAYOUT.structs["blink_gpu_bundle"].names
    if name.endswith("_rows")
}


class _Texts:
    """Texts of one line each, stored once, by their offset."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {"": 0}
        self.content = b"\0"

    def place(self, text: str) -> int:
        text = " ".join(text.replace("\0", "?").split())
        if text not in self._places:
            self._places[text] = len(self.content)
            self.content += text.encode() + b"\0"
        return self._places[text]


def read(content: bytes) -> dict[str, list[dict[str, Any]]]:
    """The rows of a file by table, with texts instead of offsets, and its "header".

    ValueError if the file is truncated, damaged, or of another version.
    """
    size = c.sizeof(_Header)
    if len(content) < size:
        raise ValueError(f"expected {size} bytes and more, got {len(content)}")
    head: Any = _Header.from_buffer_copy(content)
    expected = (_LAYOUT.constants["BLINK_GPU_BUNDLE_MAGIC"], abi(), len(content), _digest_of(content))
    got = (head.magic, head.abi, head.bytes, bytes(head.digest))
    if got != expected:
        raise ValueError(f"expected magic, ABI, bytes and digest {expected}, got {got}")
    texts = content[len(content) - head.text_bytes :]
    tables, at = {"header": [_members(head, texts)]}, size
    for name, kind in _ROWS.items():
        count = getattr(head, f"{name}_rows")
        rows = (kind * count).from_buffer_copy(content, at)
        tables[name] = [_members(row, texts) for row in rows]
        at += c.sizeof(rows)
    return tables


def _members(row: c.Structure, texts: bytes) -> dict[str, Any]:
    def member(name: str) -> object:
        value = getattr(row, name)
        if name == "kernel":
            return tuple(texts[at : texts.index(0, at)].decode() for at in value)
        if name in ("why", "arch", "file"):
            return texts[value : texts.index(0, value)].decode()
        return bytes(value) if isinstance(value, c.Array) else value

    return {name: member(name) for name, *_ in row._fields_}


def _digest_of(content: bytes) -> bytes:
    member: Any = _Header.digest
    return sha256(content[member.offset + member.size :]).digest()


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle. Its programs are the parts of images: a candidate in the protocols of one file."""

    layout: SegmentLayout
    images: tuple[Image, ...]
    table: ChoiceTable
    #: Blocks of each rank.
    blocks: int
    messages: MessagePlan = field(default_factory=MessagePlan)
    #: True if the first calls of large sizes try chunk sizes.
    search: bool = False

    @cached_property
    def programs(self) -> tuple[tuple[ImagePart, tuple[int, ...]], ...]:
        """Each part with the numbers of its images, one per architecture."""
        parts: dict[tuple[str, int], tuple[ImagePart, list[int]]] = {}
        for number, image in enumerate(self.images):
            for place, part in enumerate(image.text.parts):
                parts.setdefault((image.text.name, place), (part, []))[1].append(number)
        return tuple((part, tuple(images)) for part, images in parts.values())

    def program_of(self, candidate: CandidateProgram, protocol: str) -> int:
        """The number of the program of ``candidate`` with ``protocol``."""
        return next(
            number
            for number, (part, _) in enumerate(self.programs)
            if part.candidate is candidate and protocol in part.protocols
        )

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def content(self) -> bytes:
        """The file's bytes."""
        texts, geometry, first_path = _Texts(), self.layout.geometry, len(self.layout.connections)
        tables: dict[str, list[dict[str, Any]]] = {name: [] for name in _ROWS}
        tables["segment"] = [{"bytes": size} for size in self.layout.segment_bytes]
        tables["connection"] = [asdict(x) | {"on_host": x.home >= self.ranks} for x in self.layout.connections]
        tables["connection"] += self.messages.connections()
        for row, parts in self.messages.rows(first_path):
            first = len(tables["part"])
            tables["split"].append(row | {"first_part": first, "part_rows": len(parts), "why": texts.place(row["why"])})
            tables["part"] += parts
        for image in self.images:
            code = image.built.read_bytes()
            named = {"arch": texts.place(image.arch), "file": texts.place(image.file)}
            tables["image"].append({"bytes": len(code), "digest": tuple(sha256(code).digest())} | named)
        for part, images in self.programs:
            first = len(tables["program_image"])
            images_and_parts = {
                "first_image": first,
                "image_rows": len(images),
                "parts": min(geometry.parts, part.candidate.parts(self.blocks)),
            }
            tables["program"].append(_program(part, texts) | images_and_parts)
            tables["program_image"] += [{"image": number} for number in images]
        tables["choice"] = [self._choice(row, texts) for row in self.table.choices]
        rows = b"".join(bytes(_ROWS[name](**row)) for name, table in tables.items() for row in table)
        head: Any = _Header(
            magic=_LAYOUT.constants["BLINK_GPU_BUNDLE_MAGIC"],
            abi=abi(),
            bytes=c.sizeof(_Header) + len(rows) + len(texts.content),
            **{f"{name}_rows": len(table) for name, table in tables.items()},
            text_bytes=len(texts.content),
            first_path=first_path,
            nranks=self.ranks,
            threads=THREADS,
            path_slots=SLOTS if self.messages.placed else 0,
            path_slot_bytes=self.messages.slot_bytes,
            **asdict(geometry),
        )
        content = b"".join([bytes(head), rows, texts.content])
        head.digest = tuple(_digest_of(content))
        return bytes(head) + content[c.sizeof(head) :]

    def _choice(self, row: ChoiceRow, texts: _Texts) -> dict[str, Any]:
        ways: dict[str, int] = {"program": -1, "other_program": -1}
        for which, way in zip(("", "other_"), row.ways, strict=False):
            ways |= {
                f"{which}program": self.program_of(way.candidate, way.protocol),
                f"{which}protocol": PROTOCOLS.index(way.protocol),
                f"{which}chunk_bytes": way.chunk_bytes,
            }
        members = {"least": row.least, "most": row.below - 1, "why": texts.place(row.why)}
        members |= {"search": row.search and self.search}
        return {"collective": CODES[row.collective], "root": row.root} | members | ways


def _program(part: ImagePart, texts: _Texts) -> dict[str, Any]:
    collective = part.candidate.collective
    return {
        "collective": CODES[collective.name],
        "root": -1 if collective.root is None else collective.root,
        "channels": part.candidate.channels,
        "number": part.number,
        "kernel": tuple(texts.place(part.entry(one) if one in part.protocols else "") for one in PROTOCOLS),
    }


class BundleCache:
    """A directory of bundles; without it every bundle gets a temporary directory."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def find(self, digest: str) -> Path | None:
        """The bundle of an earlier job with the same question; None without a complete, trusted one."""
        if self._directory is None:
            return None
        path = self._directory / digest
        try:
            private_directory(self._directory)
            for image in read(_trusted(path / FILE, MAX_FILE_BYTES))["image"]:
                code = _trusted(path / Path(image["file"]).name, MAX_IMAGE_BYTES)
                if sha256(code).digest() != image["digest"]:
                    return None
        except (OSError, LaunchError, ValueError):
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def put(self, digest: str | None, bundle: Bundle) -> Path:
        """Write a bundle and return its path: in the cache if that is writable and the bundle has a digest."""
        if self._directory is not None and digest is not None:
            with suppress(OSError, LaunchError):
                private_directory(self._directory)
                path = self._move_in(_write(self._directory / f".{secrets.token_hex(8)}", bundle), digest)
                _remove_unused(self._directory.iterdir(), MOST_BUNDLES)
                return path
        # Ranks load it after the planner's end. Other planners remove it after the end of the requesting rank.
        _remove_left(Path(tempfile.gettempdir()))
        return _write(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{mark(os.getppid())}-")), bundle)

    def _move_in(self, written: Path, digest: str) -> Path:
        assert self._directory is not None
        path = self._directory / digest
        try:
            os.rename(written, path)
        except OSError:
            # A directory exists already: a complete one from another job with the same question, or a damaged one to
            # replace.
            if self.find(digest) is None:
                old = self._directory / f".{secrets.token_hex(8)}"
                os.rename(path, old)
                os.rename(written, path)
                shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(written, ignore_errors=True)
        return path


def _write(directory: Path, bundle: Bundle) -> Path:
    """Create and fill ``directory``, or remove it on an error."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        for image in bundle.images:
            (directory / image.file).write_bytes(image.built.read_bytes())
        (directory / FILE).write_bytes(bundle.content())
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def _trusted(path: Path, max_bytes: int) -> bytes:
    """The content of a trusted file; OSError with the reason for any other file."""
    with open_trusted(path, max_bytes) as file:
        return file.read()


def _remove_unused(bundles: Iterable[Path], keep: int) -> None:
    """Remove the least recently used bundles above ``keep``, but none that was used within a day."""
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
    """Remove temporary bundles of jobs that have ended."""
    every = list(directory.glob(f"{_PREFIX}*"))
    _remove_unused(every, 0)
    for path in every:
        if has_ended(path.name.removeprefix(_PREFIX)):
            shutil.rmtree(path, ignore_errors=True)


def digest_of(parts: Sequence[str]) -> str:
    """The name of a bundle: a hash of the question."""
    return sha256("\0".join(parts).encode()).hexdigest()[:40]
