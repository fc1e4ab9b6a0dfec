"""The oracle against definitions written out by hand, and inputs that reveal errors."""

from itertools import permutations

import numpy as np
import pytest

from blinkccl.collectives.ops import DTYPES, OPS, fold, scalars
from blinkccl.collectives.oracle import (
    make_inputs,
    make_scales,
    mismatch,
    oracle,
)
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UnsupportedError, UsageError
from support.planned import with_ends

N = 3


def a_collective(name: str, world_size: int = N) -> Collective:
    return with_ends(name, world_size, root=1)


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
    "sendrecv": (rows(None, [1, 2], None), rows(None, None, [1, 2])),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_definitions_by_hand(name: str) -> None:
    inputs, expected = BY_HAND[name]
    outputs = oracle(a_collective(name), inputs)
    assert mismatch(outputs, expected, 2) is None


def test_operations_by_hand() -> None:
    inputs = rows([1, -7], [2, 5], [4, -5])
    coll = a_collective("allreduce")
    outputs = {op: oracle(coll, inputs, op, [1, 2.9, -3] if op == "premul_sum" else None)[0] for op in OPS}
    assert {op: out.tolist() for op, out in outputs.items() if out is not None} == {
        "sum": [7, -7],
        "prod": [8, 175],
        "min": [1, -7],
        "max": [4, 5],
        "avg": [2, -2],
        "premul_sum": [1 + 4 - 12, -7 + 10 + 15],
        "band": [1 & 2 & 4, -7 & 5 & -5],
        "bor": [7, -7 | 5 | -5],
        "bxor": [7, -7 ^ 5 ^ -5],
    }


def test_the_oracle_rounds_once_in_rank_order() -> None:
    inputs = [np.array([x], np.float16) for x in (2048, 1, 1)]
    assert [out.tolist() for out in oracle(a_collective("allreduce"), inputs) if out is not None] == [[2050]] * 3
    inputs = [np.array([x], np.float32) for x in (2**24, 1, 1)]  # 1 + 1 + 2^24 would be 2 more
    assert [out.tolist() for out in oracle(a_collective("allreduce"), inputs) if out is not None] == [[2**24]] * 3


def test_scales_have_no_effect_without_a_reduction() -> None:
    inputs = rows(None, [5, 7], None)
    for name, root in (("broadcast", 1), ("scatter", 1)):
        coll = Collective(name, 3, root=root)
        buffers = inputs if name == "broadcast" else rows(None, [1, 2, 3], None)
        assert mismatch(oracle(coll, buffers, "premul_sum", [9, 9, 9]), oracle(coll, buffers), 1) is None
    with pytest.raises(UsageError, match="needs one scale per rank: expected 3, got 2"):
        oracle(a_collective("allreduce"), rows([1], [1], [1]), "premul_sum", [1, 2])
    with pytest.raises(UsageError, match="sum takes no scales"):
        oracle(a_collective("allreduce"), rows([1], [1], [1]), "sum", [1, 2, 3])
    with pytest.raises(UnsupportedError, match="band is not defined for float32"):
        oracle(a_collective("allreduce"), [np.ones(1, np.float32)] * 3, "band")


SERVED = [(dtype, op) for dtype, row in DTYPES.items() for op, chosen in OPS.items() if row.serves(chosen)]


def combined(dtype: str, op: str, values: list[np.ndarray]) -> np.ndarray:
    """An execution below the root, without the division of an average."""
    return fold(DTYPES[dtype], OPS[op], values)


@pytest.mark.parametrize(("dtype", "op"), SERVED)
@pytest.mark.parametrize("ranks", [4, 8, 13, 64])
def test_made_inputs_are_exact_in_every_order(dtype: str, op: str, ranks: int) -> None:
    """Exactness also holds if every partial result is rounded to the type, as in an up-tree."""
    coll = a_collective("allreduce", ranks)
    buffers = [x for x in make_inputs(coll, 33, dtype, 5, op) if x is not None]
    factors = scalars(OPS[op], DTYPES[dtype], make_scales(coll, dtype) if OPS[op].scales else None, ranks)
    inputs = [fold(DTYPES[dtype], OPS[op], [x], [f]) for x, f in zip(buffers, factors or [None] * ranks, strict=True)]
    once = combined(dtype, op, inputs)
    orders = list(permutations(range(ranks))) if ranks == 4 else [range(ranks), range(ranks)[::-1]]
    for order in orders:
        steps = inputs[order[0]]
        for index in order[1:]:
            steps = combined(dtype, op, [steps, inputs[index]])
        assert steps.tobytes() == once.tobytes()
    half = ranks // 2
    tree = [combined(dtype, op, inputs[:half]), combined(dtype, op, inputs[half:])]
    assert combined(dtype, op, tree).tobytes() == once.tobytes()
    assert np.all(np.isfinite(once.astype(np.float64)))
    if dtype != "bool" and ranks <= DTYPES[dtype].exact_sum:
        assert all(np.all(x != 0) for x in buffers)
    if op == "band" and dtype != "bool":
        assert np.all(once != 0)


@pytest.mark.parametrize(("dtype", "op"), SERVED)
def test_a_rank_left_out_shows(dtype: str, op: str) -> None:
    coll = a_collective("allreduce", 9)
    inputs = [x for x in make_inputs(coll, 200, dtype, 2, op) if x is not None]
    whole = combined(dtype, op, inputs)
    for rank in range(9):
        without = combined(dtype, op, inputs[:rank] + inputs[rank + 1 :])
        assert without.tobytes() != whole.tobytes(), rank


def test_made_inputs_repeat_by_seed_and_differ_by_rank() -> None:
    coll = a_collective("allgather")
    one, two = make_inputs(coll, 50, "int32", 3), make_inputs(coll, 50, "int32", 3)
    assert mismatch(one, two, 50) is None
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
    ("name", "inputs", "message"),
    [
        ("allreduce", rows([1], [2]), "needs as many input buffers, got 2"),
        ("allreduce", rows([1], None, [3]), "rank 1's input: expected 1 block"),
        ("allreduce", rows([1], [1, 2], [3]), "rank 1's input has 2 elements, expected 1 block"),
        ("allreduce", [np.zeros((1, 1), np.int32)] * 3, "flatten it"),
        ("allreduce", [np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32)], "rank 1's input is int64"),
        ("broadcast", rows([1], [1], None), "rank 0's input: expected none, got one"),
    ],
)
def test_wrong_inputs_name_the_rank(name: str, inputs: list[np.ndarray | None], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        oracle(a_collective(name), inputs)


def test_mismatch_names_the_first_wrong_element() -> None:
    expected, outputs = rows([1, 2, 3, 4], [5, 6, 7, 8]), rows([1, 2, 3, 4], [5, 6, 0, 0])
    assert mismatch(outputs, expected, 2) == "rank 1, block 1, element 0: expected 7, got 0 (2 of 4 elements are wrong)"
    assert mismatch([None], rows([1]), 1) == "rank 0: expected 1 × int32, got no buffer"


def test_a_negative_zero_is_wrong() -> None:
    assert mismatch([np.array([-0.0])], [np.array([0.0])], 1) is not None
