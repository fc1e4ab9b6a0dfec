"""One table from size to what runs: its rows, its lookup, and the file that measurements leave.

A *way* is how a call may run: an algorithm in a protocol, with messages of some size. A *row* says which ways serve the
sizes S in [``least``, ``below``); of several, the ranks try all while they work. Rows come from predictions
(:mod:`blinkccl.nccl.choices`), from what is built in (:mod:`blinkccl.runtime.host_table`), or from measurements, whose
rows are *cells* and have what each way took. A file of cells is JSON and made to be read::

    {"format": 2, "machine": "0f3c…", "name": "dgx-1v", "kind": "gpus", "by": "Tesla V100-SXM2-32GB, …", "slower": 1.0,
     "gpu": "Tesla V100-SXM2-32GB", "nccl": 23007, "cells": [
      {"collective": "allreduce", "root": -1, "ranks": [1, 4, 5, 6], "size_bytes": 65536, "least": 32768,
       "below": 131072, "measured": "2026-11-24", "times": [
        {"algorithm": "optimal", "protocol": "ll128", "seconds": 2.1e-05, "calls": 80},
        {"algorithm": "nccl", "protocol": "", "seconds": 3.0e-05, "calls": 80}]}]}

It is for one machine, which a hash of its links tells from others
(:func:`~blinkccl.trees.algorithms.path_table.machine_key`), or the name and number of a host's CPUs. ``ranks`` are
vertices of it, or ranks of the host. ``kind`` is "gpus" (``blink tune``: libblink.so's own kernels, and NCCL, in
turns), "laboratory" (``blink lab``: plans over TCP on links ``slower`` times slower; seconds are as if these had the
machine's rates) or "host" (``blink tune -g``: processes that share memory, and what is built in, in turns). Who
measured is said by ``by`` to people and by ``gpu`` and ``nccl``, its version as NCCL numbers it, to the planner.

A cost is *measured where there is a measurement, else predicted*. A cell says it of all sizes of its range, and there
what it lists is compared: who filled it measured what predictions gave a chance, so what it does not list has lost. A
cell that lists nothing that can run here says nothing.

Nothing in a file is trusted: one that is for another machine, cut off, of another format, or that contradicts itself
(two ranges or two times for one thing) is refused with a sentence, and its reader does without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import LaunchError, TopologyError, UsageError
from blinkccl.private_files import cache_directory, open_trusted, private_directory, write_at_once
from blinkccl.topology.limits import check_labels, shortened
from blinkccl.trees.algorithms.registry import ALGORITHMS

#: Raise it when the fields change, or our code becomes so much faster that older times say nothing of it.
FORMAT = 2
MAX_FILE_BYTES = 8 << 20
#: More than any size.
NO_LIMIT = 1 << 62
GPUS, LABORATORY, HOST = "gpus", "laboratory", "host"
#: Among the algorithms of cells: what NCCL alone takes, and what communicators run without a measurement.
NCCL, BUILT_IN = "nccl", "built in"
#: Protocols between processes: messages carry their flags inside; the system copies between ranks' own memories.
INLINE, COPIED = "ll", "copies"
#: Ways of a row, and the largest message and the most parts that one may ask for.
MOST_WAYS, MOST_CHUNK_BYTES, MOST_PARTS = 8, 1 << 30, 64
#: "0" makes jobs do without what ``blink tune`` measured.
VARIABLE = "BLINK_TUNED"

_log = logging.getLogger(__name__)


class Way(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a call runs. ``chunk_bytes`` is the wanted message; 0: that of predictions.

    It is less where ``parts`` of S, of whole cache lines, are smaller.
    """

    algorithm: str
    protocol: str = ""
    chunk_bytes: int = 0
    parts: int = 0

    @property
    def inline(self) -> bool:
        """Between processes: whether messages carry their flags inside."""
        return self.protocol == INLINE

    @property
    def copied(self) -> bool:
        """Between processes: whether the system copies."""
        return self.protocol == COPIED

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.algorithm} {self.protocol}".strip()


_Way = TypeVar("_Way")


@dataclass(frozen=True, slots=True)
class Row(Generic[_Way]):
    """What serves S in [``least``, ``below``): the first of its ways, or of several the one that calls find fastest."""

    least: int
    below: int
    ways: tuple[_Way, ...]


class _Ranged(Protocol):
    @property
    def least(self) -> int: ...
    @property
    def below(self) -> int: ...


_Row = TypeVar("_Row", bound=_Ranged)


