"""The table of ways to run a call by its size: rows, look-up, and the file of measurements.

A *way* to run a call is an algorithm in a protocol, with a size of messages. A *row* has the ways for sizes S in
[``least``, ``below``). If it has several, the ranks try all of them during their calls. Rows come from predictions
(:mod:`blinkccl.nccl.choices`), from the built-in table (:mod:`blinkccl.runtime.host_table`), or from measurements. Rows
of measurements are *cells* with the time of each way. A file of cells is readable JSON::

    {"format": 2, "machine": "0f3c…", "name": "dgx-1v", "kind": "gpus", "by": "Tesla V100-SXM2-32GB, …", "slower": 1.0,
     "gpu": "Tesla V100-SXM2-32GB", "nccl": 23007, "cells": [
      {"collective": "allreduce", "root": -1, "ranks": [1, 4, 5, 6], "size_bytes": 65536, "least": 32768,
       "below": 131072, "measured": "2026-11-24", "times": [
        {"algorithm": "optimal", "protocol": "ll128", "seconds": 2.1e-05, "calls": 80},
        {"algorithm": "nccl", "protocol": "", "seconds": 3.0e-05, "calls": 80}]}]}

A table is for one machine, identified by a hash of its links
(:func:`~blinkccl.trees.algorithms.path_table.machine_key`), or by the name and number of a host's CPUs. ``ranks`` are
vertices of the machine, or ranks of the host. ``by`` names the origin for people, ``gpu`` and ``nccl`` (NCCL's version
number) for the planner. ``kind`` is one of:

- "gpus" (``blink tune``): kernels of libblink.so and NCCL, in alternation;
- "laboratory" (``blink lab``): plans over TCP on links ``slower`` times slower, in seconds at the machine's rates;
- "host" (``blink tune -g``): processes that share memory, and the built-in choice, in alternation.

A cost is measured if there is a measurement, else predicted. A cell holds for all sizes of its range, and only its ways
are compared. Its author measured the ways with a chance by prediction, so a way that it does not list has lost. A cell
without a way that can run in this job has no effect.

Nothing in a file is trusted. A file for another machine or format is refused with a message, and so is a truncated one.
A table with overlapping ranges, or with two times for one way, is refused too. Its reader then uses no table.
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

#: The version of the format; raise it if fields change, or if Blink becomes so much faster that old times mislead.
FORMAT = 2
MAX_FILE_BYTES = 8 << 20
#: Larger than any size.
NO_LIMIT = 1 << 62
GPUS, LABORATORY, HOST = "gpus", "laboratory", "host"
#: Algorithms of cells for NCCL itself, and for the built-in choice of communicators without a measurement.
NCCL, BUILT_IN = "nccl", "built in"
#: Protocols between processes: messages that contain their flags; copies by the system between ranks' own memories.
INLINE, COPIED = "ll", "copies"
#: The most ways of a row, and the largest message and the most parts of a way.
MOST_WAYS, MOST_CHUNK_BYTES, MOST_PARTS = 8, 1 << 30, 64
#: With the value "0", jobs ignore the measurements of ``blink tune``.
VARIABLE = "BLINK_TUNED"

_log = logging.getLogger(__name__)


class Way(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True):
    """A way to run a call. ``chunk_bytes`` is the size of messages; 0: as predicted.

    Messages are smaller if one of ``parts`` parts of S, in whole cache lines, is smaller.
    """

    algorithm: str
    protocol: str = ""
    chunk_bytes: int = 0
    parts: int = 0

    @property
    def inline(self) -> bool:
        """True if messages between processes contain their flags."""
        return self.protocol == INLINE

    @property
    def copied(self) -> bool:
        """True if the system copies between processes."""
        return self.protocol == COPIED

    @property
    def name(self) -> str:
        """The algorithm and protocol, for messages."""
        return f"{self.algorithm} {self.protocol}".strip()


_Way = TypeVar("_Way")


@dataclass(frozen=True, slots=True)
class Row(Generic[_Way]):
    """The ways for S in [``least``, ``below``); of several ways, calls determine the fastest."""

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
    """The row for S bytes, or None."""
    return next((row for row in rows if row.least <= size_bytes < row.below), None)


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time of a call on the slowest rank, measured over ``calls`` calls.

    ``variants`` are the other ways among which the group selected.
    """

    algorithm: str
    protocol: str
    seconds: float
    calls: int
    chunk_bytes: int = 0
    variants: tuple[Way, ...] = ()

    @classmethod
    def of(cls, ways: Sequence[Way], seconds: float, calls: int) -> Time:
        """The time of a way and its variants."""
        first, *variants = ways
        return cls(first.algorithm, first.protocol, seconds, calls, first.chunk_bytes, tuple(variants))

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways that were timed."""
        return Way(self.algorithm, self.protocol, self.chunk_bytes), *self.variants


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurement of one collective at one size, which is used for S in [``least``, ``below``).

    ``root`` is a rank, or −1 without a root; ``ranks`` are vertices; ``measured`` is the day. ``tried`` is the number
    of ways measured, if larger than that of ``times``. A cell is not used until another measurement has ``confirmed``
    it: a tuner that is killed may leave unconfirmed ones.
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
        """The least time of an algorithm, in any of the protocols (None: in all)."""
        times = [
            time
            for time in self.times
            if time.algorithm == algorithm and (protocols is None or time.protocol in protocols)
        ]
        return min(times, key=lambda time: time.seconds, default=None)


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
        """The table with ``cell`` instead of the cells of its collective and ranks that overlap its range."""
        cells = [
            other
            for other in self.cells
            if other.key != cell.key or other.below <= cell.least or cell.below <= other.least
        ]
        cells.append(cell)
        cells.sort(key=lambda one: (list(COLLECTIVES).index(one.collective), one.root, one.ranks, one.least))
        return msgspec.structs.replace(self, cells=tuple(cells))

    def same_source(self, other: MeasuredTable) -> bool:
        """True if the times of both tables are comparable."""
        return msgspec.structs.replace(self, cells=()) == msgspec.structs.replace(other, cells=())


def cell_at(cells: Iterable[Cell], collective: Collective, size_bytes: int) -> Cell | None:
    """The cell for S bytes among the cells of one job, or None."""
    key = collective.name, -1 if collective.root is None else collective.root
    return row_at((cell for cell in cells if (cell.collective, cell.root) == key), size_bytes)


def path_of(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The path of a table of ``blink tune``; None without a cache."""
    directory = cache_directory(environ, "tuned")
    return None if directory is None else directory / f"{name}.json"


