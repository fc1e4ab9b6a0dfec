"""NVLink and PCIe trees in parallel: Eq 8 and its clamp, the split in the forest, and refusals."""

from dataclasses import replace
from fractions import Fraction

import pytest

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.topology.assembly import Assembly
from blinkccl.trees.algorithms.hybrid import LinkClassSplit, hybrid_split, measured_gb_per_s, plan_split, rates
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest
from support.planned import asked, assert_sound, plan, planned

#: T_dpa per GPU and BW_PCIe that reproduce Fig 21 with lanes of 22 GB/s.
T_DPA_S = Fraction("0.00031")
PCIE_GB_PER_S = Fraction("5.5")
MB = 10**6


def kinds_used(forest: Forest) -> set[str]:
    return {forest.topology.link[arc].kind for arc in forest.link_load}


@pytest.mark.parametrize(
    ("gpus", "nvlink_gb_per_s", "gain_gb_per_s"), [(3, 44, 5.0), (4, 44, 4.8), (7, 88, 3.3), (8, 132, 1.85)]
)
def test_the_gain_of_fig_21(gpus: int, nvlink_gb_per_s: int, gain_gb_per_s: float) -> None:
    """For 500 MB the time of switching grows with the number of GPUs, so the gain shrinks."""
    split = hybrid_split(500 * MB, PCIE_GB_PER_S, nvlink_gb_per_s, gpus * T_DPA_S)
    assert 0.5 / float(split.seconds) - nvlink_gb_per_s == pytest.approx(gain_gb_per_s, abs=0.05)


def test_equation_8_by_hand() -> None:
    split = hybrid_split(500 * MB, PCIE_GB_PER_S, 44, 3 * T_DPA_S)
    assert split.pcie_bytes == Fraction(459_080_000, 9)
    assert split.nvlink_bytes == 500 * MB - Fraction(459_080_000, 9)
    assert split.seconds == 3 * T_DPA_S + split.pcie_bytes / Fraction(5_500_000_000)
    assert split.seconds == split.nvlink_bytes / 44_000_000_000


@pytest.mark.parametrize(("gpus", "nvlink_gb_per_s", "least_bytes"), [(3, 44, 40_920_000), (8, 132, 327_360_000)])
def test_pcie_gets_nothing_until_nvlink_outlasts_the_switching(
    gpus: int, nvlink_gb_per_s: int, least_bytes: int
) -> None:
    for total in (0, 1, least_bytes - 1, least_bytes):
        split = hybrid_split(total, PCIE_GB_PER_S, nvlink_gb_per_s, gpus * T_DPA_S)
        assert split == LinkClassSplit(Fraction(0), Fraction(total), Fraction(total, nvlink_gb_per_s * 10**9))
        assert split.pcie_part == 0
    assert hybrid_split(least_bytes + 1, PCIE_GB_PER_S, nvlink_gb_per_s, gpus * T_DPA_S).pcie_bytes > 0


def test_a_rate_by_two_calls() -> None:
    """The difference of two calls removes the constant time of a call."""
    assert measured_gb_per_s((MB, 0.75), (3 * MB, 1.0)) == Fraction(8, 1000)
    for small, large in (((MB, 1.0), (MB, 2.0)), ((MB, 1.0), (2 * MB, 1.0)), ((MB, 0.0), (2 * MB, 1.0))):
        with pytest.raises(UsageError, match="expected the second call to be larger"):
            measured_gb_per_s(small, large)


def test_floats_are_converted_exactly() -> None:
    split = hybrid_split(10**6, 0.5, 1.5, 0.0)
    assert (split.pcie_bytes, split.pcie_part) == (250_000, Fraction(1, 4))


@pytest.mark.parametrize("numbers", [(-1, 1, 1, 0), (1, 0, 1, 0), (1, 1, -1, 0), (1, 1, 1, -1)])
def test_numbers_out_of_range_are_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError, match="rates must be positive"):
        hybrid_split(*numbers)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("spec", "gpus"), [("dgx-1v", "1,4,5,6"), ("cedar", "0,2,3"), ("pcie-4gpu-nvlink-pairs", "0,1")]
)
def test_both_classes_together_reach_the_sum_of_their_rates(spec: str, gpus: str, collective: str) -> None:
    forest = plan("hybrid", spec, gpus, collective, root=1)
    pcie_gb_per_s, nvlink_gb_per_s = rates(asked(spec, collective, gpus, root=1))
    assert pcie_gb_per_s > 0
    assert forest.algbw_gb_per_s == pytest.approx(float(pcie_gb_per_s + nvlink_gb_per_s))
    assert "nvlink" in kinds_used(forest)
    assert "pcie" in kinds_used(forest)


