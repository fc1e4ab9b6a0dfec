"""The GPU code of every algorithm × collective × protocol, on emulated blocks of 64 and 128 threads.

Each launch has a seed, which determines its schedule, delayed stores, and loads of old values. A failure's message has
the seed, which reproduces it.
"""

from functools import cache, partial
from itertools import cycle, islice, product

import pytest

# The same jobs and types as on the engines.
from test_every_algorithm_on_every_engine import FEW, SERVED, plan_or_reason

from blinkccl.codegen.text import WIRES
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support import generated
from support.emulation import Machine, emulated, needs_compiler
from support.examples import ALL_TESTS
from support.execution import difference, ragged_counts
from support.planned import plan

pytestmark = needs_compiler

#: Number of launches; ``make test`` runs all plans with all protocols, in turns on blocks of both sizes.
SCHEDULES = 10_000 if ALL_TESTS else 153
#: Machines that together have plans of all algorithms, and staged queues.
MACHINES = (*FEW, "dgx-1v")
#: Bytes of a message.
CHUNKS = (64, 256, 1008, 4096)


@cache
def programs(slots: int) -> dict[tuple[str, str], Program]:
    """(algorithm, collective) → its program on the first machine that has one."""
    lowered: dict[tuple[str, str], Program] = {}
    for spec, algorithm, name in product(MACHINES, ALGORITHMS, COLLECTIVES):
        if (algorithm, name) in lowered:
            continue
        forest = plan_or_reason(spec, algorithm, name)
        if not isinstance(forest, str) and not (program := lower(forest, slots)).relays:
            lowered[algorithm, name] = program
    return lowered


def test_no_algorithm_and_no_collective_is_left_out() -> None:
    assert {algorithm for algorithm, _ in programs(1)} == set(ALGORITHMS)
    assert {name for _, name in programs(1)} == set(COLLECTIVES)


def count_of(program: Program, number: int, chunk_bytes: int) -> int:
    counts = ragged_counts(program, min(chunk_bytes, 256) // 4)
    return min(counts[number % len(counts)], 20_000 if ALL_TESTS else 2000)


@pytest.mark.timeout(7200 if ALL_TESTS else 300)
def test_random_schedules_equal_the_oracle() -> None:
    """The launches have ragged sizes from 0 on, both placements, all types and operations, and any start of a block."""
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
            error = difference(
                partial(generated.run, options=generated.GeneratedOptions(protocol, 1 + turn % 2)),
                program,
                count=count_of(program, turn, chunk_bytes),
                dtype=dtype,
                op=op,
                chunk_bytes=chunk_bytes,
                in_place=turn % 2 == 0 and program.collective.name != "alltoall",
            )
            assert error is None, (plan, protocol, threads, dtype, op, chunk_bytes, turn, machine.seed - 1, error)
    assert machine.launches == SCHEDULES


#: (algorithm, machine, GPUs): trees up and down, stars, a ring, and a plan in which every rank sums by itself.
TORN = {
    "trees": ("optimal", "dgx-1v", "1,4,5,6"),
    "stars": ("one_hop", "dgx-a100", "0-3"),
    "ring": ("ring", "dgx-1v", "0-3"),
    "one_shot": ("one_shot", "dgx-a100", "0-3"),
}
#: Runs of each plan with each wire; ``make test`` runs one plan.
RUNS = 500 if ALL_TESTS else 6


@pytest.mark.timeout(3600 if ALL_TESTS else 300)
@pytest.mark.parametrize(
    "name", ["trees", *(pytest.param(name, marks=pytest.mark.slow) for name in TORN if name != "trees")]
)
def test_sums_are_right_when_lines_are_torn(name: str) -> None:
    """The AllReduce has a ragged end and messages of a few lines, so a read often gets an old line with a new flag."""
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
    """Every algorithm and collective runs with 1 Mi elements and a few more."""
    with emulated(Machine(threads, seed=1 << 32)) as machine:
        generated.prepare(programs(1).values())
        for number, (plan, program) in enumerate(programs(2).items()):
            blocks = program.collective.total_blocks()
            error = difference(
                partial(generated.run, options=generated.GeneratedOptions(protocol, 2)),
                program,
                count=((1 << 20) + 5) // blocks,
                dtype=("float32", "int8", "bfloat16")[number % 3],
                chunk_bytes=(4096, 32768)[number // 2 % 2],
                in_place=number % 2 == 0 and program.collective.name != "alltoall",
            )
            assert error is None, (plan, machine.seed - 1, error)
