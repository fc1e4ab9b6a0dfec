"""Which sizes are measured: nccl-tests' -b, -e and -f; and which numbers are refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.cost.simulate.run import parse_size
from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES

#: More sizes than this are a slip of the pen, not a measurement.
MAX_SIZES = 10_000
#: 1 TiB; no host that runs this has more memory.
MAX_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sizes from ``first`` to ``last`` bytes, by a ``factor``."""

    first: int
    last: int
    factor: int

    def sizes(self) -> list[int]:
        """The sizes, ascending."""
        found = [self.first]
        while True:
            following = found[-1] * self.factor
            if following > self.last or following == found[-1]:
                return found
            if len(found) == MAX_SIZES:
                raise UsageError(
                    f"from {self.first} to {self.last} bytes are more than {MAX_SIZES} sizes; take a larger factor (-f)"
                )
            found.append(following)

    def step_text(self) -> str:
        """As nccl-tests prints it."""
        return f"{self.factor}(factor)"


def sweep(begin: str, end: str | None, factor: int = 2, most: int = MAX_BYTES) -> Sweep:
    """What -b, -e and -f mean together: one size without -e; doubled without -f (nccl-tests adds 1 MiB)."""
    first = parse_size("-b", begin, most)
    last = first if end is None else parse_size("-e", end, most)
    if last < first:
        raise UsageError(f"-e {end} is below -b {begin}; expected sizes from the smaller to the larger")
    if factor < 2:
        raise UsageError(f"-f {factor}: expected a factor of at least 2")
    return Sweep(first, last, factor)


def block_count(collective: Collective, size: int, itemsize: int) -> int:
    """Elements per block for at most ``size`` bytes, as nccl-tests rounds: a block per rank is of whole 16 bytes."""
    elements = size // itemsize // collective.total_blocks()
    if collective.total_blocks() == 1:
        return elements
    group = max(1, ALIGNMENT_BYTES // itemsize)
    return elements - elements % group


def empty_sizes(collective: Collective, sizes: Sequence[int], dtype: str) -> list[int]:
    """The sizes above 0 that round down to no element at all, as nccl-tests rounds them."""
    itemsize = element_type(dtype).itemsize
    return [size for size in sizes if size and not block_count(collective, size, itemsize)]


def check_range(option: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is out of range."""
    if value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")
    if value > most:
        raise UsageError(f"{option} must be at most {most:,}, got {value}")


def check_memory(collective: Collective, sizes: Sequence[int], dtype: str) -> None:
    """Refuse what cannot fit before the machine swaps: one candidate at a time holds buffers of all ranks."""
    there = _memory_bytes()
    blocks = sum(
        collective.input_blocks(rank) + collective.output_blocks(rank) for rank in range(collective.world_size)
    )
    itemsize = element_type(dtype).itemsize
    for size in sizes:
        block_bytes = block_count(collective, size, itemsize) * itemsize
        needed = blocks * block_bytes
        if there is not None and needed > there:
            raise UsageError(
                f"{collective.name} of {block_bytes} bytes a block needs about "
                f"{needed / 1e9:.1f} GB of memory for {collective.world_size} ranks; this "
                f"machine has {there / 1e9:.1f} GB: lower -e, or take fewer GPUs"
            )


def _memory_bytes() -> int | None:
    """Physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
