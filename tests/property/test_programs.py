"""Semantics of random programs, lowered ones and ones that our lowering would never make.

The verifier and the reference engine define the semantics of a Program independently. These tests compare them. Every
program that the verifier accepts runs on every engine and equals the oracle; every reported deadlock is one.
"""

from dataclasses import replace
from functools import cache, partial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines import reference
from blinkccl.errors import DeadlineError, UnsupportedError
from blinkccl.schedule.liveness import atomic_liveness_fault
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.schedule.wiring import connect
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.engines import ENGINES
from support.examples import examples
from support.execution import difference, ragged_counts
from support.faults import FAULTS
from support.forests import random_collective, random_forest
from support.planned import asked
from support.processes import said_with_any_hash_seed
from support.programs import random_program

SEEDS = st.integers(0, 2**32)
EASY = examples(60)
CHUNK_BYTES = 32  # eight int32


def places(program: Program) -> tuple[bool, ...]:
    return (False,) if program.collective.name == "alltoall" else (False, True)


@EASY
@given(SEEDS)
def test_lowered_forests_are_valid_and_equal_the_oracle(seed: int) -> None:
    random = Random(seed)
    forest = random_forest(random)
    program = lower(forest, random.choice([1, 2, 3]), random.choice([None, 1, 2]))
    assert violations(program, forest.topology) == []
    for count in ragged_counts(program, 8):
        for in_place in places(program):
            assert difference(reference.run, program, count=count, chunk_bytes=CHUNK_BYTES, in_place=in_place) is None


@pytest.mark.parametrize("name", COLLECTIVES)
@examples(13)
@given(seed=SEEDS)
def test_random_programs_are_valid_and_equal_the_oracle(name: str, seed: int) -> None:
    random = Random(seed)
    program, topology = random_program(random, random_collective(random, random.randint(2, 6), name))
    assert violations(program, topology) == []
    for count in ragged_counts(program, 8):
        for in_place in places(program):
            run = partial(reference.run, order=random.choice(["program", "reverse", seed]))
            assert difference(run, program, count=count, chunk_bytes=CHUNK_BYTES, in_place=in_place) is None


def wild(random: Random, program: Program, count: int, dtype: str) -> list[np.ndarray | None]:
    """Data of many magnitudes, with rounding sums, zeros of both signs and some overflows.

    Integers are from 0 to 99.
    """
    rng, row = np.random.default_rng(random.randrange(2**32)), DTYPES[dtype]
    coll = program.collective
    buffers: list[np.ndarray | None] = []
    with np.errstate(over="ignore"):
        for rank in range(coll.world_size):
            size = coll.input_blocks(rank) * count
            values = rng.standard_normal(size) * 2.0 ** rng.integers(-12, 13, size)
            values[rng.random(size) < 0.1] *= 0.0
            if row.kind != "float":
                values = np.abs(np.trunc(values)) % 100
            buffers.append(values.astype(np.float32).astype(row.storage) if coll.input_blocks(rank) else None)
    return buffers


def wild_scales(random: Random, program: Program, op: str, dtype: str = "float32") -> list[float] | None:
    least = -3 if DTYPES[dtype].kind == "float" else 0
    return [random.uniform(least, 3) for _ in program.ranks] if OPS[op].scales else None


#: Operations on floats with results that depend on order or rounding.
SENSITIVE = ("sum", "prod", "min", "max", "avg", "premul_sum")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
@examples(13)
@given(seed=SEEDS)
def test_the_order_of_executions_changes_no_rounding(dtype: str, seed: int) -> None:
    """The bits of the other engines: test_host_programs.py and test_generated_programs.py."""
    random = Random(seed)
    name = random.choice(["allreduce", "allreduce", "reduce", "reduce_scatter"])
    program, _ = random_program(random, random_collective(random, random.randint(2, 6), name))
    count, op = random.choice([7, 130]), random.choice(SENSITIVE)
    inputs, scales = wild(random, program, count, dtype), wild_scales(random, program, op)
    arguments = {
        "call": CollectiveCall.of(program.collective, dtype, count, op),
        "scales": scales,
        "chunk_bytes": CHUNK_BYTES,
    }
    expected = reference.run(program, inputs, **arguments)
    for in_place in (False, True):
        assert unlike(reference.run(program, inputs, **arguments, order=seed, in_place=in_place), expected) is None


def unlike(outputs: list[np.ndarray | None], expected: list[np.ndarray | None]) -> str | None:
    """The first different bits, or None. All NaN are equal, because IEEE 754 does not define their bits."""
    one, other = ([None if x is None else without_payloads(x) for x in buffers] for buffers in (outputs, expected))
    return mismatch(one, other, 1)


