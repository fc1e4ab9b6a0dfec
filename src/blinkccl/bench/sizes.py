"""Sizes of a benchmark, from nccl-tests' -b, -e and -f, and checks of numbers and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.cost.simulate.run import parse_size
from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES

#: Largest size: 1 TiB, more than the memory of hosts that run this.
MAX_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sizes from ``first`` to ``last`` bytes, each ``factor`` times the one before."""

    first: int
    last: int
    factor: int

    def sizes(self) -> list[int]:
        """The sizes, ascending."""
        sizes = [self.first]
        while True:
            following = sizes[-1] * self.factor
            if following > self.last or following == sizes[-1]:
                return sizes
            sizes.append(following)

    def step_text(self) -> str:
        """nccl-tests' text of the step."""
        return f"{self.factor}(factor)"


def sweep(begin: str, end: str | None, factor: int = 2, most: int = MAX_BYTES) -> Sweep:
    """The sweep of -b, -e and -f: one size without -e; factor 2 without -f (nccl-tests adds 1 MiB)."""
    first = parse_size("-b", begin, most)
    last = first if end is None else parse_size("-e", end, most)
    if last < first:
        raise UsageError(f"-e {end} is below -b {begin}; expected sizes from the smaller to the larger")
    if factor < 2:
        raise UsageError(f"-f {factor}: expected a factor of at least 2")
    return Sweep(first, last, factor)


def block_count(collective: Collective, size: int, itemsize: int) -> int:
    """Elements per block for at most ``size`` bytes; like nccl-tests, a block per rank is a multiple of 16 bytes."""
    elements = size // itemsize // collective.total_blocks()
    if collective.total_blocks() == 1:
        return elements
    group = max(1, ALIGNMENT_BYTES // itemsize)
    return elements - elements % group


def empty_sizes(collective: Collective, sizes: Sequence[int], dtype: str) -> list[int]:
    """The sizes above 0 that nccl-tests' rounding makes 0 elements."""
    itemsize = element_type(dtype).itemsize
    return [size for size in sizes if size and not block_count(collective, size, itemsize)]


def check_range(option: str, value: int, least: int, most: int) -> None:
    """Raise UsageError unless ``least`` ≤ ``value`` ≤ ``most``."""
    if value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")
    if value > most:
        raise UsageError(f"{option} must be at most {most:,}, got {value}")


def check_memory(collective: Collective, sizes: Sequence[int], dtype: str) -> None:
    """Raise UsageError for sizes beyond the memory, before the machine swaps.

    One candidate at a time has buffers, for all ranks.
    """
    memory_bytes = _memory_bytes()
    blocks = sum(
        collective.input_blocks(rank) + collective.output_blocks(rank) for rank in range(collective.world_size)
    )
    itemsize = element_type(dtype).itemsize
    for size in sizes:
        block_bytes = block_count(collective, size, itemsize) * itemsize
        needed = blocks * block_bytes
        if memory_bytes is not None and needed > memory_bytes:
            raise UsageError(
                f"{collective.name} of {block_bytes} bytes a block needs about {needed / 1e9:.1f} GB of memory for "
                f"{collective.world_size} ranks, and this machine has {memory_bytes / 1e9:.1f} GB: give a smaller size "
                "or fewer ranks"
            )


def _memory_bytes() -> int | None:
    """Bytes of physical memory; None if the system does not report them."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
