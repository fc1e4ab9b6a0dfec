"""World, data, tensor, pipeline, expert and context parallel: six communicators of eight ranks, concurrently on trees.

Each rank launches calls and graphs of all six in an order of its own, and streams run out of order. Only the room for
all of them avoids deadlocks (``native/shim/resident_blocks.h``): a kernel kept off its GPU by another one would wait
forever.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from preloaded import Outcome, Preloaded
from variants import with_fault

RANKS = 8
#: A multiprocessor holds one block here, so the six need all that exist: three quarters of 64.
SMALL = {"BLINK_DOUBLE_SMS": 64, "BLINK_DOUBLE_OCCUPANCY": 1}
#: Every block of a ring waits for another rank, in eight channels.
RING = {"BLINK_TOPO": "clique:8", "BLINK_ALGO": "ring", "BLINK_STAGING_BYTES": "4M"}


def six(preloaded: Preloaded, seed: int, runs: int, timeout_s: float = 180, **more: object) -> Outcome:
    job = {**RING, **SMALL, "BLINK_DOUBLE_SEED": seed, "CLIENT_RUNS": runs, **more}
    return preloaded.client("threads", RANKS, cases="six", timeout_s=timeout_s, **job)


def runs_on_trees(outcome: Outcome) -> bool:
    return outcome.calls("nccl").total() == 0 and outcome.calls("blink")["allreduce"] > 0


def test_six_communicators(preloaded: Preloaded) -> None:
    """Six communicators of four ranks, each with fewer blocks than planned."""
    job = {"CLIENT_SIX": "all", "CLIENT_RUNS": 5, "BLINK_DOUBLE_SEED": 1, **SMALL}
    outcome = preloaded.client("threads", cases="six", **job).right()
    assert runs_on_trees(outcome), outcome.blink
    assert outcome.agreed()
    ready = [line for line in outcome.blink if " is loaded" in line]
    assert len(ready) == 6
    assert all("the most that fit the GPU" in line for line in ready), ready


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("who", ["all", "dimensions"])
def test_a_thousand_runs(preloaded: Preloaded, who: str) -> None:
    """No stall in 1,000 runs of either kind: all ranks in each communicator, or the ranks of its dimension."""
    for seed in range(1, 21):
        outcome = six(preloaded, seed, 50, 600, CLIENT_SIX=who).right()
        assert runs_on_trees(outcome), outcome.blink
        assert outcome.agreed()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_without_room_are_noticed(preloaded: Preloaded, tmp_path: Path) -> None:
    """Each communicator takes all of its planned blocks, and six need more than such a small GPU has."""
    place = tmp_path / "variant"
    place.mkdir()
    fault = ("held = gpu.multiprocessors *", "held = 16 * gpu.multiprocessors *")
    faulty = replace(preloaded, built=with_fault(place, {"resident_blocks.cpp": fault}))
    for seed in range(1, 7):
        outcome = six(faulty, seed, 10, CLIENT_SIX="all", BLINK_TIMEOUT=5, BLINK_DOUBLE_SMS=12)
        assert sum(" is loaded" in line for line in outcome.blink) == 6, outcome.blink
        if outcome.ended[0].code != 0:
            return
    pytest.fail("no seed notices it")
