"""The goals of ``benchmarks/ratios.py`` are judged by the right candidate."""

from __future__ import annotations

import numpy as np
import pytest
import ratios

from blinkccl.bench.interleave import Participant
from blinkccl.bench.rows import Series
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.units import parse_bytes


@pytest.fixture
def result():
    """Ours 2, shared 1; the fastest peer takes 6, Intel's 8, gloo 40, one left after the first round."""
    participants = [
        Participant(name, variant, None)
        for name, variant in (
            ("", ""),
            ("", ""),
            ("mpich 4.0", ""),
            ("impi 2021", "shm"),
            ("gloo", ""),
            ("openmpi 4.1", ""),
        )
    ]
    series = [
        Series([np.array([value])] * rounds, 0)
        for value, rounds in ((2.0, 2), (1.0, 2), (6.0, 2), (8.0, 2), (40.0, 2), (0.1, 1))
    ]
    return ratios.found(("allreduce", 2, "64M"), participants, series, [1.8, 1.8])


@pytest.mark.parametrize(
    ("goal", "peer", "ratio", "reached"),
    [
        ({"factor": 2.9}, "mpich 4.0", 3.0, True),
        ({"factor": 3.1}, "mpich 4.0", 3.0, False),
        ({"factor": 3.1, "shared": True}, "mpich 4.0", 6.0, True),
        ({"factor": 5.0, "against": "impi"}, "impi 2021 (shm)", 4.0, False),
        ({"factor": 5.0, "against": "gloo"}, "gloo", 20.0, True),
        ({"factor": 0.85, "against": "floor"}, "memory", 0.9, True),
        ({"factor": 5.0, "against": "oneccl"}, None, None, None),
    ],
)
def test_verdict(result, goal, peer, ratio, reached):
    [verdict] = ratios.verdicts([ratios.Goal("allreduce", (2,), ("64M", "256M"), **goal)], [result])
    assert (verdict["peer"], verdict["reached"]) == (peer, reached)
    assert verdict["ratio"] == (None if ratio is None else pytest.approx(ratio))
    shown = {True: "reached", False: "MISSED", None: "not measured"}[reached]
    assert shown in ratios.line(verdict)


def test_other_cases_are_not_judged(result):
    goals = [
        ratios.Goal("broadcast", (2,), ("64M",), 1.0),
        ratios.Goal("allreduce", (4,), ("64M",), 1.0),
        ratios.Goal("allreduce", (2,), ("16M",), 1.0),
    ]
    assert list(ratios.verdicts(goals, [result])) == []


def test_goals_can_be_measured():
    for goal in ratios.GOALS:
        assert goal.collective in COLLECTIVES
        assert goal.factor > 0
        assert goal.against in ("best", "floor") or goal.against in ratios.registry.PEERS
        for ranks in goal.ranks:
            assert {(goal.collective, size) for size in goal.sizes} <= set(ratios.cases(ratios.GOALS, ranks))
        assert all(5 <= ratios.iterations(parse_bytes(size)) <= 1000 for size in goal.sizes)
