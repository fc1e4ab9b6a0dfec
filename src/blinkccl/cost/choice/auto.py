"""``auto``: the fastest of all algorithms for a job and a size, in the code that runs them.

Every algorithm that serves the job is planned once. ``optimal`` is also planned for the full rate that its default
lacks, and with fewer trees if these are shallower (:func:`beside`). For a size the plans are simulated by ascending
floor, until no remaining plan can be faster. The floor is the time of the fullest link for its bytes, at the highest
rate that any protocol leaves of that link. Large sizes therefore cost few simulations, small sizes one of each plan.

Measured times (:mod:`blinkccl.trees.algorithms.tables`) replace the simulations for a size class that has them. A
measured time is scaled from the cell's size to the given size in proportion to the predictions for both.

Of equal times the plan with fewer shares wins, then the shallower one, then the first by name.
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
#: The algorithm with other trees for a job beside its default trees.
OPTIMAL = "optimal"
#: Maximum numbers of trees per block to try, since fewer trees may be shallower.
FEW_TREES = (4, 2, 1)
#: Maximum trees of all blocks in one search, since more take minutes.
MOST_IN_ALL = 1024
#: Relative difference below which times are equal, because a simulation adds floats.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Timed:
    """A candidate with its estimate."""

    plan: Prepared
    estimate: Estimate

    @property
    def forest(self) -> Forest:
        assert self.plan.forest is not None, "every algorithm has a plan"
        return self.plan.forest

    @property
    def size_of_plan(self) -> tuple[int, int]:
        """The key that decides between equal times: shares, then depth."""
        return len(self.forest.shares), self.forest.depth


@dataclass(frozen=True)
class Choice:
    """The simulated candidates, best first, and the lower bounds of the others, which cannot be faster.

    With ``measured``, a cell of a table, only its candidates are compared, at times derived from it.
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
        """The relative extra time of the runner-up; 0 if no data moves or no second candidate exists."""
        second, first_s = self.runner_up, self.best.estimate.seconds
        return second.estimate.seconds / first_s - 1 if second is not None and first_s else 0.0


@dataclass(frozen=True)
class Auto:
    """A candidate that selects another for each size; ``absent`` has reasons, ``measured`` the job's cells."""

    plans: tuple[Prepared, ...]
    absent: dict[str, str] = field(default_factory=dict)
    name: str = NAME
    measured: tuple[Cell, ...] = ()

    @property
    def forest(self) -> Forest:
        """The plan with the highest rate, the usual choice for large sizes."""
        forests = [one.forest for one in self.plans if one.forest is not None]
        return max(forests, key=lambda forest: forest.algbw_gb_per_s)

    @cached_property
    def _floors(self) -> dict[str, Callable[[int], float]]:
        return {one.name: floor_of(one) for one in self.plans}

    def choose(self, size_bytes: int, places: int = 1) -> Choice:
        """The exact ``places`` fastest for S bytes, with other candidates that might have been among them."""
        cell = cell_at(self.measured, self.forest.collective, size_bytes) if self.measured else None
        if cell is not None:
            known = [timed for one in self.plans if (timed := _measured(one, cell, size_bytes)) is not None]
            if known:
                return Choice(tuple(self._ranked(known)), {}, cell)
        floors_s = {one.name: self._floors[one.name](size_bytes) for one in self.plans}
        simulated: list[Timed] = []
        first: BlinkError | None = None
        for one in sorted(self.plans, key=lambda one: floors_s[one.name]):
            seconds = sorted(each.estimate.seconds for each in simulated)
            if len(seconds) >= places and floors_s[one.name] > seconds[places - 1]:
                break
            try:
                simulated.append(Timed(one, one.at(size_bytes)))
            except (TopologyError, UnsupportedError) as error:
                first = first or error
            del floors_s[one.name]
        if not simulated:
            assert first is not None
            raise first
        return Choice(tuple(self._ranked(simulated)), floors_s)

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
        """The estimate of the fastest candidate."""
        best = self.choose(size_bytes).best
        return replace(best.estimate, name=self.name, detail=f"{best.plan.name}: {best.estimate.detail}")


