"""The chunk search of libblink.so makes the same moves as the one in Python, observation by observation."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.native import absent, find_library
from blinkccl.simulate.chunk_search import KIB, MIB, Miad
from support.examples import examples

FUNCTION = "blink_shim_miad_observe"
PHASES = ("increase", "decrease", "steady")


class State(ctypes.Structure):
    """``struct Miad`` of ``chunk_searches.h``."""

    _fields_ = [
        ("step_bytes", ctypes.c_uint64),
        ("least_bytes", ctypes.c_uint64),
        ("most_bytes", ctypes.c_uint64),
        ("factor", ctypes.c_double),
        ("tolerance", ctypes.c_double),
        ("phase", ctypes.c_int),
        ("chunk_bytes", ctypes.c_uint64),
        ("best_bytes", ctypes.c_uint64),
        ("best_gb_per_s", ctypes.c_double),
        ("last_gb_per_s", ctypes.c_double),
    ]


Observe = Callable[[State, float], None]


@pytest.fixture(scope="module")
def observe() -> Observe:
    path = find_library("libblink.so", "BLINK_LIBRARY")
    if path is None:
        pytest.skip(absent("libblink.so"))
    function = getattr(ctypes.CDLL(str(path)), FUNCTION)
    function.restype, function.argtypes = None, [ctypes.POINTER(State), ctypes.c_double]
    return lambda state, gb_per_s: function(ctypes.byref(state), gb_per_s)


def native(miad: Miad) -> State:
    state = State()
    for name in (field[0] for field in State._fields_):
        setattr(state, name, PHASES.index(miad.phase) if name == "phase" else getattr(miad, name))
    return state


def assert_equal(state: State, miad: Miad) -> None:
    assert PHASES[state.phase] == miad.phase
    for name in ("chunk_bytes", "best_bytes", "best_gb_per_s", "last_gb_per_s"):
        assert getattr(state, name) == getattr(miad, name), name


@st.composite
def searches(draw: st.DrawFn) -> Miad:
    """Any search at its beginning."""
    sizes = st.integers(1, 1 << 40) | st.integers(1, 1000) | st.sampled_from([KIB, 64 * KIB, MIB, 16 * MIB])
    least, first, most = sorted(draw(st.tuples(sizes, sizes, sizes)))
    return Miad(
        first_bytes=first,
        factor=draw(st.just(2.0) | st.floats(1.1, 16)),
        step_bytes=draw(sizes),
        least_bytes=least,
        most_bytes=most,
        tolerance=draw(st.just(0.0) | st.floats(0, 1, exclude_max=True)),
    )


throughputs = st.lists(
    st.floats() | st.floats(0, 300) | st.integers(0, 5).map(float) | st.sampled_from([0.0, math.nan, math.inf, -1.0]),
    min_size=1,
    max_size=60,
)


@examples(600)
@given(miad=searches(), observed=throughputs, rising=st.booleans())
def test_makes_the_same_moves(observe: Observe, miad: Miad, observed: list[float], rising: bool) -> None:
    if rising:  # else hardly any sequence climbs far
        observed = sorted(observed, key=lambda x: (math.isnan(x), x))
    state = native(miad)
    for gb_per_s in observed:
        observe(state, gb_per_s)
        miad = miad.observe(gb_per_s)
        assert_equal(state, miad)
