"""The fold in PyTorch against its definition in ``collectives/ops.py``: every type, every operation, every bit."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blinkccl.collectives.ops import DTYPES, OPS, DType, fold
from blinkccl.errors import UnsupportedError, UsageError

torch = pytest.importorskip("torch", reason="needs PyTorch")

Fold = import_module("blinkccl.engines.torch_p2p_fold").Fold
CPU = torch.device("cpu")
SERVED = [(name, op) for name, row in DTYPES.items() for op in OPS if row.serves(OPS[op])]
Array = NDArray[Any]


def values(row: DType, seed: int, count: int = 257) -> Array:
    """Random bits, and for floats what is special: zeros of both signs, infinities, NaN, the largest and the least."""
    rng = np.random.default_rng(seed)
    if row.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if row.kind != "float":
        return rng.integers(0, 256, count * row.itemsize, dtype=np.uint8).view(row.storage)
    plain = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 480.0, 65504.0, 57344.0, 3e38, 1e-8]
    plain[rng.permutation(count)[: 8 * len(special)]] = np.tile(special, 8)
    with np.errstate(all="ignore"):
        return plain.astype(row.storage)


def tensor(array: Array, row: DType) -> Any:
    return torch.from_numpy(array.view(np.uint8).copy()).view(getattr(torch, row.name))


def same(got: Any, want: Array, row: DType) -> bool:
    """Bit for bit, but for which NaN."""
    array = got.view(torch.uint8).numpy().view(row.storage)
    both_nan = (array != array) & (want != want)
    bits = array.view(f"u{row.itemsize}") == want.view(f"u{row.itemsize}")
    return bool((bits | both_nan).all())


@pytest.mark.parametrize(("name", "op"), SERVED)
def test_equals_the_definition(name: str, op: str) -> None:
    row, chosen = DTYPES[name], OPS[op]
    combined = Fold(row, chosen, 257, CPU)
    factor = 3 if row.kind != "float" else -1.7
    for operands, seed in itertools.product((1, 2, 3, 4), (0, 1)):
        arrays = [values(row, 10 * seed + i) for i in range(operands)]
        divisor = 3 if chosen.averages else 1
        for own in (None, *range(operands)):
            scaled = chosen.scales and own is not None
            if operands == 1 and divisor == 1 and not scaled:
                continue  # nothing to compute: engines pass a lone operand on as it is
            scales = [row.scalar(factor) if scaled and place == own else None for place in range(operands)]
            with np.errstate(all="ignore"):
                want = fold(row, chosen, arrays, scales, divisor)
            tensors = [tensor(array, row) for array in arrays]
            outs = [torch.empty_like(tensors[0])] + ([tensors[own]] if own is not None else [])
            for out in outs:  # in place last: it destroys its operand
                combined(tensors, out, own, combined.scalar(factor) if scaled else None, divisor)
                assert same(out, want, row), f"{operands} operands, own {own}, in place {out is not outs[0]}"


@pytest.mark.parametrize("name", [name for name, row in DTYPES.items() if row.rounds_once])
def test_rounds_as_the_table_does(name: str) -> None:
    """Halves of random sums lie between neighbours; the sweep has ties, overflow and subnormal numbers."""
    row, chosen = DTYPES[name], OPS["avg"]
    bits = np.arange(2 ** (8 * row.itemsize), dtype=f"u{row.itemsize}")
    first = bits.view(row.storage)
    second = np.random.default_rng(0).permutation(bits).view(row.storage)
    out = torch.empty(first.size, dtype=getattr(torch, name))
    for divisor in (1, 2, 3):
        with np.errstate(all="ignore"):
            want = fold(row, chosen, [first, second], (), divisor)
        Fold(row, chosen, first.size, CPU)([tensor(first, row), tensor(second, row)], out, divisor=divisor)
        assert same(out, want, row)


@pytest.mark.parametrize("name", ["int8", "uint8", "uint64", "int64", "uint16"])
def test_averages_of_many_ranks(name: str) -> None:
    row = DTYPES[name]
    arrays = [values(row, 0), np.zeros(257, row.storage)]
    out = torch.empty(257, dtype=getattr(torch, name))
    for divisor in (2, 127, 128, 200, 255, 1000):  # beyond what an int8 holds
        Fold(row, OPS["avg"], 257, CPU)([tensor(a, row) for a in arrays], out, divisor=divisor)
        wide = [int(x) for x in arrays[0]]
        want = np.array([abs(x) // divisor * (1 if x >= 0 else -1) for x in wide], dtype=row.storage)
        assert same(out, want, row)


def test_a_scale_that_an_integer_cannot_hold() -> None:
    with pytest.raises(UsageError, match="outside uint8's range"):
        Fold(DTYPES["uint8"], OPS["premul_sum"], 8, CPU).scalar(256)
    biggest = Fold(DTYPES["uint64"], OPS["premul_sum"], 8, CPU).scalar(2**63)
    assert biggest.item() == -(2**63)  # the same 64 bits


def test_what_the_table_refuses() -> None:
    with pytest.raises(UnsupportedError, match="bxor is not defined for float32"):
        Fold(DTYPES["float32"], OPS["bxor"], 8, CPU)
