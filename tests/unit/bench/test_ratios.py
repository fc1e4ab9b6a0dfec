"""The goals of ``benchmarks/ratios.py`` are judged by the right candidate."""

import numpy as np
import pytest
import ratios

from blinkccl.bench.interleave import Participant
from blinkccl.bench.rows import Series
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.units import parse_bytes

CASE = ratios.Case("allreduce", 2, "64M", ratios.IN)


@pytest.fixture
def result():
    """A result: blink takes 2, the fastest peer 6, Intel's 8, gloo 40; one peer ended after the first round."""
    names = (("", ""), ("mpich 4.0", ""), ("impi 2021", "shm"), ("gloo", ""), ("openmpi 4.1", ""))
    participants = [Participant(name, variant, None) for name, variant in names]
    series = [
        Series([np.array([value])] * rounds, 0) for value, rounds in ((2.0, 2), (6.0, 2), (8.0, 2), (40.0, 2), (0.1, 1))
    ]
    return ratios.found(CASE, participants, series, [1.8, 1.8])


def goal(factor, against="best", collective="allreduce", ranks=2, size="64M", buffers=ratios.IN):
    return ratios.Goal((collective,), (ranks,), (size, "256M"), factor, against, (buffers,))


@pytest.mark.parametrize(
    ("factor", "against", "peer", "ratio", "reached"),
    [
        (2.9, "best", "mpich 4.0", 3.0, True),
        (3.1, "best", "mpich 4.0", 3.0, False),
        (5.0, "impi", "impi 2021 (shm)", 4.0, False),
        (5.0, "gloo", "gloo", 20.0, True),
        (0.85, "floor", "memory", 0.9, True),
        (5.0, "openmpi", None, None, None),
    ],
)
def test_verdict(result, factor, against, peer, ratio, reached):
    [verdict] = ratios.verdicts([goal(factor, against)], [result])
    assert (verdict["peer"], verdict["reached"]) == (peer, reached)
    assert verdict["ratio"] == (None if ratio is None else pytest.approx(ratio))
    shown = {True: "reached", False: "MISSED", None: "not measured"}[reached]
    assert shown in ratios.line(verdict)


def test_the_highest_goal_of_a_case_judges_it(result):
    [verdict] = ratios.verdicts([goal(1.0), goal(3.1), goal(2.0)], [result])
    assert (verdict["wanted"], verdict["reached"]) == (3.1, False)


def test_other_cases_are_not_judged(result):
    others = [goal(1.0, collective="broadcast"), goal(1.0, ranks=4), goal(1.0, size="16M"), goal(1.0, buffers="shared")]
    assert list(ratios.verdicts(others, [result])) == []


def test_goals_can_be_measured():
    for each in ratios.GOALS:
        assert set(each.collectives) <= set(COLLECTIVES)
        assert each.factor > 0
        assert each.against in ("best", "floor") or each.against in ratios.registry.PEERS
        assert set(each.sizes) <= set(ratios.SIZES)
        assert set(each.buffers) <= {ratios.IN, ratios.OUT, ratios.SHARED}
        assert all(10 <= ratios.iterations(parse_bytes(size)) <= 1000 for size in each.sizes)


def test_a_case_is_measured_in_place_shared_and_out_of_place():
    results = list(ratios.measured(2, [], 1, ["8"], ["allreduce"], 3))
    assert [one.case.buffers for one in results] == [ratios.IN, ratios.SHARED, ratios.OUT]
    assert all(one.ours_s > 0 and not one.wrong for one in results)
