"""What every output buffer must hold, derived from the collectives' items alone; and inputs that can tell.

Nothing here knows a schedule. Each item's contributions are combined in rank order in the accumulator type, divided
where it is an average, and rounded once. Whoever reduces in another order, or in several steps, gets the same bits
only where the arithmetic is exact, which :func:`make_inputs` sees to (integer-valued data, as in nccl-tests).
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
    """Elements per block and the element type of ``inputs``.

    A UsageError names the rank whose buffer is missing, superfluous, not one-dimensional, of another type, or not the
    wanted number of whole blocks of ``count`` elements.
    """
    if len(inputs) != collective.world_size:
        raise UsageError(
            f"{collective.name} on {collective.world_size} ranks needs as many input buffers, "
            f"got {len(inputs)}; give None for a rank without input"
        )
    found: DType | None = None
    for rank, buffer in enumerate(inputs):
        blocks = collective.input_blocks(rank)
        if (buffer is None) != (blocks == 0):
            wanted, got = ("none", "one") if blocks == 0 else (f"{blocks} block(s)", "none")
            raise UsageError(f"{collective.name}: rank {rank}'s input: expected {wanted}, got {got}")
        if buffer is None:
            continue
        if buffer.ndim != 1:
            raise UsageError(f"rank {rank}'s input has shape {buffer.shape}; flatten it to one dimension")
        count = buffer.size // blocks if count is None else count
        found = element_type(buffer.dtype) if found is None else found
        if buffer.size != count * blocks:
            raise UsageError(
                f"{collective.name}: rank {rank}'s input has {buffer.size} elements, expected "
                f"{blocks} block(s) of {count}"
            )
        if buffer.dtype != found.storage:
            raise UsageError(f"rank {rank}'s input is {buffer.dtype}, the ranks before it have {found.name}")
    if count is None or found is None:
        raise UsageError(f"{collective.name}: no rank has an input")
    return count, found


def oracle(
    collective: Collective,
    inputs: Sequence[Array | None],
    op: str = "sum",
    scales: Sequence[float] | None = None,
) -> Buffers:
    """The outputs of a collective, from its definition: every item combined in rank order.

    ``inputs`` has per rank a one-dimensional array of ``collective.input_blocks(rank)`` × count elements, or None; the
    result has new arrays of ``output_blocks`` likewise. ``scales`` are for ``premul_sum`` what each rank's
    contributions are multiplied by.
    """
    count, dtype = check_inputs(collective, inputs)
    chosen = operation(op)
    dtype.combine(chosen)  # refuses what this type does not have
    factors = scalars(chosen, dtype, scales, collective.world_size)
    outputs: Buffers = [
        np.zeros(blocks * count, dtype.storage) if (blocks := collective.output_blocks(rank)) else None
        for rank in range(collective.world_size)
    ]
    with np.errstate(all="ignore"):  # an overflow to inf is a result, not a mishap
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
    """Inputs for which every order of reduction gives the same bits, and a misplaced block shows.

    All values are small integers; for ``premul_sum`` they are after scaling with :func:`make_scales`. Integer types
    wrap, so any order is exact; float sums stay below the type's largest exact integer; products hold at most eight
    twos per element, otherwise ±1.

    Every value is non-zero, so that an element that was never written cannot pass for a result, except where that
    cannot be had: bool, and sums of more ranks than the type's largest exact integer (16 in float8_e4m3fn, 8 in
    float8_e5m2). There a different set of ranks has ±1 in each element and the rest 0.
    """
    row, chosen = element_type(dtype), operation(op)
    row.combine(chosen)  # refuses what this type does not have
    scales = make_scales(collective, dtype) if chosen.scales and row.kind == "float" else None
    buffers: Buffers = []
    for rank in range(collective.world_size):
        blocks = collective.input_blocks(rank)
        rng = np.random.default_rng([seed, rank])
        values = exact_values(rng, blocks * count, row, chosen.base, rank, collective.world_size)
        if scales is not None:
            values = values / scales[rank]  # a power of two, so this is exact
        buffers.append(values.astype(row.storage) if blocks else None)
    return buffers


def make_scales(collective: Collective, dtype: str) -> list[float]:
    """A scalar per rank for ``premul_sum`` that keeps :func:`make_inputs` exact.

    Powers of two for floats. Integers wrap, so they get any number, also one with a fraction to be truncated.
    """
    series = (1.0, 2.0, 0.5, -1.0, 4.0) if element_type(dtype).kind == "float" else (1.0, 2.75, 3.0, 5.5)
    return [series[rank % len(series)] for rank in range(collective.world_size)]


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def mismatch(outputs: Sequence[Array | None], expected: Sequence[Array | None], count: int) -> str | None:
    """The first difference in words (rank, block, element, expected against got), or None."""
    for rank, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        if got is None or want is None:
            if got is not want:
                return f"rank {rank}: expected {_shape(want)}, got {_shape(got)}"
            continue
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"rank {rank}: expected {_shape(want)}, got {_shape(got)}"
        bits = _UNSIGNED[got.dtype.itemsize]
        differs = np.flatnonzero(got.view(bits) != want.view(bits))
        if differs.size:
            at = int(differs[0])
            return (
                f"rank {rank}, block {at // count}, element {at % count}: expected {want[at]}, got {got[at]} "
                f"({differs.size} of {got.size} elements are wrong)"
            )
    return None


def _shape(buffer: Array | None) -> str:
    return "no buffer" if buffer is None else f"{buffer.size} × {buffer.dtype}"


# Data that is exact in every order of reduction: small whole numbers, by type and operation. The rules that they
# keep: every partial sum of a float type stays within its largest exact integer, products hold few twos, and each
# rank's value matters to the result in some element.
def exact_values(rng: np.random.Generator, size: int, dtype: DType, base: str, rank: int, world_size: int) -> Array:
    """Whole numbers for one rank's buffer, such that combining any ranks' in any order is exact.

    The type ``dtype`` holds them exactly; they are truths for bool, and bit patterns for bitwise operations.
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
