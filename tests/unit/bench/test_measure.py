"""The harness notices what it must notice."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.bench import measure
from blinkccl.bench.measure import Bench, ThreadSettings, session
from blinkccl.collectives.ops import OPS, element_type, operation
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UnsupportedError, VerificationError
from blinkccl.topology.spec import parse_spec

QUICK = ThreadSettings(iterations=2, warmup=1)


def _forest(name="allreduce", spec="ring:4"):
    topology = parse_spec(spec)
    ends = {key: len(topology.ranks) - 1 if key == "dst" else 0 for key in COLLECTIVES[name].parameters}
    collective = Collective(name, len(topology.ranks), **ends)
    return algorithm("optimal").plan(Request(topology, collective, topology.ranks))


@pytest.mark.parametrize("engine", ["threads", "reference"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_right_on_every_engine(name, engine):
    rows = list(Bench(_forest(name), replace(QUICK, engine=engine, chunk_bytes=256)).rows([0, 4, 5000]))
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

    @contextmanager
    def once_wrong(name, job):
        def flawed():
            nonlocal calls
            calls += 1
            outputs = go()
            if calls == 2:
                outputs[1][3] += 1
            return outputs

        with session(name, job) as go:
            yield flawed

    monkeypatch.setattr(measure, "session", once_wrong)
    [row] = Bench(_forest(), QUICK).rows([4096])
    assert (row.out_of_place.wrong, row.in_place.wrong) == (1, 0)


def test_a_stale_result_does_not_pass(monkeypatch):
    """An engine that does nothing is wrong everywhere, in each run, though the last one's output was right."""
    monkeypatch.setattr("blinkccl.engines.threads.ThreadedProgram.go", lambda self, deadline_s: None)
    [row] = Bench(_forest("broadcast"), QUICK).rows([4000])
    assert row.out_of_place.wrong == 3 * 4 * 1000


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
    with pytest.raises(UnsupportedError, match="not one of reference, threads"):
        Bench(_forest(), replace(QUICK, engine="cuda"))


def test_buffers_are_restored_between_runs():
    """In place, a sum would grow from run to run."""
    [row] = Bench(_forest(), replace(QUICK, iterations=5, dtype="int32")).rows([400])
    assert row.in_place.wrong == 0
    assert np.isfinite(row.in_place.seconds)
