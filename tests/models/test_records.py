"""Records of blocks that gave up, and decisions by call: every execution is correct, and every step is needed."""

import pytest
from record_models import agreement, status


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_record_is_that_of_the_block_whose_code_is_read(blocks: int) -> None:
    result = status(blocks)
    assert result.finding is None, str(result.finding)


@pytest.mark.parametrize("but", ["no claim", "code relaxed", "host relaxed", "claim looks written"])
def test_no_step_of_giving_up_can_be_left_out(but: str) -> None:
    finding = status(2, but).finding
    assert finding is not None
    assert "race: " in finding.what


#: The calls of each rank, and decisions.
SIZES = [(((0, 1), (0, 1)), 2), (((0, 1, 2), (1,)), 2), (((0,), (0,), (1,)), 2), (((0, 1, 2),), 3)]


@pytest.mark.parametrize(("ranks", "decisions"), SIZES)
def test_all_ranks_use_the_last_decision_for_a_call(ranks: tuple[tuple[int, ...], ...], decisions: int) -> None:
    result = agreement(ranks, decisions)
    assert result.finding is None, str(result.finding)


@pytest.mark.parametrize(
    "but",
    [
        "word relaxed",
        "raised by one too few",
        "raised without a swap",
        "not raised",
        "sealed without a swap",
        "sealed relaxed",
        "sealed before its value",
    ],
)
def test_no_step_of_a_decision_can_be_left_out(but: str) -> None:
    finding = agreement(((0, 1), (1,)), 1, but).finding
    assert finding is not None
    assert " uses " in finding.what, str(finding)
