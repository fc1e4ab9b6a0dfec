"""Who is timed: every algorithm of the registry on one calibration, and the baselines, each named.

A contender is prepared once for a job (planned, verified) and then asked for as many sizes as wanted. To add
one is to add a row: algorithms come from their own registry, baselines from :mod:`~blinkccl.simulate.baselines`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from blinkccl.algorithms.bounds import certificate_for
from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.forest.model import Forest, split_shares
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.simulate import calibration as calibrations
from blinkccl.simulate.calibration import Calibration
from blinkccl.simulate.chunk_search import best_chunk, search
from blinkccl.simulate.models import network
from blinkccl.simulate.run import EVENT_BUDGET, Simulation, simulate
from blinkccl.simulate.training import Step, step_time
from blinkccl.simulate.translate import Settings
from blinkccl.topology.assembly import exact_unit
from blinkccl.units import algbw_gb_per_s, bus_factor

#: How a chunk is chosen where none is given.
CHUNK_CHOICES = ("model", "best", "miad")


@dataclass(frozen=True)
class Conditions:
    """How a job is timed.

    Parameters
    ----------
    calibration
        For the algorithms, and for baselines that bring none of their own for the machine.
    chunk_bytes
        Size of a chunk; None: as ``chunk_choice`` says, for each plan and size.
    chunk_choice
        One of :data:`CHUNK_CHOICES`: the pipeline model's closed form, the fastest that simulations find, or what
        Blink's search (MIAD) ends with.
    channels
        Channels for each tree of an algorithm, each with streams of its own.
    even_chunks, budget, coarser
        As in :func:`~blinkccl.simulate.run.simulate`.
    named
        Where baselines find their calibrations by name.
    """

    calibration: Calibration
    settings: Settings = field(default_factory=Settings)
    chunk_bytes: int | None = None
    chunk_choice: str = "model"
    channels: int = 1
    even_chunks: bool = True
    budget: int = EVENT_BUDGET
    coarser: bool = False
    named: Callable[[str], Calibration] = calibrations.calibration


@dataclass(frozen=True)
class Estimate:
    """What one contender takes for one size.

    ``detail`` says how, for people. ``simulation`` is None where a model gave the time. ``chunk_bytes`` is 0 there.
    """

    name: str
    size_bytes: int
    seconds: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    detail: str
    chunk_bytes: int = 0
    simulation: Simulation | None = None


class Prepared(Protocol):
    """A contender that is ready for a job."""

    @property
    def name(self) -> str: ...

    @property
    def forest(self) -> Forest | None:
        """Its plan; None where it is a model without one."""
        ...

    def at(self, size_bytes: int) -> Estimate:
        """What it takes for S bytes."""
        ...


@dataclass(frozen=True)
class Planned:
    """A plan, timed by the kernel."""

    name: str
    forest: Forest
    program: Program
    conditions: Conditions
    detail: str

    def simulate(self, size_bytes: int, traced: bool = False) -> Simulation:
        """The kernel's answer for S bytes; raises as :func:`~blinkccl.simulate.run.simulate`."""
        conditions = self.conditions
        return simulate(
            self.program,
            self.forest.topology,
            conditions.calibration,
            size_bytes,
            chunk_bytes=self._chunk_bytes(size_bytes),
            even_chunks=conditions.even_chunks,
            settings=conditions.settings,
            traced=traced,
            budget=conditions.budget,
            coarser=conditions.coarser,
        )

    def _chunk_bytes(self, size_bytes: int) -> int | None:
        """The chunk for this size; None leaves it to the pipeline model."""
        conditions = self.conditions
        if conditions.chunk_bytes is not None or conditions.chunk_choice == "model":
            return conditions.chunk_bytes
        job = self.program, self.forest.topology, conditions.calibration, size_bytes
        settings, even = conditions.settings, conditions.even_chunks
        if conditions.chunk_choice == "best":
            return best_chunk(*job, settings=settings, even_chunks=even)
        trials = search(*job, settings=settings, even_chunks=even, budget=conditions.budget, coarser=conditions.coarser)
        return trials[-1].chunk_bytes

    def at(self, size_bytes: int) -> Estimate:
        """What the plan takes for S bytes; raises as :meth:`simulate`."""
        simulation = self.simulate(size_bytes)
        return Estimate(
            self.name,
            size_bytes,
            simulation.seconds,
            simulation.algbw_gb_per_s,
            simulation.busbw_gb_per_s,
            self.detail,
            simulation.chunk_bytes,
            simulation,
        )


def modelled(name: str, request: Request, size_bytes: int, seconds: float, detail: str) -> Estimate:
    """The estimate of a contender that is a formula."""
    algbw = algbw_gb_per_s(size_bytes, seconds) if seconds > 0 else 0.0
    factor = float(bus_factor(request.collective.name, request.collective.world_size))
    return Estimate(name, size_bytes, seconds, algbw, algbw * factor, detail)


def planned(name: str, forest: Forest, conditions: Conditions) -> Planned:
    """A forest as a contender.

    Raises
    ------
    VerificationError
        If its program is invalid: it is wrong, incomplete, overloaded or deadlocks.
    """
    program = lower(split_shares(forest, conditions.channels))
    verify(program, forest.topology)
    trees = len(forest.shares) * conditions.channels
    detail = f"{trees} share{'' if trees == 1 else 's'}, depth {max((r.offset for r in program.roles), default=0)}"
    return Planned(name, forest, program, conditions, detail)


@dataclass(frozen=True, slots=True)
class Contender:
    """A registry row."""

    about: str
    source: str
    prepare: Callable[[Request, Conditions], Prepared]


