"""After an AllReduce of values with rounded sums, all ranks have the same bits, on all engines.

The oracle's values are exact in any order and rounding, so they cannot test this. A rank that kept an unrounded product
or quotient, and rounded it only for other ranks, would have another result.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest

# The same jobs as on the engines.
from test_every_algorithm_on_every_engine import FEW, RUNS, SERVED, plan_or_reason, runs

from blinkccl.codegen.text import WIRES
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.engines import reference
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support import generated
from support.emulation import Machine, emulated, needs_compiler
from support.engines import Array, RunProgram
from support.orders import same_bits

COUNT = 61
#: Types with rounding, and operations that round.
ROUGH = [(dtype, op) for dtype, op in SERVED if DTYPES[dtype].kind == "float" and op not in ("min", "max")]


def programs() -> dict[str, Program]:
    """Every algorithm's AllReduce on the first machine that has one."""
    lowered: dict[str, Program] = {}
    for spec, name in product(FEW, ALGORITHMS):
        forest = plan_or_reason(spec, name, "allreduce")
        if not isinstance(forest, str) and name not in lowered:
            lowered[name] = lower(forest)
    return lowered


def outputs(run: RunProgram, program: Program, dtype: str, op: str) -> list[Array | None]:
    size = program.collective.world_size
    values = np.random.default_rng(size).normal(size=(size, COUNT)).astype(DTYPES[dtype].storage)
    scales = [0.3 + 0.7 * rank for rank in range(size)] if OPS[op].scales else None
    call = CollectiveCall.of(program.collective, dtype, COUNT, op)
    return run(program, list(values), call, scales=scales, chunk_bytes=48)


def check_that_ranks_agree(run: RunProgram, program: Program, dtype: str, op: str) -> None:
    expected = outputs(reference.run, program, dtype, op)[0]
    for rank, got in enumerate(outputs(run, program, dtype, op)):
        assert same_bits(got, expected), f"{dtype}, {op}: rank {rank} has {got}, rank 0 of the reference {expected}"


@pytest.mark.parametrize("name", programs())
@pytest.mark.parametrize("engine", RUNS)
def test_all_ranks_hold_the_same_bits(engine: str, name: str) -> None:
    program = programs()[name]
    if not runs(engine, program):
        return
    for dtype, op in ROUGH:
        check_that_ranks_agree(RUNS[engine], program, dtype, op)


@needs_compiler
@pytest.mark.parametrize("protocol", WIRES)
def test_ranks_on_emulated_blocks_hold_the_same_bits(protocol: str) -> None:
    """The plans are one in which every rank sums, and one in which one rank sums for all."""
    with emulated(Machine()):
        run = partial(generated.run, options=generated.GeneratedOptions(protocol, 1))
        for name, (dtype, op) in product(("one_shot", "optimal"), ROUGH):
            check_that_ranks_agree(run, programs()[name], dtype, op)
