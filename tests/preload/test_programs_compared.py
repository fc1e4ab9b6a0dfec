"""BLINK_ALGO=hybrid: the first calls of a size measure whether PCIe beside NVLink pays; all ranks select the same."""

import re

import pytest
from preloaded import Outcome, Preloaded

USED = re.compile(r"TRACE row (\d+) of the plan uses chunks of (\d+) B from call (\d+) on, by program (\d+)")
KEPT = re.compile(
    r"INFO row (\d+) of the plan: program (\d+) reached .* GB/s, program (\d+) .* GB/s in the first calls; "
    r"program (\d+) is kept"
)
#: A size of 1.2 MB: the split is predicted to pay on three GPUs, and no chunk size is searched.
CALL = {"count": 300_000, "BLINK_TOPO": "dgx-1v", "BLINK_ALGO": "hybrid", "BLINK_DEBUG": "TRACE"}
CALLS = 24


def compared(outcome: Outcome) -> tuple[list[tuple[int, int]], int, int]:
    """The programs that every rank used in turn, with chunks; the numbers of NVLink alone and of the split."""
    used = [[tuple(map(int, match.groups())) for match in map(USED.match, one.blink) if match] for one in outcome.ended]
    assert used[0] == used[1] == used[2]
    (selection,) = [match for match in map(KEPT.match, outcome.blink) if match]
    row, alone, split, selected = map(int, selection.groups())
    assert {one[0] for one in used[0]} == {row}
    programs = [one[3] for one in used[0]]
    assert (used[0][0][2], programs[0]) == (0, alone), "the first calls use NVLink alone"
    assert used[0][2][2] < CALLS - 4, "the first calls decide"
    assert programs[-1] == selected
    return [(one[3], one[1]) for one in used[0]], alone, split


@pytest.mark.parametrize("slow", ["hybrid", "optimal"])
def test_the_faster_program_is_selected(preloaded: Preloaded, slow: str) -> None:
    """Every call is right, including the first and those at which the program changes."""
    slower = {"BLINK_DOUBLE_SLOW_KERNEL": f"{slow}:300000"}
    outcome = preloaded.scene("many_calls", 3, calls=CALLS, **CALL, **slower).right()
    used, alone, split = compared(outcome)
    assert [program for program, _ in used] == [alone, split, alone if slow == "hybrid" else split]
    assert outcome.calls("blink") == {"allreduce": 3 * CALLS}


@pytest.mark.parametrize("slow", ["hybrid", pytest.param("optimal", marks=pytest.mark.slow)])
def test_the_chunk_size_of_the_selected_program_is_searched(preloaded: Preloaded, slow: str) -> None:
    large = {**CALL, "count": 1_050_000, "BLINK_CHUNKS": "search", "BLINK_DOUBLE_SLOW_KERNEL": f"{slow}:800000"}
    used, alone, split = compared(preloaded.scene("many_calls", 3, calls=60, **large).right())
    (_, own), (_, other), *later = used
    selected, first = (alone, own) if slow == "hybrid" else (split, other)
    assert [program for program, _ in used] == [alone, split, *[selected] * len(later)]
    assert len(later) >= 2
    assert first < later[0][1] <= 2 * first, "it doubles first, up to a message's capacity"


@pytest.mark.slow
def test_copy_engines_run_the_split_too(preloaded: Preloaded) -> None:
    """NVLink, and PCIe through the hosts, concurrently: copies from GPU to GPU, and up and down again."""
    # 16 MB on a DGX-1P: the split pays with copies, and has many chunks.
    large = {**CALL, "count": 4_000_000, "BLINK_TOPO": "dgx-1p", "BLINK_STAGING_BYTES": "8M"}
    outcome = preloaded.scene("many_calls", 4, calls=CALLS, BLINK_PROTOCOL="copies", **large).right()
    used, alone, split = compared(outcome)
    assert [program for program, _ in used[:2]] == [alone, split]
    assert {line.protocol for line in outcome.usage if line.state == "blink"} == {"copies"}


@pytest.mark.parametrize("slow", [pytest.param("hybrid", marks=pytest.mark.slow), "optimal"])
def test_the_slowest_rank_counts(preloaded: Preloaded, slow: str) -> None:
    """Measurements differ: on all ranks but the slowest the other program looks better."""
    other = {"hybrid": "optimal", "optimal": "hybrid"}[slow]
    settings = ((other, 20_000), (other, 20_000), (slow, 250_000))
    each = [{"BLINK_DOUBLE_SLOW_KERNEL": f"{name}_simple:{us}"} for name, us in settings]
    used, alone, split = compared(preloaded.scene("calls_in_step", 3, calls=CALLS, each=each, **CALL).right())
    assert [program for program, _ in used] == [alone, split, alone if slow == "hybrid" else split]


def test_captured_calls_measure_nothing(preloaded: Preloaded) -> None:
    """A program that captures all its calls stays with NVLink alone."""
    outcome = preloaded.scene("leaves_after_graph", 3, odd=1, **CALL).right()
    assert not any(KEPT.match(line) for line in outcome.blink)
    used = {match[4] for match in map(USED.match, outcome.blink) if match}
    assert len(used) == 1
