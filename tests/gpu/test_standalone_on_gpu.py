"""Conformance on a GPU: the steps of a GPU day find no error, and ranks run as processes."""

from pathlib import Path

import pytest
from gpu_conformance import new_key
from gpu_day import run_step, steps
from gpu_steps import STEPS

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_conformance.py"
#: Steps that measure, which run in their quick form, as no time is asserted.
MEASURING = ("torn", "latency", "empty", "wires", "fold")
DEADLINE_S = 280.0


@pytest.mark.parametrize("name", STEPS)
def test_no_step_finds_an_error(name):
    outcome, _ = run_step(steps([name], quick=name in MEASURING)[0], DEADLINE_S)
    kinds = [kind for kind, _ in outcome.verdicts]
    assert not {"WRONG", "FAILED"} & set(kinds), f"{outcome.verdicts}\n{outcome.last_lines}"
    if kinds == ["not measured"]:
        pytest.skip(outcome.verdicts[0][1])


def test_ranks_as_processes(all_ok):
    # Two ranks only: without MPS, processes take turns on the GPU, and every wait for a peer is a time slice.
    key = new_key()
    all_ok(*([PROGRAM, "2", "all", which, key] for which in "01"))
