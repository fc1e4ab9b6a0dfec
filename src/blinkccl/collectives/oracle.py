"""What every output buffer must hold, derived from the collectives' items alone; and inputs that can tell.

Nothing here knows a schedule. Each item's contributions are combined in rank order; whoever reduces in
another order gets the same bits only where the arithmetic is exact, which :func:`make_inputs` sees to
(integer-valued data, as in nccl-tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import DType, element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError

Array = NDArray[Any]
#: One entry per rank; None where the collective gives the rank no such buffer.
Buffers = list[Array | None]


def check_inputs(
    collective: Collective, inputs: Sequence[Array | None], count: int | None = None
) -> tuple[int, DType]:
    """Elements per block and the element type of ``inputs``.

    Raises
    ------
    ScheduleError
        If a rank's buffer is missing, superfluous, not one-dimensional, of another type, or not the wanted
        number of whole blocks of ``count`` elements; the message names the rank.
    """
    if len(inputs) != collective.world_size:
        raise ScheduleError(
            f"{collective.name} on {collective.world_size} ranks needs as many input buffers, "
            f"got {len(inputs)}; give None for a rank without input"
        )
    found: DType | None = None
    for rank, buffer in enumerate(inputs):
        blocks = collective.input_blocks(rank)
        if (buffer is None) != (blocks == 0):
            wanted, got = ("none", "one") if blocks == 0 else (f"{blocks} block(s)", "none")
            raise ScheduleError(f"{collective.name}: rank {rank}'s input: expected {wanted}, got {got}")
        if buffer is None:
            continue
        if buffer.ndim != 1:
            raise ScheduleError(f"rank {rank}'s input has shape {buffer.shape}; flatten it to one dimension")
        count = buffer.size // blocks if count is None else count
        found = element_type(buffer.dtype) if found is None else found
        if buffer.size != count * blocks:
            raise ScheduleError(
                f"{collective.name}: rank {rank}'s input has {buffer.size} elements, expected "
                f"{blocks} block(s) of {count}"
            )
        if buffer.dtype != found.storage:
            raise ScheduleError(
                f"rank {rank}'s input is {buffer.dtype}, the ranks before it have {found.name}"
            )
    if count is None or found is None:
        raise ScheduleError(f"{collective.name}: no rank has an input")
    return count, found


def oracle(collective: Collective, inputs: Sequence[Array | None], op: str = "sum") -> Buffers:
    """The outputs of a collective, from its definition: every item combined in rank order.

    Parameters
    ----------
    inputs
        Per rank a one-dimensional array of ``collective.input_blocks(rank)`` × count elements, or None.
    op
        One of :data:`blinkccl.collectives.ops.OPS`; without meaning for collectives that do not reduce.

    Returns
    -------
    list
        Per rank a new array of ``collective.output_blocks(rank)`` × count elements, or None. For Scatter and
        Gather only the defined blocks exist.

    Raises
    ------
    ScheduleError
        As :func:`check_inputs`.
    UnsupportedError
        If operation or element type is unknown.

    Notes
    -----
    Cost: one combination per contribution and element.
    """
    count, dtype = check_inputs(collective, inputs)
    chosen = operation(op)
    combine = dtype.combine(chosen)
    outputs: Buffers = [
        np.zeros(blocks * count, dtype.storage) if (blocks := collective.output_blocks(rank)) else None
        for rank in range(collective.world_size)
    ]
    with np.errstate(all="ignore"):  # an overflow to inf is a result, not a mishap
        for item in collective.items():
            value: Array | None = None
            for rank, index in item.contributions:
                source = inputs[rank]
                assert source is not None
                block = source[index * count : (index + 1) * count]
                value = block.copy() if value is None else combine(value, block, out=value)
            assert value is not None
            if chosen.averages and len(item.contributions) > 1:
                dtype.divide(value, len(item.contributions), value)
            for rank, index in item.destinations:
                target = outputs[rank]
                assert target is not None
                target[index * count : (index + 1) * count] = value
    return outputs


def make_inputs(collective: Collective, count: int, dtype: str, seed: int = 0, op: str = "sum") -> Buffers:
    """Inputs for which every order of reduction gives the same bits, and a misplaced block shows.

    All values are small integers. Integer types wrap, so any order is exact; float sums stay below the type's
    largest exact integer; products hold at most eight twos per element, otherwise ±1.
    Every value is non-zero: an element that was never written cannot pass for a result of 0.

    Parameters
    ----------
    count
        Elements per block, ≥ 0.
    dtype, op
        Names in :data:`~blinkccl.collectives.ops.DTYPES` and :data:`~blinkccl.collectives.ops.OPS`.
    seed
        The same seed gives the same buffers.

    Raises
    ------
    UnsupportedError
        If operation or element type is unknown.
    """
    row, chosen = element_type(dtype), operation(op)
    buffers: Buffers = []
    for rank in range(collective.world_size):
        blocks = collective.input_blocks(rank)
        rng = np.random.default_rng([seed, rank])
        buffers.append(
            _values(rng, blocks * count, row, chosen.name, rank, collective.world_size) if blocks else None
        )
    return buffers


def _values(rng: np.random.Generator, size: int, dtype: DType, op: str, rank: int, world_size: int) -> Array:
    if op == "prod":
        signs = rng.integers(0, 2, size) * 2 - 1 if dtype.storage.kind != "u" else np.ones(size, np.int64)
        twos = 1 + (rng.integers(0, 2, size) if rank < 8 else np.zeros(size, np.int64))
        return (signs * twos).astype(dtype.storage)
    largest = min(100, max(1, dtype.exact_sum // world_size)) if op in ("sum", "avg") else 100
    values = rng.integers(1, largest + 1, size)
    if dtype.storage.kind != "u":
        values *= rng.integers(0, 2, size) * 2 - 1
    return values.astype(dtype.storage)


def wrong_elements(outputs: Sequence[Array | None], expected: Sequence[Array | None]) -> int:
    """How many elements differ in their bits, over all ranks: nccl-tests' ``#wrong``.

    A missing buffer or one of another length counts as wholly wrong.
    """
    wrong = 0
    for got, want in zip(outputs, expected, strict=True):
        if got is None or want is None or got.shape != want.shape:
            sizes = [0 if x is None else x.size for x in (got, want)]
            wrong += max(sizes)
        else:
            wrong += int(np.count_nonzero(_bits(got) != _bits(want)))
    return wrong


def _bits(array: Array) -> Array:
    return array.view(_UNSIGNED[array.dtype.itemsize])


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
        differs = np.flatnonzero(_bits(got) != _bits(want))
        if differs.size:
            at = int(differs[0])
            return (
                f"rank {rank}, block {at // count}, element {at % count}: expected {want[at]}, got {got[at]} "
                f"({differs.size} of {got.size} elements are wrong)"
            )
    return None


def _shape(buffer: Array | None) -> str:
    return "no buffer" if buffer is None else f"{buffer.size} × {buffer.dtype}"


@lru_cache(maxsize=256)
def tolerance(dtype: str, contributions: int) -> float:
    """The largest relative error of a reduction of same-signed data in another order; 0 for integer types.

    Each of the n − 1 additions rounds once: (n − 1) · u, in either order, hence twice that between two
    orders.
    """
    row = element_type(dtype)
    return 0.0 if row.accumulate == "wraps" else 2.0 * max(0, contributions - 1) / row.exact_sum


def expected_matches(
    outputs: Sequence[Array | None], expected: Sequence[Array | None], relative: float = 0.0
) -> bool:
    """Whether outputs equal the oracle's: in every bit, or within a relative error for data that rounds."""
    if relative == 0.0:
        return wrong_elements(outputs, expected) == 0
    for got, want in zip(outputs, expected, strict=True):
        if got is None or want is None:
            if got is not want:
                return False
        elif got.shape != want.shape or not np.allclose(got, want, rtol=relative, atol=0.0, equal_nan=True):
            return False
    return True
