"""Candidates of a job, the fastest by range of sizes, and the baselines."""

from fractions import Fraction

import pytest

from blinkccl.cost.baselines.by_size import HybridJob
from blinkccl.cost.baselines.candidate import Conditions, Estimate
from blinkccl.cost.baselines.nccl import NCCL_SLICE_BYTES
from blinkccl.cost.baselines.registry import BASELINES, candidates, enter, time_all, wins
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.trees.algorithms.hybrid import hybrid_split
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.planned import asked
from support.timed import calibration_of, candidate, link_class

NOMINAL = Conditions(calibration("nominal"))
MIB = 1024 * 1024


def estimate(name: str, size: int, seconds: float) -> Estimate:
    return Estimate(name, size, seconds, 0.0, 0.0, "")


def test_every_algorithm_and_baseline_is_a_contender() -> None:
    assert set(candidates()) == set(ALGORITHMS) | set(BASELINES)


def test_absent_candidates_have_a_reason() -> None:
    field = enter(asked("dgx-1v", gpus="1,4,5,6"), NOMINAL)
    assert {one.name for one in field.prepared} | set(field.absent) == set(candidates())
    assert "one hop apart" in field.absent["flat"]
    assert {"optimal", "blink", "ring", "hybrid", "nccl-2.4"} <= {one.name for one in field.prepared}
    assert field.bound_gb_per_s == 50.0


def test_a_named_contender_that_cannot_serve_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="several servers"):
        enter(asked("dgx-1v"), NOMINAL, ["optimal", "three_phase"])
    with pytest.raises(
        UsageError, match=r"unknown algorithm 'rings' \(did you mean 'ring'\?\); expected one of optimal, .*nccl-2\.4"
    ):
        enter(asked("dgx-1v"), NOMINAL, ["rings"])


def test_names_count_once() -> None:
    field = enter(asked("dgx-1v"), NOMINAL, ["optimal", "ring", "optimal"])
    assert [one.name for one in field.prepared] == ["optimal", "ring"]


def test_the_bound_without_the_optimum_is_the_same() -> None:
    alone = enter(asked("dgx-1v", gpus="0,1,2,4,5,6"), NOMINAL, ["ring"])
    assert alone.bound_gb_per_s == pytest.approx(25 * 13 / 5)


def test_wins_are_runs_of_sizes_and_ties_go_to_the_first() -> None:
    rows = [
        [estimate("a", 1, 1.0), estimate("b", 1, 1.0)],
        [estimate("a", 2, 1.0), estimate("b", 2, 2.0)],
        [estimate("a", 4, 3.0), estimate("b", 4, 2.0)],
    ]
    assert [(w.name, w.first_bytes, w.last_bytes) for w in wins(rows)] == [("a", 1, 2), ("b", 4, 4)]


def test_nccl_24_falls_back_to_pcie_where_no_ring_exists() -> None:
    job = BASELINES["nccl-2.4"].prepare(asked("dgx-1v", "broadcast", "1,4,5,6"), NOMINAL)
    timed = job.at(500 * MIB)
    assert timed.chunk_bytes == NCCL_SLICE_BYTES
    assert "pcie" in timed.detail
    # The calibration's rate of a PCIe ring, less the time to fill the pipeline.
    rate = next(row.gb_per_s.value for row in calibration("nccl-2.4-v100").link if row.kind == "smp")
    assert 0.97 * rate < timed.algbw_gb_per_s <= rate


@pytest.mark.parametrize(
    ("spec", "gpus", "channels"),
    [
        ("dgx-1v", "0,1", 2),
        ("dgx-1v", "0,3", 4),
        ("dgx-1v", None, 12),
        ("dgx-1p", "0,1,2,3", 12),  # six half rings
        ("dgx-2", None, 12),  # three lanes each way round
        ("dgx-1v", "1,4,5,6", 1),  # PCIe
    ],
)
def test_nccl_24_has_two_channels_on_each_lane_and_16_at_most(spec, gpus, channels) -> None:
    request = asked(spec, "allreduce", gpus) if gpus else asked(spec, "allreduce")
    job = BASELINES["nccl-2.4"].prepare(request, NOMINAL)
    assert len(job.forest.shares) == channels * len(request.ranks)
    whole = ALGORITHMS["ring"].plan(request)
    assert job.forest.rate == whole.rate


def test_nccl_24_takes_ll_by_the_bytes_of_a_thread() -> None:
    """64 bytes for each of 256 threads, per chunk and channel of a loop (v2.4.2, src/enqueue.cu)."""
    for spec, gpus, collective, most in (
        ("dgx-1v", "0,1", "allreduce", 2 * 256 * 2 * 64),
        ("dgx-1v", "0,3", "broadcast", 4 * 256 * 64),
        ("dgx-1p", "0,1", "allreduce", 2 * 256 * 2 * 32),
    ):
        job = BASELINES["nccl-2.4"].prepare(asked(spec, collective, gpus), NOMINAL)
        assert job.at(most).detail.endswith(", LL")
        assert job.at(most + 4).detail.endswith(", Simple")


