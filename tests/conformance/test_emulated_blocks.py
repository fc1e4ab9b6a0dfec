"""Every algorithm × collective × protocol as the code that GPUs run, on emulated blocks of 64 and 128 threads.

Each launch has a seed of its own: its schedule, what stores are held back, what loads see of the past. The seed is in
the message, and shows the same again.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import cycle, islice, product

import pytest

# The same jobs and types as on the engines.
from test_every_algorithm_on_every_engine import FEW, SERVED, plan_or_reason

from blinkccl.codegen.text import WIRES
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines import generated
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.emulation import Machine, emulated, needs_compiler
from support.examples import ALL_TESTS
from support.execution import difference, ragged_counts
from support.planned import plan

pytestmark = needs_compiler

#: In a merge all plans with all protocols, by turns on blocks of either size.
SCHEDULES = 10_000 if ALL_TESTS else 153
#: Between them these machines have plans of all algorithms, and queues that are staged.
MACHINES = (*FEW, "dgx-1v")
#: Of a message, in bytes.
CHUNKS = (64, 256, 1008, 4096)


@cache
def programs(slots: int) -> dict[tuple[str, str], Program]:
    """(algorithm, collective) → its program on the first machine that has one."""
    found: dict[tuple[str, str], Program] = {}
    for spec, algorithm, name in product(MACHINES, ALGORITHMS, COLLECTIVES):
        if (algorithm, name) in found:
            continue
        forest = plan_or_reason(spec, algorithm, name)
        if not isinstance(forest, str) and not (program := lower(forest, slots)).relays:
            found[algorithm, name] = program
    return found


def test_no_algorithm_and_no_collective_is_left_out() -> None:
    assert {algorithm for algorithm, _ in programs(1)} == set(ALGORITHMS)
    assert {name for _, name in programs(1)} == set(COLLECTIVES)


def count_of(program: Program, number: int, chunk_bytes: int) -> int:
    counts = ragged_counts(program, min(chunk_bytes, 256) // 4)
    return min(counts[number % len(counts)], 20_000 if ALL_TESTS else 2000)


@pytest.mark.timeout(7200 if ALL_TESTS else 300)
def test_random_schedules_equal_the_oracle() -> None:
    """Sizes from 0 on, ragged ones, in and out of place, all types and operations, blocks that begin anywhere."""
    ways = cycle(product((64, 128), WIRES, programs(1)))
    with emulated(Machine()) as machine:
        generated.prepare(programs(1).values())
        for number, (larger, protocol, plan) in enumerate(islice(ways, SCHEDULES)):
            turn = number // 7
            program = programs(1 + turn % 2)[plan]
            chunk_bytes = CHUNKS[turn // 2 % len(CHUNKS)]
            dtype, op = SERVED[number % len(SERVED)]
            machine.threads = threads = larger if ALL_TESTS else (64, 128)[number % 2]
            machine.skew = turn // 3 % 4
            found = difference(
                partial(generated.run, options=generated.GeneratedOptions(protocol, 1 + turn % 2)),
                program,
                count=count_of(program, turn, chunk_bytes),
                dtype=dtype,
                op=op,
                chunk_bytes=chunk_bytes,
                in_place=turn % 2 == 0 and program.collective.name != "alltoall",
            )
            assert found is None, (plan, protocol, threads, dtype, op, chunk_bytes, turn, machine.seed - 1, found)
    assert machine.launches == SCHEDULES


#: (algorithm, machine, GPUs): trees up and down, stars, a ring, and one in which each rank sums by itself.
TORN = {
    "trees": ("optimal", "dgx-1v", "1,4,5,6"),
    "stars": ("one_hop", "dgx-a100", "0-3"),
    "ring": ("ring", "dgx-1v", "0-3"),
    "one_shot": ("one_shot", "dgx-a100", "0-3"),
}
#: Of each plan with each wire; a merge runs one plan.
RUNS = 500 if ALL_TESTS else 6


@pytest.mark.timeout(3600 if ALL_TESTS else 300)
@pytest.mark.parametrize(
    "name", ["trees", *(pytest.param(name, marks=pytest.mark.slow) for name in TORN if name != "trees")]
)
def test_sums_are_right_when_lines_are_torn(name: str) -> None:
    """An AllReduce with a ragged end, whose messages are a few lines: a look often has an old line and a new flag."""
    wrong = dict.fromkeys(WIRES, 0)
    program = lower(plan(*TORN[name], "allreduce"), 2)
    with emulated(Machine()) as machine:
        generated.prepare([program])
        for protocol, seed in product(WIRES, range(RUNS)):
            machine.threads, machine.seed = (64, 128)[seed % 2], seed
            run = partial(generated.run, options=generated.GeneratedOptions(protocol, 2))
            wrong[protocol] += difference(run, program, count=977, dtype="float32", chunk_bytes=256) is not None
    assert wrong == dict.fromkeys(WIRES, 0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("threads", [64, 128])
@pytest.mark.parametrize("protocol", WIRES)
def test_large_sizes_equal_the_oracle(protocol: str, threads: int) -> None:
    """A Mi of elements and a few more, for every algorithm and collective."""
    with emulated(Machine(threads, seed=1 << 32)) as machine:
        generated.prepare(programs(1).values())
        for number, (plan, program) in enumerate(programs(2).items()):
            blocks = program.collective.total_blocks()
            found = difference(
                partial(generated.run, options=generated.GeneratedOptions(protocol, 2)),
                program,
                count=((1 << 20) + 5) // blocks,
                dtype=("float32", "int8", "bfloat16")[number % 3],
                chunk_bytes=(4096, 32768)[number // 2 % 2],
                in_place=number % 2 == 0 and program.collective.name != "alltoall",
            )
            assert found is None, (plan, machine.seed - 1, found)
