"""The harness notices what it must notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.bench.measure import Bench, PlanSettings
from blinkccl.collectives.ops import OPS, element_type, operation
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.errors import UnsupportedError, VerificationError
from blinkccl.topology.spec import parse_spec

QUICK = PlanSettings(iterations=2, warmup=1)


def _forest(name="allreduce", spec="ring:4"):
    topology = parse_spec(spec)
    ends = {key: len(topology.ranks) - 1 if key == "dst" else 0 for key in COLLECTIVES[name].parameters}
    collective = Collective(name, len(topology.ranks), **ends)
    return algorithm("optimal").plan(Request(topology, collective, topology.ranks))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_right(name):
    rows = list(Bench(_forest(name), replace(QUICK, chunk_bytes=256)).rows([0, 4, 5000]))
    for row in rows:
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
    [row] = Bench(_forest(), replace(QUICK, op=op, dtype=dtype)).rows([4096])
    assert row.out_of_place.wrong == 0


def test_one_wrong_element_in_one_run_is_counted(monkeypatch):
    calls = 0

    def once_wrong(*arguments, **options):
        nonlocal calls
        calls += 1
        outputs = run(*arguments, **options)
        if calls == 2:
            outputs[1][3] += 1
        return outputs

    run = reference.run
    monkeypatch.setattr(reference, "run", once_wrong)
    [row] = Bench(_forest(), QUICK).rows([4096])
    assert (row.out_of_place.wrong, row.in_place.wrong) == (1, 0)


def test_progress_counts_every_run():
    seen = []
    list(Bench(_forest(), QUICK).rows([4, 8], lambda done, total: seen.append((done, total))))
    assert seen == [(i + 1, 12) for i in range(12)]


def test_an_invalid_forest_is_not_run():
    forest = _forest()
    broken = replace(forest, shares=forest.shares[1:])
    with pytest.raises(VerificationError):
        Bench(broken, QUICK)


def test_unknown_engine():
    with pytest.raises(UnsupportedError, match="not one of reference, host"):
        Bench(_forest(), replace(QUICK, engine="cuda"))
