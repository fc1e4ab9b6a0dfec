"""Would these tests notice a missing wait? libblink.so is built without one, and must fail for some seed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from preloaded import Preloaded
from variants import with_fault

WANTED = "BLINK_TEST_PLANTED"
#: What is planted: file of native/shim → what is there once, and what it becomes.
FAULTS = {
    "launches do not follow each other": {
        "engine.cpp": (
            "  result = follow(stream, capture);\n",
            "  if (capture != 0) result = follow(stream, capture);\n",
        )
    },
    "the end of a launch is not noted": {
        "engine.cpp": (
            "  launched_ = true;\n  return driver_.event_record(last_event_, stream);\n",
            "  return kCudaSuccess;\n",
        )
    },
}
SEEDS = range(6)


@pytest.mark.skipif(not os.environ.get(WANTED), reason=f"minutes: only with {WANTED}=1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS)
def test_missing_event_is_noticed(preloaded: Preloaded, tmp_path: Path, fault: str) -> None:
    place = tmp_path / "variant"
    place.mkdir()
    faulty = replace(preloaded, built=with_fault(place, FAULTS[fault]))
    wrong = 0
    for seed in SEEDS:
        # A kernel that meets another one on its connections may wait for ever: not for longer than this.
        given = {"cases": "streams", "BLINK_DOUBLE_SEED": seed, "BLINK_TIMEOUT": 2, "timeout_s": 60}
        outcome = faulty.client("threads", **given)
        assert outcome.calls("blink").total() > 0, outcome.blink
        wrong += outcome.ended[0].code != 0
    assert wrong > 0
    for seed in SEEDS:
        preloaded.client("threads", cases="streams", BLINK_DOUBLE_SEED=seed).right()
