"""The trade-off of a job: sound plans, none of which another one beats in everything; and who wins at small sizes."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from blinkccl.algorithms.optimal import plan
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.trade_off import DEFAULT, fewer_trees, points
from blinkccl.baselines.candidate import Conditions
from blinkccl.choice.auto import prepare
from blinkccl.choice.candidates import code_of
from blinkccl.choice.programs import on_stores
from blinkccl.choice.trade_off import FEW_TREES, TradeOff, beside, trade_off
from blinkccl.simulate.calibration import calibration_for
from support.native_code import needs_native_code
from support.planned import asked, assert_sound

JOBS = (
    ("dgx-1v", "allreduce", None),
    ("dgx-1v", "allgather", "0-4"),
    ("2x dgx-a100", "allgather", None),
    ("2x mi300x", "broadcast", None),
    ("ring:5", "reduce", None),
)
SIZES = (1 << 12, 1 << 26)


def curve(request: Request) -> TradeOff:
    return trade_off(request, Conditions(calibration_for(request.topology)), code_of(request), SIZES)


@pytest.mark.parametrize(("spec", "name", "gpus"), JOBS)
def test_points_are_different_sound_plans(spec: str, name: str, gpus: str | None) -> None:
    found = list(points(asked(spec, name, gpus)))
    assert found[0].option == DEFAULT
    assert len({one.option for one in found}) == len(found)
    assert len({one.forest.shares for one in found}) == len(found)
    for one in found:
        assert_sound(one.forest)
        if one.option.startswith("--max-trees"):
            assert one.forest.trees_per_block <= int(one.option.split()[1])
        if one.option == "--exact":
            assert one.forest.optimal


@pytest.mark.parametrize(("spec", "name", "gpus"), JOBS)
def test_no_point_is_dominated_and_what_is_left_out_is(spec: str, name: str, gpus: str | None) -> None:
    request = asked(spec, name, gpus)
    found = curve(request)
    for one, other in permutations(found.points, 2):
        assert any(x < y for x, y in zip(one.costs, other.costs, strict=True)), (one.point.option, other.point.option)
    rates = [one.point.forest.rate for one in found.points]
    assert rates == sorted(rates, reverse=True)
    left_out = [one for one in points(request) if one.option in found.dominated]
    assert {one.option for one in left_out} == set(found.dominated)
    for one in left_out:
        assert any(all(x <= y for x, y in zip(kept.point.costs, one.costs, strict=True)) for kept in found.points)
    assert {*found.dominated, *(one.point.option for one in found.points)} == {one.option for one in points(request)}


@needs_native_code
def test_fewer_trees_that_are_shallower_win_at_small_sizes_and_lose_at_large_ones() -> None:
    request = asked("mi250", "broadcast")
    auto = prepare(request, Conditions(calibration_for(request.topology)), code_of(request))
    default = next(one.forest for one in auto.plans if one.name == "optimal")
    fewer = {one.name: one.forest for one in auto.plans if one.name.startswith("optimal --max-trees ")}
    assert fewer
    assert all(forest is not None and forest.depth < default.depth for forest in fewer.values())
    small, large = auto.choose(1 << 10), auto.choose(1 << 30)
    assert small.best.plan.name in fewer
    assert small.best.forest.algorithm == small.best.plan.name
    assert large.best.plan.name not in fewer


def test_what_the_default_lacks_of_the_rate_is_there_for_large_sizes() -> None:
    request = asked("2x dgx-a100", "allgather")
    auto = prepare(request, Conditions(calibration_for(request.topology)), code_of(request))
    default, exact = (one.forest for one in auto.plans if one.name in ("optimal", "optimal --exact"))
    assert default is not None
    assert exact is not None
    assert default.rate < default.bound == exact.rate
    assert auto.choose(1 << 32).best.forest is exact


def test_fewer_trees_that_are_no_shallower_are_not_candidates() -> None:
    request = asked("dgx-1v", "allgather")
    default = plan(on_stores(request))
    assert list(fewer_trees(request, default, FEW_TREES))
    found = beside(request, Conditions(calibration_for(request.topology)), code_of(request), default)
    assert not [one.name for one in found]


def test_the_verb_prints_what_was_found(blink) -> None:
    request = asked("dgx-1v", "allreduce")
    found = trade_off(request, Conditions(calibration_for(request.topology)), code_of(request), (1 << 20,))
    told = msgspec.json.decode(blink("plan", "allreduce", "--topo", "dgx-1v", "--trade-off", "-s", "1M", "--json").out)
    assert told["sizes_bytes"] == [1 << 20]
    assert [one["option"] for one in told["points"]] == [one.point.option for one in found.points]
    assert [one["seconds"] for one in told["points"]] == [list(one.seconds) for one in found.points]
    lines = blink("plan", "allreduce", "--topo", "dgx-1v", "--trade-off", "-s", "1M").out.splitlines()
    rows = [line for line in lines if line.startswith(("default", "--"))]
    assert len(rows) == len(found.points)
    assert sum(row.endswith("*") for row in rows) == 1


@pytest.mark.parametrize("given", [["--exact"], ["--max-trees", "2"], ["--algo", "ring"], ["-o", "x.json"]])
def test_options_that_choose_one_plan_are_refused_beside_it(blink, given: list[str]) -> None:
    refused = blink("plan", "allreduce", "--topo", "dgx-1v", "--trade-off", *given)
    assert refused.code == 2
    assert f"leave {given[0]}" in refused.err


def test_the_trade_off_is_drawn(blink, tmp_path: Path) -> None:
    picture = tmp_path / "curves.svg"
    job = ("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6")
    told = msgspec.json.decode(blink(*job, "--trade-off", "--plot", str(picture), "--json").out)
    drawn = picture.read_text()
    for point in told["points"]:
        trees = "1 tree" if point["trees_per_block"] == 1 else f"{point['trees_per_block']} trees"
        assert f"{point['option']}: {trees}, depth {point['depth']}" in drawn
        best = told["sizes_bytes"][-1] / point["seconds"][-1] / 1e9
        assert f"to {best:.4g} at 1G" in drawn
    assert "bound" in drawn
    for given, why in (([], "--plot draws --trade-off"), (["--trade-off", "-s", "1M"], "--size is one")):
        refused = blink(*job, *given, "--plot", str(picture))
        assert refused.code == 2
        assert why in refused.err
