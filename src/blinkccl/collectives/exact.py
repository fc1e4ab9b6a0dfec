"""Which data is exact in every order of reduction? Small whole numbers, by type and operation.

The rules that they keep: every partial sum of a float type stays within its largest exact integer, products hold few
twos, and each rank's value matters to the result in some element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import DType

Array = NDArray[Any]


def exact_values(rng: np.random.Generator, size: int, dtype: DType, base: str, rank: int, world_size: int) -> Array:
    """Whole numbers for one rank's buffer, such that combining any ranks' in any order is exact.

    Parameters
    ----------
    size
        How many.
    dtype
        The type that they will be converted to.
    base
        The operation that combines them: a key of :data:`blinkccl.collectives.ops.OP_CODES`.

    Returns
    -------
    ndarray
        Whole numbers that the type holds exactly, or truths. Bit patterns for bitwise operations.
    """
    if dtype.kind == "bool":
        return _truths(rng, size, base, world_size)
    if base in ("band", "bor", "bxor"):
        return _bits_of(rng, size, dtype, base, rank, world_size)
    signs = np.ones(size, np.int64) if dtype.kind == "unsigned" else rng.integers(0, 2, size) * 2 - 1
    if base == "prod":
        return signs * (1 + rng.integers(0, 2, size) * _takes_part(size, rank, world_size, 8))
    if base != "sum":
        return signs * rng.integers(1, min(100, dtype.exact_sum) + 1, size)
    largest = 100 if dtype.kind != "float" else min(100, dtype.exact_sum // world_size)
    if largest:
        return signs * rng.integers(1, largest + 1, size)
    return signs * _takes_part(size, rank, world_size, dtype.exact_sum)


def _takes_part(size: int, rank: int, world_size: int, most: int) -> Array:
    """1 where ``rank`` is one of ``most`` ranks that take part in an element, else 0; they change with the element."""
    takes: Array = (np.arange(size) + rank) % world_size < most
    return takes.astype(np.int64)


def _truths(rng: np.random.Generator, size: int, base: str, world_size: int) -> Array:
    """For "or" about one rank is true, for "and" about one is false: then each contribution decides somewhere."""
    if base == "bxor":
        return rng.integers(0, 2, size)
    rare: Array = rng.integers(0, world_size, size) == 0
    return rare if base in ("sum", "max", "bor") else ~rare


def _bits_of(rng: np.random.Generator, size: int, dtype: DType, base: str, rank: int, world_size: int) -> Array:
    """Bit patterns of which every rank's matters: one bit set for "or", one bit missing for "and", any for "xor"."""
    bits = 8 * dtype.itemsize
    one = np.left_shift(np.uint64(1), rng.integers(0, bits, size, dtype=np.uint64))
    if base == "bxor":
        one |= rng.integers(0, 2**bits, size, dtype=np.uint64)
    if base == "band":  # at most bits − 1 ranks lack one, so that the result is not 0
        one = ~(one * _takes_part(size, rank, world_size, bits - 1).astype(np.uint64))
    return one.astype(f"u{dtype.itemsize}").view(dtype.storage)
