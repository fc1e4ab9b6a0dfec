"""Evidence from files: text is read line by line, documents as a whole; the content decides the kind.

A file may hold several kinds at once (a log with the output of tools pasted in). Text is streamed, so a log may have
any size; JSON, XML and pickles are read whole, up to :data:`MAX_DOCUMENT_BYTES`.
"""

from __future__ import annotations

import codecs
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from blinkccl.apps.doctor.evidence import Case, Evidence, Location
from blinkccl.apps.doctor.readers import Listener, documents, flight_recorder, topologies
from blinkccl.apps.doctor.readers.nccl_log import NcclLog
from blinkccl.apps.doctor.readers.nccl_tests import NcclTests, untagged
from blinkccl.apps.doctor.readers.ras_text import RasText
from blinkccl.apps.doctor.readers.tools import Tools
from blinkccl.apps.doctor.readers.topologies import MatrixReader
from blinkccl.apps.doctor.readers.torch_log import TorchLog
from blinkccl.errors import TopologyError, UsageError
from blinkccl.topology import amd_smi, cables_file, mlx_hostfile, nvidia_smi
from blinkccl.topology.limits import MAX_FILE_BYTES

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
#: Bytes of a line of text that are read; the rest is ignored.
MAX_LINE = 16 * 1024
#: Pieces of one kind in one file; a log of a thousand ranks repeats each a thousand times.
MAX_PIECES = 100_000
MAX_FILES = 4096
#: Lines in which the matrix of a file of its own begins; a log has it further down, or none.
MATRIX_WITHIN = 200

#: Most lines of a large log concern no listener. One regular expression skips them.
_WANTED = re.compile(
    rb"NCCL|[Rr]ank|^\s*(?:NIC|[a-z]\w*_)\d+\s|_perf|Watchdog|"
    rb"work:|^\s*\d+\s+\d+\s|Link \d|GPU ?\d|ACSCtl|BOOT_IMAGE|^#\d|#\s+(?:size|bytes)\s|"
    rb"launched|Missing|"
    rb"^\s*\d+(?:\s+\d+){5}\s|operation counts|>:\s*\d+\s+\d+\s|^\d+:\s+\d+\s+\d+\s|"
    rb"(?:\d\d:\d\d:\d\d\S{0,16}(?: std(?:out|err) [FP])?|[]|])\s+\d+\s+\d+\s"
)
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

LISTENERS: tuple[Callable[[list[str]], Listener], ...] = (NcclTests, NcclLog, TorchLog, RasText, Tools, MatrixReader)


def read_files(paths: Iterable[Path], tick: Callable[[int, int], None] = lambda done, total: None) -> Case:
    """The evidence in these files, and in all files of these directories; ``tick`` gets (bytes read, bytes in all).

    Raises UsageError if a file cannot be opened, and nothing else: unreadable content becomes a note of the case.
    """
    case = Case()
    files = [file for path in paths for file in _files(path)]
    sizes = {file: file.stat().st_size if str(file) != "-" else 0 for file in files}
    total, before = sum(sizes.values()), 0
    for file in files:
        _read(case, file, before, lambda read: tick(read, total))
        before += sizes[file]
        tick(before, total)
    return case


