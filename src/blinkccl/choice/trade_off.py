"""The trade-off of a job as a curve: plans none of which is better in everything, with their times by size.

Who wants exact rates pays with depth, trees and long weights; which of that matters depends on the size. A point is
left out where another one is no worse in rate, depth, trees per block, the largest denominator, and the time at every
size that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from blinkccl.algorithms.optimal import plan
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.trade_off import DEFAULT, Point, fewer_trees, points, whole_rate
from blinkccl.baselines.candidate import Conditions, Prepared
from blinkccl.choice.candidates import Code, of_forest
from blinkccl.choice.programs import on_stores
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest

#: Sizes that a curve is for where none is asked: a start, a hop, and a link decide.
SIZES = (1 << 10, 1 << 20, 1 << 30)
#: And where a curve is drawn.
DRAWN_SIZES = tuple(1 << bits for bits in range(10, 31, 2))
#: The most trees of a plan that is tried for being shallower.
FEW_TREES = 4
#: The algorithm that has a trade-off.
OPTIMAL = "optimal"


@dataclass(frozen=True)
class TimedPoint:
    """A point, and its seconds at each size."""

    point: Point
    seconds: tuple[float, ...]

    @property
    def costs(self) -> tuple[float, ...]:
        """All that one would have less of."""
        return (*self.point.costs, *self.seconds)


@dataclass(frozen=True)
class TradeOff:
    """The points of a job by falling rate, none of which dominates another; ``dominated`` are the options left out."""

    sizes: tuple[int, ...]
    points: tuple[TimedPoint, ...]
    dominated: tuple[str, ...]

    def fastest(self, place: int) -> TimedPoint:
        """That of the size at this place; the one of the highest rate of such as take as long."""
        return min(self.points, key=lambda one: one.seconds[place])


def trade_off(
    request: Request,
    conditions: Conditions,
    code: Code,
    sizes: Sequence[int] = SIZES,
    tell: Callable[[str], None] = lambda option: None,
) -> TradeOff:
    """Plans and times all points, and ``tell``s the option of each; UnsupportedError where the default is none."""
    timed = []
    for point in points(_direct(request, code)):
        tell(point.option)
        try:
            plan = of_forest(point.forest, code, conditions)
        except UnsupportedError:
            if point.option == DEFAULT:
                raise
            continue
        timed.append(TimedPoint(point, tuple(plan.at(size).seconds for size in sizes)))
    kept = [one for i, one in enumerate(timed) if not any(_beats(timed, j, i) for j in range(len(timed)))]
    kept.sort(key=lambda one: one.costs)
    left_out = tuple(one.point.option for one in timed if one not in kept)
    return TradeOff(tuple(sizes), tuple(kept), left_out)


def _beats(timed: Sequence[TimedPoint], one: int, other: int) -> bool:
    """Whether ``one`` dominates ``other``: the same in everything, the earlier does."""
    a, b = timed[one].costs, timed[other].costs
    return all(x <= y for x, y in zip(a, b, strict=True)) and (a != b or one < other)


def _direct(request: Request, code: Code) -> Request:
    return request if code.gpu is None else on_stores(request)


def beside(request: Request, conditions: Conditions, code: Code, default: Forest) -> Iterator[Prepared]:
    """Candidates beside a default: what it lacks of the rate for large sizes, fewer trees for small ones.

    A hop costs as much as thousands of bytes, a tree nothing: where fewer are not shallower they do not win.
    """
    job = _direct(request, code)
    for option, wanted in (*whole_rate(job, default), *fewer_trees(job, default, FEW_TREES)):
        try:
            forest = plan(wanted)
            if forest.rate > default.rate or forest.depth < default.depth:
                yield of_forest(replace(forest, algorithm=f"{OPTIMAL} {option}"), code, conditions)
        except UnsupportedError:
            continue
