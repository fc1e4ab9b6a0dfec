"""All engines: results, bits, deadlocks and timeouts."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.collectives.oracle import make_inputs
from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.errors import DeadlineError, ScheduleError, UnsupportedError, UsageError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from support.engines import ENGINES
from support.execution import difference
from support.faults import FAULTS
from support.forests import random_forest
from support.planned import asked

ALL = [pytest.param(row.run, id=name) for name, row in ENGINES.items() if row.missing is None]


def program_for(name: str, n: int = 4, seed: int = 1, slots: int = 2) -> Program:
    forest = random_forest(Random(seed), asked(f"clique:{n}", name).collective, one_shot=False)
    program = lower(forest, slots)
    assert violations(program, forest.topology) == []
    return program


@pytest.mark.parametrize("run", ALL)
def test_forwarded_values_keep_their_bits(run: reference.Run) -> None:
    program = program_for("allgather")
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"):
        storage = DTYPES[name].storage
        patterns = np.random.default_rng(1).integers(0, 256, 4 * 64 * storage.itemsize, dtype=np.uint8)
        inputs = [row.view(storage) for row in patterns.reshape(4, -1)]
        for op, scales in (("sum", None), ("premul_sum", [3.0, 5.0, 7.0, 9.0]), ("avg", None)):
            outputs = run(
                program, inputs, CollectiveCall.of(program.collective, name, 64, op), scales=scales, chunk_bytes=16
            )
            assert all(out is not None and out.tobytes() == patterns.tobytes() for out in outputs)


@pytest.mark.parametrize("run", ALL)
def test_scales_are_required_by_premul_sum_alone(run: reference.Run) -> None:
    program = program_for("allreduce")
    inputs = make_inputs(program.collective, 10, "int32")
    for op, scales, message in (
        ("premul_sum", None, "one scale per rank: expected 4, got none"),
        ("premul_sum", [1.0, 2.0], "one scale per rank: expected 4, got 2"),
        ("sum", [1.0] * 4, "sum takes no scales"),
    ):
        with pytest.raises(UsageError, match=message):
            run(program, inputs, CollectiveCall.of(program.collective, "int32", 10, op), scales=scales)


@pytest.mark.parametrize("run", ALL)
def test_operations_that_a_type_does_not_have_are_refused(run: reference.Run) -> None:
    program = program_for("allreduce")
    for dtype, op, scales in (("float32", "bor", None), ("bool", "avg", None), ("bool", "premul_sum", [1.0] * 4)):
        inputs = [np.zeros(5, dtype) for _ in range(4)]
        with pytest.raises(UnsupportedError, match=f"{op} is not defined for {dtype}, only for int8"):
            run(program, inputs, CollectiveCall.of(program.collective, dtype, 5, op), scales=scales)


@pytest.mark.parametrize("run", ALL)
def test_overflow_and_nan_are_results(run: reference.Run) -> None:
    program = program_for("allreduce")
    inputs = [np.array([60000, np.nan, np.inf, -np.inf, 1] * 9, dtype=np.float16) for _ in range(4)]
    inputs[0] = -inputs[0] + 0
    outputs = run(program, inputs, CollectiveCall.of(program.collective, "float16", 45, "sum"))
    first = outputs[0]
    assert np.isnan(first[1])
    assert np.isnan(first[2])


@pytest.mark.parametrize("run", ALL)
def test_inputs_are_not_changed(run: reference.Run) -> None:
    program = program_for("allreduce")
    inputs = make_inputs(program.collective, 100, "int32")
    before = [x.copy() for x in inputs if x is not None]
    run(program, inputs, CollectiveCall.of(program.collective, "int32", 100), in_place=True)
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.parametrize("order", ["program", "reverse", 3])
def test_reference_finds_a_deadlock_at_once(order: str | int) -> None:
    program = FAULTS["deadlock"].plant(program_for("allreduce"), Random(0))
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"deadlock: rank \d waits for chunk \d+ of channel \d from rank \d"):
        difference(reference.run, program, count=4000, order=order)
    assert time.monotonic() - began < 2


def test_lost_chunks_are_noticed_by_the_reference() -> None:
    program = program_for("broadcast")
    last = next(i for i, role in enumerate(program.roles) if role.receives and not role.sends)
    roles = tuple(role for i, role in enumerate(program.roles) if i != last)
    with pytest.raises(ScheduleError, match=r"lost chunk: .* were never received"):
        difference(reference.run, replace(program, roles=roles), count=20)


@pytest.mark.parametrize("run", ALL)
def test_programs_that_cannot_be_bound(run: reference.Run) -> None:
    program = program_for("broadcast")
    first = program.roles[0]
    for change, message in (
        ({"contributes": True}, "contributes block None, which its rank does not have"),
        ({"receives": ()}, "expected to contribute or to receive"),
    ):
        wrong = replace(program, roles=(replace(first, **change), *program.roles[1:]))
        with pytest.raises(ScheduleError, match=message):
            difference(run, wrong, count=20)


@pytest.mark.parametrize("count", [0, 1, 7, 101, 3000])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_even_chunks_change_no_result(monkeypatch: pytest.MonkeyPatch, collective: str, count: int) -> None:
    """The simulator and generated code use even chunks."""
    monkeypatch.setattr(reference, "bind", partial(bind, even_chunks=True))
    program = lower(random_forest(Random(7), Collective(collective, 4)))
    for in_place in (False, True)[: 1 + (collective == "allreduce")]:
        assert difference(reference.run, program, count=count, in_place=in_place) is None
