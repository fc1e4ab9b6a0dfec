"""The timeline says what the kernel did, and the critical path explains every second of it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from blinkccl.errors import InternalError
from blinkccl.simulate.run import Simulation
from blinkccl.simulate.timeline import chrome_trace, critical_path, link_use, summarise
from blinkccl.simulate.translate import Settings
from support.timed import candidate

JOBS = [
    ("dgx-1v", "optimal", "allreduce", "1,4,5,6", "v100-copy-engine"),
    ("dgx-1v", "blink", "broadcast", None, "v100-copy-engine"),
    ("dgx-1p", "ring", "allreduce", "0,1,4", "nominal"),
    ("2x dgx-a100", "three_phase", "allreduce", None, "nominal"),
    ("dgx-2", "optimal", "allreduce", "0-3", "nominal"),
    ("2x dgx-a100", "optimal", "allreduce", None, "nominal"),
    ("pcie-8gpu", "ring", "allgather", None, "nominal"),
    ("dgx-2", "one_shot", "allreduce", "0-3", "nominal"),
]


def simulated(job: tuple[str, str, str, str | None, str], sharing: str, **settings: object) -> Simulation:
    spec, algorithm, collective, gpus, named = job
    one = candidate(spec, algorithm, collective, gpus, named, Settings(sharing, **settings))
    return one.simulate(3_000_000, traced=True)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[1]}-{job[0]}")
def test_the_critical_path_is_the_whole_time_without_gaps(job: tuple[str, ...], sharing: str) -> None:
    simulation = simulated(job, sharing)
    path = critical_path(simulation)
    assert path[0].begin_s == 0.0
    assert path[-1].end_s == simulation.seconds
    for one, following in pairwise(path):
        assert one.end_s == pytest.approx(following.begin_s, rel=1e-12)
        assert one.end_s >= one.begin_s
    assert sum(summarise(simulation).parts.values()) == pytest.approx(simulation.seconds, rel=1e-9)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[1]}-{job[0]}")
def test_nothing_overlaps_on_a_track(job: tuple[str, ...], sharing: str) -> None:
    simulation = simulated(job, sharing)
    trace = chrome_trace(simulation)
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "M"}
    assert named == set(tracks)
    for events in tracks.values():
        for (begin, length), (following, _) in pairwise(sorted(events)):
            assert begin + length <= following
    copies = sum(e.get("cat") == "copy" for e in trace["traceEvents"])
    assert copies == simulation.outcome.transfers
    assert sum(e.get("cat") == "reduce" for e in trace["traceEvents"]) == simulation.outcome.executions


def test_start_skew_is_on_the_critical_path() -> None:
    late = simulated(JOBS[0], "fifo", start_s=(0.0, 0.0, 0.0, 0.25))
    assert late.seconds > 0.25
    assert summarise(late).parts["start"] == pytest.approx(0.25)


def test_busy_shares_are_bytes_over_rate_and_time() -> None:
    simulation = simulated(JOBS[0], "fifo")
    uses = link_use(simulation)
    assert [use.busy for use in uses] == sorted((use.busy for use in uses), reverse=True)
    for use in uses:
        assert use.busy == pytest.approx(use.bytes / (use.gb_per_s * 1e9) / simulation.seconds)
        assert 0 < use.busy <= 1 + 1e-9


def test_without_a_trace_there_is_no_timeline() -> None:
    simulation = candidate("dgx-1v").simulate(1000)
    with pytest.raises(InternalError, match="traced=True"):
        critical_path(simulation)


def test_nothing_moves_and_nothing_decides() -> None:
    simulation = candidate("dgx-1v").simulate(0, traced=True)
    assert simulation.seconds == 0.0
    assert critical_path(simulation) == []
