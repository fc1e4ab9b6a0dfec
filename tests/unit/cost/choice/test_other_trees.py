"""Other trees for a job beside its default's: the fastest at small and at large sizes."""

from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.choice.auto import beside, fewer_trees, prepare
from blinkccl.cost.choice.candidates import code_of
from blinkccl.cost.choice.programs import on_stores
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.trees.algorithms.optimal import plan
from support.planned import asked


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


def test_large_sizes_get_the_rate_that_the_default_lacks() -> None:
    request = asked("2x dgx-a100", "allgather")
    auto = prepare(request, Conditions(calibration_for(request.topology)), code_of(request))
    default, exact = (one.forest for one in auto.plans if one.name in ("optimal", "optimal --objective exact"))
    assert default is not None
    assert exact is not None
    assert default.rate < default.bound == exact.rate
    assert auto.choose(1 << 32).best.forest is exact


def test_fewer_trees_that_are_no_shallower_are_not_candidates() -> None:
    request = asked("dgx-1v", "allgather")
    default = plan(on_stores(request))
    assert list(fewer_trees(request, default))
    others = beside(request, Conditions(calibration_for(request.topology)), code_of(request), default)
    assert not [one.name for one in others]