def row_at(rows: Iterable[_Row], size_bytes: int) -> _Row | None:
    """The row that serves S bytes; None where there is none."""
    return next((row for row in rows if row.least <= size_bytes < row.below), None)


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call took, the slowest rank's word, over so many ``calls``.

    ``variants``: other ways that the group chose among.
    """

    algorithm: str
    protocol: str
    seconds: float
    calls: int
    chunk_bytes: int = 0
    variants: tuple[Way, ...] = ()

    @classmethod
    def of(cls, ways: Sequence[Way], seconds: float, calls: int) -> Time:
        """What a way and its variants took."""
        first, *variants = ways
        return cls(first.algorithm, first.protocol, seconds, calls, first.chunk_bytes, tuple(variants))

    @property
    def ways(self) -> tuple[Way, ...]:
        """What was timed."""
        return Way(self.algorithm, self.protocol, self.chunk_bytes), *self.variants


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective at one size, by which S in [``least``, ``below``) goes; ``root`` is a rank, −1 where none is.

    ``ranks`` are vertices; ``measured`` is the day. ``tried`` counts what was measured where that is more than
    ``times``. A cell serves nobody until it was ``confirmed`` by another measurement: a tuner that is killed leaves
    some that were not.
    """

    collective: str
    root: int
    ranks: tuple[int, ...]
    size_bytes: int
    least: int
    below: int
    measured: str
    times: tuple[Time, ...]
    tried: int = 0
    confirmed: bool = True

    @property
    def key(self) -> tuple[str, int, tuple[int, ...]]:
        return self.collective, self.root, self.ranks

    def best(self, algorithm: str, protocols: Sequence[str] | None = None) -> Time | None:
        """The least that an algorithm took, in any of the protocols (None: whatever ran it)."""
        found = [
            time
            for time in self.times
            if time.algorithm == algorithm and (protocols is None or time.protocol in protocols)
        ]
        return min(found, key=lambda time: time.seconds, default=None)


class MeasuredTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All cells of one machine."""

    machine: str
    name: str
    kind: str
    by: str
    slower: float = 1.0
    gpu: str = ""
    nccl: int = 0
    cells: tuple[Cell, ...] = ()
    format: int = FORMAT

    def of(self, ranks: Sequence[int]) -> tuple[Cell, ...]:
        """The cells of one job."""
        return tuple(cell for cell in self.cells if cell.ranks == tuple(ranks))

    def with_cell(self, cell: Cell) -> MeasuredTable:
        """With a cell in the place of those of its collective and ranks that it overlaps."""
        kept = [
            other
            for other in self.cells
            if other.key != cell.key or other.below <= cell.least or cell.below <= other.least
        ]
        kept.append(cell)
        kept.sort(key=lambda one: (list(COLLECTIVES).index(one.collective), one.root, one.ranks, one.least))
        return msgspec.structs.replace(self, cells=tuple(kept))

    def same_source(self, other: MeasuredTable) -> bool:
        """Whether times of both may stand side by side."""
        return msgspec.structs.replace(self, cells=()) == msgspec.structs.replace(other, cells=())


def cell_at(cells: Iterable[Cell], collective: Collective, size_bytes: int) -> Cell | None:
    """Which of one job's cells says what S bytes take."""
    key = collective.name, -1 if collective.root is None else collective.root
    return row_at((cell for cell in cells if (cell.collective, cell.root) == key), size_bytes)


