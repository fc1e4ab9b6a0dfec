"""The timeline shows all tasks of the kernel, and the critical path explains every second."""

import json
from itertools import pairwise

import pytest

from blinkccl.cost.simulate.run import Simulation
from blinkccl.cost.simulate.timeline import add_simulation, critical_path, link_use, summarise
from blinkccl.cost.simulate.translate import Settings
from blinkccl.errors import InternalError
from blinkccl.trace_events import TraceEvents
from support.timed import candidate
from support.trace_reader import TraceRead, read_trace

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


def written(simulation: Simulation) -> TraceRead:
    events = TraceEvents()
    add_simulation(events, simulation)
    return read_trace(json.dumps(events.document()))


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
def test_a_file_shows_all_tasks_of_the_kernel(job: tuple[str, ...], sharing: str) -> None:
    simulation = simulated(job, sharing)
    trace = written(simulation)
    bound, network = simulation.translation.bound, simulation.translation.network
    ranks = [f"rank {rank}: {network.vertex[vertex].label}" for rank, vertex in enumerate(bound.program.ranks)]
    assert list(trace.processes.values())[: len(ranks)] == ranks
    assert list(trace.processes.values())[-1] == "links"
    transfers = simulation.outcome.transfers
    assert len(trace.of("copy")) == len(trace.of("arrival")) == len(trace.arrows) == transfers
    assert len(trace.of("reduce")) == simulation.outcome.executions
    for sent, received in trace.arrows:
        assert [sent["args"][key] for key in ("share", "chunk")] == [
            received["args"][key] for key in ("share", "chunk")
        ]
        assert trace.processes[sent["pid"]] != trace.processes[received["pid"]]
    last = max(end for spans in trace.spans.values() for _, end, _ in spans)
    assert last <= round(simulation.seconds * 1e9)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("job", JOBS[:5], ids=lambda job: f"{job[1]}-{job[0]}")
def test_the_load_of_a_link_sums_to_its_bytes_and_ends_at_zero(job: tuple[str, ...], sharing: str) -> None:
    simulation = simulated(job, sharing)
    trace = written(simulation)
    uses = link_use(simulation)
    label = simulation.translation.network.vertex
    assert len(trace.counters) == len([use for use in uses if use.bytes])
    process = next(number for number, name in trace.processes.items() if name == "links")
    for use in uses:
        name = f"{label[use.src].label} → {label[use.dst].label}"
        if use.src == use.dst or not use.bytes:
            continue
        points = trace.counters[process, name]
        assert points[-1][1] == 0
        if sharing == "fifo" and job[0] == "dgx-1v":  # no hop has more than one link
            assert max(value for _, value in points) <= use.gb_per_s * 1.001
        area = sum(value * (following - at) for (at, value), (following, _) in pairwise(points))
        assert area == pytest.approx(use.bytes, rel=1e-3)


def test_tasks_beyond_the_limit_are_left_out_and_counted() -> None:
    simulation = simulated(JOBS[0], "fifo")
    whole = TraceEvents()
    add_simulation(whole, simulation)
    assert whole.document().get("otherData") is None
    few = TraceEvents(most_events=50)
    add_simulation(few, simulation)
    document = few.document()
    trace = read_trace(json.dumps(document))
    assert 40 < sum(event["ph"] != "M" for event in document["traceEvents"]) <= 50
    shown = len(trace.of("copy")) + len(trace.of("reduce"))
    tasks = simulation.outcome.transfers + simulation.outcome.executions
    assert f"{tasks - shown:,} of {tasks:,} transfers and reductions" in document["otherData"]["left out"]
    assert min(begin for spans in trace.spans.values() for begin, _, _ in spans) == 0


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
