"""The operations and element types, and the exact bits of a reduction.

:func:`fold` defines the arithmetic of every engine, so two engines that follow the same Program give the same bits.
CONTRIBUTING.md lists the other places of an operation or a type.

**Accumulation.** Floats below 32 bits are reduced in float32, their *accumulator*. A value is rounded once to the type,
to the nearest and ties to even, when it leaves the execution of a role: when it is kept or sent. All other types are
their own accumulators: integers wrap modulo 2^bits, float32 and float64 round after every operation. In ``premul_sum``
the product is rounded to the type before the sum, so it is the same on every rank that adds it.

**Undefined bits.** IEEE 754 leaves open which NaN an operation on NaNs returns, and so does this table: a result that
is NaN is NaN on every engine, but its sign and payload may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.native.headers import header

Array = NDArray[Any]
#: A rank's scalar of ``premul_sum``, in the accumulator type; None for no scaling.
Scale = Any
#: a ∘ b, element by element, in a new array.
Combine = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Operation:
    """One reduction; ``base`` (a key of :data:`OP_CODES`) reduces two elements.

    If it ``averages``, the result is divided once by the number of contributions, in the accumulator. If it ``scales``,
    every rank's contribution is first multiplied by that rank's scalar, in the accumulator, and rounded.
    """

    name: str
    base: str
    averages: bool = False
    scales: bool = False

    @property
    def code(self) -> int:
        """Its number in native code."""
        return OP_CODES[self.base] | self.averages * _AVERAGES | self.scales * _SCALES


@dataclass(frozen=True)
class DType:
    """One element type; NumPy, ml_dtypes, PyTorch and the command line use the same name.

    ``itemsize`` is in bytes; ``kind`` is "signed", "unsigned", "float" or "bool"; ``exact_sum`` is the largest n for
    which the type represents every integer of magnitude up to n exactly.
    """

    name: str
    itemsize: int
    kind: str
    exact_sum: int

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """The NumPy type of buffers."""
        if self.name in _FOREIGN:
            import ml_dtypes  # imported here, since it takes milliseconds and other types do not need it

            foreign: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
            return foreign
        return np.dtype(self.name)

    @cached_property
    def accumulator(self) -> np.dtype[Any]:
        """The type in which one execution reduces: float32 for narrower floats, else :attr:`storage`."""
        return np.dtype(np.float32) if self.rounds_once else self.storage

    @property
    def rounds_once(self) -> bool:
        """True if the accumulator is another type, so values are rounded when they leave an execution."""
        return self.kind == "float" and self.itemsize < 4

    def serves(self, operation: Operation) -> bool:
        """True if ``operation`` is defined for this type."""
        if self.kind == "bool":
            return not (operation.averages or operation.scales)
        return self.kind != "float" or operation.base not in _BITWISE

    def combine(self, operation: Operation) -> Combine:
        """The function that reduces two arrays of accumulators; an UnsupportedError names the types that have one."""
        if not self.serves(operation):
            served = ", ".join(row.name for row in DTYPES.values() if row.serves(operation))
            raise UnsupportedError(f"{operation.name} is not defined for {self.name}, only for {served}")
        return _COMBINE["integer" if self.kind in ("signed", "unsigned") else self.kind][operation.base]

    def widen(self, values: Array) -> Array:
        """``values`` as accumulators, exactly; the same array if the type is the same."""
        return values.astype(self.accumulator, copy=False)

    def narrow(self, values: Array) -> Array:
        """Accumulators as elements, rounded once to the nearest, ties to even; the same array if the type is the same.

        A magnitude out of range becomes infinity, or NaN in float8_e4m3fn, which has no infinity.
        """
        return values.astype(self.storage, copy=False)

    def scalar(self, value: float) -> Scale:
        """A scalar of ``premul_sum`` as an accumulator: rounded for floats, truncated toward zero for integers.

        A UsageError if an integer type cannot hold it.
        """
        if self.kind == "float":
            with np.errstate(over="ignore"):
                return self.accumulator.type(float(value))
        limits = np.iinfo(self.storage)
        whole = math.trunc(value) if math.isfinite(value) else None
        if whole is None or not int(limits.min) <= whole <= int(limits.max):
            raise UsageError(
                f"scale {value!r} is outside {self.name}'s range {limits.min} … {limits.max}; give one that fits"
            )
        return self.storage.type(whole)

    def divide(self, values: Array, n: int) -> Array:
        """Accumulators divided by ``n``, the last step of an average; :func:`_truncate` divides integers."""
        return values / values.dtype.type(n) if self.kind == "float" else _truncate(values, n)


def fold(
    dtype: DType,
    operation: Operation,
    operands: Sequence[Array],
    scales: Sequence[Scale] = (),
    divisor: int = 1,
) -> Array:
    """The result of one execution of a role, as all engines compute it.

    It is ``round((round(s₀·x₀) ∘ round(s₁·x₁) ∘ …) / divisor)``, from left to right in the accumulator type, in a new
    array. A single operand without scale and divisor is returned unchanged, including the bits of a NaN. ``scales`` has
    a scalar or None for each operand, or is empty. A ``divisor`` greater than 1 is for an average.
    """
    combine = dtype.combine(operation)
    factors = scales or [None] * len(operands)
    if len(operands) == 1 and factors[0] is None and divisor <= 1:
        return operands[0]
    total: Array | None = None
    for operand, factor in zip(operands, factors, strict=True):
        value = dtype.widen(operand)
        if factor is not None:
            value = dtype.widen(dtype.narrow(np.multiply(value, factor)))
        total = value if total is None else combine(total, value)
    assert total is not None
    if divisor > 1:
        total = dtype.divide(total, divisor)
    return dtype.narrow(total)


def scalars(
    operation: Operation, dtype: DType, scales: Sequence[float] | None, world_size: int
) -> tuple[Scale, ...] | None:
    """Every rank's scalar as an accumulator, or None if the operation does not scale.

    ``premul_sum`` needs one scale per rank, and other operations take none, else it is a UsageError; so is a scale that
    the type cannot represent.
    """
    if not operation.scales:
        if scales is not None:
            raise UsageError(f"{operation.name} takes no scales, got {len(scales)}; only premul_sum has them")
        return None
    count = "none" if scales is None else str(len(scales))
    if scales is None or len(scales) != world_size:
        raise UsageError(f"{operation.name} needs one scale per rank: expected {world_size}, got {count}")
    return tuple(dtype.scalar(value) for value in scales)


def _lesser(a: Array, b: Array) -> Array:
    """(a < b or a is NaN) ? a : b. NumPy's minimum does not define which zero it returns."""
    return np.where((a < b) | (a != a), a, b)


