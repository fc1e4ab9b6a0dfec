"""Recorded measurements of the laboratory: all allocations, the present plans, and the goals."""

from statistics import geometric_mean

import pytest

from blinkccl.topology.catalog import connected_allocations
from blinkccl.trees.algorithms.registry import algorithm
from reproduction.laboratory import Allocation, hybrid_values, measured, read, speedup_values, two_servers_value
from support.planned import asked

MACHINES, COLLECTIVES = ("dgx-1v", "dgx-1p"), ("broadcast", "allreduce")
EVERY = [one for machine in MACHINES for collective in COLLECTIVES for one in measured(machine, collective)]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("machine", MACHINES)
def test_all_allocations_were_measured_with_the_plans_of_today(machine: str, collective: str) -> None:
    record = measured(machine, collective)
    assert [one.gpus for one in record] == list(connected_allocations(machine))
    for one in record[::5]:
        for how, measurement in one.by.items():
            forest = algorithm(how).plan(asked(machine, collective, one.gpus))
            assert measurement.plan == pytest.approx(forest.algbw_gb_per_s)
            assert len(measurement.runs) >= 3


def test_trees_reach_what_they_are_planned_for_and_rings_no_more() -> None:
    parts = [one.by["optimal"].part for one in EVERY]
    assert len(parts) == 120
    assert geometric_mean(parts) >= 0.9
    assert min(parts) >= 0.8
    assert max(measurement.part for one in EVERY for measurement in one.by.values()) < 1.02
    assert all(abs(one.speedup() / one.planned_speedup() - 1) <= 0.1 for one in EVERY)


def test_pcie_beside_nvlink_and_two_servers() -> None:
    """No more than 2 % slower than NVLink alone, with less gained on more GPUs; and the network's rate."""
    counts = [len(one.gpus) for one in measured("dgx-1v", "broadcast-with-pcie")]
    gains = [value.computed for value in hybrid_values()]
    assert counts == [3, 4, 5, 6, 7, 8]
    for one in measured("dgx-1v", "broadcast-with-pcie"):
        assert one.speedup("hybrid", "optimal@fast") > 0.98
    assert min(gains[:2]) > gains[-1]
    assert two_servers_value().computed > 0.9


def test_the_search_for_a_chunk_ends_near_the_best_fixed_chunk() -> None:
    for collective in COLLECTIVES:
        (one,) = measured("dgx-1v", f"{collective}-chunks")
        fixed = {name: plan.gb_per_s for name, plan in one.by.items() if name not in ("search", "chosen")}
        assert list(fixed) == ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"]
        assert one.by["chosen"].gb_per_s > 0.97 * max(fixed.values()) > 1.2 * fixed["1M"]


def test_rates_are_medians_and_values_say_what_was_run() -> None:
    document = {
        "dgx-1v broadcast 0,1,2": {"lane_mbit_per_s": 9.0, "algbw_gb_per_s": {"optimal": [4, 1, 9, 2], "ring": [2, 1]}},
        "dgx-1v allreduce 0,1": {"lane_mbit_per_s": 9.0, "algbw_gb_per_s": {}},
    }
    (one,) = read(document, "dgx-1v", "broadcast")
    assert isinstance(one, Allocation)
    assert (one.by["optimal"].gb_per_s, one.by["optimal"].part, one.speedup(), one.planned_speedup()) == (2, 0.5, 2, 2)
    largest, mean = speedup_values("dgx-1v", "broadcast")
    assert largest.computed >= mean.computed
    assert largest.published is None
    assert "measured in the laboratory" in largest.what
