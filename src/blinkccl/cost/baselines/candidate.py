"""A candidate: a plan or formula that is prepared once for a job (planned, verified) and then timed for any sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Protocol

from blinkccl.cost.simulate import calibration as calibrations
from blinkccl.cost.simulate.calibration import Calibration
from blinkccl.cost.simulate.chunk_search import near_best, search
from blinkccl.cost.simulate.run import Simulation, simulate_frame
from blinkccl.cost.simulate.translate import Frame, Settings, frame
from blinkccl.schedule.chunking import ALIGNMENT_BYTES
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.trees.algorithms.path_table import PathTable
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s, bus_factor

#: Ways to select a chunk where the caller gives none.
CHUNK_CHOICES = ("near", "miad")


@dataclass(frozen=True)
class Conditions:
    """The conditions of timing; without ``chunk_bytes``, ``chunk_choice`` selects the chunk of a plan for each size.

    ``calibration`` times the algorithms, and baselines without a calibration of their own; the others look theirs up by
    ``named``. ``paths`` is the table of splits for ``multi_path``. Without a table, or for a pair that it lacks, the
    simulator selects the split, over paths that cross at most ``most_memories`` (None: any number).
    """

    calibration: Calibration
    settings: Settings = field(default_factory=Settings)
    chunk_bytes: int | None = None
    chunk_choice: str = "near"
    named: Callable[[str], Calibration] = calibrations.calibration
    paths: PathTable | None = None
    most_memories: int | None = None


@dataclass(frozen=True)
class Estimate:
    """One candidate's time for one size; ``detail`` explains it. A formula has no ``simulation`` and no chunks.

    ``protocol`` is the protocol of the library's kernels, "" where none run. ``simulation`` covers links and hops;
    ``seconds`` is longer where another cost limits the call.
    """

    name: str
    size_bytes: int
    seconds: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    detail: str
    chunk_bytes: int = 0
    simulation: Simulation | None = field(default=None, repr=False)
    protocol: str = ""


class Prepared(Protocol):
    """A candidate that is ready for a job."""

    @property
    def name(self) -> str: ...

    @property
    def forest(self) -> Forest | None:
        """The plan; None for a formula."""
        ...

    def at(self, size_bytes: int) -> Estimate:
        """The estimate for S bytes."""
        ...


@dataclass(frozen=True)
class TimedPlan:
    """A plan, timed by the kernel."""

    name: str
    forest: Forest
    program: Program
    conditions: Conditions
    detail: str

    @cached_property
    def frame(self) -> Frame:
        """The program on its calibration."""
        conditions = self.conditions
        return frame(self.program, self.forest.topology, conditions.calibration, conditions.settings)

    def simulate(self, size_bytes: int, traced: bool = False) -> Simulation:
        """The kernel's answer for S bytes; raises as :func:`~blinkccl.cost.simulate.run.simulate`."""
        simulation = self._run(size_bytes)
        return simulation.traced() if traced else simulation

    def _run(self, size_bytes: int) -> Simulation:
        """A run with the chunk of the conditions."""
        conditions = self.conditions
        if conditions.chunk_bytes is not None:
            return simulate_frame(self.frame, size_bytes, conditions.chunk_bytes)
        if conditions.chunk_choice == "near":
            return near_best(self.frame, size_bytes)
        job = self.program, self.forest.topology, conditions.calibration, size_bytes
        searched = search(*job, settings=conditions.settings)[-1]
        return simulate_frame(self.frame, size_bytes, searched.chunk_bytes)

    def at(self, size_bytes: int) -> Estimate:
        """The plan's estimate for S bytes; raises as :meth:`simulate`."""
        simulation = self.simulate(size_bytes)
        together = f", {simulation.aggregated} chunks timed as one" if simulation.aggregated > 1 else ""
        return Estimate(
            self.name,
            size_bytes,
            simulation.seconds,
            simulation.algbw_gb_per_s,
            simulation.busbw_gb_per_s,
            self.detail + together,
            simulation.chunk_bytes,
            simulation,
        )


@dataclass(frozen=True)
class ChunkedPlan(TimedPlan):
    """A plan with ``chunks`` chunks in its longest slice at all sizes, and ``window`` messages in flight, as in OMB."""

    chunks: int = 1
    window: int = 1

    def _run(self, size_bytes: int) -> Simulation:
        """All messages of the window together."""
        longest = max((part.stop - part.start for part in self.program.slices), default=Fraction(1))
        # Slices begin at multiples of the alignment, so the last slice may be longer by one alignment.
        chunk_bytes = ceil(longest * size_bytes / self.chunks / ALIGNMENT_BYTES + 1) * ALIGNMENT_BYTES
        return simulate_frame(self.frame, size_bytes * self.window, chunk_bytes)

    def at(self, size_bytes: int) -> Estimate:
        """The estimate of one message of the window."""
        estimate = super().at(size_bytes)
        return replace(estimate, seconds=estimate.seconds / self.window)


def modelled(name: str, request: Request, size_bytes: int, seconds: float, detail: str) -> Estimate:
    """The estimate of a candidate that is a formula."""
    algbw = algbw_gb_per_s(size_bytes, seconds) if seconds > 0 else 0.0
    factor = float(bus_factor(request.collective.name, request.collective.world_size))
    return Estimate(name, size_bytes, seconds, algbw, algbw * factor, detail)


@dataclass(frozen=True)
class Formula:
    """A candidate that is a formula: the seconds for S bytes, and a text that explains them."""

    name: str
    request: Request
    seconds: Callable[[int], tuple[float, str]]
    forest: None = None

    def at(self, size_bytes: int) -> Estimate:
        return modelled(self.name, self.request, size_bytes, *self.seconds(size_bytes))


def planned(name: str, forest: Forest, conditions: Conditions) -> TimedPlan:
    """A forest as a candidate."""
    program = lower(forest)
    verify(program, forest.topology)
    trees = len(forest.shares)
    detail = f"{trees} share{'' if trees == 1 else 's'}, depth {max((r.offset for r in program.roles), default=0)}"
    return TimedPlan(name, forest, program, conditions, detail)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A registry row."""

    about: str
    source: str
    prepare: Callable[[Request, Conditions], Prepared]
