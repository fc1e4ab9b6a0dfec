"""The work of simulation, counted in chunk hops, events and calls, which are equal on every machine.

Times are in benchmarks/simulation.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simulation
from test_planning_work import calls

from blinkccl.cost.simulate import kernel
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import bind_bytes, simulate
from blinkccl.cost.simulate.translate import Settings, translate
from blinkccl.cost.simulate.workload import Workload
from support import reference_kernel
from support.timed import lowered

SIZE = 1 << 22
#: A calibration with costs of copies, reductions and signals, so that every kind of event happens.
COSTS = calibration("v100-copy-engine")
JOBS = [("optimal", "allreduce"), ("blink", "broadcast"), ("ring", "allreduce"), ("optimal", "alltoall")]
EVERY_JOB = pytest.mark.parametrize(("algo", "name"), JOBS)
EVERY_SHARING = pytest.mark.parametrize("sharing", ["fifo", "fair"])


def workload(algo: str, name: str, chunks: int, sharing: str = "fifo", late: bool = False) -> Workload:
    """The job with ``chunks`` in its largest slice; ``late``: messages are signalled after they have landed."""
    program, network = lowered(algo, "dgx-1v", name)
    blocks = program.collective.total_blocks()
    largest = max(float(part.stop - part.start) for part in program.slices) * SIZE / blocks
    bound = bind_bytes(program, SIZE, int(largest / chunks))
    job = translate(bound, network, COSTS, Settings(sharing)).workload
    return replace(job, hops=replace(job.hops, signal_s=job.hops.signal_s + 1e-6)) if late else job


# Every chunk is simulated.


@EVERY_SHARING
@EVERY_JOB
@pytest.mark.parametrize("size_bytes", [0, 4096, SIZE, SIZE + 12])
def test_every_chunk_crosses_every_hop(algo: str, name: str, sharing: str, size_bytes: int) -> None:
    program, network = lowered(algo, "dgx-1v", name)
    done = simulate(program, network, COSTS, size_bytes, chunk_bytes=100_000, settings=Settings(sharing), traced=True)
    extents = done.translation.bound.extents
    sent = sum(extents[role.slice].chunks * len(role.sends) for role in program.roles)
    assert done.outcome.transfers == sent
    assert done.outcome.trace is not None
    assert (done.outcome.trace.hop >= 0).sum() == sent
    assert sent + done.outcome.executions <= done.translation.bound.tasks


# Events.


@EVERY_SHARING
@EVERY_JOB
@pytest.mark.parametrize("late", [False, True])
def test_an_event_or_three_per_task(algo: str, name: str, sharing: str, late: bool) -> None:
    """A transfer has events for its move, its landing and a late signal; an execution has an end, an actor a start.

    When links are shared anew, the ends of the transfers on the same link are scheduled again.
    """
    job = workload(algo, name, 6, sharing, late)
    counted = calls(lambda: reference_kernel.run(job, sharing))
    events = counted["reference_kernel.py", "schedule"]
    actors = int((job.actors.chunks > 0).sum())
    least = actors + job.executions + job.transfers * (1 + late + (sharing == "fair"))
    repeated = events - least
    assert repeated >= 0
    if sharing == "fifo":
        assert repeated == 0
        assert ("reference_links.py", "_fill") not in counted
    else:
        assert 0 < counted["reference_links.py", "_fill"] <= 2 * job.transfers  # At the start and end of each.
        assert repeated <= int(np.bincount(job.hops.path).max()) * job.transfers


@EVERY_SHARING
@EVERY_JOB
def test_work_grows_with_the_chunks(algo: str, name: str, sharing: str) -> None:
    """Four times the chunks take about four times the calls."""
    few, many = (workload(algo, name, chunks, sharing) for chunks in (4, 16))
    counted = [sum(calls(lambda job=job: reference_kernel.run(job, sharing)).values()) for job in (few, many)]
    per_task = [count / job.tasks for count, job in zip(counted, (few, many), strict=True)]
    assert per_task[0] < {"fifo": 60, "fair": 160}[sharing]
    assert per_task[1] < 1.3 * per_task[0]


@EVERY_JOB
def test_translating_takes_no_work_per_chunk(algo: str, name: str) -> None:
    program, network = lowered(algo, "dgx-1v", name)
    counted = []
    for chunk_bytes in (1 << 20, 1 << 10):
        bound = bind_bytes(program, SIZE, chunk_bytes)
        counted.append(sum(calls(lambda bound=bound: translate(bound, network, COSTS)).values()))
    assert counted[1] <= 1.01 * counted[0]
    assert counted[0] <= 40 * (len(program.roles) + len(program.queues))


# The simulation.


def test_the_benchmark_counts_hops() -> None:
    job = simulation.Kernels("small", "dgx-1v", "ring", 2)
    work = simulation.workload(job, "fair")
    assert simulation.hops_per_s(reference_kernel.run, work, "fair", 1) > 0
    assert kernel.run(work, "fair").transfers == work.transfers
    assert [len(simulation.connected_allocations(name)) for name in simulation.MACHINES] == [46, 14]
    assert (len(simulation.SIZES), len(simulation.COLLECTIVES), len(simulation.ALGORITHMS)) == (8, 2, 3)
