"""The paths of messages by their two ends and their size: a table filled by a simulation or by measurements.

A file is readable JSON::

    {"schema_version": 2, "machine": "0f3c…", "name": "mist", "source": "simulated on calibration mist",
     "kind": "simulated", "pairs": [{"src": 0, "dst": 1, "splits": [
       {"up_to_bytes": 1048576, "chunks": 1, "gb_per_s": 50.9, "direct_gb_per_s": 50.9,
        "parts": [{"path": [0, 1], "weight": "1", "streams": 1}]},
       {"up_to_bytes": null, "chunks": 4, "gb_per_s": 141.0, "direct_gb_per_s": 71.8,
        "parts": [{"path": [0, 1], "weight": "127/250", …}, {"path": [0, 4, 1], "streams": 8, …}]}]}]}

A table is for one machine, identified by a hash of its links. A table of a laboratory, which is hundreds of times
slower, is not for GPUs (``kind``). Nothing in a file is trusted. A file for another machine or version, or a truncated
or malformed one, is refused with a message, and its reader uses no table. The links of a path are checked when it is
used (:func:`blinkccl.trees.algorithms.multi_path.forest_of`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise
from math import ceil
from pathlib import Path as FilePath
from typing import Any

import msgspec

from blinkccl.errors import TopologyError
from blinkccl.private_files import write_or_replace
from blinkccl.schema import SCHEMA_VERSION, version_fault
from blinkccl.topology.limits import check_labels
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Path, topology_hash

#: The most streams of one path, as in the multi-path UCX article.
MOST_STREAMS = 8
#: Limits of chunks of a stream, parts of a message, vertices of a path, sizes of a pair, pairs of a machine.
MOST_CHUNKS, MOST_PARTS, MOST_VERTICES, MOST_SPLITS, MOST_PAIRS = 64, 64, 64, 64, 4096
MAX_FILE_BYTES = 16 << 20
#: The largest size of each class but the last. A class is compared at its shortest and its longest message. The first
#: class begins at :data:`LEAST_BYTES`, and the last one ends at :data:`BEYOND_BYTES`.
CLASSES = tuple(16 * 1024 << power for power in range(15))
LEAST_BYTES, BEYOND_BYTES = 64, 4 * CLASSES[-1]
#: The alignment of the parts of a message.
ALIGNMENT_BYTES = 16

#: Kinds of tables, by their source.
SIMULATED, LABORATORY = "simulated", "laboratory"
#: The first words of ``source`` for laboratories in older tables without ``kind``.
_OF_LABORATORIES = "measured in a laboratory"

_log = logging.getLogger(__name__)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``weight`` of a message on ``path`` (vertex ids from the source to the destination), in parallel ``streams``.

    Each stream has its own slice, of equal size.
    """

    path: Path
    weight: Fraction
    streams: int = 1


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paths of messages of up to ``up_to_bytes`` (None: of all longer ones).

    ``chunks`` is the number of chunks of the longest slice; the other slices have as many if an engine cuts evenly.
    ``gb_per_s`` and ``direct_gb_per_s`` are the rates of the longest message with this split and on the first path
    alone, 0 if unknown.
    """

    parts: tuple[Part, ...]
    up_to_bytes: int | None = None
    chunks: int = 1
    gb_per_s: float = 0.0
    direct_gb_per_s: float = 0.0

    def chunk_bytes(self, size_bytes: int) -> int:
        """The chunk size for engines and the simulator; messages beyond :data:`BEYOND_BYTES` have more chunks."""
        longest = max(part.weight / part.streams for part in self.parts)
        # Slices begin on whole groups of bytes, so the last slice may be one group longer.
        groups = longest * min(size_bytes, BEYOND_BYTES) / self.chunks / ALIGNMENT_BYTES
        return ceil(groups + 1) * ALIGNMENT_BYTES

    def text(self) -> str:
        """A text such as ``54.3 % on 0-1, 45.7 % on 0-4-1 in 8 streams``."""
        texts = []
        for part in self.parts:
            cut = f" in {part.streams} streams" if part.streams > 1 else ""
            share = "all" if part.weight == 1 else f"{float(part.weight):.1%}".replace("%", " %")
            texts.append(f"{share} on {'-'.join(map(str, part.path))}{cut}")
        return ", ".join(texts) + (f", {self.chunks} chunks each" if self.chunks > 1 else "")


class PairSplits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The splits of messages from ``src`` to ``dst`` (vertex ids), by ascending ``up_to_bytes``, None last."""

    src: int
    dst: int
    splits: tuple[Split, ...]

    def at(self, size_bytes: int) -> Split:
        """The split of a message of ``size_bytes``."""
        return next(s for s in self.splits if s.up_to_bytes is None or size_bytes <= s.up_to_bytes)


class PathTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pairs of a machine; ``machine`` is :func:`machine_key`, ``source`` and ``kind`` describe the origin."""

    machine: str
    name: str
    source: str
    pairs: tuple[PairSplits, ...] = ()
    kind: str = SIMULATED
    schema_version: int = SCHEMA_VERSION

    def pair(self, src: int, dst: int) -> PairSplits | None:
        """The row of two ends, or None."""
        return next((row for row in self.pairs if (row.src, row.dst) == (src, dst)), None)

    def merged(self, pair: PairSplits) -> PathTable:
        """The table with ``pair`` instead of its row for the same two ends, if any."""
        others = [row for row in self.pairs if (row.src, row.dst) != (pair.src, pair.dst)]
        rows = sorted((*others, pair), key=lambda row: (row.src, row.dst))
        return msgspec.structs.replace(self, pairs=tuple(rows))


def machine_key(topology: Topology) -> str:
    """The identity of a machine: a hash of its vertices and links."""
    return topology_hash(topology)


#: The seconds of a split for a number of bytes.
Timer = Callable[[Split, int], float]


#: The saving that more copies need over fewer ones, which are tried first, as a part of the time of one on one path.
LEAST_GAIN = 0.005


def fill(
    src: int, dst: int, direct: Split, options: Callable[[int], Iterable[Split]], timer: Timer, gain: float = 0.0
) -> PairSplits:
    """The row of a pair: for each class of sizes the fastest of ``options(size)``, or ``direct`` if none is faster.

    An option is judged at the shortest and at the longest message of a class: at both it must save more than the part
    ``gain`` of the time of ``direct``. With a fixed number of chunks, the time of a split is convex in the size, as the
    maximum of linear times. The time of ``direct`` is linear, so the option is not slower between both sizes either.
    """
    rows: list[Split] = []
    for low, high in pairwise((LEAST_BYTES, *CLASSES, BEYOND_BYTES)):
        ends = (low, high)
        alone = [timer(direct, size) for size in ends]
        best, least = direct, 2.0 + LEAST_GAIN
        for option in options(high):
            parts = [timer(option, size) / base for size, base in zip(ends, alone, strict=True)]
            if max(parts) < 1 - gain and sum(parts) < least - LEAST_GAIN:
                best, least = option, sum(parts)
        rate = high / timer(best, high) / 1e9
        end = high if high < BEYOND_BYTES else None
        best = msgspec.structs.replace(
            best, up_to_bytes=end, gb_per_s=round(rate, 3), direct_gb_per_s=round(high / alone[1] / 1e9, 3)
        )
        if rows and (rows[-1].parts, rows[-1].chunks) == (best.parts, best.chunks):
            rows.pop()
        rows.append(best)
    return PairSplits(src, dst, tuple(rows))


def to_json(table: PathTable) -> str:
    """The table as canonical JSON, one line per split."""
    document = msgspec.to_builtins(table, enc_hook=str)
    rows = []
    for pair in document.pop("pairs"):
        splits = ",\n".join(f"   {json.dumps(split, sort_keys=True)}" for split in pair["splits"])
        rows.append(f'  {{"src": {pair["src"]}, "dst": {pair["dst"]}, "splits": [\n{splits}]}}')
    head = "".join(f" {json.dumps(key)}: {json.dumps(document[key])},\n" for key in sorted(document))
    return "{\n" + head + ' "pairs": [\n' + ",\n".join(rows) + "]\n}\n"


def from_json(content: bytes, machine: str, where: str = "path table") -> PathTable:
    """The table in ``content``, for ``machine``; a TopologyError states the fault of a bad one."""
    try:
        document = msgspec.json.decode(content)
        if isinstance(document, dict) and (fault := version_fault(document.get("schema_version"))):
            raise TopologyError(f"{where}: {fault}")
        table = msgspec.convert(_with_kind(document), PathTable, dec_hook=_fraction)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TopologyError(f"{where}: not a table of paths: {str(error)[:200]}") from None
    check_labels(where, [("name", table.name), ("source", table.source), ("machine", table.machine)])
    if table.kind not in (SIMULATED, LABORATORY):
        raise TopologyError(f"{where}: kind {table.kind[:40]!r}; expected {SIMULATED} or {LABORATORY}")
    if table.machine != machine:
        raise TopologyError(f"{where}: it is for machine {table.machine} ({table.name}), but this one is {machine}")
    for pair in table.pairs:
        fault = _fault(pair)
        if fault:
            raise TopologyError(f"{where}: from {pair.src} to {pair.dst}: {fault}")
    ends = [(pair.src, pair.dst) for pair in table.pairs]
    if len(set(ends)) < len(ends) or len(ends) > MOST_PAIRS:
        raise TopologyError(f"{where}: expected at most {MOST_PAIRS} pairs, each once")
    return table


def _with_kind(document: Any) -> Any:
    """The document with a kind; older files only state it in the text of the source."""
    if not isinstance(document, dict) or "kind" in document or _OF_LABORATORIES not in str(document.get("source")):
        return document
    return {**document, "kind": LABORATORY}


def _fraction(kind: type, value: Any) -> Fraction:
    """A weight from text of limited length, since exact arithmetic with long numbers takes long."""
    if kind is not Fraction or not isinstance(value, str) or len(value) > 40 or "e" in value.lower():
        raise ValueError(f'a weight is text like "1/2" or "0.25", got {str(value)[:60]!r}')
    try:
        return Fraction(value)
    except ZeroDivisionError:
        raise ValueError(f"a weight divides by zero: {value}") from None


def _fault(pair: PairSplits) -> str | None:
    """The fault of a row, or None."""
    ends = [split.up_to_bytes for split in pair.splits]
    if not ends or ends[-1] is not None or len(ends) > MOST_SPLITS:
        return f"expected 1 to {MOST_SPLITS} splits, the last with up_to_bytes null"
    sizes = [-1 if end is None else end for end in ends[:-1]]
    if any(a >= b for a, b in pairwise((0, *sizes))):
        return f"up_to_bytes must be positive and ascending, got {sizes[:5]}"
    for split in pair.splits:
        if not 1 <= split.chunks <= MOST_CHUNKS or not 1 <= len(split.parts) <= MOST_PARTS:
            return f"expected 1 to {MOST_CHUNKS} chunks and 1 to {MOST_PARTS} parts"
        if sum(part.weight for part in split.parts) != 1 or any(part.weight <= 0 for part in split.parts):
            return "the weights of a split must be positive and sum to 1"
        for part in split.parts:
            fault = _part_fault(part, pair)
            if fault:
                return fault
    return None


def _part_fault(part: Part, pair: PairSplits) -> str | None:
    if not 1 <= part.streams <= MOST_STREAMS:
        return f"expected 1 to {MOST_STREAMS} streams, got {part.streams}"
    simple = 2 <= len(part.path) <= MOST_VERTICES and len(set(part.path)) == len(part.path)
    if not simple or (part.path[0], part.path[-1]) != (pair.src, pair.dst):
        return f"path {list(part.path)[:10]} does not lead from {pair.src} to {pair.dst} with each vertex once"
    return None


def read(path: FilePath, machine: str) -> PathTable:
    """The table in a file, with the errors of :func:`from_json`, and an OSError if it cannot be read."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; expected a table of paths")
    return from_json(content, machine, str(path))


def read_or_ignore(path: FilePath, machine: str) -> PathTable | None:
    """The table in a file; None if it does not exist, and None with a warning if it is not usable."""
    try:
        return read(path, machine)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s cannot be read: %s; it is ignored", path, error.strerror or error)
    except TopologyError as error:
        _log.warning("%s; it is ignored", error)
    return None


def write(path: FilePath, table: PathTable) -> None:
    """Write the file completely or not at all; an OSError leaves the old content."""
    write_or_replace(path, to_json(table).encode())
