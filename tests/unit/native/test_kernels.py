"""The native kernels give the same bits as NumPy and ml_dtypes."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blinkccl.collectives.ops import DTYPE_CODES, DTYPES, OP_CODES, OPS, Array, DType, element_type, fold
from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError

try:
    LIBRARY = native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

# The tests use NaN, infinity and overflow on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NARROW = [name for name, row in DTYPES.items() if row.rounds_once]
SERVED = [(name, base) for name, row in DTYPES.items() for base in OP_CODES if row.serves(OPS[base])]


def combined(base: str, *sources: Array, own: int = -1, scale: float = 1.0, divisor: int = 1) -> Array:
    """Return the result of ``blink_combine`` for arrays of one type and length."""
    result = np.zeros_like(sources[0])
    code = LIBRARY.blink_combine(
        DTYPE_CODES[sources[0].dtype.name],
        OP_CODES[base],
        (ctypes.c_void_p * 1)(result.ctypes.data),
        1,
        (ctypes.c_void_p * len(sources))(*(array.ctypes.data for array in sources)),
        len(sources),
        sources[0].size,
        own,
        scale,
        divisor,
    )
    assert code == 0
    return result


def defined(row: DType, base: str, *sources: Array, own: int = -1, scale: float = 1.0, divisor: int = 1) -> Array:
    """Return the same result by the definition."""
    scales = [row.scalar(scale) if number == own else None for number in range(len(sources))]
    return fold(row, OPS[base], sources, scales, divisor)


def assert_same_bits(got: Array, wanted: Array) -> None:
    """Compare every bit, but treat all NaNs as equal."""
    if element_type(got.dtype).kind == "float":
        numbers = wanted == wanted
        assert np.array_equal(got == got, numbers)
        got, wanted = got[numbers], wanted[numbers]
    bits = np.dtype(f"u{got.dtype.itemsize}")
    np.testing.assert_array_equal(got.view(bits), wanted.view(bits))


def random_array(row: DType, count: int, seed: int) -> Array:
    """Return random bits; a bool is 0 or 1."""
    random = np.random.default_rng(seed)
    if row.kind == "bool":
        return random.integers(0, 2, count).astype(np.bool_)
    return np.frombuffer(random.bytes(count * row.itemsize), dtype=row.storage).copy()


def tame_array(row: DType, count: int, seed: int) -> Array:
    """Return numbers whose sums and products stay finite, but need rounding."""
    if row.kind != "float":
        return random_array(row, count, seed)
    return np.random.default_rng(seed).normal(size=count).astype(row.storage)


def every_code(row: DType) -> Array:
    return np.arange(2 ** (8 * row.itemsize), dtype=f"u{row.itemsize}").view(row.storage)


@pytest.mark.parametrize(("name", "base"), SERVED)
@pytest.mark.parametrize("arrays", [random_array, tame_array])
def test_every_type_and_operation(name: str, base: str, arrays: Callable[[DType, int, int], Array]) -> None:
    row = element_type(name)
    for count in (0, 1, 15, 16, 17, 1000, 5000):
        for number in (1, 2, 3, 4, 5, 8):
            sources = [arrays(row, count, seed) for seed in range(number)]
            assert_same_bits(combined(base, *sources), defined(row, base, *sources))


@pytest.mark.parametrize("name", [name for name, row in DTYPES.items() if row.kind != "bool"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 255, 2**31 + 1])
def test_scale_and_divisor(name: str, divisor: int) -> None:
    row = element_type(name)
    for number in (1, 2, 5):
        for own in range(-1, number):
            sources = [tame_array(row, 777, seed) for seed in range(number)]
            got = combined("sum", *sources, own=own, scale=3.75, divisor=divisor)
            assert_same_bits(got, defined(row, "sum", *sources, own=own, scale=3.75, divisor=divisor))


@pytest.mark.parametrize(("name", "scale"), [("int8", -128.0), ("int16", -2.9), ("uint64", 2.0**63), ("int64", -1e18)])
def test_an_integer_scale_is_truncated_and_the_product_wraps(name: str, scale: float) -> None:
    row = element_type(name)
    source = random_array(row, 100, 1)
    assert_same_bits(
        combined("max", source, source, own=0, scale=scale),
        defined(row, "max", source, source, own=0, scale=scale),
    )


@pytest.mark.parametrize("name", NARROW)
def test_every_code_survives_widening_and_narrowing(name: str) -> None:
    row = element_type(name)
    codes = every_code(row)
    assert_same_bits(combined("sum", codes, own=0, scale=1.0), codes)
    wide = codes.astype(np.float32)
    assert_same_bits(combined("prod", codes, codes), (wide * wide).astype(row.storage))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("base", ["sum", "prod", "min", "max"])
def test_every_pair_of_8_bit_floats(name: str, base: str) -> None:
    row = element_type(name)
    codes = every_code(row)
    left, right = np.repeat(codes, 256), np.tile(codes, 256)
    assert_same_bits(combined(base, left, right), defined(row, base, left, right))


@pytest.mark.parametrize("name", NARROW)
def test_rounding_of_a_dense_sweep(name: str) -> None:
    """One times any float32 is that float32: ties and their neighbours, subnormals, overflow, NaN."""
    row = element_type(name)
    finite = np.unique(every_code(row).astype(np.float64))
    finite = finite[np.isfinite(finite) & (finite >= 0)]
    random = np.random.default_rng(5)
    one = np.ones(1, dtype=row.storage)
    few = finite if finite.size < 200 else np.concatenate([finite[:20], random.choice(finite, 150), finite[-20:]])
    following = finite[np.minimum(np.searchsorted(finite, few) + 1, finite.size - 1)]
    ties = ((few + following) / 2).astype(np.float32)
    beyond = np.float32([finite[-1] * 1.001, finite[-1] * 1.03, finite[-1] * 1.1, np.inf, np.nan, 1e-45, 3e38])
    near = [ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))]
    for value in np.concatenate([*near, beyond]):
        for signed in (value, -value):
            got = combined("sum", one, own=0, scale=float(signed))
            assert_same_bits(got, np.array([signed], dtype=np.float32).astype(row.storage))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [1 / 3, 1e-3, 6.1e-5, 1e-7, 3e4, 1e30])
def test_rounding_of_every_code_times_a_scale(name: str, scale: float) -> None:
    row = element_type(name)
    codes = every_code(row)
    got = combined("sum", codes, own=0, scale=scale)
    assert_same_bits(got, defined(row, "sum", codes, own=0, scale=scale))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_tie_that_two_numbers_make(name: str) -> None:
    """Numbers with half of the step to the next, a little more and less; the native test compares only levels."""
    row = element_type(name)
    values = every_code(row).astype(np.float64)
    values = np.unique(values[np.isfinite(values) & (values > 0)])
    half = (np.diff(values) / 2).astype(row.storage)
    exact = half.astype(np.float64) == np.diff(values) / 2
    low, half = values[:-1][exact].astype(row.storage), half[exact]
    little = (half.astype(np.float64) / 512).astype(row.storage)
    assert low.size > 20_000
    for sources in ((low, half), (low, half, little), (low, half, -little)):
        for signed in (sources, [-source for source in sources]):
            assert_same_bits(combined("sum", *signed), defined(row, "sum", *signed))


def run_capped(level: str) -> tuple[str, str]:
    """The level and the messages of a process with ``BLINK_ISA=level``."""
    code = "from blinkccl.engines import native_library as it; print(it.load().blink_isa_name().decode())"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"BLINK_ISA": level},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.rstrip("\n"), ended.stderr


def test_every_instruction_set_of_this_cpu_can_be_chosen() -> None:
    """native/tests/test_kernels.cpp compares the kernels of all of them."""
    best, _ = run_capped("")
    levels = ["neon"] if best == "neon" else ["base", "avx2", "avx512"]
    for level in levels[: levels.index(best) + 1]:
        assert run_capped(level) == (level, "")


def test_the_widest_instruction_set_of_this_cpu_is_taken() -> None:
    """The system lists the CPU's instructions; a compiler's own library may not know them."""
    best, _ = run_capped("")
    if best == "neon":
        pytest.skip("needs an x86-64 CPU, which has several")
    row = next(row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("flags"))
    needed = {
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c"},
        "avx2": {"avx2", "f16c"},
        "base": set(),
    }
    assert best == next(name for name, flags in needed.items() if flags <= {*row.split()})


def test_a_misspelt_instruction_set_is_ignored_with_a_warning() -> None:
    best, _ = run_capped("")
    assert run_capped("avx1024") == (best, "blink: BLINK_ISA must be base, avx2 or avx512; its value is ignored\n")
