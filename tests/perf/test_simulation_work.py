"""The work of simulation, counted in chunk hops and calls, which are equal on every machine.

Times are in benchmarks/simulation.py.
"""

import pytest
import simulation
from test_planning_work import calls

from blinkccl.cost.simulate import kernel
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import bind_bytes, simulate
from blinkccl.cost.simulate.translate import Settings, translate
from support.timed import lowered

SIZE = 1 << 22
#: A calibration with costs of copies, reductions and signals, so that every kind of event happens.
COSTS = calibration("v100-copy-engine")
JOBS = [("optimal", "allreduce"), ("blink", "broadcast"), ("ring", "allreduce"), ("optimal", "alltoall")]
EVERY_JOB = pytest.mark.parametrize(("algo", "name"), JOBS)
EVERY_SHARING = pytest.mark.parametrize("sharing", ["fifo", "fair"])


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


# Translation.


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
    assert simulation.hops_per_s(kernel.run, work, "fair", 1) > 0
    assert kernel.run(work, "fair").transfers == work.transfers
    assert [len(simulation.connected_allocations(name)) for name in simulation.MACHINES] == [46, 14]
    assert (len(simulation.SIZES), len(simulation.COLLECTIVES), len(simulation.ALGORITHMS)) == (8, 2, 3)
