"""The fair sharing of our kernel is that of SimGrid, an independent simulator: same finish times on random programs.

SimGrid's Python bindings come with Debian and Ubuntu (python3-simgrid). What it said of 620 random workloads is
in ``recorded.json``, which is compared everywhere. Where a Python here has SimGrid it is asked of real programs, and
with BLINK_ALL_TESTS=1 of these again. ``pytest tests/simgrid --update-golden`` records its answers anew.

A program whose outcome may hang on which of two actors gets an engine or a stream that both want at one instant has no
answer to compare or record: ``answers.py`` says which these are, from SimGrid's run alone.
"""

from __future__ import annotations

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

#: Relative to when the program ends.
TOLERANCE = 1e-6
#: At least this part of a kind's programs leaves no order open and is compared.
COMPARED = 0.82
#: Of what is recorded SimGrid is asked again only where there is time.
ASKED = [name for name in KINDS if name not in RECORDED_KINDS or os.environ.get("BLINK_ALL_TESTS")]


@pytest.fixture(scope="module")
def recorded(request):
    if request.config.getoption("--update-golden"):
        assert interpreter() is not None, "no SimGrid 3.32 here that could be asked: apt install python3-simgrid"
        record()
    return json.loads(RECORDED.read_text())["layers"]


def is_close(ours: float, theirs: float, whole: float) -> bool:
    return abs(ours - theirs) <= TOLERANCE * whole


def test_at_least_500_recorded_answers_are_compared(recorded) -> None:
    assert sum(map(len, recorded.values())) >= 500


@needs("simgrid")
@pytest.mark.parametrize("name", ASKED)
def test_every_actor_ends_when_simgrid_says(name: str) -> None:
    said = ask(name)
    compared = 0
    for number, row in enumerate(said["answers"]):
        if row["open_order"]:
            continue
        compared += 1
        ours = run(make(name, number), "fair")
        about = f"{name}, program {number}, SimGrid {said['version']}"
        assert is_close(ours.seconds, row["finish_s"], ours.seconds), about
        ends = zip(ours.actor_s.tolist(), row["actor_s"], strict=True)
        assert all(is_close(our_s, their_s, ours.seconds) for our_s, their_s in ends), about
    assert compared >= int(COMPARED * KINDS[name].count)


@pytest.mark.parametrize("name", RECORDED_KINDS)
def test_every_workload_ends_when_simgrid_said(recorded, name: str) -> None:
    rows = recorded[name]
    assert [digest(name, row[0]) for row in rows] == [row[1] for row in rows], (
        "these are not the workloads that were recorded: ask SimGrid again with pytest tests/simgrid --update-golden"
    )
    for number, _, finish_s, mean_s in rows:
        ours = run(make(name, number), "fair")
        assert is_close(ours.seconds, finish_s, ours.seconds), number
        assert is_close(float(ours.actor_s.mean()), mean_s, ours.seconds), number
    assert len(rows) >= int(COMPARED * KINDS[name].count)


def _without_weights(given: Workload) -> Workload:
    return replace(given, hops=replace(given.hops, weight=np.ones(len(given.hops.tail))))


def test_the_comparison_notices_other_ways_of_sharing(recorded) -> None:
    """As first come, first served, or with weights left out, most programs end at other times."""
    fifo = unweighted = programs = weighted = 0
    for name in RECORDED_KINDS:
        for number, _, finish_s, _ in recorded[name]:
            given = make(name, number)
            programs += 1
            fifo += not is_close(run(given, "fifo").seconds, finish_s, finish_s)
            if KINDS[name].latencies == "weighted":
                weighted += 1
                unweighted += not is_close(run(_without_weights(given), "fair").seconds, finish_s, finish_s)
    assert fifo > programs / 2
    assert unweighted > weighted / 2, (unweighted, weighted)
