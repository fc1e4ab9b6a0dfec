"""What one firing makes of its operands, in PyTorch: :func:`blinkccl.collectives.ops.fold`, bit for bit.

PyTorch has no sums of unsigned and 8-bit float types, its minimum leaves open which zero comes out, and on GPUs a
division by a number is a product with its reciprocal; what is too large for float8_e4m3fn saturates there and is
NaN here. So: unsigned integers are computed as signed ones of the same width, bool as uint8, narrow floats in float32;
minimum, maximum and the overflow are spelled out; divisors are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from blinkccl.collectives.ops import DType, Operation

#: ``combine(a, b, out)`` writes a ∘ b into ``out``, which may be the very memory of ``a`` or ``b``.
_Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

#: Half-way between float8_e4m3fn's largest number, 448, and the next, which is NaN; the tie goes to 448, which is even.
_E4M3FN_ROUNDS_DOWN = 464.0


class Fold:
    """One operation on one element type.

    Parameters
    ----------
    row, chosen
        Rows of :mod:`blinkccl.collectives.ops`.
    elements
        The longest operand: scratch memory is made for it where it is needed.
    device
        Where the operands are.

    Raises
    ------
    UnsupportedError
        If the type has no such operation; the message names the types that have it.
    """

    def __init__(self, row: DType, chosen: Operation, elements: int, device: torch.device) -> None:
        row.combine(chosen)  # refuses what the table does not have
        self._row = row
        self._device = device
        self._work = _work_type(row)
        self._combine = _combine(row, chosen.base)
        self._scratch = [torch.empty(elements, dtype=self._work, device=device) for _ in range(2)]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory."""
        return sum(scratch.nbytes for scratch in self._scratch)

    def scalar(self, value: float) -> torch.Tensor:
        """A scalar of ``premul_sum``, ready to be multiplied with.

        Raises
        ------
        UsageError
            If an integer type cannot hold it.
        """
        number = self._row.scalar(value).item()
        if self._row.kind == "unsigned" and self._work.is_signed:  # the same bits, read as a signed number
            bits = 8 * self._row.itemsize
            number -= (number >> (bits - 1)) << bits
        return torch.tensor(number, dtype=self._work, device=self._device)

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        out: torch.Tensor,
        own: int | None = None,
        scale: torch.Tensor | None = None,
        divisor: int = 1,
    ) -> None:
        """Writes round((x₀ ∘ x₁ ∘ …) / divisor) into ``out``.

        Parameters
        ----------
        operands
            At least one; all as long as ``out`` and of the element type.
        own
            Which operand is the rank's own; ``out`` may be its very memory.
        scale
            What the own operand is multiplied by, from :meth:`scalar`.
        """
        exact = not self._row.rounds_once
        # Written to before the own operand is read, unless that is one of the first two.
        in_out = exact and (own is None or own < 2)
        result = self._seen(out) if in_out else self._scratch[0][: out.numel()]
        other = self._scratch[1][: out.numel()]
        total = result
        for place, operand in enumerate(operands):
            if exact:
                value = self._seen(operand)
            else:
                value = other if place else result
                value.copy_(operand)  # widens
            if place == own and scale is not None:
                value = torch.mul(value, scale, out=other if place else result)
            if place:
                self._combine(total, value, result)
                total = result
            else:
                total = value
        if divisor > 1:
            self._divide(total, divisor, result)
            total = result
        if self._row.name == "float8_e4m3fn":  # PyTorch may saturate instead
            total = torch.where(total.abs() > _E4M3FN_ROUNDS_DOWN, torch.nan, total)
        if not in_out or total is not result:
            self._seen(out).copy_(total)  # rounds where the accumulator is wider

    def _seen(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory as the type that is computed with; as it is where that is wider."""
        return tensor if self._row.rounds_once or tensor.dtype == self._work else tensor.view(self._work)

    def _divide(self, total: torch.Tensor, divisor: int, result: torch.Tensor) -> None:
        """Floats: true division in the accumulator. Integers: toward zero, in 64 bits so that ``divisor`` fits."""
        if self._row.kind == "float":
            torch.div(total, torch.tensor(divisor, dtype=self._work, device=self._device), out=result)
            return
        wide = total.to(torch.int64)
        bits = 8 * self._row.itemsize
        if self._row.kind == "signed":
            quotient = torch.div(wide, divisor, rounding_mode="trunc")
        elif bits < 64:
            quotient = torch.div(wide & ((1 << bits) - 1), divisor, rounding_mode="trunc")
        else:  # halve it first: then it is no negative number any more
            quotient = torch.div((wide >> 1) & ((1 << 63) - 1), divisor, rounding_mode="trunc") * 2
            quotient += (wide - quotient * divisor) >= divisor
        result.copy_(quotient)


def _work_type(row: DType) -> torch.dtype:
    """The type that is computed with."""
    if row.rounds_once:
        return torch.float32
    if row.kind == "bool":
        return torch.uint8
    name = row.name[1:] if row.kind == "unsigned" and row.itemsize > 1 else row.name
    found: torch.dtype = getattr(torch, name)
    return found


def _combine(row: DType, base: str) -> _Combine:
    """The function of a base operation on :func:`_work_type`."""
    if row.kind == "bool":
        return _BOOL[base]
    if row.kind == "float":
        return _FLOAT[base]
    if row.kind == "unsigned" and row.itemsize > 1 and base in ("min", "max"):
        return _flipped(_INTEGER[base], -(1 << (8 * row.itemsize - 1)))
    return _INTEGER[base]


def _flipped(combine: _Combine, top: int) -> _Combine:
    """``combine`` on unsigned numbers that are held as signed: without their top bit they compare alike."""

    def flipped(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        combine(a ^ top, b ^ top, out)
        out ^= top

    return flipped


def _add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(a, b, out=out)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(a, b, out=out)


def _lesser(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.where((a < b) | (a != a), a, b, out=out)


def _greater(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.where((a > b) | (a != a), a, b, out=out)


def _least(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.minimum(a, b, out=out)


def _most(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.maximum(a, b, out=out)


def _and(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.bitwise_and(a, b, out=out)


def _or(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.bitwise_or(a, b, out=out)


def _xor(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.bitwise_xor(a, b, out=out)


_FLOAT: dict[str, _Combine] = {"sum": _add, "prod": _multiply, "min": _lesser, "max": _greater}
_BITWISE: dict[str, _Combine] = {"band": _and, "bor": _or, "bxor": _xor}
_INTEGER: dict[str, _Combine] = {"sum": _add, "prod": _multiply, "min": _least, "max": _most, **_BITWISE}
_BOOL: dict[str, _Combine] = {"sum": _or, "prod": _and, "min": _and, "max": _or, **_BITWISE}
