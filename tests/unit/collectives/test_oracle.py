"""The oracle against definitions written out by hand, and inputs that can tell."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

import numpy as np
import pytest

from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.oracle import (
    check_inputs,
    expected_matches,
    make_inputs,
    mismatch,
    oracle,
    tolerance,
    wrong_elements,
)
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import ScheduleError

N = 3


def a_collective(name: str, world_size: int = N) -> Collective:
    values = {"root": 1, "src": 0, "dst": 2}
    return Collective(name, world_size, **{key: values[key] for key in COLLECTIVES[name].parameters})


def rows(*values: list[int] | None) -> list[np.ndarray | None]:
    return [None if v is None else np.array(v, dtype=np.int32) for v in values]


#: Three ranks, two elements per block.
BY_HAND = {
    "broadcast": (rows(None, [1, 2], None), rows([1, 2], [1, 2], [1, 2])),
    "reduce": (rows([1, 2], [10, 20], [100, 200]), rows(None, [111, 222], None)),
    "allreduce": (rows([1, 2], [10, 20], [100, 200]), rows([111, 222], [111, 222], [111, 222])),
    "allgather": (rows([1, 2], [3, 4], [5, 6]), rows(*[[1, 2, 3, 4, 5, 6]] * 3)),
    "reduce_scatter": (
        rows([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [0, 0, 0, 0, 0, 7]),
        rows([11, 22], [33, 44], [55, 73]),
    ),
    "gather": (rows([1, 2], [3, 4], [5, 6]), rows(None, [1, 2, 3, 4, 5, 6], None)),
    "scatter": (rows(None, [1, 2, 3, 4, 5, 6], None), rows([1, 2], [3, 4], [5, 6])),
    "alltoall": (
        rows([1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6], [7, 7, 8, 8, 9, 9]),
        rows([1, 1, 4, 4, 7, 7], [2, 2, 5, 5, 8, 8], [3, 3, 6, 6, 9, 9]),
    ),
    "sendrecv": (rows([1, 2], None, None), rows(None, None, [1, 2])),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_definitions_by_hand(name: str) -> None:
    inputs, wanted = BY_HAND[name]
    outputs = oracle(a_collective(name), inputs)
    assert mismatch(outputs, wanted, 2) is None


def test_operations_by_hand() -> None:
    inputs = rows([1, -7], [2, 5], [4, -5])
    found = {op: oracle(a_collective("allreduce"), inputs, op)[0] for op in OPS}
    assert {op: out.tolist() for op, out in found.items() if out is not None} == {
        "sum": [7, -7],
        "prod": [8, 175],
        "min": [1, -7],
        "max": [4, 5],
        "avg": [2, -2],
    }


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_made_inputs_are_exact_in_every_order(dtype: str, op: str) -> None:
    coll = a_collective("allreduce", 4)
    inputs = [x for x in make_inputs(coll, 33, dtype, 5, op) if x is not None]
    ufunc = OPS[op].ufunc
    results = {reduce(ufunc, [inputs[i] for i in order]).tobytes() for order in permutations(range(4))}
    tree = ufunc(ufunc(inputs[0], inputs[1]), ufunc(inputs[2], inputs[3]))
    assert results == {tree.tobytes()}
    assert all(np.all(x != 0) for x in inputs)
    assert np.all(np.isfinite(tree))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
def test_made_inputs_are_exact_on_many_ranks(dtype: str, op: str) -> None:
    coll = a_collective("allreduce", 64)
    inputs = [x for x in make_inputs(coll, 40, dtype, 1, op) if x is not None]
    forward, backward = reduce(OPS[op].ufunc, inputs), reduce(OPS[op].ufunc, inputs[::-1])
    assert forward.tobytes() == backward.tobytes()
    assert np.all(np.isfinite(forward))


def test_made_inputs_repeat_by_seed_and_differ_by_rank() -> None:
    coll = a_collective("allgather")
    one, two = make_inputs(coll, 50, "int32", 3), make_inputs(coll, 50, "int32", 3)
    assert wrong_elements(one, two) == 0
    assert mismatch(one, make_inputs(coll, 50, "int32", 4), 50) is not None
    assert not np.array_equal(one[0], one[1])


def test_count_zero() -> None:
    for name in COLLECTIVES:
        coll = a_collective(name)
        outputs = oracle(coll, make_inputs(coll, 0, "float32"))
        assert [None if x is None else x.size for x in outputs] == [
            0 if coll.output_blocks(r) else None for r in range(N)
        ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (rows([1], [2]), "needs as many input buffers, got 2"),
        (rows([1], None, [3]), "rank 1's input: expected 1 block"),
        (rows([1], [1, 2], [3]), "rank 1's input has 2 elements, expected 1 block"),
        ([np.zeros((1, 1), np.int32)] * 3, "flatten it"),
        ([np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32)], "rank 1's input is int64"),
    ],
)
def test_wrong_inputs_name_the_rank(inputs: list[np.ndarray | None], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        oracle(a_collective("allreduce"), inputs)


def test_superfluous_input_is_refused() -> None:
    with pytest.raises(ScheduleError, match="rank 0's input: expected none, got one"):
        check_inputs(a_collective("broadcast"), rows([1], [1], None))


def test_mismatch_names_the_first_wrong_element() -> None:
    want, got = rows([1, 2, 3, 4], [5, 6, 7, 8]), rows([1, 2, 3, 4], [5, 6, 0, 0])
    assert (
        mismatch(got, want, 2) == "rank 1, block 1, element 0: expected 7, got 0 (2 of 4 elements are wrong)"
    )
    assert wrong_elements(got, want) == 2
    assert mismatch([None], rows([1]), 1) == "rank 0: expected 1 × int32, got no buffer"
    assert wrong_elements([None], rows([1, 2])) == 2


def test_a_negative_zero_is_wrong() -> None:
    assert wrong_elements([np.array([-0.0])], [np.array([0.0])]) == 1


def test_tolerances() -> None:
    assert tolerance("int32", 8) == 0.0
    assert tolerance("float32", 1) == 0.0
    assert tolerance("float32", 8) == pytest.approx(14 / 2**24)
    want = [np.array([1.0], np.float32)]
    assert expected_matches([np.array([1 + 2**-23], np.float32)], want, tolerance("float32", 3))
    assert not expected_matches([np.array([1 + 2**-10], np.float32)], want, tolerance("float32", 3))
    assert not expected_matches([np.array([1 + 2**-23], np.float32)], want)
    assert not expected_matches([None], want, 0.1)
