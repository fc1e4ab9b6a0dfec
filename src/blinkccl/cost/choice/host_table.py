"""What serves which size among the ranks of one host: a table, as built in or as ``blink tune`` measured it.

It is a function of agreed numbers only, so that all ranks choose alike: of a measured table the ranks have agreed that
all of them have it (:mod:`blinkccl.runtime.tuned`). What differs between moments is left open: a choice may have
variants, which the group measures while it works. The built-in numbers were measured on small machines
(benchmarks/README.md); no number changes a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property
from hashlib import sha256
from itertools import takewhile

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.units import size_text

KIB = 1024
MIB = KIB * KIB


#: More than any size.
NO_LIMIT = 1 << 62


class Crossing(IntEnum):
    """Whether the system may copy between ranks' own memories. Of the ranks' wishes the least holds for all."""

    NEVER = 0
    MEASURED = 1
    WHEREVER_POSSIBLE = 2


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A row of the table: what serves all sizes ``below`` so many bytes of S that no row before it serves.

    ``inline``: messages carry their flags inside. ``chunk_bytes`` is the wanted chunk, less where ``parts`` of S, of
    whole cache lines, are smaller. A row that is a ``variant`` is another way to do what the row before it does, with
    the same bits: the group measures while it works and takes the fastest (native/src/variants.h). With
    ``cross_memory`` the system copies, where it may; such rows are variants.
    """

    algorithm: str
    inline: bool
    chunk_bytes: int
    below: int = NO_LIMIT
    variant: bool = False
    cross_memory: bool = False
    parts: int = 0


def label(row: HostChoice) -> str:
    """``one_hop in messages of 256K``."""
    how = " with their flags inside" if row.inline else ""
    if row.cross_memory:
        return f"{row.algorithm} by the system's copies"
    return f"{row.algorithm} in messages of {size_text(row.chunk_bytes)}{how}"


@dataclass(frozen=True, eq=False)
class HostTable:
    """The rows of every collective among ``world_size`` ranks; ``source`` is who measured some of them, "" nobody."""

    world_size: int
    rows: Mapping[str, tuple[HostChoice, ...]]
    source: str = ""

    def choose(self, name: str, nbytes: int, crossing: Crossing = Crossing.NEVER) -> tuple[HostChoice, ...]:
        """The variants for S = ``nbytes`` among ranks that agree on ``crossing``."""
        rows = next(group for group in _groups(self.rows[name]) if nbytes < group[0].below)
        crossed = [row for row in rows if row.cross_memory]
        if crossing is Crossing.NEVER:
            rows = [row for row in rows if not row.cross_memory]
        elif crossing is Crossing.WHEREVER_POSSIBLE and crossed:
            rows = crossed
        return tuple(_sized(row, nbytes) for row in rows)

    @cached_property
    def digest(self) -> int:
        """A number below 2^62 that tables with other rows do not have."""
        text = repr((self.world_size, sorted(self.rows.items())))
        return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2


def _groups(rows: Sequence[HostChoice]) -> Iterator[list[HostChoice]]:
    """Each row that is no variant, with those that are its variants."""
    for place, row in enumerate(rows):
        if not row.variant:
            yield [row, *takewhile(lambda row: row.variant, rows[place + 1 :])]


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """What measurements found the fastest for S in [least, below): a row and its variants, all without limits."""

    collective: str
    least: int
    below: int
    rows: tuple[HostChoice, ...]


def with_measured(base: HostTable, found: Iterable[MeasuredRange], source: str) -> HostTable:
    """``base``, but what was measured where that is; ranges of one collective do not overlap."""
    by_name: dict[str, list[MeasuredRange]] = {}
    for one in found:
        by_name.setdefault(one.collective, []).append(one)
    rows = dict(base.rows)
    for name, ranges in by_name.items():
        made: list[HostChoice] = []
        end = 0
        for one in sorted(ranges, key=lambda one: one.least):
            made += _cut_out(base.rows[name], end, one.least)
            made += [replace(row, below=one.below if not row.variant else NO_LIMIT) for row in one.rows]
            end = one.below
        rows[name] = (*made, *_cut_out(base.rows[name], end, NO_LIMIT))
    return HostTable(base.world_size, rows, source)


def _cut_out(rows: Sequence[HostChoice], least: int, below: int) -> Iterator[HostChoice]:
    """The rows that serve S in [least, below)."""
    if least >= below:
        return
    for group in _groups(rows):
        if group[0].below > least:
            yield replace(group[0], below=min(group[0].below, below))
            yield from group[1:]
        if group[0].below >= below:
            return


def _sized(row: HostChoice, nbytes: int) -> HostChoice:
    if not row.parts:
        return row
    return replace(row, chunk_bytes=max(1, min(row.chunk_bytes, -(-nbytes // (64 * row.parts)) * 64)))


@cache
def built_in(world_size: int) -> HostTable:
    """The table that there is without measurements."""
    return HostTable(world_size, {name: _built_in(name, world_size) for name in COLLECTIVES})


def _built_in(name: str, world_size: int) -> tuple[HostChoice, ...]:
    """One step while a step costs more than the bytes, then two."""
    if name == "allreduce":
        return _TWO_RANKS if world_size == 2 else _more_ranks(world_size)
    rings = (HostChoice("one_hop", False, 256 * KIB), _variant(64 * KIB))
    if name == "reduce":  # goes one way: in a ring both ends work on it
        return (HostChoice("one_hop", True, 256 * KIB, below=64 * KIB), *rings)
    # Of what goes one way each of two ranks moves every other chunk; of gathers that is half of S.
    parts = 4 if world_size == 2 and name in ("gather", "scatter") else 2
    crossed = (_variant(512 * KIB, parts=parts), _variant(MIB, parts=parts))
    return (
        HostChoice("one_hop", True, 256 * KIB, below=32 * KIB),
        HostChoice("one_hop", False, 256 * KIB, below=128 * KIB),
        HostChoice("one_hop", False, 256 * KIB, below=parts * MIB),
        *rings[1:],
        crossed[0],
        *rings,
        *crossed,
    )


def _variant(chunk_bytes: int, parts: int = 0) -> HostChoice:
    """Of the row before: other chunks in rings, or (``parts``) cross-memory copies of so many parts."""
    return HostChoice("one_hop", False, chunk_bytes, variant=True, cross_memory=parts > 0, parts=parts)


#: Two ranks write replies over questions. With cross-memory copies sums come back when all are made: what a core has
#: just written is slow to read for another.
_TWO_RANKS = (
    HostChoice("one_shot", True, 64 * KIB, below=16 * KIB),
    HostChoice("one_hop", False, 512 * KIB, below=2 * MIB + 1),
    HostChoice("one_hop", False, 512 * KIB, below=64 * MIB),
    _variant(128 * KIB),
    _variant(8 * MIB, parts=1),
    HostChoice("one_hop", False, 512 * KIB),
    _variant(128 * KIB),
)


def _more_ranks(world_size: int) -> tuple[HostChoice, ...]:
    one_step = -(-256 * KIB // world_size)
    return (
        HostChoice("one_shot", True, 64 * KIB, below=min(16 * KIB, one_step)),
        HostChoice("one_shot", False, 64 * KIB, below=one_step),
        HostChoice("one_hop", True, 64 * KIB, below=64 * KIB),
        HostChoice("one_hop", False, 64 * KIB, below=512 * KIB),
        HostChoice("one_hop", False, 256 * KIB),
        _variant(64 * KIB),
    )
