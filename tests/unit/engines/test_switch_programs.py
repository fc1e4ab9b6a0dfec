"""Programs with in-network reduction: their form, the engine that runs them, and their cost."""

from dataclasses import replace

import pytest

from blinkccl.cost.simulate.run import simulate
from blinkccl.engines import reference
from blinkccl.engines.buffers import check_roles
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import ScheduleError, UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import from_json, to_json
from blinkccl.schedule.verifier import violations
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.registry import algorithm
from support.execution import difference, ragged_counts
from support.planned import asked
from support.timed import calibration_of, link_class

MB = 10**6


def switched(name: str = "allreduce") -> tuple[Program, Topology]:
    """One tree over eight GPUs and their NVSwitch, its root."""
    forest = algorithm("in_switch").plan(asked("hgx-h100", name))
    return lower(forest), forest.topology


def test_the_switch_is_a_relay_that_receives_from_all_and_sends_to_all():
    program, network = switched()
    assert program.relays == program.combining == (8,)
    root = next(role for role in program.roles if role.stage == "root")
    assert (root.rank, root.contributes, root.keeps, root.completes) == (8, False, False, True)
    assert (len(root.receives), len(root.sends)) == (8, 8)
    assert violations(program, network) == []
    assert from_json(to_json(program)) == program


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_the_reference_engine_runs_it(name, op):
    program, _ = switched(name)
    for count in ragged_counts(program, 16):
        assert difference(reference.run, program, count=count, dtype="float32", op=op, chunk_bytes=64) is None


def test_ranks_do_not_run_it():
    program, _ = switched()
    for check in (lambda: check_roles(program), lambda: HostPlan(program)):
        with pytest.raises(UnsupportedError, match=r"reduces data at switches \[8\], which ranks cannot run"):
            check()


def test_a_switch_that_only_forwards_must_not_reduce():
    program, network = switched()
    plain = replace(network, vertices=tuple(replace(v, combines=False) for v in network.vertices))
    assert violations(program, plain) == ["relay 8 reduces or multicasts, but NVSwitch only forwards packets"]
    forest = algorithm("in_switch").plan(asked("hgx-h100"))
    with pytest.raises(ScheduleError, match="its root visits vertex 8, which is no rank of the job"):
        lower(replace(forest, topology=plain))


def test_all_goes_up_and_down_at_the_rate_of_the_links():
    """100 MB in 100 chunks at 450 GB/s take the time of 101 chunks, as a chunk goes down while the next comes up."""
    costs = calibration_of(link_class("nvlink", 450.0, 450.0))
    timed = simulate(*switched(), costs, 100 * MB, chunk_bytes=MB)
    assert timed.seconds == pytest.approx(101 * MB / 450e9)


def test_in_network_reduction_has_no_cost_of_reducing_issuing_or_signalling():
    """A GPU issues a chunk to the switch, 5 us; the switch's own chunks, and its reductions, cost nothing."""
    costs = calibration_of(
        link_class("nvlink", 450.0, 200.0), issue_us=5.0, signal_us=3.0, reduce_us=100.0, reduce_gb_per_s=1.0
    )
    timed = simulate(*switched(), costs, 45 * MB, chunk_bytes=45 * MB)
    assert timed.seconds == pytest.approx(5e-6 + 2 * 45 * MB / 200e9 + 3e-6)