def _measured(plan: Prepared, cell: Cell, size_bytes: int) -> Timed | None:
    """A plan with its measured time; None without a measurement."""
    time = cell.best(plan.name)
    if time is None:
        return None
    predicted = plan.at(size_bytes)
    at_cell = predicted if size_bytes == cell.size_bytes else plan.at(cell.size_bytes)
    ratio = time.seconds / at_cell.seconds if at_cell.seconds else 1.0
    at = "" if at_cell is predicted else f" at {size_text(cell.size_bytes)}"
    # A laboratory has links and no kernels, so its time is not compared with the prediction for kernels.
    how = f"chunks of {size_text(time.chunk_bytes)}" if time.chunk_bytes else f"{ratio:.3g} times the prediction"
    detail = f"measured{at}, {time.protocol}; {how}"
    algbw, busbw = (rate / ratio for rate in (predicted.algbw_gb_per_s, predicted.busbw_gb_per_s))
    seconds = predicted.seconds * ratio
    return Timed(plan, replace(predicted, seconds=seconds, detail=detail, algbw_gb_per_s=algbw, busbw_gb_per_s=busbw))


def prepare(request: Request, conditions: Conditions, code: Code, measured: tuple[Cell, ...] = ()) -> Auto:
    """Plan all algorithms that serve the job; UnsupportedError if no algorithm does."""
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
    """Candidates beside the default of ``optimal``: the full rate for large sizes, fewer trees for small sizes.

    A hop costs as much as thousands of bytes and a tree costs nothing, so fewer trees win only if they are shallower.
    """
    job = request if code.gpu is None else on_stores(request)
    for option, variant in (*_whole_rate(job, default), *fewer_trees(job, default)):
        try:
            forest = plan(variant)
            if forest.rate > default.rate or forest.depth < default.depth:
                yield of_forest(replace(forest, algorithm=f"{OPTIMAL} {option}"), code, conditions)
        except UnsupportedError:
            continue


def fewer_trees(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    """The options of ``blink plan`` for fewer trees than the default, with their requests."""
    if request.collective.name not in FLOWS:
        blocks = len({share.block for share in default.shares})
        for most in FEW_TREES:
            if most < default.trees_per_block and most * blocks <= MOST_IN_ALL:
                yield f"--max-trees {most}", replace(request, max_trees=most)


def _whole_rate(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    """The option for the full rate if the default lacks it and the search takes seconds.

    Column generation over all trees takes seconds, not hours, for few ranks or for symmetric ranks.
    """
    if default.optimal or request.collective.name in FLOWS:
        return
    network = rank_network_of(request.network, request.ranks).network
    if network.terminals <= SEARCHED or len(symmetry_of(network).moves) > 1:
        yield "--objective exact", replace(request, objective="exact")


def as_candidate(code: Code) -> Baseline:
    """The registry row."""
    return Baseline(
        "the fastest algorithm for each size",
        "simulation of all algorithms",
        lambda request, conditions: prepare(request, conditions, code),
    )


def floor_of(plan: Prepared) -> Callable[[int], float]:
    """A lower bound in seconds on a plan's time for S bytes, by its fullest link; 0 if only a simulation gives one."""
    if isinstance(plan, KernelPlan):
        # Simple leaves the most of a link's rate, and hops are not part of the bound.
        simple = calibration_of("simple", fast=True, arch=plan.gpu.arch)
        return floor_of_links(plan.forest, simple, pcie_gb_per_s(plan.candidate, "simple", plan.gpu.capability))
    if type(plan) is TimedPlan and plan.conditions.calibration.serves(plan.forest.topology):
        return floor_of_links(plan.forest, plan.conditions.calibration)
    return lambda size_bytes: 0.0


def floor_of_links(
    forest: Forest, calibration: Calibration, gb_per_s: Mapping[tuple[int, int], float] = MappingProxyType({})
) -> Callable[[int], float]:
    """A lower bound in seconds on the fullest link's time for its bytes of S; ``gb_per_s`` overrides rates of links."""
    per_byte_s = _busiest_link_s(forest, calibration, gb_per_s)
    # A slice begins at a multiple of the alignment, so each may be shorter by one alignment.
    slack = sum(len(list(share.trees())) for share in forest.shares) * ALIGNMENT_BYTES
    return lambda size_bytes: max(0, size_bytes - slack) * per_byte_s


def _busiest_link_s(forest: Forest, calibration: Calibration, gb_per_s: Mapping[tuple[int, int], float]) -> float:
    """Seconds of the fullest link per byte of S."""
    links = forest.topology.link

    def rate(arc: tuple[int, int]) -> float:
        return gb_per_s[arc] * 1e9 if arc in gb_per_s else link_cost(calibration, links[arc]).rate

    return max((float(use) / rate(arc) for arc, use in link_use(forest.shares).items()), default=0.0)
