"""torch's element types and reductions by the names of :mod:`blinkccl.collectives.ops`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend.failure import for_torch

#: Element types of reductions. Collectives that only move data accept any type, as bytes.
DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "bool"),
    )
}

#: torch's ``ReduceOp.RedOpType``, whose members type checkers do not know → our name.
OPERATIONS: dict[Any, str] = {
    dist.ReduceOp.PRODUCT: "prod",
    **{
        getattr(dist.ReduceOp, name.upper()): name
        for name in ("sum", "avg", "min", "max", "band", "bor", "bxor", "premul_sum")
    },
}


def element_type(tensor: torch.Tensor) -> str:
    """The name of the type in which ``tensor`` is reduced; UnsupportedError if it cannot be."""
    name = DTYPES.get(tensor.dtype)
    if name is None:
        text = f"backend blink cannot reduce {tensor.dtype}; it can {', '.join(DTYPES.values())}"
        raise for_torch(UnsupportedError(text))
    return name


def reduction(operation: Any) -> tuple[str, float | None]:
    """The name of ``operation`` (a ``ReduceOp`` or its type), and the factor of a ``PREMUL_SUM``."""
    kind = getattr(operation, "op", operation)  # isinstance is true for both
    name = OPERATIONS.get(kind)
    if name is None:
        text = f"backend blink has no reduction {kind}; it has {', '.join(OPERATIONS.values())}"
        raise for_torch(UnsupportedError(text))
    if name != "premul_sum":
        return name, None
    if kind is operation:
        text = "PREMUL_SUM needs its factor: torch.distributed._make_nccl_premul_sum(factor)"
        raise for_torch(UnsupportedError(text))
    return name, float(operation.__getstate__()[1])  # torch 2.11 has no other way to read it
