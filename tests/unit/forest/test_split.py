"""Shares cut into channels: the same loads, rate and results."""

from __future__ import annotations

from random import Random

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.errors import UsageError
from blinkccl.forest.model import attained_rate, link_use, split_shares
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from support.execution import difference
from support.forests import random_forest


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_a_split_forest_does_the_same(collective: str, parts: int) -> None:
    forest = random_forest(Random(3), Collective(collective, 4))
    split = split_shares(forest, parts)
    assert link_use(split.shares) == link_use(forest.shares)
    assert attained_rate(split.topology, split.shares) == attained_rate(forest.topology, forest.shares)
    program = lower(split)
    assert len(program.slices) == parts * len(lower(forest).slices)
    assert violations(program, split.topology) == []
    assert difference(reference.run, program, count=101) is None


@pytest.mark.parametrize("parts", [0, -1, 65])
def test_how_many_channels_there_may_be(parts: int) -> None:
    with pytest.raises(UsageError, match=rf"{parts} channels per tree; expected 1 to 64"):
        split_shares(random_forest(Random(3)), parts)
