"""Order and rounding of reductions in all engines, on stars and chains.

With the chosen values, another order or another rounding gives another result.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Share, Tree
from support.engines import ENGINES
from support.planned import by_hand

ALL = [pytest.param(row.run, id=name) for name, row in ENGINES.items() if row.missing is None]


def lowered(collective: Collective, up: Tree, down: Tree | None) -> Program:
    """A program with one share, on four fully connected ranks."""
    topology = parse_spec("clique:4")
    program = lower(by_hand(collective, topology, [Share(Fraction(1), 0, None, up.root, up, down)]))
    assert violations(program, topology) == []
    return program


def star(own_operand_index: int, name: str = "allreduce") -> Program:
    """A program in which rank 0 adds its own contribution after ``own_operand_index`` messages of three others."""
    up = Tree(0, ((1, 0), (2, 0), (3, 0)))
    if name == "allreduce":
        program = lowered(Collective("allreduce", 4), up, Tree(0, ((0, 1), (0, 2), (0, 3))))
    else:
        program = lowered(Collective("reduce", 4, root=0), up, None)
    roles = tuple(
        replace(role, own_operand_index=own_operand_index) if role.stage == "root" else role for role in program.roles
    )
    assert sum(role.own_operand_index == own_operand_index and role.stage == "root" for role in roles) == 1
    reordered = replace(program, roles=roles)
    assert violations(reordered, parse_spec("clique:4")) == []
    return reordered


@pytest.mark.parametrize("run", ALL)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("op", "values", "results"),
    [
        # 2^24 + 1 rounds to 2^24; 2^24 + 2 is exact.
        ("sum", [1.0, 1.0, 2.0**24, -(2.0**24)], [2.0, 2.0, 0.0, 1.0]),
        # Of two equal zeros min returns the second, which distinguishes operand 0 from 1; sums do not.
        ("min", [-0.0, 0.0, 0.0, 1.0], [0.0, 0.0, -0.0, -0.0]),
        ("min", [-0.0, 0.0, 1.0, 1.0], [0.0, -0.0, -0.0, -0.0]),
    ],
)
def test_the_own_contribution_has_its_turn(
    run: reference.Run, op: str, values: list[float], results: list[float], in_place: bool
) -> None:
    inputs = [np.full(40, value, np.float32) for value in values]
    for index, result in enumerate(results):
        for program in (star(index), star(index, "reduce")):
            call = CollectiveCall.of(program.collective, "float32", 40, op)
            outputs = run(program, inputs, call, in_place=in_place, chunk_bytes=64)
            assert outputs[0].tobytes() == np.full(40, result, np.float32).tobytes(), (index, outputs[0][0])


@pytest.mark.parametrize("run", ALL)
def test_an_execution_rounds_once_and_every_hop_rounds(run: reference.Run) -> None:
    inputs = [np.full(20, value, np.float16) for value in (2048, 1, 1, 1)]
    at_once = run(star(0), inputs, CollectiveCall.of(star(0).collective, "float16", 20))
    assert {float(x) for out in at_once if out is not None for x in out} == {2052}  # 2051 rounds to 2052, as a tie.
    up, down = Tree(3, ((0, 1), (1, 2), (2, 3))), Tree(3, ((3, 2), (2, 1), (1, 0)))
    chain = lowered(Collective("allreduce", 4), up, down)
    by_hops = run(chain, inputs, CollectiveCall.of(chain.collective, "float16", 20))
    assert {float(x) for out in by_hops if out is not None for x in out} == {2048}


@pytest.mark.parametrize("run", ALL)
def test_a_scaled_value_is_rounded_before_it_is_sent_or_added(run: reference.Run) -> None:
    storage = DTYPES["bfloat16"].storage
    inputs = [np.full(9, value).astype(storage) for value in (-1, 1, 0, 0)]
    scales = [1 + 2**-9, 1 + 2**-9, 1.0, 1.0]
    outputs = run(star(0), inputs, CollectiveCall.of(star(0).collective, "bfloat16", 9, "premul_sum"), scales=scales)
    for out in outputs:
        assert out.astype(np.float64).tolist() == [0] * 9