def _greater(a: Array, b: Array) -> Array:
    """(a > b or a is NaN) ? a : b."""
    return np.where((a > b) | (a != a), a, b)


def _truncate(values: Array, n: int) -> Array:
    """Integer division toward zero, as in C (NCCL divides after the sum); NumPy's own rounds downward."""
    wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    quotient = wide // wide.dtype.type(n)
    if wide.dtype.kind == "i":
        quotient += (wide < 0) & (quotient * n != wide)
    return quotient.astype(values.dtype)


def _integer(name: str) -> DType:
    limits = np.iinfo(name)
    return DType(name, limits.bits // 8, "signed" if limits.min else "unsigned", int(limits.max))


def _float(name: str, itemsize: int, significand_bits: int) -> DType:
    """A float type; ``significand_bits`` includes the leading one, which is not stored."""
    return DType(name, itemsize, "float", 2**significand_bits)


#: Element types from ml_dtypes.
_FOREIGN = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_BITWISE = ("band", "bor", "bxor")

#: Functions by kind and base operation. For bool, sum, max and bor are "or"; prod, min and band are "and".
_COMBINE: dict[str, dict[str, Combine]] = {
    "integer": {
        "sum": np.add,
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    },
    "float": {"sum": np.add, "prod": np.multiply, "min": _lesser, "max": _greater},
    "bool": {
        "sum": np.logical_or,
        "prod": np.logical_and,
        "min": np.logical_and,
        "max": np.logical_or,
        "band": np.logical_and,
        "bor": np.logical_or,
        "bxor": np.logical_xor,
    },
}

#: The operations; ``avg`` and ``premul_sum`` are sums with a divisor and with scales.
OPS: dict[str, Operation] = {
    row.name: row
    for row in (
        *(Operation(name, name) for name in ("sum", "prod", "min", "max")),
        Operation("avg", "sum", averages=True),
        Operation("premul_sum", "sum", scales=True),
        *(Operation(name, name) for name in _BITWISE),
    )
}

#: The element types that every CPU engine serves.
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        *(_integer(f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")),
        _float("float16", 2, 11),
        _float("bfloat16", 2, 8),
        _float("float32", 4, 24),
        _float("float64", 8, 53),
        _float("float8_e4m3fn", 1, 4),
        _float("float8_e5m2", 1, 3),
        DType("bool", 1, "bool", 1),
    )
}

#: Numbers of the element types and of the base operations in ``src/blinkccl/native/include/blink/types.h``.
DTYPE_CODES = header("types.h").numbers("blink_dtype")
OP_CODES = header("types.h").numbers("blink_operation")
_AVERAGES, _SCALES = (header("types.h").constants[f"BLINK_{name}"] for name in ("AVERAGES", "SCALES"))


def operation(name: str) -> Operation:
    """The row of ``name`` in :data:`OPS`."""
    if name not in OPS:
        raise UsageError(f"operation {name!r} is not one of {', '.join(OPS)}")
    return OPS[name]


def element_type(dtype: str | np.dtype[Any]) -> DType:
    """The row of ``dtype`` in :data:`DTYPES`, by name or by NumPy type."""
    name = dtype if isinstance(dtype, str) else dtype.name
    if name not in DTYPES:
        raise UnsupportedError(f"element type {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]
