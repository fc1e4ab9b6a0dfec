"""The table that selects an algorithm by size among the ranks of one host: built in, or measured by ``blink tune -g``.

All ranks must select the same algorithm, so the table is a function of agreed numbers only. A group uses a measured
table only if every rank has read the same one. A row may have several ways, because the fastest may change with time;
the group measures them during its calls. The built-in numbers were measured on small machines (benchmarks/README.md);
no number changes a result.

One of the ways uses the system's copies between the memories of the ranks' processes. A ring copies a message twice and
keeps the second core busy; the system copies it once, after a call and a walk over every page. The faster one depends
on the machine, on the size and on the pages. The system's settings may forbid it; each group checks that once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import LaunchError
from blinkccl.trees.algorithms.tables import (
    BUILT_IN,
    COPIED,
    HOST,
    INLINE,
    NO_LIMIT,
    Cell,
    Row,
    Way,
    path_of,
    read_or_ignore,
    row_at,
)
from blinkccl.units import size_text

KIB = 1024
MIB = KIB * KIB
_VARIABLE = "BLINK_CROSS_MEMORY"

_log = logging.getLogger(__name__)


class Crossing(IntEnum):
    """Permission for the system's copies between ranks' own memories. The least of all ranks' wishes applies to all."""

    NEVER = 0
    MEASURED = 1
    WHEREVER_POSSIBLE = 2


def label(way: Way) -> str:
    """The name of a way, such as ``one_hop in messages of 256K``."""
    if way.copied:
        return f"{way.algorithm} by the system's copies"
    return f"{way.algorithm} in messages of {size_text(way.chunk_bytes)}{' with their flags inside' * way.inline}"


@dataclass(frozen=True, eq=False)
class HostTable:
    """The rows of every collective among ``world_size`` ranks; ``source`` is the file of measured rows, or ""."""

    world_size: int
    rows: Mapping[str, tuple[Row[Way], ...]]
    source: str = ""

    def choose(self, name: str, nbytes: int, crossing: Crossing = Crossing.NEVER) -> tuple[Way, ...]:
        """The ways for S = ``nbytes`` among ranks that agree on ``crossing``; the first is tried first."""
        row = row_at(self.rows[name], nbytes)
        assert row is not None, "rows serve all sizes"
        copied = [way for way in row.ways if way.copied]
        if crossing is Crossing.WHEREVER_POSSIBLE and copied:
            ways = copied
        else:
            ways = [way for way in row.ways if crossing is not Crossing.NEVER or not way.copied]
        return tuple(_sized(way, nbytes) for way in ways)

    @cached_property
    def digest(self) -> int:
        """A number below 2^62 that differs for tables with different rows."""
        text = repr((self.world_size, sorted(self.rows.items())))
        return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2

    def measured(self, cells: Iterable[Cell], source: str) -> HostTable:
        """A table with the faster ways of ``cells`` in their ranges, and these rows elsewhere."""
        rows = dict(self.rows)
        for cell in (one for one in cells if one.confirmed and one.times[:1] and one.times[0].algorithm != BUILT_IN):
            own = rows[cell.collective]
            row = Row(cell.least, cell.below, cell.times[0].ways)
            rows[cell.collective] = (*_within(own, 0, row.least), row, *_within(own, row.below, NO_LIMIT))
        return HostTable(self.world_size, rows, source)


def _within(rows: Sequence[Row[Way]], least: int, below: int) -> Iterator[Row[Way]]:
    """Yield the parts of the rows for S in [least, below)."""
    for row in rows:
        part = replace(row, least=max(row.least, least), below=min(row.below, below))
        if part.least < part.below:
            yield part


