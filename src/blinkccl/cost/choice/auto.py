"""``auto``: for a job and a size, the fastest of all algorithms as our code runs them.

Every algorithm that serves the job is planned once, and ``optimal`` also for what its default lacks of the rate, and
with fewer trees where these are shallower (:func:`beside`). For a size they are simulated by rising
floor, until what is left cannot win: a plan takes at least as long as its fullest link takes for its bytes, at the
highest rate that any protocol leaves of that link. So large sizes cost few simulations, small ones one of each plan.

Where the job's size was measured (:mod:`blinkccl.trees.algorithms.tables`), what was measured is compared instead,
taken from the cell's size to the asked one as the prediction goes from the one to the other.

Equal times go to the plan with fewer shares, then to the shallower one, then to the one that is named first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from blinkccl.cost.baselines.candidate import Baseline, Conditions, Estimate, Prepared, TimedPlan
from blinkccl.cost.choice.candidates import Code, candidates, of_forest
from blinkccl.cost.choice.costs import calibration_of, pcie_gb_per_s
from blinkccl.cost.choice.programs import on_stores
from blinkccl.cost.choice.timed import KernelPlan
from blinkccl.cost.simulate.calibration import Calibration, link_cost
from blinkccl.errors import BlinkError, TopologyError, UnsupportedError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES
from blinkccl.trees.algorithms.bounds import SEARCHED
from blinkccl.trees.algorithms.optimal import FLOWS, plan
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.tables import Cell, cell_at
from blinkccl.trees.forest.model import Forest, link_use
from blinkccl.trees.packing.symmetry import symmetry_of
from blinkccl.units import size_text

NAME = "auto"
#: The algorithm that has other trees for a job beside its default's.
OPTIMAL = "optimal"
#: The most trees for each block that are tried for being shallower.
FEW_TREES = (4, 2, 1)
#: Trees of all blocks that are looked for at once: more take minutes.
MOST_IN_ALL = 1024
#: Times that differ by less, relatively, are equal: a simulation adds floats.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Timed:
    """A candidate and what it takes."""

    plan: Prepared
    estimate: Estimate

    @property
    def forest(self) -> Forest:
        assert self.plan.forest is not None, "every algorithm of ours has a plan"
        return self.plan.forest

    @property
    def size_of_plan(self) -> tuple[int, int]:
        """What decides between equal times."""
        return len(self.forest.shares), self.forest.depth


@dataclass(frozen=True)
class Choice:
    """All that were simulated, best first, and the least time of each that was not since it is no less.

    With ``measured``, a cell, all times go back to what it has, and nothing else is compared.
    """

    timed: tuple[Timed, ...]
    floors_s: dict[str, float]
    measured: Cell | None = None

    @property
    def best(self) -> Timed:
        return self.timed[0]

    @property
    def runner_up(self) -> Timed | None:
        return self.timed[1] if len(self.timed) > 1 else None

    @property
    def lead(self) -> float:
        """What part longer the runner-up takes; 0 where nothing moves or there is none."""
        second, first_s = self.runner_up, self.best.estimate.seconds
        return second.estimate.seconds / first_s - 1 if second is not None and first_s else 0.0


@dataclass(frozen=True)
class Auto:
    """A candidate that is another one for each size; ``absent`` says who could not be planned, and why.

    ``measured`` are the cells of the job's ranks.
    """

    plans: tuple[Prepared, ...]
    absent: dict[str, str] = field(default_factory=dict)
    name: str = NAME
    measured: tuple[Cell, ...] = ()

    @property
    def forest(self) -> Forest:
        """The plan of the highest rate, which large sizes tend to."""
        forests = [one.forest for one in self.plans if one.forest is not None]
        return max(forests, key=lambda forest: forest.algbw_gb_per_s)

    @cached_property
    def _floors(self) -> dict[str, Callable[[int], float]]:
        return {one.name: floor_of(one) for one in self.plans}

    def choose(self, size_bytes: int, places: int = 1) -> Choice:
        """The ``places`` fastest for S bytes, exactly; more were simulated only where they might have been."""
        cell = cell_at(self.measured, self.forest.collective, size_bytes) if self.measured else None
        if cell is not None:
            known = [found for one in self.plans if (found := _measured(one, cell, size_bytes)) is not None]
            if known:
                return Choice(tuple(self._ranked(known)), {}, cell)
        floors_s = {one.name: self._floors[one.name](size_bytes) for one in self.plans}
        timed: list[Timed] = []
        first: BlinkError | None = None
        for one in sorted(self.plans, key=lambda one: floors_s[one.name]):
            seconds = sorted(each.estimate.seconds for each in timed)
            if len(seconds) >= places and floors_s[one.name] > seconds[places - 1]:
                break
            try:
                timed.append(Timed(one, one.at(size_bytes)))
            except (TopologyError, UnsupportedError) as error:
                first = first or error
            del floors_s[one.name]
        if not timed:
            assert first is not None
            raise first
        return Choice(tuple(self._ranked(timed)), floors_s)

    def _ranked(self, timed: Sequence[Timed]) -> list[Timed]:
        named = [one.name for one in self.plans]
        left = sorted(timed, key=lambda each: (each.estimate.seconds, *each.size_of_plan, named.index(each.plan.name)))
        ranked: list[Timed] = []
        while left:
            limit_s = left[0].estimate.seconds * (1 + _EQUAL)
            equal = [each for each in left if each.estimate.seconds <= limit_s]
            ranked += sorted(equal, key=lambda each: (*each.size_of_plan, named.index(each.plan.name)))
            left = left[len(equal) :]
        return ranked

    def at(self, size_bytes: int) -> Estimate:
        """What the fastest takes."""
        best = self.choose(size_bytes).best
        return replace(best.estimate, name=self.name, detail=f"{best.plan.name}: {best.estimate.detail}")


def _measured(plan: Prepared, cell: Cell, size_bytes: int) -> Timed | None:
    """A plan with what was measured of it; None where nothing was."""
    time = cell.best(plan.name)
    if time is None:
        return None
    found = plan.at(size_bytes)
    there = found if size_bytes == cell.size_bytes else plan.at(cell.size_bytes)
    ratio = time.seconds / there.seconds if there.seconds else 1.0
    at = "" if there is found else f" at {size_text(cell.size_bytes)}"
    # A laboratory has links and no kernels, so it is not held against what kernels are predicted to take.
    how = f"chunks of {size_text(time.chunk_bytes)}" if time.chunk_bytes else f"{ratio:.3g} times the prediction"
    detail = f"measured{at}, {time.protocol}; {how}"
    algbw, busbw = (rate / ratio for rate in (found.algbw_gb_per_s, found.busbw_gb_per_s))
    seconds = found.seconds * ratio
    return Timed(plan, replace(found, seconds=seconds, detail=detail, algbw_gb_per_s=algbw, busbw_gb_per_s=busbw))


def prepare(request: Request, conditions: Conditions, code: Code, measured: tuple[Cell, ...] = ()) -> Auto:
    """Plans all algorithms that serve the job; UnsupportedError where none does."""
    known = candidates(code)
    plans: list[Prepared] = []
    absent: dict[str, str] = {}
    first: UnsupportedError | None = None
    for name in ALGORITHMS:
        try:
            plans.append(known[name].prepare(request, conditions))
        except UnsupportedError as error:
            first = first or error
            absent[name] = str(error)
    if not plans:
        assert first is not None
        raise first
    default = next((one.forest for one in plans if one.name == OPTIMAL and one.forest is not None), None)
    if default is not None:
        plans += beside(request, conditions, code, default)
    return Auto(tuple(plans), absent, measured=measured)


def beside(request: Request, conditions: Conditions, code: Code, default: Forest) -> Iterator[Prepared]:
    """Candidates beside a default: what it lacks of the rate for large sizes, fewer trees for small ones.

    A hop costs as much as thousands of bytes, a tree nothing: where fewer are not shallower they do not win.
    """
    job = request if code.gpu is None else on_stores(request)
    for option, wanted in (*_whole_rate(job, default), *fewer_trees(job, default)):
        try:
            forest = plan(wanted)
            if forest.rate > default.rate or forest.depth < default.depth:
                yield of_forest(replace(forest, algorithm=f"{OPTIMAL} {option}"), code, conditions)
        except UnsupportedError:
            continue


def fewer_trees(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    """The options of ``blink plan`` that ask for fewer trees than a default has."""
    if request.collective.name not in FLOWS:
        blocks = len({share.block for share in default.shares})
        for most in FEW_TREES:
            if most < default.trees_per_block and most * blocks <= MOST_IN_ALL:
                yield f"--max-trees {most}", replace(request, max_trees=most)


def _whole_rate(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    """The option that asks for what a default lacks of the rate, where that is a matter of seconds.

    Columns of all trees take seconds, and not hours, for few ranks or for ranks that are alike.
    """
    if default.optimal or request.collective.name in FLOWS:
        return
    network = rank_network_of(request.network, request.ranks).network
    if network.terminals <= SEARCHED or len(symmetry_of(network).moves) > 1:
        yield "--objective exact", replace(request, objective="exact")


def as_candidate(code: Code) -> Baseline:
    """The registry row."""
    return Baseline(
        "for each size the fastest algorithm",
        "simulation of all algorithms",
        lambda request, conditions: prepare(request, conditions, code),
    )


def floor_of(plan: Prepared) -> Callable[[int], float]:
    """The seconds that a plan's fullest link takes at least for S bytes; 0 where only a simulation tells."""
    if isinstance(plan, KernelPlan):
        # Of all protocols Simple leaves most of a link, whatever its hops take.
        simple = calibration_of("simple", fast=True, arch=plan.gpu.arch)
        return floor_of_links(plan.forest, simple, pcie_gb_per_s(plan.candidate, "simple", plan.gpu.capability))
    if type(plan) is TimedPlan and plan.conditions.calibration.serves(plan.forest.topology):
        return floor_of_links(plan.forest, plan.conditions.calibration)
    return lambda size_bytes: 0.0


def floor_of_links(
    forest: Forest, calibration: Calibration, gb_per_s: Mapping[tuple[int, int], float] = MappingProxyType({})
) -> Callable[[int], float]:
    """The seconds that the fullest link takes at least for its bytes of S; ``gb_per_s``: rates of some of the links."""
    per_byte_s = _busiest_link_s(forest, calibration, gb_per_s)
    # A slice begins on a whole group of bytes, so that each may be shorter by one.
    slack = sum(len(list(share.trees())) for share in forest.shares) * ALIGNMENT_BYTES
    return lambda size_bytes: max(0, size_bytes - slack) * per_byte_s


def _busiest_link_s(forest: Forest, calibration: Calibration, gb_per_s: Mapping[tuple[int, int], float]) -> float:
    """Of each byte of S."""
    links = forest.topology.link

    def rate(arc: tuple[int, int]) -> float:
        return gb_per_s[arc] * 1e9 if arc in gb_per_s else link_cost(calibration, links[arc]).rate

    return max((float(use) / rate(arc) for arc, use in link_use(forest.shares).items()), default=0.0)
