"""The host engine on random Programs: the oracle's data, the bits of the reference engine, and consistent counters.

The tests cover every transport of messages, in and out of place, and large and small messages. They use programs that
lowering would never make, and programs perturbed until they are barely live.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_programs import SENSITIVE, perturbed, places, unlike, wild, wild_scales

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.engines import host, reference
from blinkccl.engines.buffers import RankBuffers, filled
from blinkccl.engines.host_plan import INLINE, Area, HostPlan
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from support import local_host
from support.engines import ENGINES, Array
from support.examples import examples
from support.execution import difference
from support.forests import random_collective
from support.local_host import HostOptions
from support.programs import random_program

pytestmark = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))

SEEDS = st.integers(0, 2**32)
MANY = examples(100)
SOME = examples(30)
#: Transports: through rings, in shared tensors, and by cross-memory copies of the system.
WAYS: list[dict[str, bool]] = [{}, {"shared": True}, {"cross_memory": True}]
EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=["rings", "shared", "cross memory"])
FLOATS = [name for name, row in DTYPES.items() if row.kind == "float"]


def draw_size(random: Random) -> dict[str, Any]:
    return {"count": random.choice([0, 1, 7, 250, 331]), "chunk_bytes": random.choice([4, 16, 32, 100, 4096])}


def differences(program: Program, random: Random, way: dict[str, bool]) -> list[str]:
    """Differences from the oracle, in and out of place; empty if all data is right."""
    faults = []
    for in_place in places(program):
        size = draw_size(random)
        run = partial(local_host.run, options=HostOptions(**way))
        wrong = difference(run, program, **size, dtype="float32", op="avg", in_place=in_place, deadline_s=20)
        faults += [f"{size}, in place {in_place}: {wrong}"] if wrong else []
    return faults


@EVERY_WAY
@MANY
@given(seed=SEEDS)
def test_random_programs_equal_the_oracle(way: dict[str, bool], seed: int) -> None:
    random = Random(seed)
    assert differences(random_program(random)[0], random, way) == []


@EVERY_WAY
@MANY
@given(seed=SEEDS)
def test_programs_with_just_enough_slots_complete(way: dict[str, bool], seed: int) -> None:
    random = Random(seed)
    program, topology = random_program(random)
    program = perturbed(random, program)
    if violations(program, topology) == []:
        assert differences(program, random, way) == []


@EVERY_WAY
def test_two_senders_of_one_input_into_one_queue_are_not_merged(way: dict[str, bool]) -> None:
    """Two consecutive roles send the same input into the same queue."""
    program, _ = random_program(Random(8218))
    bodies = [[role for role in program.roles if role.rank == rank] for rank in range(len(program.ranks))]
    pairs = [pair for body in bodies for pair in itertools.pairwise(body)]
    assert any(
        one.sends == two.sends and one.slice == two.slice and not (one.receives or two.receives) for one, two in pairs
    ), "this seed no longer makes such a program"
    assert differences(program, Random(0), way) == []


def small(program: Program) -> Program:
    """The same program with flags inside the messages."""
    return replace(program, channels=tuple(replace(channel, protocol=INLINE) for channel in program.channels))


@EVERY_WAY
@MANY
@given(seed=SEEDS)
def test_small_messages_equal_the_oracle(way: dict[str, bool], seed: int) -> None:
    random = Random(seed)
    program = small(random_program(random)[0])
    if all(ring.exclusive for ring in HostPlan(program).rings):
        assert differences(program, random, way) == []
    else:
        with pytest.raises(UnsupportedError, match="several share a queue"):
            differences(program, random, way)


def with_nans(inputs: list[np.ndarray | None], random: Random) -> list[np.ndarray | None]:
    """The inputs with some NaN of either sign."""
    rng = np.random.default_rng(random.randrange(2**32))
    for values in inputs:
        if values is not None:
            values[rng.random(values.size) < 0.05] = rng.choice([np.nan, -np.nan])
    return inputs


@pytest.mark.parametrize("dtype", FLOATS)
@SOME
@given(seed=SEEDS)
def test_the_bits_are_those_of_the_reference_engine(dtype: str, seed: int) -> None:
    random = Random(seed)
    name = random.choice(["allreduce", "allreduce", "reduce", "reduce_scatter"])
    program, _ = random_program(random, random_collective(random, random.randint(2, 6), name))
    count, op = random.choice([7, 130]), random.choice(SENSITIVE)
    inputs = with_nans(wild(random, program, count, dtype), random)
    scales = wild_scales(random, program, op)
    arguments = {"call": CollectiveCall.of(program.collective, dtype, count, op), "scales": scales, "chunk_bytes": 32}
    expected = reference.run(program, inputs, **arguments)
    for way, in_place in itertools.product(WAYS, (False, True)):
        got = local_host.run(program, inputs, **arguments, in_place=in_place, options=HostOptions(**way), deadline_s=20)
        assert unlike(got, expected) is None, (op, way, in_place)


def prepared(random: Random, ranks: int, seed: int) -> tuple[HostPlan, int, int, RankBuffers, list[Array | None]]:
    """A random program for one call: plan, count, chunk bytes, buffers, and their expected contents."""
    program, _ = random_program(random, random_collective(random, ranks))
    plan, count = HostPlan(program), random.choice([1, 60, 300])
    inputs = make_inputs(program.collective, count, "int32", seed)
    buffers = filled(program.collective, inputs, count, "int32", random.choice(places(program)))
    return plan, count, random.choice([16, 64, 400]), buffers, oracle(program.collective, inputs)


@SOME
@given(seed=SEEDS)
def test_calls_in_a_row_do_not_disturb_each_other(seed: int) -> None:
    """Ranks do not wait for each other, so one may begin a call while another is in the call before."""
    random = Random(seed)
    ranks = random.randint(2, 5)
    jobs = [prepared(random, ranks, number) for number in range(6)]

    def all_calls(end: host.Endpoint) -> None:
        ops = [
            host.NativeOp(end, plan, CollectiveCall.of(plan.program.collective, "int32", count), chunk_bytes)
            for plan, count, chunk_bytes, _, _ in jobs
        ]
        for op, (*_, buffers, _) in zip(ops, jobs, strict=True):
            memory = (side[end.rank] for side in (buffers.inputs, buffers.outputs))
            op.run(*(None if array is None else array.ctypes.data for array in memory), 20_000_000)
        for op in ops:
            op.close()

    with local_host.local_endpoints(ranks, Area()) as ends, ThreadPoolExecutor(ranks) as pool:
        for _ in pool.map(all_calls, ends):
            pass
    for number, (*_, buffers, expected) in enumerate(jobs):
        assert mismatch(buffers.outputs, expected, 1) is None, f"call {number}"


def total(program: Program, each: Callable[[int], int]) -> int:
    """The sum of ``each(slice)`` over all messages of all queues."""
    return sum(each(role.slice) for role in program.roles for _ in role.receives)


@EVERY_WAY
@SOME
@given(seed=SEEDS)
def test_counters_match_the_messages_of_the_program(way: dict[str, bool], seed: int) -> None:
    random = Random(seed)
    program, _ = random_program(random)
    size = draw_size(random)
    stats: list[dict[str, int]] = []
    inputs = make_inputs(program.collective, size["count"], "int32")
    local_host.run(
        program,
        inputs,
        CollectiveCall.of(program.collective, "int32", size["count"]),
        chunk_bytes=size["chunk_bytes"],
        options=HostOptions(**way, stats=stats),
        deadline_s=20,
    )
    bound = bind(program, size["count"], 4, size["chunk_bytes"])
    sums = {name: sum(rank[name] for rank in stats) for name in stats[0]}
    assert [rank["calls"] for rank in stats] == [1] * len(program.ranks)
    assert sums["messages"] == total(program, lambda part: bound.extents[part].chunks)
    assert sums["message_bytes"] == total(program, lambda part: bound.extents[part].length * 4)
    assert sums["message_bytes"] == sum(
        sums[f"{how}_bytes"] for how in ("inline", "staged", "direct_read", "direct_write")
    )
    assert sums["inline_bytes"] == 0
    if not way:
        assert sums["direct_read_bytes"] == sums["direct_write_bytes"] == 0
    crossed = sums["direct_read_bytes"] + sums["direct_write_bytes"] if "cross_memory" in way else 0
    assert sums["crossed_bytes"] == crossed
