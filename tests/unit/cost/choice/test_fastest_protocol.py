"""The model of kernels: protocols that are left out never win, and blink sim equals libblink.so's planner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.baselines.registry import BASELINES
from blinkccl.cost.choice.candidates import candidates, code_of
from blinkccl.cost.choice.costs import MOST_BYTES, PredictedTime, protocols_of, timing
from blinkccl.cost.choice.programs import gpu_of, largest
from blinkccl.cost.choice.timed import FastestProtocol, KernelPlan
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.translate import Settings
from blinkccl.nccl.choices import Terms, table
from blinkccl.nccl.programs import candidates as programs
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.spec import parse_spec
from support.planned import asked

KINDS = ("ll", "ll128", "simple")
SIZES = [1 << k for k in range(10, 33)]


@given(
    st.tuples(*[st.floats(1e-6, 1e-4)] * 3).map(sorted),
    st.tuples(*[st.floats(1e9, 1e12)] * 3).map(sorted),
    st.permutations(SIZES),
)
def test_protocols_that_are_not_timed_are_never_the_fastest(latencies_s, rates, sizes):
    """Protocols are lines with ascending rate and latency, and sizes come in any order."""

    def seconds(protocol: str, size: int) -> float:
        place = KINDS.index(protocol)
        return latencies_s[place] + size / rates[place]

    timed = []

    def time(protocol: str, size: int) -> PredictedTime:
        timed.append((protocol, size))
        return PredictedTime(seconds(protocol, size), 16)

    fastest = FastestProtocol(KINDS, time)
    for size in sizes:
        best = min(seconds(one, size) for one in KINDS if size <= MOST_BYTES[one])
        assert fastest.at(size)[1].seconds == best
    assert len(timed) <= sum(size <= MOST_BYTES[one] for one in KINDS for size in sizes)


def plan(spec: str, algo: str, collective: str = "allreduce", gpus: str | None = None) -> KernelPlan:
    request = asked(spec, collective, gpus)
    prepared = candidates(code_of(request))[algo].prepare(request, Conditions(calibration("nominal")))
    assert isinstance(prepared, KernelPlan)
    return prepared


@pytest.mark.parametrize(("spec", "algo"), [("dgx-1v", "optimal"), ("hgx-h100", "one_hop"), ("pcie-8gpu", "ring")])
def test_the_fastest_protocol_is_that_of_all(spec, algo):
    one = plan(spec, algo)
    gpu, parts = one.gpu, one.gpu.blocks // one.candidate.channels
    settings = Settings(budget=200_000)
    for size in SIZES[::3]:
        each = [
            timing(one.candidate, p, size, gpu.capability, parts, largest(parts).capacity_bytes(p), settings).seconds
            for p in protocols_of(one.candidate, gpu.capability)
            if size <= MOST_BYTES[p]
        ]
        assert one.at(size).seconds == min(each)


def test_sim_and_the_planner_of_nccl_programs_say_the_same():
    """The times are equal if the planner's budget of tasks suffices."""
    topology = parse_spec("dgx-1v")
    gpu, one = gpu_of(topology), plan("dgx-1v", "optimal", gpus="0-3")
    planned = programs(JobPlacement(topology, (0, 1, 2, 3)), ("optimal",), gpu.blocks, {})
    rows = table(planned, 4, Terms(gpu.capability, gpu.blocks), None).choices
    for row in rows:
        if row.collective == "allreduce" and 0 < row.least < 1 << 20:
            estimate = one.at(row.least)
            assert row.protocol == estimate.protocol
            assert f"optimal {row.protocol} {estimate.seconds * 1e6:.3g} us" in row.why


def test_a_sweep_of_a_whole_dgx_1p_no_longer_trails_nccl():
    """With copies of 10 µs each it is slower at every size; with equal costs of a hop shallow trees win small sizes."""
    kernels, nccl = plan("dgx-1p", "optimal"), BASELINES["nccl-2.30"]
    baseline = nccl.prepare(asked("dgx-1p", "allreduce", None), Conditions(calibration("nominal")))
    for size in (4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20):
        assert kernels.at(size).seconds < baseline.at(size).seconds