def without_payloads(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biu":
        return array
    nan = np.isnan(array.astype(np.float64))
    return np.where(nan, array.dtype.type(np.nan), array)


@pytest.mark.parametrize("algorithm", ["one_hop", "one_shot"])
@pytest.mark.parametrize("spec", ["clique:5", "dgx-a100"])
@examples(8)
@given(seed=SEEDS)
def test_stars_equal_the_oracle_in_every_bit_for_any_data(spec: str, algorithm: str, seed: int) -> None:
    """Stars reduce in rank order on every rank, in one execution."""
    random = Random(seed)
    name = random.choice(["allreduce", "reduce", "reduce_scatter"] if algorithm == "one_hop" else ["allreduce"])
    program = star_program(spec, algorithm, name)
    op, dtype = random.choice(SENSITIVE), random.choice(["float32", "float32", "float64", "bfloat16", "float16"])
    inputs, scales = wild(random, program, 41, dtype), wild_scales(random, program, op)
    expected = oracle(program.collective, inputs, op, scales)
    for engine in ENGINES.values():
        if engine.missing is not None:
            continue
        outputs = engine.run(
            program, inputs, CollectiveCall.of(program.collective, dtype, 41, op), scales=scales, chunk_bytes=64
        )
        assert unlike(outputs, expected) is None


@cache
def star_program(spec: str, algorithm: str, name: str) -> Program:
    return lower(ALGORITHMS[algorithm].plan(asked(spec, name, root=2)))


def test_random_programs_have_all_unusual_features() -> None:
    programs = [random_program(Random(seed))[0] for seed in range(60)]
    wirings = [connect(program) for program in programs]
    assert sum(any(arc.tokens < 0 for arc in wiring.arcs) for wiring in wirings) > 20
    assert sum(len(p.queues) < sum(len(r.sends) for r in p.roles) for p in programs) > 10
    assert sum(len(p.channels) > 1 for p in programs) > 20
    lags = {arc.tokens for wiring in wirings for arc in wiring.data}
    assert lags >= {-2, 0, 1, 3}
    turns = [(role.own_operand_index, len(role.receives)) for p in programs for role in p.roles if role.contributes]
    assert {(1, 1), (0, 1), (1, 2), (2, 2)} <= set(turns)


def test_no_byte_depends_on_the_hash_seed() -> None:
    code = (
        "from random import Random\n"
        "from blinkccl.schedule.verifier import violations\n"
        "from blinkccl.schedule.lower import lower\n"
        "from blinkccl.schedule.text import to_json\n"
        "from support.forests import random_forest\n"
        "from support.programs import random_program\n"
        "for seed in range(20):\n"
        "    print(to_json(lower(random_forest(Random(seed)), channels=2)))\n"
        "    program, topology = random_program(Random(seed))\n"
        "    print(to_json(program), topology)\n"
        "    print(violations(lower(random_forest(Random(seed))), topology))\n"
    )
    assert len(said_with_any_hash_seed(code)) > 10_000


def perturbed(random: Random, program: Program) -> Program:
    """The program with another order, look-ahead or number of slots: right data, but possibly a deadlock."""
    roles = list(program.roles)
    for _ in range(random.randint(1, 4)):
        i, j = random.randrange(len(roles)), random.randrange(len(roles))
        if random.random() < 0.5:
            roles[i] = replace(roles[i], offset=max(0, roles[i].offset + random.randint(-3, 4)))
        elif roles[i].rank == roles[j].rank:
            roles[i], roles[j] = roles[j], roles[i]
    slots = random.choice([None, 1, 2])
    channels = tuple(replace(c, slots=slots or c.slots) for c in program.channels)
    return replace(program, roles=tuple(roles), channels=channels)


@examples(150)
@given(seed=SEEDS)
def test_verifier_and_reference_agree_on_deadlocks(seed: int) -> None:
    random = Random(seed)
    program, topology = random_program(random)
    program = perturbed(random, program)
    faults = [text for text in violations(program, topology) if "in place" not in text]
    dead = [text for text in faults if text.startswith("deadlock")]
    if len(faults) > len(dead):
        return  # the order of messages is wrong too, so the program cannot run
    count = 840  # the narrowest slice has 60 chunks of one element, more than all look-aheads together
    inputs = make_inputs(program.collective, count, "int32")
    run = partial(reference.run, program, inputs, CollectiveCall.of(program.collective, "int32", count), chunk_bytes=4)
    if dead:
        with pytest.raises(DeadlineError, match="deadlock"):
            run()
    else:
        run()


@pytest.mark.parametrize("engine", [name for name, row in ENGINES.items() if row.missing is None])
@examples(20)
@given(seed=SEEDS)
def test_engines_need_no_more_slots_than_the_verifier(engine: str, seed: int) -> None:
    random = Random(seed)
    program, topology = random_program(random)
    program = perturbed(random, program)
    if violations(program, topology):
        return
    run = partial(difference, ENGINES[engine].run, program, count=250, chunk_bytes=16, in_place=False, deadline_s=20)
    if engine == "generated" and moving_all_at_once_deadlocks(program):
        with pytest.raises(UnsupportedError, match="would deadlock"):
            run()
    else:
        assert run() is None


def moving_all_at_once_deadlocks(program: Program) -> bool:
    """True if a deadlock follows because a GPU block starts an execution only with all messages and slots."""
    return atomic_liveness_fault(program) is not None


@pytest.mark.parametrize("name", ["deadlock", "skew"])
def test_planted_deadlocks_are_real(name: str) -> None:
    planted = 0
    for seed in range(40):
        random = Random(seed)
        program, _ = random_program(random)
        damaged = FAULTS[name].plant(program, random)
        if damaged is not None:
            planted += 1
            inputs = make_inputs(program.collective, 4200, "int32")
            with pytest.raises(DeadlineError, match="deadlock"):
                reference.run(damaged, inputs, CollectiveCall.of(damaged.collective, "int32", 4200), chunk_bytes=4)
    assert planted >= 10
