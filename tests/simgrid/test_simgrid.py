"""The kernel's fair sharing equals SimGrid's, an independent simulator: same finish times on random programs.

SimGrid's Python bindings come with Debian and Ubuntu (python3-simgrid). ``recorded.json`` has its answers for 620
random workloads, which are compared everywhere. If a Python on this machine has SimGrid, it also simulates real
programs, and with BLINK_ALL_TESTS=1 the recorded workloads again. ``pytest tests/simgrid --update-golden`` records its
answers anew.

The result of a program may depend on the order in which two actors get an engine or a stream at one instant. Such
programs are neither compared nor recorded; ``answers.py`` identifies them from SimGrid's run alone.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from simgrid_answers import RECORDED, RECORDED_KINDS, ask, digest, interpreter, record

from blinkccl.cost.simulate.run import run
from blinkccl.cost.simulate.workload import Workload
from support.extras import needs
from support.random_workloads import KINDS, make

#: Tolerance relative to the end of the program.
TOLERANCE = 1e-6
#: Minimum part of a kind's programs without an open order, which are compared.
COMPARED = 0.82
#: Kinds for SimGrid itself; recorded kinds are repeated in long runs only.
ASKED = [name for name in KINDS if name not in RECORDED_KINDS or os.environ.get("BLINK_ALL_TESTS")]


@pytest.fixture(scope="module")
def recorded(request):
    if request.config.getoption("--update-golden"):
        assert interpreter() is not None, "no SimGrid 3.32 here that could be asked: apt install python3-simgrid"
        record()
    return json.loads(RECORDED.read_text())["layers"]


def is_close(own_s: float, simgrid_s: float, whole_s: float) -> bool:
    return abs(own_s - simgrid_s) <= TOLERANCE * whole_s


def test_at_least_500_recorded_answers_are_compared(recorded) -> None:
    assert sum(map(len, recorded.values())) >= 500


@needs("simgrid")
@pytest.mark.parametrize("name", ASKED)
def test_every_actor_ends_at_simgrids_time(name: str) -> None:
    simgrid = ask(name)
    compared = 0
    for number, row in enumerate(simgrid["answers"]):
        if row["open_order"]:
            continue
        compared += 1
        outcome = run(make(name, number), "fair")
        about = f"{name}, program {number}, SimGrid {simgrid['version']}"
        assert is_close(outcome.seconds, row["finish_s"], outcome.seconds), about
        ends = zip(outcome.actor_s.tolist(), row["actor_s"], strict=True)
        assert all(is_close(our_s, their_s, outcome.seconds) for our_s, their_s in ends), about
    assert compared >= int(COMPARED * KINDS[name].count)


@pytest.mark.parametrize("name", RECORDED_KINDS)
def test_every_workload_ends_at_the_recorded_time(recorded, name: str) -> None:
    rows = recorded[name]
    assert [digest(name, row[0]) for row in rows] == [row[1] for row in rows], (
        "the workloads differ from the recorded ones: record them again with pytest tests/simgrid --update-golden"
    )
    for number, _, finish_s, mean_s in rows:
        outcome = run(make(name, number), "fair")
        assert is_close(outcome.seconds, finish_s, outcome.seconds), number
        assert is_close(float(outcome.actor_s.mean()), mean_s, outcome.seconds), number
    assert len(rows) >= int(COMPARED * KINDS[name].count)


def _without_weights(workload: Workload) -> Workload:
    return replace(workload, hops=replace(workload.hops, weight=np.ones(len(workload.hops.tail))))


def test_the_comparison_notices_other_ways_of_sharing(recorded) -> None:
    """With fifo sharing or without weights, most programs end at other times."""
    fifo = unweighted = programs = weighted = 0
    for name in RECORDED_KINDS:
        for number, _, finish_s, _ in recorded[name]:
            workload = make(name, number)
            programs += 1
            fifo += not is_close(run(workload, "fifo").seconds, finish_s, finish_s)
            if KINDS[name].latencies == "weighted":
                weighted += 1
                unweighted += not is_close(run(_without_weights(workload), "fair").seconds, finish_s, finish_s)
    assert fifo > programs / 2
    assert unweighted > weighted / 2, (unweighted, weighted)
