"""The pattern gives the correct value of every element, at any size."""

import numpy as np
import pytest

from blinkccl.bench.pattern import PERIOD, TimedCall, commands, fill, wrong_elements
from blinkccl.bench.protocol import Flag
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.oracle import make_scales, oracle
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines.buffers import allocate
from support.planned import with_ends


def _filled(command, pattern, blocks):
    memory = np.zeros(blocks * command.count * command.itemsize, np.uint8)
    fill(memory, pattern, blocks, command.itemsize)
    return memory


@pytest.mark.parametrize("count", [0, 1, 100, PERIOD, 2 * PERIOD + 17])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_pattern_of_the_result_is_the_result_of_the_pattern(name, count):
    """The oracle on the whole buffers agrees with the repeated oracle of one period, in every element."""
    work = TimedCall(with_ends(name, 3), count, "int32")
    sent = commands(work)
    storage = element_type(work.dtype).storage
    inputs = [
        _filled(command, command.fill, command.in_blocks).view(storage) if command.in_blocks else None
        for command in sent
    ]
    outputs = oracle(work.collective, inputs, work.op)
    for command, output in zip(sent, outputs, strict=True):
        assert (output is None) == (command.out_blocks == 0)
        if output is not None:
            assert wrong_elements(output.view(np.uint8), command.expected, command.out_blocks, command.itemsize) == 0


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float32", "avg"),
        ("bfloat16", "sum"),
        ("float64", "premul_sum"),
        ("bool", "bxor"),
        ("float8_e5m2", "max"),
        ("uint8", "band"),
    ],
)
def test_every_type_and_operation(dtype, op):
    work = TimedCall(with_ends("allreduce", 3), 5000, dtype, op)
    sent = commands(work)
    storage = element_type(dtype).storage
    inputs = [_filled(command, command.fill, 1).view(storage) for command in sent]
    scaled = operation(op).scales
    assert [command.scale for command in sent] == (make_scales(work.collective, dtype) if scaled else [1, 1, 1])
    for command, output in zip(
        sent, oracle(work.collective, inputs, op, make_scales(work.collective, dtype) if scaled else None), strict=True
    ):
        assert wrong_elements(output.view(np.uint8), command.expected, 1, command.itemsize) == 0


def test_wrong_elements_are_counted_one_by_one():
    [command, *_] = commands(TimedCall(with_ends("allreduce", 3), 3 * PERIOD, "float32"))
    memory = _filled(command, command.expected, 1)
    values = memory.view(np.float32)
    values[[0, 1, PERIOD, 3 * PERIOD - 1]] += 1
    assert wrong_elements(memory, command.expected, 1, 4) == 4


def test_a_chunk_at_the_wrong_offset_is_noticed():
    [command, *_] = commands(TimedCall(with_ends("allreduce", 3), 10 * 65536, "float32"))
    memory = _filled(command, command.expected, 1)
    values = memory.view(np.float32)
    values[65536 : 2 * 65536] = values[2 * 65536 : 3 * 65536].copy()
    assert wrong_elements(memory, command.expected, 1, 4) > 60_000


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "alltoall"])
def test_in_place_buffers_have_the_offsets_of_the_engines(name):
    collective = with_ends(name, 3)
    buffers = allocate(collective, 4, element_type("int32"), in_place=True)
    for command, source, target in zip(
        commands(TimedCall(collective, 4)), buffers.inputs, buffers.outputs, strict=True
    ):
        if source is not None and target is not None:
            start = min(source.ctypes.data, target.ctypes.data)
            assert source.ctypes.data - start == command.in_at * 16
            assert target.ctypes.data - start == command.out_at * 16


def test_flags_and_sizes():
    work = TimedCall(with_ends("allgather", 3), 8, "float64", in_place=False, shared=True, check=False, keep=True)
    for command in commands(work):
        assert command.flags == Flag.SHARED | Flag.KEEP
        assert command.expected == b""
    assert work.size == 3 * 8 * 8
    assert work.buffer_bytes == [4 * 64] * 3
    assert TimedCall(work.collective, 8, "float64").buffer_bytes == [3 * 64] * 3
