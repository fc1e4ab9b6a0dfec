"""Evaluation of an order of summation: an element's bits from its contributions only."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blinkccl.collectives.ops import DType, Operation, fold

#: Values whose sums differ between nearly any two orders, in float32 and narrower types.
ROUGH = (1e8, -1e8, 1.0, 3e-3, -7e4, 1 / 3, 65504.0, -2e-5)


def rough(row: DType, ranks: int, count: int, seed: int = 0) -> list[Any]:
    """Return every rank's ``count`` elements, of every magnitude, by rank."""
    random = np.random.default_rng(seed)
    values = random.choice(ROUGH, (ranks, count)) * random.uniform(0.5, 1.5, (ranks, count))
    if row.kind == "float":
        with np.errstate(over="ignore"):
            return list(
                np.clip(values, -6e4, 6e4).astype(row.storage) if row.name == "float16" else values.astype(row.storage)
            )
    return list(random.integers(-100, 100, (ranks, count)).astype(row.storage))


def evaluated(
    order: str,
    contributions: Mapping[int, Any],
    row: DType,
    operation: Operation,
    scales: Mapping[int, Any] | None = None,
) -> Any:
    """Return the bits of a result: every list is reduced and rounded once; averages divide the outermost."""
    tokens = re.findall(r"\d+|[()]", order)
    divisor = len(contributions) if operation.averages else 1

    def folded(end: str) -> Any:
        operands: list[Any] = []
        factors: list[Any] = []
        while tokens and tokens[0] != end:
            token = tokens.pop(0)
            operands.append(folded(")") if token == "(" else contributions[int(token)])
            factors.append(None if token == "(" or scales is None else scales[int(token)])
        if tokens:
            tokens.pop(0)
        return fold(row, operation, operands, factors, divisor if end == "" else 1)

    with np.errstate(all="ignore"):
        return folded("")


def same_bits(got: Any, wanted: Any) -> bool:
    """Compare bit for bit, except the payloads of NaN."""
    one, other = np.ascontiguousarray(got), np.ascontiguousarray(wanted)
    width: Sequence[str] = (f"u{one.dtype.itemsize}",)
    differs = one.view(width[0]) != other.view(width[0])
    return not bool(np.any(differs & ~((one != one) & (other != other))))
