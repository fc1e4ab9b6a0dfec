"""What ``blink tune`` measured on this host: a file by number of ranks, and how the ranks of a group agree on it.

The file is JSON and made to be read::

    {"format": 1, "machine": "AMD EPYC, 2 CPUs", "ranks": 2, "cells": [
      {"collective": "allreduce", "size_bytes": 65536, "least": 32768, "below": 131072, "measured": "2026-11-24",
       "seconds": 2.1e-05, "built_in_seconds": 2.6e-05, "tried": 9,
       "rows": [{"algorithm": "one_hop", "inline": false, "chunk_bytes": 65536, …}]}]}

A cell without rows is one where nothing was clearly faster than what is built in. Nothing in a file is trusted: one
that is for another machine, other ranks or another format, or that is damaged, is ignored with a warning that says why.
Choices must be the same on all ranks, so a group takes a table only if every rank has read the same one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.choice.host_table import NO_LIMIT, HostChoice, HostTable, MeasuredRange, built_in, with_measured
from blinkccl.cost.choice.measured import is_wanted
from blinkccl.errors import LaunchError, UsageError
from blinkccl.private_files import cache_directory, open_trusted, private_directory, write_at_once
from blinkccl.trees.algorithms.registry import ALGORITHMS

FORMAT = 1
MAX_FILE_BYTES = 1 << 20
#: A row and its variants at most, and the largest message that a row may ask for.
MOST_ROWS, MOST_CHUNK_BYTES, MOST_PARTS = 8, 1 << 30, 64

_log = logging.getLogger(__name__)


class TunedCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective at one size, measured for S in [least, below): ``rows`` beat what is built in, or are none.

    ``seconds`` are of the rows, or of what is built in where they are none; ``tried`` counts what was measured. Rows
    serve nobody until they were ``confirmed`` by another measurement: a tuner that is killed leaves some that were not.
    """

    collective: str
    size_bytes: int
    least: int
    below: int
    measured: str
    seconds: float
    built_in_seconds: float
    tried: int
    rows: tuple[HostChoice, ...] = ()
    confirmed: bool = True


class TunedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All cells of one number of ranks on one machine."""

    machine: str
    ranks: int
    cells: tuple[TunedCell, ...] = ()
    format: int = FORMAT

    def table(self, source: str) -> HostTable:
        """What is built in, but what was measured where that was faster."""
        serve = (cell for cell in self.cells if cell.rows and cell.confirmed)
        found = [MeasuredRange(cell.collective, cell.least, cell.below, cell.rows) for cell in serve]
        return with_measured(built_in(self.ranks), found, source)

    def with_cell(self, cell: TunedCell) -> TunedFile:
        """With a cell in the place of those of its collective that it overlaps."""
        kept = [
            other
            for other in self.cells
            if other.collective != cell.collective or other.below <= cell.least or cell.below <= other.least
        ]
        cells = sorted([*kept, cell], key=lambda one: (list(COLLECTIVES).index(one.collective), one.least))
        return msgspec.structs.replace(self, cells=tuple(cells))


@lru_cache(maxsize=1)
def machine() -> str:
    """This machine in words, for which a table holds: its processor, and how many CPUs it has."""
    model = "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = " ".join(line.partition(":")[2].split())
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} CPUs"


def path_of(ranks: int, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the table for so many ranks of a host lies; None where no cache is kept."""
    directory = cache_directory(environ, "tuned")
    return None if directory is None else directory / f"host-{ranks}.json"


def read(path: Path, ranks: int) -> TunedFile:
    """The file; OSError if it cannot be read, UsageError with what is wrong in it."""
    with open_trusted(path, MAX_FILE_BYTES) as file:
        content = file.read(MAX_FILE_BYTES)
    try:
        found = msgspec.json.decode(content, type=TunedFile)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(f"{path} is no table of blink tune: {error}") from None
    fault = _fault(found, ranks)
    if fault:
        raise UsageError(f"{path}: {fault}")
    return found


def _fault(found: TunedFile, ranks: int) -> str:
    if found.format != FORMAT:
        return f"its format is {found.format}, this version reads {FORMAT}"
    if found.ranks != ranks:
        return f"it is for {found.ranks} ranks, not for {ranks}"
    if found.machine != machine():
        return f"it was measured on {found.machine}, this is {machine()}"
    for cell in found.cells:
        fault = _fault_of_cell(cell)
        if fault:
            return f"{cell.collective[:40]} at {cell.size_bytes} bytes: {fault}"
    ranges = sorted((cell.collective, cell.least, cell.below) for cell in found.cells)
    for (name, _, below), (following, least, _) in pairwise(ranges):
        if name == following and least < below:
            return f"two ranges of {name} have {least} bytes"
    return ""


def _fault_of_cell(cell: TunedCell) -> str:
    if cell.collective not in COLLECTIVES:
        return "there is no such collective"
    if not 0 <= cell.least < cell.below <= NO_LIMIT:
        return f"its range is {cell.least} to {cell.below}"
    if len(cell.rows) > MOST_ROWS:
        return f"{len(cell.rows)} rows, expected at most {MOST_ROWS}"
    for place, row in enumerate(cell.rows):
        if row.algorithm not in ALGORITHMS:
            return f"unknown algorithm {row.algorithm[:40]}"
        if row.variant != (place > 0):
            return "the first row is no variant, and all others are"
        if row.cross_memory and (not row.variant or row.inline):
            return "what the system copies is a variant, and carries no flags"
        if (row.algorithm, row.inline) != (cell.rows[0].algorithm, cell.rows[0].inline):
            return "variants do the same in other chunks"
        if not 0 < row.chunk_bytes <= MOST_CHUNK_BYTES or not 0 <= row.parts <= MOST_PARTS:
            return f"chunks of {row.chunk_bytes} bytes in {row.parts} parts"
    return ""


def write(path: Path, found: TunedFile) -> None:
    """Puts the file into its place at once: who reads sees the old one or this one. LaunchError if it cannot."""
    private_directory(path.parent)
    content = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    try:
        write_at_once(path, content)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written ({error}): set BLINK_CACHE elsewhere") from error


def table_for(ranks: int, environ: Mapping[str, str] = os.environ) -> HostTable:
    """The table for so many ranks of this host: the measured one where there is one, else what is built in."""
    path = path_of(ranks, environ) if is_wanted(environ) else None
    if path is None:
        return built_in(ranks)
    try:
        return read(path, ranks).table(str(path))
    except FileNotFoundError:
        return built_in(ranks)
    except (OSError, UsageError) as error:
        _log.warning("%s; what is built in serves instead: run blink tune", error)
        return built_in(ranks)


class _AskedGroup(Protocol):
    rank: int

    def run(self, call: CollectiveCall, send: int | None, recv: int | None) -> None: ...


def agreed(group: _AskedGroup, own: HostTable) -> HostTable:
    """``own`` if every rank has the same rows, else what is built in; all ranks of the group call this."""
    least = np.array([own.digest, -own.digest], np.int64)
    group.run(CollectiveCall("allreduce", "int64", 2, "min"), least.ctypes.data, least.ctypes.data)
    if least[0] == -least[1]:
        return own
    if group.rank == 0:
        _log.warning(
            "ranks have read different tables (rank 0: %s), so what is built in serves all; have they one BLINK_CACHE?",
            own.source or "none",
        )
    return built_in(own.world_size)