def path_of_gpus(machine: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The path of the table of a machine's GPUs, as in :func:`path_of`."""
    return path_of(f"{GPUS}-{machine[:16]}", environ)


def from_json(content: bytes, machine: str, where: str) -> MeasuredTable:
    """The table in ``content``, for ``machine``; a UsageError states the fault of a bad one."""
    try:
        version = msgspec.json.decode(content, type=_TableFormat).format
        if version not in (0, FORMAT):
            raise UsageError(f"{where}: its format is {version}, this version reads {FORMAT}")
        table = msgspec.json.decode(content, type=MeasuredTable)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{where} is no table of measurements: {shortened(str(error))}") from None
    faults = (text for cell in table.cells if (text := cell_fault(cell, table.kind)))
    fault = _fault(table, machine) or next(faults, "")
    if fault:
        raise UsageError(f"{where}: {fault}")
    ranges = sorted((cell.key, cell.least, cell.below) for cell in table.cells)
    for (key, _, below), (following, least, _) in pairwise(ranges):
        if key == following and least < below:
            raise UsageError(f"{where}: two ranges of {key[0]} among {list(key[2])} overlap at {least} bytes")
    return table


class _TableFormat(msgspec.Struct):
    """The field of every format."""

    format: int = 0


def _fault(table: MeasuredTable, machine: str) -> str:
    try:
        texts = ("machine", "name", "by", "gpu")
        check_labels("table", [(text, getattr(table, text)) for text in texts])
    except TopologyError as error:
        return str(error)
    if table.kind not in (GPUS, LABORATORY, HOST) or not 0 < table.slower < inf:
        return f"kind {shortened(table.kind)!r}, {table.slower} times slower: expected {GPUS}, {LABORATORY} or {HOST}"
    if table.machine != machine:
        return f"it was measured on machine {table.machine[:48]} ({table.name}), but this one is {machine[:48]}"
    return ""


def cell_fault(cell: Cell, kind: str) -> str:
    """The fault of a cell of a table of this kind, or ""."""
    if cell.collective not in COLLECTIVES:
        return f"{shortened(cell.collective)!r}: there is no such collective"
    name = f"{cell.collective} at {cell.size_bytes} bytes"
    ranks = cell.ranks
    if not 2 <= len(ranks) <= 4096 or len(set(ranks)) < len(ranks) or not -1 <= cell.root < len(ranks):
        return f"{name}: root {cell.root} among ranks {list(ranks[:8])}, expected one of 2 to 4096 different ranks"
    if not 0 <= cell.least <= cell.size_bytes < cell.below <= NO_LIMIT:
        return f"{name}: its range is {cell.least} to {cell.below}, expected one with its size"
    for time in cell.times:
        fault = _time_fault(time, kind)
        if fault:
            return f"{name}: {fault}"
    if len({time.ways for time in cell.times}) < len(cell.times):
        return f"{name}: two times for one algorithm"
    return ""


def _time_fault(time: Time, kind: str) -> str:
    first, *variants = time.ways
    if first.algorithm not in (BUILT_IN if kind == HOST else NCCL, *ALGORITHMS):
        return f"unknown algorithm {shortened(first.algorithm)!r}"
    if not 0 < time.seconds < inf or time.calls < 1:
        return f"{first.algorithm} took {time.seconds} s in {time.calls} calls, expected positive numbers"
    if len(variants) >= MOST_WAYS:
        return f"{len(time.ways)} ways, expected at most {MOST_WAYS}"
    # The size of messages between processes is not predicted, so a time states it.
    least_chunk = int(kind == HOST and first.algorithm != BUILT_IN)
    for way in time.ways:
        if not least_chunk <= way.chunk_bytes <= MOST_CHUNK_BYTES or not 0 <= way.parts <= MOST_PARTS:
            limits = f"expected {least_chunk} to {MOST_CHUNK_BYTES} bytes and 0 to {MOST_PARTS} parts"
            return f"messages of {way.chunk_bytes} bytes in {way.parts} parts, {limits}"
    if kind == HOST and first.copied:
        return f"the first variant of {first.algorithm} has protocol {COPIED}, which only later variants may have"
    for way in variants:
        if way.algorithm != first.algorithm or way.protocol not in ({first.protocol} if first.inline else {"", COPIED}):
            return f"expected variants of {first.name} that differ only in size and parts of messages, got {way.name}"
    return ""


def read(path: Path, machine: str) -> MeasuredTable:
    """The table of ``blink tune``; an OSError if it is missing or not trusted, else as :func:`from_json`."""
    with open_trusted(path, MAX_FILE_BYTES) as file:
        return from_json(file.read(MAX_FILE_BYTES), machine, str(path))


def read_or_ignore(path: Path | None, machine: str, environ: Mapping[str, str] = os.environ) -> MeasuredTable | None:
    """The table of ``blink tune`` for jobs of a machine; None if it is missing, or, with a warning, if it is invalid.

    LaunchError if BLINK_TUNED is neither 0, for no table, nor empty.
    """
    setting = environ.get(VARIABLE, "")
    if setting not in ("", "0"):
        raise LaunchError(f"{VARIABLE}={setting[:40]!r}: expected 0 (ignore the measured table) or nothing (use it)")
    try:
        return None if path is None or setting == "0" else read(path, machine)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _log.warning("%s cannot be read: %s; it is ignored: run blink tune", path, error.strerror or error)
    except UsageError as error:
        _log.warning("%s; it is ignored: run blink tune", error)
    return None


def write(path: Path, table: MeasuredTable) -> None:
    """Write the table of ``blink tune`` atomically: readers see the old or the new one. LaunchError if it fails."""
    private_directory(path.parent)
    try:
        write_at_once(path, to_json(table))
    except OSError as error:
        raise LaunchError(f"{path} cannot be written ({error}): set BLINK_CACHE to another directory") from error


def to_json(table: MeasuredTable) -> bytes:
    """The content of a file with ``table``."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"
