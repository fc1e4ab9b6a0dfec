"""The search for a chunk size by MIAD across calls, with the same size on all ranks in every call."""

import re

import pytest
from preloaded import Preloaded

USED = re.compile(r"TRACE row (\d+) of the plan uses chunks of (\d+) B from call (\d+) on")
DECIDED = re.compile(r"TRACE row (\d+) of the plan will use chunks of (\d+) B from call (\d+) on")
CALLS = 80


@pytest.mark.parametrize(
    ("protocol", "count", "staging_mib"),
    [("simple", 1_050_000, 24), pytest.param("copies", 4_200_000, 96, marks=pytest.mark.slow)],
)
def test_chunks_change_and_settle(preloaded: Preloaded, protocol: str, count: int, staging_mib: int) -> None:
    settings = {
        "BLINK_DEBUG": "TRACE",
        "BLINK_CHUNKS": "search",
        "BLINK_PROTOCOL": protocol,
        "BLINK_STAGING_BYTES": staging_mib << 20,
    }
    outcome = preloaded.scene("many_calls", 3, calls=CALLS, count=count, **settings).right()
    used = [[tuple(map(int, match.groups())) for match in map(USED.match, one.blink) if match] for one in outcome.ended]
    # A decision of rank 0 applies from its call on, on every rank.
    decided = [tuple(map(int, match.groups())) for match in map(DECIDED.match, outcome.ended[0].blink) if match]
    assert used[0] == used[1] == used[2]
    row, first, call = used[0][0]
    assert call == 0
    assert len(used[0]) >= 2, "MIAD has tried no other size"
    assert {one[0] for one in used[0]} == {row}
    assert used[0][1:] == [one for one in decided if one[2] < CALLS]
    assert first < used[0][1][1] <= 2 * first  # it doubles first, up to a message's capacity
    assert used[0][-1][2] < CALLS - 6  # and has settled
    assert not any(DECIDED.match(line) for one in outcome.ended[1:] for line in one.blink)


def test_small_calls_are_not_searched(preloaded: Preloaded) -> None:
    outcome = preloaded.scene("many_calls", 2, calls=20, count=1000, BLINK_DEBUG="TRACE", BLINK_CHUNKS="search").right()
    assert not any(DECIDED.match(line) for line in outcome.blink)
