"""``auto``: no candidate that it leaves out is faster at any size, and of equal times the smaller plan wins."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import pytest

from blinkccl.cost.baselines.candidate import Conditions, Estimate
from blinkccl.cost.choice.auto import Auto, floor_of, prepare
from blinkccl.cost.choice.candidates import COPY_ENGINES, code_of
from blinkccl.cost.simulate.calibration import calibration, calibration_for
from blinkccl.errors import TopologyError
from blinkccl.topology.catalog import connected_allocations
from blinkccl.trees.algorithms.tables import Cell, Time
from blinkccl.trees.forest.model import Forest
from support.examples import ALL_TESTS
from support.planned import asked, plan

#: Sizes of a sweep, limited by the start, by hops, by blocks and by links.
SIZES = [1 << k for k in (range(10, 32, 3) if ALL_TESTS else (12, 20, 26))]
COLLECTIVES = ("allreduce", "broadcast", "allgather")
SAMPLE = [
    ("dgx-1p", "0-3", "allreduce"),
    ("dgx-1v", "0,3", "allreduce"),
    ("dgx-1v", "1,4,5,6", "broadcast"),
    ("mist", None, "allgather"),
    ("cedar", None, "allreduce"),
    ("pcie-8gpu", None, "allreduce"),
    ("hgx-h100", None, "broadcast"),
]


def jobs() -> Iterator[tuple[str, str | None, str]]:
    if not ALL_TESTS:
        yield from SAMPLE
        return
    for name, collective in product(("dgx-1v", "dgx-1p"), COLLECTIVES):
        for ranks in connected_allocations(name):
            yield name, ",".join(map(str, ranks)), collective
    others = ("mist", "cedar", "dgx-2", "dgx-a100", "hgx-h100", "pcie-4gpu-nvlink-pairs", "pcie-8gpu")
    yield from ((name, None, collective) for name, collective in product(others, COLLECTIVES))


def auto(spec: str, gpus: str | None, collective: str, wanted: str | None = None) -> Auto:
    request = asked(spec, collective, gpus)
    return prepare(request, Conditions(calibration_for(request.topology)), code_of(request, wanted))


@pytest.mark.parametrize(("spec", "gpus", "collective"), list(jobs()))
def test_nothing_is_faster_than_auto(spec, gpus, collective):
    """The order of the two fastest is exact, and candidates without a simulation take at least their floor."""
    selected, everything = auto(spec, gpus, collective), auto(spec, gpus, collective)
    for size in SIZES:
        times = {one.name: one.at(size).seconds for one in everything.plans}
        assert all(floor_of(one)(size) <= times[one.name] for one in everything.plans)
        choice = selected.choose(size, places=2)
        best, second = (one.estimate.seconds for one in choice.timed[:2])
        assert [best, second] == pytest.approx(sorted(times.values())[:2], rel=1e-6)
        assert selected.at(size).seconds == best
        assert {one.plan.name for one in choice.timed} | choice.floors_s.keys() == times.keys()


def test_only_measured_candidates_are_compared_in_a_cell():
    """At another size than the cell's the time is scaled in proportion to the prediction."""
    predicted = auto("dgx-1v", "0-3", "allreduce")
    times = (Time("ring", "simple", 5e-5, 9), Time("ring", "ll", 4e-5, 9), Time("one_shot", "ll", 6e-5, 9))
    cell = Cell("allreduce", -1, (0, 1, 2, 3), 1 << 20, 1 << 20, 4 << 20, "2026-01-01", times)
    measured = replace(predicted, measured=(cell,))
    choice = measured.choose(1 << 20, places=2)
    assert choice.measured is cell
    assert [(one.plan.name, one.estimate.seconds) for one in choice.timed] == [("ring", 4e-5), ("one_shot", 6e-5)]
    assert choice.best.estimate.algbw_gb_per_s == pytest.approx((1 << 20) / 4e-5 / 1e9)
    assert choice.best.estimate.detail.startswith("measured, ll; ")
    ring = next(one for one in predicted.plans if one.name == "ring")
    (larger,) = [one.estimate for one in measured.choose(2 << 20).timed if one.plan.name == "ring"]
    assert larger.seconds == pytest.approx(4e-5 * ring.at(2 << 20).seconds / ring.at(1 << 20).seconds)
    assert larger.detail.startswith("measured at 1M, ll; ")
    for size in (1 << 19, 4 << 20):
        assert measured.choose(size).measured is None
        assert measured.choose(size).best.estimate.seconds == predicted.choose(size).best.estimate.seconds


def test_a_cell_without_times_of_the_plans_is_ignored():
    predicted = auto("dgx-1v", "0-3", "allreduce")
    cell = Cell("allreduce", -1, (0, 1, 2, 3), 1 << 20, 1 << 20, 4 << 20, "2026-01-01", (Time("nccl", "", 1e-6, 9),))
    choice = replace(predicted, measured=(cell,)).choose(1 << 20)
    assert choice.measured is None
    assert choice.best.estimate.seconds == predicted.choose(1 << 20).best.estimate.seconds


def test_large_sizes_leave_out_candidates_that_cannot_win():
    job = auto("dgx-1v", "1,4,5,6", "broadcast")
    small, large = (job.choose(size) for size in (1 << 12, 1 << 28))
    assert len(small.timed) == len(job.plans)
    assert len(large.timed) + len(large.floors_s) == len(job.plans)
    assert len(large.timed) < len(job.plans)
    assert large.best.estimate.seconds <= min(large.floors_s.values())


def test_copies_are_chosen_among_too():
    job = auto("dgx-1v", "0-3", "allreduce", COPY_ENGINES)
    for size in (1 << 14, 1 << 26):
        assert job.at(size).seconds == min(one.at(size).seconds for one in job.plans)


@dataclass(frozen=True)
class Fixed:
    """A candidate with the same time at every size."""

    name: str
    forest: Forest
    seconds: float

    def at(self, size_bytes: int) -> Estimate:
        return Estimate(self.name, size_bytes, self.seconds, 1.0, 1.0, "")


def test_equal_times_go_to_fewer_shares_then_to_the_shallower_then_to_the_first():
    """Times that differ in the last place of floats are equal."""
    shallow, deep = (plan(algo, "dgx-1p", "0-3", "allreduce") for algo in ("one_hop", "ring"))
    few = replace(deep, shares=deep.shares[:2])
    assert len(few.shares) < len(shallow.shares)
    late = Fixed("late", few, 2.0)
    many, fewer, first = Fixed("many", shallow, 1.0), Fixed("fewer", few, 1.0 + 1e-12), Fixed("first", few, 1.0)
    assert [one.plan.name for one in Auto((late, many, fewer)).choose(1).timed] == ["fewer", "many", "late"]
    assert Auto((late, fewer, first)).choose(1).best.plan.name == "fewer"
    same = replace(shallow, shares=shallow.shares[:2]), replace(deep, shares=deep.shares[:2])
    assert same[0].depth < same[1].depth
    assert Auto((Fixed("deep", same[1], 1.0), Fixed("flat", same[0], 1.0))).choose(1).best.plan.name == "flat"


def test_links_that_a_calibration_does_not_know_are_an_error():
    request = asked("dgx-1v", gpus="0-3")
    nothing = Conditions(msgspec.structs.replace(calibration("nominal"), link=()))
    job = prepare(request, nothing, code_of(request, COPY_ENGINES))
    with pytest.raises(TopologyError, match="no link class"):
        job.choose(1 << 20)