def test_a_ring_of_nccl_24_hands_on_slices_of_two_steps_and_a_chain_of_one() -> None:
    chunk = {
        collective: BASELINES["nccl-2.4"].prepare(asked("dgx-1v", collective, "0,1"), NOMINAL).at(64 * MIB).chunk_bytes
        for collective in ("allreduce", "allgather", "broadcast")
    }
    assert chunk == {"allreduce": MIB, "allgather": MIB, "broadcast": MIB // 2}
    # Each rank's part of a channel is two slices: 2 MiB over 2 channels and 2 ranks.
    small = BASELINES["nccl-2.4"].prepare(asked("dgx-1v", "allreduce", "0,1"), NOMINAL).at(2 * MIB)
    assert small.chunk_bytes == MIB // 4


def test_rings_of_nccl_230_reach_no_more_than_was_measured() -> None:
    """The limit comes from calibrations of kernels, not from those of copy engines."""
    request = asked("pcie-8gpu-nvlink-pairs", "allreduce", "0,1")
    measured = BASELINES["nccl-2.30"].prepare(request, Conditions(calibration("pcie"))).at(1 << 30)
    counted = BASELINES["nccl-2.30"].prepare(request, NOMINAL).at(1 << 30)
    assert measured.seconds / counted.seconds == pytest.approx(20 / 17.33, rel=1e-6)
    copies = asked("dgx-1v", "allreduce")
    of_copies = BASELINES["nccl-2.30"].prepare(copies, Conditions(calibration("v100-copy-engine"))).at(1 << 30)
    assert of_copies.seconds == BASELINES["nccl-2.30"].prepare(copies, NOMINAL).at(1 << 30).seconds


def test_nccl_24_between_servers_takes_rings_or_trees() -> None:
    both = BASELINES["nccl-2.4"].prepare(asked("2x dgx-a100"), NOMINAL)
    small, large = both.at(4096), both.at(256 * MIB)
    assert "trees" in small.detail
    assert "rings" in large.detail


def test_nccl_24_as_blink_describes_it_switches_at_16_kb() -> None:
    job = BASELINES["nccl-2.4-as-written"].prepare(asked("dgx-2"), NOMINAL)
    assert "trees" in job.at(16 * 1024 - 4).detail
    assert "rings" in job.at(16 * 1024).detail
    with pytest.raises(UnsupportedError, match="allreduce only"):
        BASELINES["nccl-2.4-as-written"].prepare(asked("dgx-2", "broadcast"), NOMINAL)


def hybrid_of(gpus: str) -> HybridJob:
    conditions = Conditions(calibration("v100-copy-engine"))
    job = candidates()["hybrid"].prepare(asked("dgx-1v", "broadcast", gpus), conditions)
    assert isinstance(job, HybridJob)
    return job


def test_hybrid_is_nvlink_alone_until_pcie_pays() -> None:
    job = hybrid_of("0,1,2")
    assert job.t_dpa_s == pytest.approx(0.93e-3)
    small = job.at(16 * MIB)
    assert small.seconds == job.nvlink.at(16 * MIB).seconds
    assert "PCIe would be slower" in small.detail
    large = job.at(500 * MIB)
    assert large.seconds < job.nvlink.at(500 * MIB).seconds
    assert large.simulation is None


def test_hybrid_splits_by_eq_8_at_the_simulated_rates() -> None:
    job, size = hybrid_of("0,1,2,3"), 500 * MIB
    pcie, nvlink = job.pcie.at(50 * MIB).algbw_gb_per_s, job.nvlink.at(450 * MIB).algbw_gb_per_s
    split = job.split(size, 50 * MIB)
    assert split == hybrid_split(size, pcie, nvlink, job.t_dpa_s)
    assert split is not None
    assert split.pcie_bytes + split.nvlink_bytes == Fraction(size)


@pytest.mark.parametrize("gpus", ["0,1,2", "0-6", "0-7"])
def test_hybrid_is_never_slower_than_its_nvlink_trees(gpus: str) -> None:
    job = hybrid_of(gpus)
    for size in (MIB, 64 * MIB, 200 * MIB, 500 * MIB, 1000 * MIB):
        assert job.at(size).seconds <= job.nvlink.at(size).seconds


def test_a_plan_is_timed_the_same_alone_and_with_a_trace() -> None:
    one = candidate("dgx-1p", "blink", gpus="0,1,2,3")
    assert one.simulate(5_000_000).seconds == one.simulate(5_000_000, traced=True).seconds


def test_candidates_without_times_are_left_out_unless_named() -> None:
    """A calibration of NVLink alone has no class for candidates over PCIe or through the host."""
    mine = Conditions(calibration_of(link_class("nvlink", 25.0, 25.0)))
    request = asked("dgx-1v", gpus="1,4,5,6")
    field, rows = time_all(enter(request, mine), [MIB, 16 * MIB])
    assert "no link class for pcie" in field.absent["ring"]
    names = [one.name for one in field.prepared]
    assert "optimal" in names
    assert "ring" not in names
    assert [[estimate.name for estimate in row] for row in rows] == [names, names]
    with pytest.raises(TopologyError, match="calibration test has no link class"):
        time_all(enter(request, mine, ["optimal", "ring"]), [MIB])


def test_without_any_times_the_first_reason_is_the_error() -> None:
    nothing = Conditions(calibration_of(link_class("net", 25.0, 25.0)))
    with pytest.raises(TopologyError, match="no link class for nvlink"):
        time_all(enter(asked("dgx-1v", "gather"), nothing), [MIB])


def test_nccl_runs_on_nvidia_gpus_only() -> None:
    assert {"nccl-2.4", "nccl-2.30"} <= set(enter(asked("mi250", gpus="0-3"), NOMINAL).absent)
