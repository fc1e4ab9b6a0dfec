"""Errors at each entry point of the driver in turn: the job falls back to NCCL or ends with an error code.

For every function and every one of its calls, no process hangs or crashes, and a process with wrong numbers gets an
error from the call or the communicator. (If a rank fails in a call, its peers' kernels give up and their streams
continue; their programs get the error from ncclCommGetAsyncError.)
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from preloaded import Outcome, Preloaded

from support.examples import ALL_TESTS

RANKS = 2
UNKNOWN_ERROR = 999
#: Seconds that kernels wait for a rank that has ended.
PATIENCE = {"BLINK_TIMEOUT": 4}
#: The program and NCCL call the same driver; only Blink's calls get errors.
CALLER = {"BLINK_DOUBLE_CALLER": "libblink.so"}
JOB = {"sizes": "1,1000", "BLINK_TOPO": "clique:2"}
#: The client's cases, and their functions without BLINK_ALL_TESTS: one of the creation, two of calls, one of the end;
#: and one of a creation that is followed by another.
CASES = {
    "sizes,streams": ("cuModuleLoadData", "cuEventRecord", "cuStreamWaitEvent", "cuMemHostUnregister"),
    "graph_order,finalize": ("cuMemHostRegister_v2",),
}


def journal(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


def run(preloaded: Preloaded, cases: str, *, failing: str = "", journals: Sequence[Path] = ()) -> Outcome:
    each: list[dict[str, object]] = [{}, {}]
    if failing:
        each[1]["BLINK_DOUBLE_FAIL"] = failing
    for rank, path in enumerate(journals):
        each[rank]["BLINK_DOUBLE_JOURNAL"] = path
    return preloaded.client("process", RANKS, cases=cases, each=each, timeout_s=40, **JOB, **PATIENCE, **CALLER)


def assert_sound(outcome: Outcome) -> None:
    """Every process ended by itself: with right numbers, or after a call that returned an error."""
    for one in outcome.ended:
        failed = [line for line in one.said if not line["ok"]]
        reported = [line for line in failed if " gives " in line.get("what", "")]
        assert one.code == (1 if failed else 0), f"exit code {one.code}\n{one.out}{one.err[-3000:]}"
        assert bool(failed) == bool(reported), f"{one.out}{one.err[-3000:]}"
    assert outcome.left == []


def times(count: int) -> list[str]:
    """The failing ones of ``count`` calls: all, the first, the last, and one between."""
    return list(dict.fromkeys(["*", "1", str((count + 1) // 2), str(count)]))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cases", CASES)
def test_an_error_at_any_entry_point(preloaded: Preloaded, tmp_path: Path, cases: str) -> None:
    paths = [tmp_path / "calls0", tmp_path / "calls1"]
    run(preloaded, cases, journals=paths).right()
    counts, few = journal(paths[1]), CASES[cases]
    assert set(few) <= set(counts), counts
    fell_back, failures = 0, []
    for name in sorted(counts) if ALL_TESTS else few:
        for nth in times(counts[name]) if ALL_TESTS else ["1"]:
            failing = f"{name}:{nth}:{UNKNOWN_ERROR}"
            try:
                outcome = run(preloaded, cases, failing=failing)
                assert_sound(outcome)
                fell_back += all(one.code == 0 for one in outcome.ended)
            except (AssertionError, pytest.fail.Exception) as error:
                failures.append(f"{failing}: {error}")
    assert not failures, "\n\n".join(failures)
    assert fell_back > 0


def test_the_last_call_of_a_communicator(preloaded: Preloaded) -> None:
    """No other call, and no query of the state, precedes ``ncclCommFinalize``, so that must return the error."""
    outcome = run(preloaded, "finalize", failing=f"cuLaunchKernelEx:*:{UNKNOWN_ERROR}")
    assert_sound(outcome)
    assert [one.code for one in outcome.ended] == [1, 1]
