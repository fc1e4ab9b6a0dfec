"""Combining and dividing, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from blinkccl.collectives.ops import DTYPES, OPS, element_type, operation
from blinkccl.errors import UnsupportedError


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_its_numpy_self(name: str) -> None:
    row = DTYPES[name]
    assert row.storage == np.dtype(name)
    assert row.itemsize == np.dtype(name).itemsize
    assert element_type(np.dtype(name)) is row


def test_integer_average_truncates_toward_zero_as_in_c() -> None:
    row = element_type("int32")
    values = np.array([7, -7, 6, -6, 0, 1, -1], dtype=np.int32)
    row.divide(values, 3, values)
    assert values.tolist() == [2, -2, 2, -2, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "value", "divisor", "wanted"),
    [
        ("int8", -128, 128, -1),
        ("int8", 127, 200, 0),
        ("uint8", 255, 300, 0),
        ("uint64", 2**64 - 1, 2, 2**63 - 1),
        ("int64", -(2**63), 3, -(2**63 // 3)),
        ("uint8", 255, 2, 127),
    ],
)
def test_integer_average_at_the_ends_of_the_range(name: str, value: int, divisor: int, wanted: int) -> None:
    row = element_type(name)
    values = np.array([value], dtype=row.storage)
    row.divide(values, divisor, values)
    assert values.tolist() == [wanted]


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_float_average_divides_in_its_own_type(name: str) -> None:
    row = element_type(name)
    values = np.array([7, -7, 1], dtype=row.storage)
    row.divide(values, 3, values)
    assert values.dtype == row.storage
    assert values.tolist() == (np.array([7, -7, 1], dtype=row.storage) / row.storage.type(3)).tolist()


def test_integers_wrap() -> None:
    row = element_type("int8")
    combine = row.combine(operation("sum"))
    assert combine(np.array([127], np.int8), np.array([1], np.int8)).tolist() == [-128]


@pytest.mark.parametrize("name", DTYPES)
def test_largest_exact_integer(name: str) -> None:
    row = DTYPES[name]
    largest = np.array([row.exact_sum], dtype=row.storage)
    assert int(largest[0]) == row.exact_sum
    beyond = largest + row.storage.type(1)
    assert int(beyond[0]) != row.exact_sum + 1


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="'xor' is not one of sum, prod, min, max, avg"):
        operation("xor")
    with pytest.raises(UnsupportedError, match="'complex64' is not one of int8"):
        element_type("complex64")
    with pytest.raises(UnsupportedError, match="view a bool buffer as uint8"):
        element_type(np.dtype(bool))


def test_only_avg_averages() -> None:
    assert [name for name, row in OPS.items() if row.averages] == ["avg"]
