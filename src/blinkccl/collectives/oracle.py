"""Expected output buffers, computed from the collectives' items alone, and inputs that reveal errors.

The oracle knows no schedule. It reduces each item's contributions in rank order in the accumulator type, divides for an
average, and rounds once. An engine that reduces in another order, or in several steps, gives the same bits only if the
arithmetic is exact. :func:`make_inputs` makes it exact, with integer-valued data as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import DType, element_type, fold, operation, scalars
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UsageError

Array = NDArray[Any]
#: One entry per rank; None where the collective gives the rank no such buffer.
Buffers = list[Array | None]


def check_inputs(collective: Collective, inputs: Sequence[Array | None], count: int | None = None) -> tuple[int, DType]:
    """The elements per block and the element type of ``inputs``.

    A UsageError names a rank with a missing or superfluous buffer, or with a buffer of wrong dimension, type or size.
    A buffer has one dimension and a whole number of blocks of ``count`` elements.
    """
    if len(inputs) != collective.world_size:
        raise UsageError(
            f"{collective.name} on {collective.world_size} ranks needs as many input buffers, "
            f"got {len(inputs)}; give None for a rank without input"
        )
    element: DType | None = None
    for rank, buffer in enumerate(inputs):
        blocks = collective.input_blocks(rank)
        if (buffer is None) != (blocks == 0):
            expected, actual = ("none", "one") if blocks == 0 else (f"{blocks} block(s)", "none")
            raise UsageError(f"{collective.name}: rank {rank}'s input: expected {expected}, got {actual}")
        if buffer is None:
            continue
        if buffer.ndim != 1:
            raise UsageError(f"rank {rank}'s input has shape {buffer.shape}; flatten it to one dimension")
        count = buffer.size // blocks if count is None else count
        element = element_type(buffer.dtype) if element is None else element
        if buffer.size != count * blocks:
            raise UsageError(
                f"{collective.name}: rank {rank}'s input has {buffer.size} elements, expected "
                f"{blocks} block(s) of {count}"
            )
        if buffer.dtype != element.storage:
            raise UsageError(f"rank {rank}'s input is {buffer.dtype}, the ranks before it have {element.name}")
    if count is None or element is None:
        raise UsageError(f"{collective.name}: no rank has an input; give an array for at least one rank")
    return count, element


def oracle(
    collective: Collective,
    inputs: Sequence[Array | None],
    op: str = "sum",
    scales: Sequence[float] | None = None,
) -> Buffers:
    """The outputs of a collective by its definition: every item reduced in rank order.

    ``inputs`` has per rank a one-dimensional array of ``collective.input_blocks(rank)`` × count elements, or None. The
    result has new arrays of ``output_blocks(rank)`` × count elements, or None. ``scales`` has the factor of each rank's
    contributions, for ``premul_sum``.
    """
    count, dtype = check_inputs(collective, inputs)
    chosen = operation(op)
    dtype.combine(chosen)  # refuses an operation that this type does not have
    factors = scalars(chosen, dtype, scales, collective.world_size)
    outputs: Buffers = [
        np.zeros(blocks * count, dtype.storage) if (blocks := collective.output_blocks(rank)) else None
        for rank in range(collective.world_size)
    ]
    with np.errstate(all="ignore"):  # an overflow to inf is a valid result
        for item in collective.items():
            operands = []
            for rank, index in item.contributions:
                source = inputs[rank]
                assert source is not None
                operands.append(source[index * count : (index + 1) * count])
            applied = [factors[rank] for rank, _ in item.contributions] if factors and collective.reduces else []
            value = fold(dtype, chosen, operands, applied, len(operands) if chosen.averages else 1)
            for rank, index in item.destinations:
                target = outputs[rank]
                assert target is not None
                target[index * count : (index + 1) * count] = value
    return outputs


def make_inputs(collective: Collective, count: int, dtype: str, seed: int = 0, op: str = "sum") -> Buffers:
    """Inputs that give the same bits in every order of reduction, and reveal a misplaced block.

    All values are small integers; for ``premul_sum`` they are after scaling with :func:`make_scales`. Integer types
    wrap, so any order is exact. Float sums stay below the type's largest exact integer. Products hold at most eight
    twos per element, otherwise ±1.

    Every value is non-zero, so an element that was never written cannot pass for a result. Exceptions are bool, and
    sums of more ranks than the type's largest exact integer (16 in float8_e4m3fn, 8 in float8_e5m2). In such a sum a
    different set of ranks has ±1 in each element and the rest 0.
    """
    row, chosen = element_type(dtype), operation(op)
    row.combine(chosen)  # refuses an operation that this type does not have
    scales = make_scales(collective, dtype) if chosen.scales and row.kind == "float" else None
    buffers: Buffers = []
    for rank in range(collective.world_size):
        blocks = collective.input_blocks(rank)
        rng = np.random.default_rng([seed, rank])
        values = exact_values(rng, blocks * count, row, chosen.base, rank, collective.world_size)
        if scales is not None:
            values = values / scales[rank]  # exact, since the scale is a power of two
        buffers.append(values.astype(row.storage) if blocks else None)
    return buffers


def make_scales(collective: Collective, dtype: str) -> list[float]:
    """A scalar per rank for ``premul_sum`` that keeps :func:`make_inputs` exact.

    Floats get powers of two. Integers wrap, so they get any number, also one with a fraction that is truncated.
    """
    series = (1.0, 2.0, 0.5, -1.0, 4.0) if element_type(dtype).kind == "float" else (1.0, 2.75, 3.0, 5.5)
    return [series[rank % len(series)] for rank in range(collective.world_size)]


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def mismatch(outputs: Sequence[Array | None], expected: Sequence[Array | None], count: int) -> str | None:
    """The first difference as text (rank, block, element, expected and actual value), or None."""
    for rank, (actual, right) in enumerate(zip(outputs, expected, strict=True)):
        if actual is None or right is None:
            if actual is not right:
                return f"rank {rank}: expected {_shape(right)}, got {_shape(actual)}"
            continue
        if actual.shape != right.shape or actual.dtype != right.dtype:
            return f"rank {rank}: expected {_shape(right)}, got {_shape(actual)}"
        bits = _UNSIGNED[actual.dtype.itemsize]
        differs = np.flatnonzero(actual.view(bits) != right.view(bits))
        if differs.size:
            at = int(differs[0])
            return (
                f"rank {rank}, block {at // count}, element {at % count}: expected {right[at]}, got {actual[at]} "
                f"({differs.size} of {actual.size} elements are wrong)"
            )
    return None


def _shape(buffer: Array | None) -> str:
    return "no buffer" if buffer is None else f"{buffer.size} × {buffer.dtype}"


# Data that is exact in every order of reduction: small whole numbers, by type and operation. Every partial sum of a
# float type stays within its largest exact integer, products hold few twos, and each rank's value changes the result in
# some element.
def exact_values(rng: np.random.Generator, size: int, dtype: DType, base: str, rank: int, world_size: int) -> Array:
    """Whole numbers for one rank's buffer; the reduction of any ranks' buffers in any order is exact.

    ``dtype`` represents them exactly. They are truth values for bool, and bit patterns for bitwise operations.
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
    """1 for each element in which ``rank`` takes part, else 0; ``most`` ranks take part, others in each element."""
    takes: Array = (np.arange(size) + rank) % world_size < most
    return takes.astype(np.int64)


def _truths(rng: np.random.Generator, size: int, base: str, world_size: int) -> Array:
    """Truth values, about one true rank for "or" and one false rank for "and", so each rank decides some element."""
    if base == "bxor":
        return rng.integers(0, 2, size)
    rare: Array = rng.integers(0, world_size, size) == 0
    return rare if base in ("sum", "max", "bor") else ~rare


def _bits_of(rng: np.random.Generator, size: int, dtype: DType, base: str, rank: int, world_size: int) -> Array:
    """Bit patterns in which every rank decides a bit: one bit set for "or", one cleared for "and", any for "xor"."""
    bits = 8 * dtype.itemsize
    one = np.left_shift(np.uint64(1), rng.integers(0, bits, size, dtype=np.uint64))
    if base == "bxor":
        one |= rng.integers(0, 2**bits, size, dtype=np.uint64)
    if base == "band":  # at most bits − 1 ranks clear a bit, so the result is not 0
        one = ~(one * _takes_part(size, rank, world_size, bits - 1).astype(np.uint64))
    return one.astype(f"u{dtype.itemsize}").view(dtype.storage)
