"""Comparison of an engine with the collective's definition, for one call."""

from typing import Any

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import operation
from blinkccl.collectives.oracle import make_inputs, make_scales, mismatch, oracle
from blinkccl.schedule.program import Program
from support.engines import RunProgram


def difference(
    run: RunProgram,
    program: Program,
    *,
    count: int,
    dtype: str = "int32",
    op: str = "sum",
    seed: int = 0,
    chunk_bytes: int = 64,
    **options: Any,
) -> str | None:
    """Return the first difference between an engine's outputs and the oracle's, or None.

    The inputs, drawn from ``seed``, make any order of reduction exact, so every bit is compared. The scales of
    ``premul_sum`` preserve that. ``run`` and its arguments are those of
    :class:`support.engines.RunProgram`.
    """
    inputs = make_inputs(program.collective, count, dtype, seed, op)
    scales = make_scales(program.collective, dtype) if operation(op).scales else None
    expected = oracle(program.collective, inputs, op, scales)
    outputs = run(
        program,
        inputs,
        CollectiveCall.of(program.collective, dtype, count, op),
        scales=scales,
        chunk_bytes=chunk_bytes,
        **options,
    )
    return mismatch(outputs, expected, max(1, count))


def ragged_counts(program: Program, chunk_elements: int) -> list[int]:
    """Return counts that expose errors: 0, 1, fewer than slices, a prime, and ≥ 3 chunks and a tail per slice."""
    parts = max(1, len(program.slices))
    narrowest = min((part.stop - part.start for part in program.slices if part.stop > part.start), default=1)
    deep = int((3 * chunk_elements + 17) / narrowest) + 1
    n = len(program.ranks)
    return list(dict.fromkeys([0, 1, n - 1, parts - 1, 101, deep | 1]))
