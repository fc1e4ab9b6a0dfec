"""Buffers of the ranks, separate or in place as in nccl.h."""

import numpy as np
import pytest

from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines.buffers import allocate, filled
from blinkccl.errors import UsageError
from support.planned import asked

INT32 = element_type("int32")


def collective(name: str) -> Collective:
    return asked("clique:3", name, root=1).collective


@pytest.mark.parametrize(
    ("name", "rank", "first"),
    [
        ("allreduce", 2, 0),
        ("broadcast", 1, 0),
        ("reduce", 1, 0),
        ("allgather", 2, 10),
        ("gather", 1, 5),
        ("reduce_scatter", 2, 10),
        ("scatter", 1, 5),
    ],
)
def test_in_place_blocks_are_the_same_memory(name: str, rank: int, first: int) -> None:
    buffers = allocate(collective(name), 5, INT32, in_place=True)
    source, target = buffers.inputs[rank], buffers.outputs[rank]
    larger, smaller = (source, target) if source.size > target.size else (target, source)
    smaller[:] = 7
    assert larger[first : first + 5].tolist() == [7] * 5
    assert int(np.count_nonzero(larger)) == 5


def test_inputs_are_copied_and_checked() -> None:
    inputs = [np.arange(4, dtype=np.int32) for _ in range(3)]
    buffers = filled(collective("allreduce"), inputs, 4, "int32", in_place=True)
    source = buffers.inputs[0]
    source[:] = 0
    assert inputs[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="inputs: expected float32, as in the call, got int32"):
        filled(collective("allreduce"), inputs, 4, "float32", in_place=False)
    with pytest.raises(UsageError, match="rank 0's input has 4 elements, expected 1 block"):
        filled(collective("allreduce"), inputs, 5, "int32", in_place=False)
