"""Slices in elements and chunks: the only module that applies sizes to a Program.

No boundary cuts an element. A slice's boundary x·count is rounded down to a multiple of 16 bytes, or of one element if
an element is larger. The end of the block is exact, so slices tile the block for every count. With fewer elements than
slices some slices are empty: they have no chunks, and engines never execute their roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from blinkccl.collectives.spec import Block, Collective
from blinkccl.errors import ScheduleError, UsageError
from blinkccl.schedule.program import Program, Role

#: The width of vector loads and stores on all known GPUs and CPUs.
ALIGNMENT_BYTES = 16
#: Large enough to hide the cost of a message, small enough to stay in a core's cache.
DEFAULT_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """A slice in elements, relative to its block; every chunk has ``chunk_elements``, the last one the rest."""

    offset: int
    length: int
    chunks: int
    chunk_elements: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of an item: rank → block index in that rank's input (``sources``) and output (``targets``)."""

    sources: Mapping[int, int]
    targets: Mapping[int, int]


@lru_cache(maxsize=256)
def placements(collective: Collective) -> dict[Block, Placement]:
    """Every item's :class:`Placement`, by block."""
    return {item.block: Placement(dict(item.contributions), dict(item.destinations)) for item in collective.items()}


@dataclass(frozen=True)
class Bound:
    """A Program for ``count`` elements per block: each slice's extent, and ``chunk_elements``, the largest chunk."""

    program: Program
    count: int
    itemsize: int
    chunk_elements: int
    extents: tuple[Extent, ...]

    @cached_property
    def tasks(self) -> int:
        """The largest number of transfers and reductions in a run."""
        return sum(
            extent.chunks * tasks for extent, tasks in zip(self.extents, self.program.tasks_per_chunk, strict=True)
        )

    def source(self, rank: int, index: int) -> int | None:
        """First element of slice ``index`` in ``rank``'s input buffer; None if it has no such block."""
        block = self._placements[self.program.slices[index].block].sources.get(rank)
        return None if block is None else block * self.count + self.extents[index].offset

    def target(self, rank: int, index: int) -> int | None:
        """First element of slice ``index`` in ``rank``'s output buffer; None if it has no such block."""
        block = self._placements[self.program.slices[index].block].targets.get(rank)
        return None if block is None else block * self.count + self.extents[index].offset

    def contributions(self, index: int) -> int:
        """The number of contributions to slice ``index``, which is the divisor of an average."""
        return len(self._placements[self.program.slices[index].block].sources)

    def executions(self, roles: Sequence[Role]) -> Iterator[tuple[int, int, slice]]:
        """The executions of a thread with these ``roles``, in order: index of role, chunk, elements in the slice."""
        extents = [self.extents[role.slice] for role in roles]
        first = min((role.offset for role in roles), default=0)
        last = max((role.offset + extent.chunks for role, extent in zip(roles, extents, strict=True)), default=0)
        for tick in range(first, last):
            for place, (role, extent) in enumerate(zip(roles, extents, strict=True)):
                chunk = tick - role.offset
                if 0 <= chunk < extent.chunks:
                    start = chunk * extent.chunk_elements
                    yield place, chunk, slice(start, min(start + extent.chunk_elements, extent.length))

    @cached_property
    def _placements(self) -> dict[Block, Placement]:
        return placements(self.program.collective)


def bind(
    program: Program, count: int, itemsize: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES, even_chunks: bool = False
) -> Bound:
    """The extents of all slices for ``count`` elements per block (nccl.h's ``count``), of ``itemsize`` bytes each.

    ``chunk_bytes`` is the desired size of a chunk. It is rounded down to whole 16-byte groups if it holds one, else to
    whole elements, at least one. All ranks get the same extents, since these depend on agreed numbers only.

    ``even_chunks`` cuts every slice into as many chunks as the largest slice, instead of into chunks of one size. Trees
    that take turns on a shared link then get its capacity in proportion to their weights, as the plan assumes. On a
    DGX-1V the simulator gives an AllReduce of 1 GB 26 % more.

    Generated code cuts like this if slices differ (``cut.h``), but counts chunks by :func:`largest_share`. If that
    fraction of the count is no whole number of 16-byte groups, its number of chunks may differ by one.
    """
    for name, value, least in (
        ("count", count, 0),
        ("itemsize", itemsize, 1),
        ("chunk_bytes", chunk_bytes, 1),
    ):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")
    places = placements(program.collective)
    group = max(1, ALIGNMENT_BYTES // itemsize)
    chunk_elements = max(1, chunk_bytes // itemsize)
    if chunk_elements >= group:
        chunk_elements -= chunk_elements % group
    extents: list[tuple[int, int]] = []
    for index, part in enumerate(program.slices):
        if part.block not in places:
            raise ScheduleError(
                f"slice {index}: {program.collective.name} on {program.collective.world_size} ranks has no block "
                f"{part.block!r}"
            )
        offset, stop = boundary(part.start, count, group), boundary(part.stop, count, group)
        extents.append((offset, max(0, stop - offset)))
    most = -(-max((length for _, length in extents), default=0) // chunk_elements)
    cut = [
        Extent(offset, length, -(-length // own), own)
        for offset, length in extents
        for own in (_even(length, most, group, chunk_elements) if even_chunks else chunk_elements,)
    ]
    return Bound(program, count, itemsize, chunk_elements, tuple(cut))


def largest_share(program: Program) -> Fraction | None:
    """The fraction of a block that the largest slice holds; None if all slices are equal."""
    shares = dict.fromkeys(part.stop - part.start for part in program.slices)
    return max(shares) if len(shares) > 1 else None


def _even(length: int, chunks: int, group: int, most: int) -> int:
    """Elements per chunk, in whole groups, for ``length`` elements in at most ``chunks`` chunks."""
    if not chunks:
        return most
    own = -(-length // chunks)
    return min(most, max(1, -(-own // group) * group))


def boundary(share: Fraction, count: int, group: int) -> int:
    """``share``·count, rounded down to a multiple of ``group`` unless ``share`` is 0 or 1."""
    # Every simulation calls this twice per slice; integers compare ten times as fast as Fractions.
    numerator, denominator = share.as_integer_ratio()
    if numerator >= denominator:
        return count
    if numerator <= 0:
        return 0
    return group * (numerator * count // (denominator * group))