def path_of(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where ``blink tune`` keeps a table; None where no cache is kept."""
    directory = cache_directory(environ, "tuned")
    return None if directory is None else directory / f"{name}.json"


def path_of_gpus(machine: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """As :func:`path_of`, of a machine's GPUs."""
    return path_of(f"{GPUS}-{machine[:16]}", environ)


def from_json(content: bytes, machine: str, where: str) -> MeasuredTable:
    """The table in ``content``, for ``machine``; a UsageError says why it is none."""
    try:
        version = msgspec.json.decode(content, type=_TableFormat).format
        if version not in (0, FORMAT):
            raise UsageError(f"{where}: its format is {version}, this version reads {FORMAT}")
        found = msgspec.json.decode(content, type=MeasuredTable)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{where} is no table of measurements: {shortened(str(error))}") from None
    faults = (text for cell in found.cells if (text := cell_fault(cell, found.kind)))
    fault = _fault(found, machine) or next(faults, "")
    if fault:
        raise UsageError(f"{where}: {fault}")
    ranges = sorted((cell.key, cell.least, cell.below) for cell in found.cells)
    for (key, _, below), (following, least, _) in pairwise(ranges):
        if key == following and least < below:
            raise UsageError(f"{where}: two ranges of {key[0]} among {list(key[2])} have {least} bytes")
    return found


class _TableFormat(msgspec.Struct):
    """What any format has."""

    format: int = 0


def _fault(found: MeasuredTable, machine: str) -> str:
    try:
        texts = ("machine", "name", "by", "gpu")
        check_labels("table", [(text, getattr(found, text)) for text in texts])
    except TopologyError as error:
        return str(error)
    if found.kind not in (GPUS, LABORATORY, HOST) or not 0 < found.slower < inf:
        return f"kind {shortened(found.kind)!r}, {found.slower} times slower: expected {GPUS}, {LABORATORY} or {HOST}"
    if found.machine != machine:
        return f"it was measured on machine {found.machine[:48]} ({found.name}), and this one is {machine[:48]}"
    return ""


def cell_fault(cell: Cell, kind: str) -> str:
    """What is wrong with a cell of a table of this kind; "" for nothing."""
    if cell.collective not in COLLECTIVES:
        return f"{shortened(cell.collective)!r}: there is no such collective"
    what = f"{cell.collective} at {cell.size_bytes} bytes"
    ranks = cell.ranks
    if not 2 <= len(ranks) <= 4096 or len(set(ranks)) < len(ranks) or not -1 <= cell.root < len(ranks):
        return f"{what}: root {cell.root} among ranks {list(ranks[:8])}"
    if not 0 <= cell.least <= cell.size_bytes < cell.below <= NO_LIMIT:
        return f"{what}: its range is {cell.least} to {cell.below}"
    for time in cell.times:
        fault = _time_fault(time, kind)
        if fault:
            return f"{what}: {fault}"
    if len({time.ways for time in cell.times}) < len(cell.times):
        return f"{what}: two times for one algorithm"
    return ""


def _time_fault(time: Time, kind: str) -> str:
    first, *variants = time.ways
    if first.algorithm not in (BUILT_IN if kind == HOST else NCCL, *ALGORITHMS):
        return f"unknown algorithm {shortened(first.algorithm)!r}"
    if not 0 < time.seconds < inf or time.calls < 1:
        return f"{first.algorithm} took {time.seconds} s in {time.calls} calls"
    if len(variants) >= MOST_WAYS:
        return f"{len(time.ways)} ways, expected at most {MOST_WAYS}"
    # Between processes nothing predicts the size of messages.
    least_chunk = int(kind == HOST and first.algorithm != BUILT_IN)
    for way in time.ways:
        if not least_chunk <= way.chunk_bytes <= MOST_CHUNK_BYTES or not 0 <= way.parts <= MOST_PARTS:
            return f"messages of {way.chunk_bytes} bytes in {way.parts} parts"
    if kind == HOST and first.copied:
        return "what the system copies is a variant"
    for way in variants:
        if way.algorithm != first.algorithm or way.protocol not in ({first.protocol} if first.inline else {"", COPIED}):
            return f"variants do the same in other messages: {way.name} is none of {first.name}"
    return ""


def read(path: Path, machine: str) -> MeasuredTable:
    """The table that ``blink tune`` left; an OSError if it is not there or not ours, else as :func:`from_json`."""
    with open_trusted(path, MAX_FILE_BYTES) as file:
        return from_json(file.read(MAX_FILE_BYTES), machine, str(path))


def read_or_ignore(path: Path | None, machine: str, environ: Mapping[str, str] = os.environ) -> MeasuredTable | None:
    """What ``blink tune`` left for jobs of a machine; None if there is nothing, with a warning if it is no good.

    LaunchError if BLINK_TUNED is neither 0, for no table, nor empty.
    """
    wish = environ.get(VARIABLE, "")
    if wish not in ("", "0"):
        raise LaunchError(f"{VARIABLE}={wish[:40]!r}: expected 0 (what is built in) or nothing (what was measured)")
    try:
        return None if path is None or wish == "0" else read(path, machine)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _log.warning("%s cannot be read: %s; it is ignored: run blink tune", path, error.strerror or error)
    except UsageError as error:
        _log.warning("%s; it is ignored: run blink tune", error)
    return None


def write(path: Path, table: MeasuredTable) -> None:
    """Puts ``blink tune``'s table into its place at once: who reads sees the old one or this one.

    LaunchError if that cannot be done.
    """
    private_directory(path.parent)
    try:
        write_at_once(path, to_json(table))
    except OSError as error:
        raise LaunchError(f"{path} cannot be written ({error}): set BLINK_CACHE elsewhere") from error


def to_json(table: MeasuredTable) -> bytes:
    """What a file holds."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"
