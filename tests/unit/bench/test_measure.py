"""A plan on an engine of this process: every collective is right, and wrong elements are counted."""

from dataclasses import replace

import pytest

from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant
from blinkccl.bench.measure import PlannedRanks
from blinkccl.collectives.ops import OPS, element_type, operation
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines import reference
from blinkccl.errors import VerificationError
from support.planned import plan


def _forest(name="allreduce"):
    return plan("optimal", "ring:4", None, name)


def _rows(planned, sizes, **settings):
    settings = BenchSettings(**{"iterations": 2, "warmup": 1, "rounds": 1, **settings})
    return list(Interleaved(planned.forest.collective, settings, [Participant("", "", planned)]).rows(sizes))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_right(name):
    for row in _rows(PlannedRanks(_forest(name), chunk_bytes=256), [0, 4, 5000]):
        assert row.out_of_place.wrong == 0
        assert (row.in_place is None) == (name == "alltoall")
        assert row.in_place is None or row.in_place.wrong == 0


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op in OPS
        for dtype in ("int8", "float16", "uint64", "float64", "bfloat16", "bool")
        if element_type(dtype).serves(operation(op))
    ],
)
def test_every_operation_is_exact(op, dtype):
    [row] = _rows(PlannedRanks(_forest()), [4096], op=op, dtype=dtype)
    assert row.out_of_place.wrong == 0


def test_one_wrong_element_in_one_run_is_counted(monkeypatch):
    calls, run = [], reference.run

    def once_wrong(*arguments, **options):
        calls.append(1)
        outputs = run(*arguments, **options)
        if len(calls) == 2:
            outputs[1][3] += 1
        return outputs

    monkeypatch.setattr(reference, "run", once_wrong)
    [row] = _rows(PlannedRanks(_forest()), [4096])
    assert (row.out_of_place.wrong, row.in_place.wrong) == (1, 0)


def test_an_invalid_forest_is_not_run():
    forest = _forest()
    with pytest.raises(VerificationError):
        PlannedRanks(replace(forest, shares=forest.shares[1:]))
