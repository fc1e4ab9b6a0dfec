"""What a call of S bytes will run here, and why: libblink.so's table, the fastest of all, NCCL, and the bound.

libblink.so chooses among the few programs that it plans when a communicator is made; of those its table has rows, the
same that are asked for here. ``auto`` with a size looks at every algorithm, so it may know of a faster one.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.choice.auto import Auto, Choice, prepare
from blinkccl.cost.choice.candidates import Code, code_of
from blinkccl.cost.choice.programs import gpu_of, kernels_fault
from blinkccl.cost.simulate.timeline import Summary, summarise
from blinkccl.errors import BlinkError
from blinkccl.nccl.choices import ChoiceRow, Terms, rows_of
from blinkccl.nccl.nccl_predictor import NcclPrediction, NcclPredictor
from blinkccl.nccl.programs import DEFAULT, CandidatePrograms, candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.show.nccl_today import nccl_today
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.tables import GPUS, NCCL, Cell, MeasuredTable


@dataclass(frozen=True)
class Explanation:
    """All that was found; in the place of what there is not, a sentence without full stop says why.

    ``library`` is the row of libblink.so's table that serves the size, ``choice`` the fastest of all algorithms and the
    runner-up, ``summary`` what the fastest spends its time on, None where nothing moves, or what moves was measured and
    not simulated. ``measured`` is what was gone by, wherever it has the size.
    """

    request: Request
    size_bytes: int
    conditions: Conditions
    code: Code
    auto: Auto
    choice: Choice
    library: ChoiceRow | str
    nccl: NcclPrediction | str
    summary: Summary | None
    measured: MeasuredTable | None = None


def explain(
    request: Request, size_bytes: int, conditions: Conditions, measured: MeasuredTable | None = None
) -> Explanation:
    """Plans and times the job; UnsupportedError where no algorithm serves it.

    Cost: two to four seconds on 8 GPUs of a DGX-1V without what ``blink`` takes to plan, of which libblink.so's
    programs for all collectives are most: those for all of them decide what fits into its memory.
    """
    code = code_of(request)
    auto = prepare(request, conditions, code, () if measured is None else measured.of(request.ranks))
    choice = auto.choose(size_bytes, places=2)
    run = choice.best.estimate.simulation
    summary = summarise(run.traced()) if run is not None and run.seconds and choice.measured is None else None
    nccl = _predictor(request)
    library = _library(request, size_bytes, nccl, measured)
    theirs = _prediction(request, size_bytes, choice.measured, nccl)
    return Explanation(request, size_bytes, conditions, code, auto, choice, library, theirs, summary, measured)


def _predictor(request: Request) -> NcclPredictor | str:
    """What NCCL is asked of, or why nothing is known of it."""
    fault = kernels_fault(request)
    if fault is not None:
        return fault
    return NcclPredictor(JobPlacement(request.topology, request.ranks), gpu_of(request.topology).capability)


def _prediction(
    request: Request, size_bytes: int, cell: Cell | None, nccl: NcclPredictor | str
) -> NcclPrediction | str:
    """What NCCL takes; what it took at a cell's size, taken from there to the asked one as ours is."""
    time = None if cell is None else cell.best(NCCL)
    if cell is None or time is None or isinstance(nccl, str) or nccl.caveat:
        return nccl_today(request, size_bytes)
    now, at_cell = (nccl.at(request.collective, size).seconds for size in (size_bytes, cell.size_bytes))
    if not now or not at_cell:
        return nccl_today(request, size_bytes)
    return NcclPrediction(now * time.seconds / at_cell, "NCCL, measured")


def _library(
    request: Request, size_bytes: int, nccl: NcclPredictor | str, measured: MeasuredTable | None
) -> ChoiceRow | str:
    if isinstance(nccl, str):
        return nccl
    try:
        planned = _planned(request)
    except BlinkError as error:
        return str(error)
    gpu = gpu_of(request.topology)
    # libblink.so itself goes by what GPUs took.
    cells = measured.of(request.ranks) if measured is not None and measured.kind == GPUS else ()
    rows = rows_of(request.collective, planned, Terms(gpu.capability, gpu.blocks, measured=cells), nccl)
    return next(row for row in rows if row.least <= size_bytes < row.below)


def _planned(request: Request) -> CandidatePrograms:
    place = JobPlacement(request.topology, request.ranks)
    return candidates(place, DEFAULT, gpu_of(request.topology).blocks, {})
