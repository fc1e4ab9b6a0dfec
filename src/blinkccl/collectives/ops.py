"""Which operations and element types there are, and what combining two elements does, bit for bit.

Every engine combines through this table, so that two engines that follow the same Program give the same bits.
To add an operation or a type is to add one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blinkccl.errors import UnsupportedError

Array = NDArray[Any]


class Combine(Protocol):
    """``combine(a, b, out=c)`` writes a ∘ b into c and returns it; without ``out`` into a new array."""

    def __call__(self, a: Array, b: Array, /, out: Array | None = None) -> Array: ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One reduction: ``ufunc`` combines two elements; ``averages``: the sum is divided at the end."""

    name: str
    ufunc: np.ufunc
    averages: bool = False


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Parameters
    ----------
    name
        As in NumPy and on the command line.
    storage
        What buffers of this type are made of.
    itemsize
        Bytes per element.
    accumulate
        ``"wraps"``: integers, modulo 2^bits, so any order of reduction gives the same bits.
        ``"rounds"``: floats; every partial result is rounded to the type itself, as it would be on the wire.
    exact_sum
        The largest n such that every integer of magnitude up to n is represented exactly.
    """

    name: str
    storage: np.dtype[Any]
    itemsize: int
    accumulate: str
    exact_sum: int

    def combine(self, operation: Operation) -> Combine:
        """The function that combines two arrays of this type."""
        return operation.ufunc

    @property
    def divide(self) -> Callable[[Array, int, Array], None]:
        """``divide(values, n, out)`` ends an average: see :func:`_truncate` for integers."""
        return _quotient if self.accumulate == "rounds" else _truncate


def _quotient(values: Array, n: int, out: Array) -> None:
    np.divide(values, values.dtype.type(n), out=out)


def _truncate(values: Array, n: int, out: Array) -> None:
    """Integer division toward zero, as in C (NCCL divides after the sum); NumPy's own rounds downward."""
    wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    quotient = wide // wide.dtype.type(n)
    if wide.dtype.kind == "i":
        quotient += (wide < 0) & (quotient * n != wide)
    out[...] = quotient.astype(values.dtype)


def _integer(name: str) -> DType:
    storage = np.dtype(name)
    return DType(name, storage, storage.itemsize, "wraps", int(np.iinfo(storage).max))


def _float(name: str) -> DType:
    storage = np.dtype(name)
    return DType(name, storage, storage.itemsize, "rounds", int(2 ** (np.finfo(storage).nmant + 1)))


#: The operations; ``avg`` is a sum, divided once by the number of contributions.
OPS: dict[str, Operation] = {
    "sum": Operation("sum", np.add),
    "prod": Operation("prod", np.multiply),
    "min": Operation("min", np.minimum),
    "max": Operation("max", np.maximum),
    "avg": Operation("avg", np.add, averages=True),
}

#: The element types that every CPU engine serves.
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        *(_integer(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(_float(f"float{bits}") for bits in (16, 32, 64)),
    )
}


def operation(name: str) -> Operation:
    """The row of ``name`` in :data:`OPS`.

    Raises
    ------
    UnsupportedError
        If there is no such operation; the message lists those there are.
    """
    if name not in OPS:
        raise UnsupportedError(f"operation {name!r} is not one of {', '.join(OPS)}")
    return OPS[name]


def element_type(dtype: str | np.dtype[Any]) -> DType:
    """The row of ``dtype`` in :data:`DTYPES`, by name or by NumPy type.

    Raises
    ------
    UnsupportedError
        If the type is not served. Booleans are not: a sum of booleans is a matter of taste (NumPy: "or",
        C: 2).
    """
    name = dtype if isinstance(dtype, str) else dtype.name
    if name not in DTYPES:
        hint = "; view a bool buffer as uint8 with max (or) or min (and)" if name == "bool" else ""
        raise UnsupportedError(f"element type {name!r} is not one of {', '.join(DTYPES)}{hint}")
    return DTYPES[name]