def _sized(way: Way, nbytes: int) -> Way:
    if not way.parts:
        return way
    chunk_bytes = max(1, min(way.chunk_bytes, -(-nbytes // (64 * way.parts)) * 64))
    return msgspec.structs.replace(way, chunk_bytes=chunk_bytes)


@cache
def built_in(world_size: int) -> HostTable:
    """The table without measurements."""
    return HostTable(world_size, {name: _rows(*_built_in(name, world_size)) for name in COLLECTIVES})


def _rows(*of: tuple[int, tuple[Way, ...]]) -> tuple[Row[Way], ...]:
    """Consecutive rows, from their ends."""
    limits = [0, *(below for below, _ in of)]
    return tuple(Row(least, below, ways) for least, (below, ways) in zip(limits, of, strict=False))


def _built_in(name: str, world_size: int) -> list[tuple[int, tuple[Way, ...]]]:
    """Rows with one step for sizes at which a step costs more than the bytes, then with two."""
    if name == "allreduce":
        return _TWO_RANKS if world_size == 2 else _more_ranks(world_size)
    inline, ring, shorter = _one_hop(256 * KIB, INLINE), _one_hop(256 * KIB), _one_hop(64 * KIB)
    if name == "reduce":  # data flows one way: with a ring both ends work
        return [(64 * KIB, (inline,)), (NO_LIMIT, (ring, shorter))]
    # In one-way collectives each of two ranks copies every other chunk; for gather and scatter that is half of S.
    parts = 4 if world_size == 2 and name in ("gather", "scatter") else 2
    copied = [_one_hop(chunk_bytes, COPIED, parts) for chunk_bytes in (512 * KIB, MIB)]
    return [
        (32 * KIB, (inline,)),
        (128 * KIB, (ring,)),
        (parts * MIB, (ring, shorter, copied[0])),
        (NO_LIMIT, (ring, shorter, *copied)),
    ]


def _one_hop(chunk_bytes: int, protocol: str = "", parts: int = 0) -> Way:
    return Way("one_hop", protocol, chunk_bytes, parts)


#: Two ranks write replies in place of the messages. With cross-memory copies results return after all are complete,
#: because data that a core has just written is slow to read for another.
_TWO_RANKS = [
    (16 * KIB, (Way("one_shot", INLINE, 64 * KIB),)),
    (2 * MIB + 1, (_one_hop(512 * KIB),)),
    (64 * MIB, (_one_hop(512 * KIB), _one_hop(128 * KIB), _one_hop(8 * MIB, COPIED, 1))),
    (NO_LIMIT, (_one_hop(512 * KIB), _one_hop(128 * KIB))),
]


def _more_ranks(world_size: int) -> list[tuple[int, tuple[Way, ...]]]:
    one_step = -(-256 * KIB // world_size)
    rows: list[tuple[int, tuple[Way, ...]]] = [
        (min(16 * KIB, one_step), (Way("one_shot", INLINE, 64 * KIB),)),
        (one_step, (Way("one_shot", "", 64 * KIB),)),
        (64 * KIB, (_one_hop(64 * KIB, INLINE),)),
        (512 * KIB, (_one_hop(64 * KIB),)),
        (NO_LIMIT, (_one_hop(256 * KIB), _one_hop(64 * KIB))),
    ]
    return rows


# ---- measured tables, and the agreement of the ranks


@lru_cache(maxsize=1)
def machine() -> str:
    """Description of this machine, for which a table is valid: its processor and its number of CPUs."""
    model = "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = " ".join(line.partition(":")[2].split())
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} CPUs"


def path_of_host(ranks: int, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The path of the table for this number of ranks on a host; None without a cache."""
    return path_of(f"{HOST}-{ranks}", environ)


def table_for(ranks: int, environ: Mapping[str, str] = os.environ) -> HostTable:
    """The table for this number of ranks on this host: the measured one if it exists, else the built-in one."""
    path = path_of_host(ranks, environ)
    table = read_or_ignore(path, machine(), environ)
    if table is None or table.kind != HOST:
        return built_in(ranks)
    return built_in(ranks).measured(table.of(range(ranks)), str(path))


class _CrossingGroup(Protocol):
    """The part of :class:`~blinkccl.runtime.host_group.HostGroup` that :func:`agreed` uses."""

    rank: int

    def can_cross(self) -> bool: ...
    def run(self, call: CollectiveCall, send: int | None, recv: int | None) -> None: ...


def wished_crossing() -> Crossing:
    """Read ``BLINK_CROSS_MEMORY``: 0 never, 1 wherever possible, not set: measured; LaunchError for anything else."""
    text = os.environ.get(_VARIABLE, "")
    wishes = {"": Crossing.MEASURED, "0": Crossing.NEVER, "1": Crossing.WHEREVER_POSSIBLE}
    if text not in wishes:
        raise LaunchError(f"{_VARIABLE}={text!r}: expected 0 (never), 1 (wherever possible) or nothing (measured)")
    return wishes[text]


def agreed(group: _CrossingGroup, wanted: Crossing, own: HostTable) -> tuple[Crossing, HostTable]:
    """Agree on crossing and table for a new group; all ranks call this, each with its own values.

    The result is the least of all ranks' crossings, and ``own`` if every rank has the same rows, else the built-in
    table.
    """
    least = np.array([wanted if group.can_cross() else Crossing.NEVER, own.digest, -own.digest], np.int64)
    group.run(CollectiveCall("allreduce", "int64", 3, "min"), least.ctypes.data, least.ctypes.data)
    crossing = Crossing(int(least[0]))
    if least[1] == -least[2]:
        return crossing, own
    if group.rank == 0:
        _log.warning(
            "ranks have read different tables (rank 0: %s), so all use the built-in one; do they share a BLINK_CACHE?",
            own.source or "none",
        )
    return crossing, built_in(own.world_size)