def _files(path: Path) -> list[Path]:
    if str(path) == "-":
        return [path]
    try:
        if path.is_dir():
            files = sorted(entry for entry in path.iterdir() if entry.is_file())
            if len(files) > MAX_FILES:
                raise UsageError(f"{path}: {len(files)} files, at most {MAX_FILES}")
            return files
        with path.open("rb"):
            return [path]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _read(case: Case, path: Path, before: int, tick: Callable[[int], None]) -> None:
    source = str(path) if str(path) != "-" else "standard input"
    pieces = len(case.pieces)
    try:
        with _opened(path) as file:
            start = file.read(4096)
            file.seek(0)
            kinds = _document(case, file, start, source) if _is_document(start) else None
            if kinds is None:
                file.seek(0)
                kinds = _text(case, file, source, lambda read: tick(before + read))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror or error}") from None
    case.read[source] = kinds
    if len(case.pieces) == pieces and not start.strip():
        case.notes.append(f"{source}: the file is empty")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file; standard input, which can be read only once, and UTF-16 as copies."""
    with path.open("rb") if str(path) != "-" else tempfile.TemporaryFile() as file:
        if str(path) == "-":
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
        if file.read(2) not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            file.seek(0)
            yield file
            return
        file.seek(0)
        with tempfile.TemporaryFile() as copy:  # PowerShell's > writes UTF-16
            for part in codecs.iterdecode(iter(lambda: file.read(1 << 20), b""), "utf-16", "replace"):
                copy.write(part.encode())
            copy.seek(0)
            yield copy


def _is_document(start: bytes) -> bool:
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] in (b"{", b"<") or head[:2] == b"[{" or flight_recorder.is_pickle(start)


# Documents.


def _document(case: Case, file: BinaryIO, start: bytes, source: str) -> list[str] | None:
    """Read a document and return its kinds; None if the file may be text that begins like a document."""
    data = file.read(MAX_DOCUMENT_BYTES + 1)
    if flight_recorder.is_pickle(start):
        return _understood(case, source, "flight recorder", lambda: flight_recorder.from_pickle(data, source))
    text = data.decode("utf-8-sig", "replace")
    if re.match(r"\s*<(?:system|graphs|\?xml|!--)", text):
        return _understood(case, source, "NCCL XML", lambda: topologies.from_xml(text, source, case.notes))
    if not text.lstrip().startswith(("{", "[")):
        return None
    if mlx_hostfile.looks_like(text):
        return _understood(case, source, "MLX's hostfile", lambda: topologies.from_other(text, source))
    lines = _json_lines(text)
    if lines is not None:
        return _understood(case, source, "NCCL Inspector", lambda: documents.inspector(lines, source))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        if len(data) > MAX_DOCUMENT_BYTES:
            case.notes.append(f"{source}: larger than {MAX_DOCUMENT_BYTES >> 20} MiB; such a document is not read")
            return []
        if re.match(r"\s*(?:\{\s*\"|\[\s*\{)", text) is None:
            return None
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
        case.notes.append(f"{source}: incomplete JSON ({where}), possibly cut off; nothing of it is used")
        return ["JSON, cut off"]
    for title, knows, read in documents.KINDS:
        if knows(document):
            return _understood(case, source, title, partial(read, document, source))
    is_plan = isinstance(document, dict) and "shares" in document
    what = "a plan, for blink check and blink show" if is_plan else "JSON of an unknown kind"
    case.notes.append(f"{source}: {what}")
    return []


def _json_lines(text: str) -> list[tuple[int, Any]] | None:
    """The objects of a file with one per line, without a truncated last one; None for other files."""
    objects: list[tuple[int, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                objects.append((number, json.loads(line)))
        except (ValueError, RecursionError):
            if not objects:
                return None
    return objects if objects and all(isinstance(one, dict) and "coll_perf" in one for _, one in objects) else None


def _understood(case: Case, source: str, title: str, read: Callable[[], Iterable[Evidence]]) -> list[str]:
    """Add the pieces of ``read``; a file that contradicts its own format becomes a note, with the reason."""
    try:
        case.add(read())
    except TopologyError as error:
        case.notes.append(str(error))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        case.notes.append(f"{source}: recognized as {title}, but its structure differs ({type(error).__name__})")
    return [title]


# Text.


def _text(case: Case, file: BinaryIO, source: str, tick: Callable[[int], None]) -> list[str]:
    """Pass every line to every listener; return the titles of those that made pieces."""
    listeners = [make(case.notes) for make in LISTENERS]
    counts = dict.fromkeys((listener.title for listener in listeners), 0)

    def take(listener: Listener, heard: Callable[[], Iterable[Evidence]]) -> None:
        try:
            for piece in heard():
                counts[listener.title] += 1
                if counts[listener.title] <= MAX_PIECES:
                    case.pieces.append(piece)
        except TopologyError as error:
            counts[listener.title] += 1
            case.notes.append(str(error))
        except ValueError:
            note = f"{source}: lines of {listener.title} without the expected number are skipped"
            case.notes += [note] if note not in case.notes else []

    text = file.read(MAX_FILE_BYTES).decode("utf-8-sig", "replace")
    file.seek(0)
    if len(text) < MAX_FILE_BYTES and amd_smi.looks_like(text):
        return _understood(case, source, "rocm-smi or amd-smi", lambda: topologies.from_other(text, source))
    if len(text) < MAX_FILE_BYTES and cables_file.looks_like(text):
        return _understood(case, source, "a line per cable", lambda: topologies.from_other(text, source))
    if len(text) < MAX_FILE_BYTES and nvidia_smi.looks_like(
        text, MATRIX_WITHIN
    ):  # of any version, with other text after it
        take(listeners.pop(), lambda: topologies.from_matrix(text, Location(source), case.notes))
    for number, line, read in _lines(file):
        if number % 65536 == 0:
            tick(read)
        for listener in listeners:
            take(listener, partial(listener.hear, line, Location(source, number)))
    for listener in listeners:
        take(listener, listener.end)
    return [title for title, count in counts.items() if count]


def _lines(file: BinaryIO) -> Iterator[tuple[int, str, int]]:
    """(number, text, bytes read so far) of the lines that may hold evidence, without launchers' tags.

    Of a line longer than :data:`MAX_LINE`, only the beginning is returned.
    """
    read = number = 0
    while part := file.readline(MAX_LINE):
        read += len(part)
        number += 1
        if not part.endswith(b"\n") and len(part) == MAX_LINE:
            while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
                read += len(more)
        if _WANTED.search(part) is None:
            continue
        yield number, untagged(_CONTROL.sub("", part.decode("utf-8", "replace")).rstrip()), read
