"""What was measured of whole calls, on GPUs or in a laboratory: a table, and how a choice goes by it.

A file is JSON and made to be read::

    {"format": 1, "machine": "0f3c…", "name": "dgx-1v", "kind": "gpus", "by": "Tesla V100-SXM2-32GB, …", "slower": 1.0,
     "gpu": "Tesla V100-SXM2-32GB", "nccl": 23007, "cells": [
      {"collective": "allreduce", "root": -1, "ranks": [1, 4, 5, 6], "size_bytes": 65536, "least": 32768,
       "below": 131072, "measured": "2026-11-24", "times": [
        {"algorithm": "optimal", "protocol": "ll128", "seconds": 2.1e-05, "calls": 80},
        {"algorithm": "nccl", "protocol": "", "seconds": 3.0e-05, "calls": 80}]}]}

It is for one machine, told by a hash of its links (``path_table.machine_key``); ``ranks`` are vertices of it. ``kind``
is "gpus" (``blink tune``: libblink.so's own kernels, and NCCL, in turns) or "laboratory" (``blink lab``: plans over TCP
on links ``slower`` times slower; seconds are as if these had the machine's rates). Who measured is said by ``by`` to
people and by ``gpu`` and ``nccl``, its version as NCCL numbers it, to the planner.

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
from itertools import pairwise
from math import inf
from pathlib import Path

import msgspec

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.choice.host_table import NO_LIMIT
from blinkccl.errors import LaunchError, TopologyError, UsageError
from blinkccl.private_files import cache_directory, open_trusted, private_directory, write_at_once
from blinkccl.topology.limits import check_labels, shortened
from blinkccl.trees.algorithms.registry import ALGORITHMS

#: Raise it when our code becomes so much faster that older times say nothing of it.
FORMAT = 1
MAX_FILE_BYTES = 8 << 20
GPUS, LABORATORY = "gpus", "laboratory"
#: Among the algorithms: what NCCL alone takes.
NCCL = "nccl"
#: "0" makes jobs do without what ``blink tune`` measured.
VARIABLE = "BLINK_TUNED"

_log = logging.getLogger(__name__)


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call took, the slowest rank's word, over so many ``calls``; ``chunk_bytes`` 0: those of predictions."""

    algorithm: str
    protocol: str
    seconds: float
    calls: int
    chunk_bytes: int = 0

    @property
    def way(self) -> tuple[str, str, int]:
        return self.algorithm, self.protocol, self.chunk_bytes


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective at one size, by which S in [``least``, ``below``) goes; ``root`` is a rank, −1 where none is.

    ``ranks`` are vertices; ``measured`` is the day.
    """

    collective: str
    root: int
    ranks: tuple[int, ...]
    size_bytes: int
    least: int
    below: int
    measured: str
    times: tuple[Time, ...]

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
    fits = (one for one in cells if (one.collective, one.root) == key and one.least <= size_bytes < one.below)
    return next(fits, None)


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether jobs go by what was measured; LaunchError if BLINK_TUNED is neither 0 nor empty."""
    wish = environ.get(VARIABLE, "")
    if wish not in ("", "0"):
        raise LaunchError(f"{VARIABLE}={wish[:40]!r}: expected 0 (what is built in) or nothing (what was measured)")
    return wish != "0"


def path_of(machine: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where ``blink tune`` keeps the table of a machine's GPUs; None where no cache is kept."""
    directory = cache_directory(environ, "tuned")
    return None if directory is None else directory / f"gpus-{machine[:16]}.json"


def from_json(content: bytes, machine: str, where: str) -> MeasuredTable:
    """The table in ``content``, for ``machine``; a UsageError says why it is none."""
    try:
        found = msgspec.json.decode(content, type=MeasuredTable)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{where} is no table of measurements: {shortened(str(error))}") from None
    fault = _fault(found, machine) or next((text for cell in found.cells if (text := _cell_fault(cell))), "")
    if fault:
        raise UsageError(f"{where}: {fault}")
    ranges = sorted((cell.key, cell.least, cell.below) for cell in found.cells)
    for (key, _, below), (following, least, _) in pairwise(ranges):
        if key == following and least < below:
            raise UsageError(f"{where}: two ranges of {key[0]} among {list(key[2])} have {least} bytes")
    return found


def _fault(found: MeasuredTable, machine: str) -> str:
    if found.format != FORMAT:
        return f"its format is {found.format}, this version reads {FORMAT}"
    try:
        texts = ("machine", "name", "by", "gpu")
        check_labels("table", [(text, getattr(found, text)) for text in texts])
    except TopologyError as error:
        return str(error)
    if found.kind not in (GPUS, LABORATORY) or not 0 < found.slower < inf:
        return f"kind {shortened(found.kind)!r}, {found.slower} times slower: expected {GPUS} or {LABORATORY}"
    if found.machine != machine:
        return f"it was measured on machine {found.machine[:16]} ({found.name}), and this one is {machine[:16]}"
    return ""


def _cell_fault(cell: Cell) -> str:
    if cell.collective not in COLLECTIVES:
        return f"{shortened(cell.collective)!r}: there is no such collective"
    what = f"{cell.collective} at {cell.size_bytes} bytes"
    ranks = cell.ranks
    if not 2 <= len(ranks) <= 4096 or len(set(ranks)) < len(ranks) or not -1 <= cell.root < len(ranks):
        return f"{what}: root {cell.root} among ranks {list(ranks[:8])}"
    if not 0 <= cell.least <= cell.size_bytes < cell.below <= NO_LIMIT:
        return f"{what}: its range is {cell.least} to {cell.below}"
    for time in cell.times:
        if time.algorithm != NCCL and time.algorithm not in ALGORITHMS:
            return f"{what}: unknown algorithm {shortened(time.algorithm)!r}"
        if not 0 < time.seconds < inf or time.calls < 1 or time.chunk_bytes < 0:
            return f"{what}: {time.algorithm} took {time.seconds} s in {time.calls} calls"
    if len({time.way for time in cell.times}) < len(cell.times):
        return f"{what}: two times for one algorithm"
    return ""


def read(path: Path, machine: str) -> MeasuredTable:
    """The table that ``blink tune`` left; an OSError if it is not there or not ours, else as :func:`from_json`."""
    with open_trusted(path, MAX_FILE_BYTES) as file:
        return from_json(file.read(MAX_FILE_BYTES), machine, str(path))


def read_or_ignore(machine: str, environ: Mapping[str, str] = os.environ) -> MeasuredTable | None:
    """What ``blink tune`` measured on a machine's GPUs; None if there is nothing, with a warning if it is no good."""
    path = path_of(machine, environ) if is_wanted(environ) else None
    try:
        return None if path is None else read(path, machine)
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
