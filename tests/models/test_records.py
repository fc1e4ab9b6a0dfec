"""Why a block gave up, and which decision counts from which call on: every execution is right, every step is needed."""

from __future__ import annotations

import pytest
from record_models import agreement, status


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_record_is_that_of_the_block_whose_code_is_read(blocks: int) -> None:
    found = status(blocks)
    assert found.finding is None, str(found.finding)


@pytest.mark.parametrize("but", ["no claim", "code relaxed", "host relaxed", "claim looks written"])
def test_no_step_of_giving_up_can_be_left_out(but: str) -> None:
    finding = status(2, but).finding
    assert finding is not None
    assert "race: " in finding.what


#: Calls, decisions, and how far others are: calls that they reach in turn.
SIZES = [(3, 1, ((),)), (3, 1, ((1, 2),)), (3, 1, ((2,), (3,))), (2, 2, ((3,),))]
LARGER = [(4, 1, ((1, 2, 3),)), (4, 2, ((3,),)), (4, 2, ((1, 3),)), (6, 3, ((3, 6),)), (4, 3, ((3,), (4,)))]


@pytest.mark.parametrize(("calls", "decisions", "others"), SIZES)
def test_all_ranks_use_the_last_decision_for_a_call(
    calls: int, decisions: int, others: tuple[tuple[int, ...], ...]
) -> None:
    found = agreement(calls, decisions, others)
    assert found.finding is None, str(found.finding)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("calls", "decisions", "others"), LARGER)
def test_they_do_in_larger_instances(calls: int, decisions: int, others: tuple[tuple[int, ...], ...]) -> None:
    found = agreement(calls, decisions, others)
    assert found.finding is None, str(found.finding)


@pytest.mark.parametrize(
    ("but", "expected"),
    [
        ("stores released only", "call 2 uses decision 0, not 1"),
        ("proposed not looked at", "call 2 uses decision 0, not 1"),
        ("proposed read once", "call 2 uses decision 0, not 1"),
        ("decided, then proposed", "call 2 uses decision 0, not 1"),
        ("nobody asked whether it has passed", "call 2 uses decision 0, not 1"),
        ("passed by one too many", "call 2 uses decision 0, not 1"),
        ("proposal ended before the pair", "call 2 uses decision 0, not 1"),
        ("proposal never ended", "nobody can go on: rank0 at wait sc proposed"),
        ("withdrawn in silence", "nobody can go on: rank0 at wait sc proposed"),
    ],
)
def test_no_step_of_a_decision_can_be_left_out(but: str, expected: str) -> None:
    finding = agreement(3, 1, ((),), but=but).finding
    assert finding is not None
    assert expected in finding.what, str(finding)


@pytest.mark.slow
def test_a_decision_that_is_needed_must_not_be_overwritten() -> None:
    finding = agreement(3, 3, ((3,),), but="ring overwritten at once").finding
    assert finding is not None
    assert "not 1 of" in finding.what, str(finding)