def test_a_dgx_1v_broadcasts_6_gb_per_s_faster() -> None:
    """NVLink has six lanes of 25 GB/s; two GPUs read all data from the hosts' memories through one 12 GB/s switch."""
    assert rates(asked("dgx-1v", "broadcast", None)) == (6, 150)
    assert plan("hybrid", "dgx-1v", None, "broadcast").rate == 156


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allreduce"])
def test_any_part_may_go_over_pcie(collective: str) -> None:
    asked_ = asked("dgx-1v", collective, "0-3")
    pcie_gb_per_s, nvlink_gb_per_s = rates(asked_)
    for part in (Fraction(0), Fraction(1, 100), Fraction(1, 3), Fraction(1)):
        forest = plan_split(asked_, part)
        assert_sound(forest)
        over_pcie = sum(
            (s.weight for s in forest.shares if any(len(path) > 2 for tree in s.trees() for path in tree.edges)),
            Fraction(0),
        )
        assert over_pcie == part, "hops of a DGX-1V are direct on NVLink and through switches on PCIe"
        times = [part / pcie_gb_per_s, (1 - part) / nvlink_gb_per_s]
        assert forest.rate == 1 / max(times)
    assert kinds_used(plan_split(asked_, Fraction(0))) == {"nvlink"}
    assert kinds_used(plan_split(asked_, Fraction(1))) <= {"pcie", "smp"}


def test_the_split_for_a_size_takes_its_predicted_time() -> None:
    asked_ = asked("dgx-1v", "broadcast", "0-3")
    pcie_gb_per_s, nvlink_gb_per_s = rates(asked_)
    for total in (MB, 100 * MB, 10**10):
        split = hybrid_split(total, pcie_gb_per_s, nvlink_gb_per_s, 4 * T_DPA_S)
        forest = plan_split(asked_, split.pcie_part)
        assert total / (forest.rate * 10**9) == split.seconds, "NVLink is busy to the end"
    assert plan_split(asked_, hybrid_split(1, pcie_gb_per_s, nvlink_gb_per_s, 0).pcie_part) == plan(
        "hybrid", "dgx-1v", "0-3", "broadcast"
    )


@pytest.mark.parametrize("part", [Fraction(-1, 9), Fraction(10, 9)])
def test_a_part_is_between_0_and_1(part: Fraction) -> None:
    with pytest.raises(UsageError, match="must be between 0 and 1"):
        plan_split(asked("dgx-1v", "broadcast", "0-3"), part)


@pytest.mark.parametrize(
    ("spec", "gpus", "collective", "hybrid", "optimal"),
    [
        ("dgx-1v", None, "broadcast", "156", "156"),
        ("dgx-1v", None, "allreduce", "624/7", "624/7"),
        ("dgx-1p", "1,4,5,7", "allreduce", "77/3", "30"),
        ("dgx-a100", None, "broadcast", "312", "312"),
    ],
)
def test_one_forest_over_both_classes_is_never_slower(
    spec: str, gpus: str | None, collective: str, hybrid: str, optimal: str
) -> None:
    """A tree that uses both classes can be worth more than two that use one each."""
    apart = plan("hybrid", spec, gpus, collective)
    together = plan("optimal", spec, gpus, collective, links="all", objective="exact")
    gb_per_s = [round(forest.algbw_gb_per_s * 10**6) for forest in (apart, together)]
    assert gb_per_s == [round(float(Fraction(rate)) * 10**6) for rate in (hybrid, optimal)]
    assert (apart.bound, apart.topology) == (together.bound, together.topology)


def test_a_bus_of_both_classes_carries_both() -> None:
    """NVLink and PCIe lead to the processors, with 30 GB/s between these: 3/4 + 1/4 of the data fill that bus."""
    box = Assembly("drawn", "synthetic")
    gpus, hosts, switches = (box.add_many(kind, 2, kind) for kind in ("gpu", "host", "switch"))
    for gpu, host, switch in zip(gpus, hosts, switches, strict=True):
        box.join(gpu, host, 50, "nvlink")
        box.join(gpu, switch, 10, "pcie")
        box.join(switch, host, 10, "pcie")
    box.join(*hosts, 30, "smp")
    asked_ = asked(box.finish(), "broadcast")
    assert rates(asked_) == (10, 30)
    forest = planned("hybrid", asked_)
    assert forest.algbw_gb_per_s == pytest.approx(30)
    assert forest.optimal


@pytest.mark.parametrize(
    ("spec", "gpus", "links", "reason"),
    [
        (
            "pcie-8gpu",
            None,
            "fast",
            r"needs NVLink .* as well as PCIe, but pcie-8gpu has none between 0,1,2,3,4,5,6,7; use",
        ),
        (
            "dgx-1v",
            "0,1,6",
            "fast",
            r"needs NVLink .* between all ranks; use --algo optimal.*leaves the GPUs 0,1,6 in 2",
        ),
        ("clique:4", None, "fast", "needs PCIe between all ranks; use --algo optimal.*this topology has no PCIe links"),
        ("mist", None, "fast", r"needs PCIe between all ranks; use --algo optimal.*\{0\}, \{1\}, \{2\} and \{3\}"),
        ("dgx-1v", None, "pcie", "--links pcie selects PCIe alone; leave --links out, or use --algo optimal"),
        ("2x dgx-1v @ 40Gbps", "0+0", "fast", "works inside one server, but the ranks are on servers 0, 1"),
    ],
)
def test_reasons(spec: str, gpus: str | None, links: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^hybrid .*{reason}"):
        plan("hybrid", spec, gpus, "allreduce", links=links)


def test_links_all_means_the_same() -> None:
    request = asked("dgx-1v", "allreduce", "0-3")
    assert ALGORITHMS["hybrid"].plan(request) == ALGORITHMS["hybrid"].plan(replace(request, links="all"))
