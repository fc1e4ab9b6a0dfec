"""Types, operations, and the exact bits of the result of one execution."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from blinkccl.collectives.ops import (
    DTYPE_CODES,
    DTYPES,
    OP_CODES,
    OPS,
    element_type,
    fold,
    operation,
    scalars,
)
from blinkccl.errors import UnsupportedError, UsageError

FLOATS = [name for name, row in DTYPES.items() if row.kind == "float"]
INTEGERS = [name for name, row in DTYPES.items() if row.kind in ("signed", "unsigned")]
NARROW = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def folded(dtype: str, op: str, *operands: list[object], divisor: int = 1) -> np.ndarray:
    row = element_type(dtype)
    with np.errstate(all="ignore"):
        return fold(row, operation(op), [np.array(x).astype(row.storage) for x in operands], divisor=divisor)


def bits(array: np.ndarray) -> list[int]:
    return array.view(f"u{array.dtype.itemsize}").tolist()


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_has_the_numpy_type_of_its_name(name: str) -> None:
    row = DTYPES[name]
    assert row.storage == np.dtype(getattr(ml_dtypes, name, name))
    assert row.storage.name == name
    assert row.itemsize == row.storage.itemsize
    assert element_type(row.storage) is row


def test_the_numbers_of_the_native_abi() -> None:
    assert list(DTYPE_CODES) == list(DTYPES)
    assert list(DTYPE_CODES.values()) == list(range(15))
    assert {name: DTYPE_CODES[name] for name in ("int8", "uint64", "bfloat16", "float64", "bool")} == {
        "int8": 0,
        "uint64": 7,
        "bfloat16": 9,
        "float64": 11,
        "bool": 14,
    }
    assert OP_CODES == {"sum": 0, "prod": 1, "min": 2, "max": 3, "band": 4, "bor": 5, "bxor": 6}
    assert {row.base for row in OPS.values()} == set(OP_CODES)
    assert OPS["avg"].base == OPS["premul_sum"].base == "sum"


def test_only_narrow_floats_accumulate_in_float32() -> None:
    assert [name for name, row in DTYPES.items() if row.accumulator != row.storage] == NARROW
    assert all(DTYPES[name].accumulator == np.float32 for name in NARROW)


@pytest.mark.parametrize("name", DTYPES)
def test_largest_exact_integer(name: str) -> None:
    row = DTYPES[name]
    if row.kind == "bool":
        assert row.exact_sum == 1
        return
    largest = np.array([row.exact_sum], dtype=row.storage)
    assert int(largest[0]) == row.exact_sum
    assert int((largest + largest.dtype.type(1))[0]) != row.exact_sum + 1


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("float16", (2048, 1, 1), 2050),  # rounding after each step would stay at 2048
        ("float16", (2048, 1), 2048),  # a tie goes to the even one
        ("float16", (2050, 1), 2052),
        ("float8_e5m2", (57344, 57344), np.inf),
        ("bfloat16", (256, 1, 1), 258),
        ("float8_e4m3fn", (16, 1, 1), 18),
        ("float8_e5m2", (8, 1, 1), 10),
        ("float16", (60000, 60000, -60000), 60000),  # no overflow on the way
        ("float32", (2**24, 1, 1), 2**24),
    ],
)
def test_a_sum_is_rounded_once(name: str, operands: tuple[int, ...], expected: float) -> None:
    assert folded(name, "sum", *([x] for x in operands)).astype(np.float64).tolist() == [expected]


def test_an_average_is_divided_before_it_is_rounded() -> None:
    one, other = [1.0], [0.010803223]  # bfloat16 cannot represent the sum
    result = folded("bfloat16", "avg", one, other, divisor=3)
    assert result.astype(np.float64).tolist() == [0.337890625]
    rounded_first = folded("bfloat16", "avg", folded("bfloat16", "sum", one, other).tolist(), divisor=3)
    assert rounded_first.astype(np.float64).tolist() == [0.3359375]


def test_products_are_rounded_before_they_are_added() -> None:
    row, chosen = element_type("bfloat16"), operation("premul_sum")
    x = np.array([257 / 256], np.float32).astype(row.storage)  # rounds to 1
    scale = row.scalar(1 + 2**-9)
    assert scale.dtype == np.float32
    wide = fold(row, chosen, [np.array([1], row.storage)] * 2, [scale, None])
    assert wide.tolist() == [2.0]
    small = fold(row, chosen, [np.array([1], row.storage), np.array([-1], row.storage)], [scale, None])
    assert small.tolist() == [0]  # it would be 2^-9 if 1 · scale had not been rounded to bfloat16
    assert fold(row, chosen, [x], [scale]).tolist() == [1.0]


def test_one_operand_alone_keeps_its_bits() -> None:
    for name in FLOATS:
        row = element_type(name)
        patterns = np.arange(256, dtype=np.uint8)
        values = np.repeat(patterns, row.itemsize).view(row.storage)  # holds NaNs of many payloads
        assert bits(fold(row, operation("sum"), [values])) == bits(values)


@pytest.mark.parametrize("name", FLOATS)
def test_min_and_max_return_nan_and_are_exact_about_zeros(name: str) -> None:
    a = [1, 2, np.nan, 3, 0.0, -0.0, np.nan]
    b = [2, 1, 3, np.nan, -0.0, 0.0, np.nan]
    low, high = folded(name, "min", a, b), folded(name, "max", a, b)
    assert low[:2].tolist() == [1, 1]
    assert high[:2].tolist() == [2, 2]
    for result in (low, high):
        assert np.isnan(result.astype(np.float64)).tolist() == [False, False, True, True, False, False, True]
        assert np.signbit(result[4:6].astype(np.float64)).tolist() == [True, False]  # equal: the second operand


def test_booleans() -> None:
    a, b = [False, False, True, True], [False, True, False, True]
    results = {op: folded("bool", op, a, b).tolist() for op, row in OPS.items() if DTYPES["bool"].serves(row)}
    either, both, one = [False, True, True, True], [False, False, False, True], [False, True, True, False]
    assert results == {
        "sum": either,
        "max": either,
        "bor": either,
        "prod": both,
        "min": both,
        "band": both,
        "bxor": one,
    }


@pytest.mark.parametrize(
    ("name", "op", "operands", "divisor", "expected"),
    [
        ("int8", "sum", ([127], [1]), 1, [-128]),
        ("uint8", "prod", ([16], [17]), 1, [16]),
        ("int64", "prod", ([2**62], [2]), 1, [-(2**63)]),
        ("int8", "band", ([-4], [7]), 1, [4]),
        ("uint16", "bor", ([0xF00F], [0x0FF0]), 1, [0xFFFF]),
        ("int32", "bxor", ([-1], [5]), 1, [-6]),
        ("int32", "avg", ([7, -7, 6, -6, 0, 1, -1],), 3, [2, -2, 2, -2, 0, 0, 0]),  # toward zero, as in C
        ("int8", "avg", ([-128],), 128, [-1]),
        ("int8", "avg", ([127],), 200, [0]),
        ("uint8", "avg", ([255],), 300, [0]),
        ("uint64", "avg", ([2**64 - 1],), 2, [2**63 - 1]),
        ("int64", "avg", ([-(2**63)],), 3, [-(2**63 // 3)]),
        ("uint8", "avg", ([255],), 2, [127]),
    ],
)
def test_integers_wrap_and_averages_truncate(
    name: str, op: str, operands: tuple[list[int], ...], divisor: int, expected: list[int]
) -> None:
    assert folded(name, op, *operands, divisor=divisor).tolist() == expected


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_float_average_divides_in_its_own_type(name: str) -> None:
    result = folded(name, "avg", [7, -7, 1], divisor=3)
    assert result.tolist() == (np.array([7, -7, 1], dtype=name) / np.dtype(name).type(3)).tolist()


def test_folding_changes_no_operand() -> None:
    row = element_type("float32")
    operands = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    fold(row, operation("avg"), operands, divisor=2)
    fold(row, operation("premul_sum"), operands, [row.scalar(2), row.scalar(3)])
    assert [x.tolist() for x in operands] == [[1, 2], [3, 4]]


def test_scalars_in_the_accumulator_type() -> None:
    chosen = operation("premul_sum")
    assert scalars(chosen, element_type("int8"), [2.75, -2.75, 127], 3) == (2, -2, 127)
    (third,) = scalars(chosen, element_type("float16"), [1 / 3], 1) or ()
    assert third == np.float32(1 / 3)
    (huge,) = scalars(chosen, element_type("float32"), [1e300], 1) or ()
    assert huge == np.inf
    assert scalars(operation("sum"), element_type("int8"), None, 3) is None


@pytest.mark.parametrize(
    ("op", "dtype", "scales", "message"),
    [
        ("premul_sum", "float32", None, "needs one scale per rank: expected 3, got none"),
        ("premul_sum", "float32", [1.0], "needs one scale per rank: expected 3, got 1"),
        ("sum", "float32", [1.0, 1.0, 1.0], "sum takes no scales, got 3"),
        ("premul_sum", "int8", [1.0, 128.0, 1.0], "scale 128.0 is outside int8's range -128 … 127"),
        ("premul_sum", "uint8", [1.0, -1.0, 1.0], "scale -1.0 is outside uint8's range"),
        ("premul_sum", "int64", [1.0, float("nan"), 1.0], "scale nan is outside int64's range"),
    ],
)
def test_wrong_scales(op: str, dtype: str, scales: list[float] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scalars(operation(op), element_type(dtype), scales, 3)


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ("float32", "bxor", "bxor is not defined for float32, only for int8, uint8, .*uint64, bool"),
        ("float8_e5m2", "band", "band is not defined for float8_e5m2, only for int8"),
        ("bool", "avg", "avg is not defined for bool, only for int8, .*float8_e5m2$"),
        ("bool", "premul_sum", "premul_sum is not defined for bool, only for int8, .*float8_e5m2$"),
    ],
)
def test_operations_that_a_type_does_not_have(dtype: str, op: str, message: str) -> None:
    assert not element_type(dtype).serves(operation(op))
    with pytest.raises(UnsupportedError, match=message):
        element_type(dtype).combine(operation(op))


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'xor' is not one of sum, prod, min, max, avg, premul_sum, band"):
        operation("xor")
    with pytest.raises(UnsupportedError, match=r"'complex64' is not one of int8, .*bool"):
        element_type("complex64")
    with pytest.raises(UnsupportedError, match="'float8_e4m3' is not one of"):
        element_type(np.dtype(ml_dtypes.float8_e4m3))


def test_only_avg_averages_and_only_premul_sum_scales() -> None:
    assert [name for name, row in OPS.items() if row.averages] == ["avg"]
    assert [name for name, row in OPS.items() if row.scales] == ["premul_sum"]


def test_types_that_need_no_ml_dtypes_do_not_load_it() -> None:
    code = (
        "import sys\n"
        "from blinkccl.collectives.ops import DTYPES, element_type\n"
        "assert DTYPES['float16'].storage.itemsize == 2\n"
        "assert 'ml_dtypes' not in sys.modules\n"
        "assert DTYPES['bfloat16'].storage.name == 'bfloat16'\n"
        "assert 'ml_dtypes' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