def contenders() -> dict[str, Contender]:
    """All there are, algorithms first."""
    from blinkccl.simulate import baselines, hybrid_job

    found = {name: Contender(row.about, row.source, _of_algorithm(name)) for name, row in ALGORITHMS.items()}
    # How much goes over PCIe depends on the size, which the algorithm's forest does not know.
    split = {"hybrid": replace(found["hybrid"], prepare=hybrid_job.prepare)}
    return found | split | baselines.BASELINES


def _of_algorithm(name: str) -> Callable[[Request, Conditions], Prepared]:
    def prepare(request: Request, conditions: Conditions) -> Prepared:
        return planned(name, ALGORITHMS[name].plan(request), conditions)

    return prepare


@dataclass(frozen=True)
class Field:
    """The contenders of one job that could be prepared, and why the others could not.

    ``named``: somebody asked for just these. ``of_plan``: it is a plan from a file, whose links are all that is known.
    """

    request: Request
    prepared: tuple[Prepared, ...]
    absent: dict[str, str]
    named: bool = False
    of_plan: bool = False

    @cached_property
    def bound_gb_per_s(self) -> float:
        """The proved bound on algbw at nominal rates of the links asked for; plans that add other links may pass it."""
        stated = "optimal" if not self.of_plan else self.prepared[0].name
        optimal = next((one.forest for one in self.prepared if one.name == stated), None)
        if optimal is not None:
            return float(optimal.certificate.bound * exact_unit(optimal.topology))
        request = self.request
        proof = certificate_for(request.collective, request.ranks, request.network)
        return float(proof.bound * exact_unit(request.network))


def enter(
    request: Request,
    conditions: Conditions,
    names: Sequence[str] = (),
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Field:
    """Prepares contenders for a job.

    Parameters
    ----------
    names
        Which; empty for all. One that is named and cannot serve the job is an error, otherwise it is left out.
    tick
        Called with (done, total) after each.

    Raises
    ------
    UsageError
        If a name is unknown, or no contender can serve the job.
    UnsupportedError
        If a named one cannot serve it.
    """
    known = contenders()
    for name in names:
        if name not in known and name != "auto":
            raise UsageError(f"unknown algorithm {name!r}; expected one of auto, {', '.join(known)}")
    wanted = list(dict.fromkeys("optimal" if name == "auto" else name for name in names)) or list(known)
    ready: list[Prepared] = []
    absent: dict[str, str] = {}
    for done, name in enumerate(wanted):
        try:
            ready.append(known[name].prepare(request, conditions))
        except UnsupportedError as error:
            if names:
                raise
            absent[name] = str(error)
        tick(done + 1, len(wanted))
    if not ready:
        raise UsageError(f"nothing can serve this job: {next(iter(absent.values()))}")
    return Field(request, tuple(ready), absent, named=bool(names))


def training_steps(field: Field, model: str, gpu: str, overlap: bool = True) -> dict[str, Step]:
    """A data-parallel training step of ``model`` with each contender's AllReduce.

    Parameters
    ----------
    model, gpu, overlap
        As of :func:`~blinkccl.simulate.training.step_time`; names of networks and GPUs whose throughput was published.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, or nothing is known of the model on that GPU.
    """
    name, size = field.request.collective.name, len(field.request.ranks)
    if name != "allreduce":
        raise UnsupportedError(f"a data-parallel step reduces gradients by allreduce, not by {name}")
    chosen = network(model)

    def seconds(one: Prepared) -> Callable[[int], float]:
        return lambda size_bytes: one.at(size_bytes).seconds

    return {one.name: step_time(chosen, gpu, size, seconds(one), overlap=overlap) for one in field.prepared}


def time_all(
    field: Field, sizes: Sequence[int], tick: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Field, list[list[Estimate]]]:
    """Every contender's estimates, a row per size, and the field of those that have them.

    A contender that cannot be timed (its links have no class in the calibration) is left out with the reason, if others
    can and nobody named it.

    Raises
    ------
    TopologyError, UnsupportedError
        What a named contender raises, or the first where none can be timed.
    UsageError
        As :func:`~blinkccl.simulate.run.simulate`: above all, more tasks than the budget.
    """
    columns: list[list[Estimate]] = []
    able: list[Prepared] = []
    absent, first = dict(field.absent), None
    for done, one in enumerate(field.prepared):
        try:
            columns.append([one.at(size) for size in sizes])
            able.append(one)
        except (TopologyError, UnsupportedError) as error:
            if field.named:
                raise
            first = first or error
            absent[one.name] = str(error)
        tick(done + 1, len(field.prepared))
    if first is not None and not able:
        raise first
    rows = [list(row) for row in zip(*columns, strict=True)]
    return replace(field, prepared=tuple(able), absent=absent), rows


@dataclass(frozen=True, slots=True)
class Win:
    """``name`` is the fastest from ``first_bytes`` to ``last_bytes`` of the sizes that were timed."""

    name: str
    first_bytes: int
    last_bytes: int


def moves_nothing(row: Sequence[Estimate]) -> bool:
    """Whether all plans of a size have blocks without elements: there is nothing to win."""
    plans = [estimate.simulation for estimate in row if estimate.simulation is not None]
    return bool(plans) and all(plan.translation.bound.count == 0 for plan in plans)


def wins(rows: Sequence[Sequence[Estimate]]) -> list[Win]:
    """Who wins from which size: one entry per run of sizes; ``rows`` by size, ascending. Ties go to the first.

    Sizes at which plans move nothing have no winner.
    """
    found: list[Win] = []
    for row in rows:
        if moves_nothing(row):
            continue
        best = min(row, key=lambda estimate: estimate.seconds)
        if found and found[-1].name == best.name:
            found[-1] = Win(best.name, found[-1].first_bytes, best.size_bytes)
        else:
            found.append(Win(best.name, best.size_bytes, best.size_bytes))
    return found
