"""Plans with one order give the same bits for every size, chunk, number of slots and engine.

Each engine runs every plan at sizes of several decades. Larger sizes need no run: a bound program divides slices and
never elements, and every execution of a role folds the same operands (:mod:`blinkccl.schedule.order`).
"""

import itertools
from functools import cache

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.schedule.lower import lower
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest
from support.engines import ENGINES
from support.orders import evaluated, rough, same_bits
from support.planned import asked

#: Plans of 2 to 8 ranks: stars, two groups, a chain in a chain, uneven groups, the whole machine.
PLANS = {
    "2": ("dgx-1v", "0,4"),
    "3": ("chain:3", None),
    "4": ("dgx-1v", "0,1,2,5"),
    "5": ("dgx-1v", "0,1,2,4,6"),
    "6": ("ring:6", None),
    "7": ("dgx-1v", "0-6"),
    "8": ("dgx-1v", None),
}
#: Plans for engines that start a compiler for every program.
FEW = {"generated": ("5",)}
RUNS = [
    pytest.param(engine, plan, id=f"{engine}-{plan}")
    for engine, row in ENGINES.items()
    if row.missing is None
    for plan in FEW.get(engine, PLANS)
]
TILE = 997


@cache
def planned(name: str) -> Forest:
    spec, gpus = PLANS[name]
    return ALGORITHMS["optimal"].plan(asked(spec, "allreduce", gpus, deterministic="order"))


def test_they_are_of_many_kinds() -> None:
    assert [planned(name).order for name in ("3", "5", "8")] == ["0+1+2", "0+1+2+(4+6)", "0+1+2+3+(4+5+6+7)"]
    assert all("(" in (planned(name).order or "") for name in ("4", "6", "7"))
    assert [len(planned(name).ranks) for name in PLANS] == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("engine", "name"), RUNS)
def test_every_element_has_the_bits_of_the_order(engine: str, name: str) -> None:
    forest, row = planned(name), DTYPES["bfloat16"]
    assert forest.order
    size = len(forest.ranks)
    values = rough(row, size, TILE, seed=size)
    expected = evaluated(forest.order, dict(zip(forest.ranks, values, strict=True)), row, OPS["sum"])
    counts = (1, 10, 100, 1000, 10_000) if engine in ("reference", "host") else (7, 3000)
    for (count, chunk_bytes), slots in itertools.product(zip(counts, itertools.cycle((32, 4096))), (1, 3)):
        inputs = [np.resize(each, count) for each in values]
        call = CollectiveCall("allreduce", "bfloat16", count)
        outputs = ENGINES[engine].run(lower(forest, slots, slots), inputs, call, chunk_bytes=chunk_bytes)
        for rank, got in enumerate(outputs):
            assert same_bits(got, np.resize(expected, count)), (count, chunk_bytes, slots, rank)
