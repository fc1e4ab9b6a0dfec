"""How much work simulating is, counted in chunk hops, events and calls: the same on every machine.

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
#: Copies and reductions cost something, and messages are signalled late: every kind of event happens.
COSTS = calibration("v100-copy-engine")
JOBS = [("optimal", "allreduce"), ("blink", "broadcast"), ("ring", "allreduce"), ("optimal", "alltoall")]
EVERY_JOB = pytest.mark.parametrize(("algo", "name"), JOBS)
EVERY_SHARING = pytest.mark.parametrize("sharing", ["fifo", "fair"])


def workload(algo: str, name: str, chunks: int, sharing: str = "fifo", late: bool = False) -> Workload:
    """The job with so many chunks in its largest slice; ``late``: messages are signalled after they landed."""
    program, network = lowered(algo, "dgx-1v", name)
    blocks = program.collective.total_blocks()
    largest = max(float(part.stop - part.start) for part in program.slices) * SIZE / blocks
    bound = bind_bytes(program, SIZE, int(largest / chunks))
    made = translate(bound, network, COSTS, Settings(sharing)).workload
    return replace(made, hops=replace(made.hops, signal_s=made.hops.signal_s + 1e-6)) if late else made


# Nothing is left out, and there is no closed form.


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
    """Per transfer it moves, lands and, where that takes time, arrives; per execution it is done; per actor a start.

    Where links are shared anew, the ends of the transfers on the same link are told again.
    """
    given = workload(algo, name, 6, sharing, late)
    counted = calls(lambda: reference_kernel.run(given, sharing))
    events = counted["reference_kernel.py", "schedule"]
    actors = int((given.actors.chunks > 0).sum())
    least = actors + given.executions + given.transfers * (1 + late + (sharing == "fair"))
    told_again = events - least
    assert told_again >= 0
    if sharing == "fifo":
        assert told_again == 0
        assert ("reference_links.py", "_fill") not in counted
    else:
        assert 0 < counted["reference_links.py", "_fill"] <= 2 * given.transfers  # when one begins, and when it ends
        assert told_again <= int(np.bincount(given.hops.path).max()) * given.transfers


@EVERY_SHARING
@EVERY_JOB
def test_work_grows_with_the_chunks(algo: str, name: str, sharing: str) -> None:
    """Four times the chunks: about four times the calls."""
    few, many = (workload(algo, name, chunks, sharing) for chunks in (4, 16))
    counted = [sum(calls(lambda given=given: reference_kernel.run(given, sharing)).values()) for given in (few, many)]
    per_task = [count / given.tasks for count, given in zip(counted, (few, many), strict=True)]
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
    given = simulation.workload(job, "fair")
    assert simulation.hops_per_s(reference_kernel.run, given, "fair", 1) > 0
    assert kernel.run(given, "fair").transfers == given.transfers
    assert [len(simulation.connected_allocations(name)) for name in simulation.MACHINES] == [46, 14]
    assert (len(simulation.SIZES), len(simulation.COLLECTIVES), len(simulation.ALGORITHMS)) == (8, 2, 3)
