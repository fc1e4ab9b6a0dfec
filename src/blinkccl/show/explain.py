"""What runs a call of S bytes here, and why: the choice of all algorithms, libblink.so's table, NCCL, and the bound.

libblink.so chooses among the few programs that it plans when a communicator is made; of those its table has rows, the
same that are asked for here. ``auto`` with a size looks at every algorithm, so it may know of a faster one. Between
processes of one host it is the row of the host's table that serves the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.baselines.nccl import nccl_today
from blinkccl.cost.baselines.nccl_server import NcclPrediction
from blinkccl.cost.choice.auto import Auto, Choice, Timed, prepare
from blinkccl.cost.choice.candidates import Code, code_of
from blinkccl.cost.choice.costs import NCCL_NAMES
from blinkccl.cost.choice.programs import gpu_of, kernels_fault
from blinkccl.cost.simulate.timeline import Summary, summarise
from blinkccl.errors import BlinkError, UsageError
from blinkccl.nccl.choices import BEYOND, PREDICTED_MARGIN, ChoiceRow, Terms, rows_of
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import DEFAULT, CandidatePrograms, candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.runtime.host_table import Crossing, label, machine, path_of_host, table_for
from blinkccl.show.beside import choice_document, in_switch, in_switch_sentence
from blinkccl.show.plan_text import certificate_lines
from blinkccl.show.sim_text import decided_document, not_here_text, summary_text
from blinkccl.show.text import gb_per_s_text, ids, rate_text, seconds_text
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.tables import BUILT_IN, GPUS, NCCL, Cell, MeasuredTable, Way, cell_at, read
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s, size_text


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


# As people read it, and as JSON.
def explain_text(found: Explanation, why: bool = False) -> str:
    """Who runs it, who is the fastest, what NCCL would do, what the bound is, and what decides.

    ``why``: also why the others serve no such job.
    """
    request, best = found.request, found.choice.best
    size = f"{size_text(found.size_bytes)} ({found.size_bytes:,} bytes)"
    head = f"{request.collective.name} of {size} among GPUs {ids(request.ranks)} of {request.topology.name}"
    network = found.auto.forest.topology
    of_bound = best.estimate.algbw_gb_per_s / (float(found.auto.forest.bound) * network.unit_gb_per_s)
    lines = [
        head,
        found.code.about(found.conditions),
        "",
        f"here    {_library_text(found.library)}",
        *_fastest_lines(found.choice),
        *_measured_lines(found),
        f"nccl    {_nccl_text(found.nccl, found)}",
        f"bound   {rate_text(found.auto.forest.bound, network)} at any size, {of_bound:.0%} of it at this one",
        *certificate_lines(found.auto.forest),
    ]
    combined = in_switch(request, found.auto.forest)
    if combined is not None:
        lines.append(in_switch_sentence(combined, found.auto.forest))
    text = "\n".join(lines) + "\n"
    if found.summary is not None:
        text += summary_text(best.plan.name, found.summary, best.estimate.seconds)
    if found.auto.absent:
        text += f"\n{not_here_text(found.auto.absent, why, '--why')}"
    return text


def _library_text(row: ChoiceRow | str) -> str:
    """What libblink.so does."""
    if isinstance(row, str):
        return f"libblink.so has no say: {row}"
    if row.candidate is None:
        known = "predicted" if row.margin == PREDICTED_MARGIN else "measured"
        return (
            f"libblink.so leaves it to NCCL {_span(row)}: "
            f"nothing that it plans is {known} {row.margin:g} times as fast ({row.why})"
        )
    protocol = NCCL_NAMES.get(row.protocol, row.protocol)
    return f"libblink.so runs {row.candidate.algorithm} by {protocol} {_span(row)} ({row.why})"


def _span(row: ChoiceRow) -> str:
    if row.least == 0 and row.below == BEYOND:
        return "at every size"
    if row.below == BEYOND:
        return f"from {size_text(row.least)} on"
    return f"from {size_text(row.least)} to below {size_text(row.below)}"


def _fastest_lines(choice: Choice) -> list[str]:
    second, left = choice.runner_up, choice.floors_s
    lines = [f"fastest {_timed(choice.best)}"]
    if second is None:
        return [*lines, "next    none: nothing else serves the job"]
    lead = f"{choice.lead:.1%} longer" if choice.lead >= 0.0005 else "as long"
    lines.append(f"next    {_timed(second)}: {lead}")
    slower = [one.plan.name for one in choice.timed[2:]]
    if slower:
        lines.append(f"slower  {', '.join(slower)}")
    if left:
        least = f"{seconds_text(min(left.values()))} or longer by their fullest links alone"
        lines.append(f"        {', '.join(left)}: {least}, so not simulated")
    return lines


def _measured_lines(found: Explanation) -> list[str]:
    """By whom, where any of this was measured."""
    table, cell = found.measured, found.choice.measured
    if table is None or cell is None:
        return []
    return [f"by      {table.by}: measured at {size_text(cell.size_bytes)} on {cell.measured}"]


def _timed(one: Timed) -> str:
    found = one.estimate
    return f"{one.plan.name}: {seconds_text(found.seconds)}, {gb_per_s_text(found.algbw_gb_per_s)} ({found.detail})"


def _nccl_text(nccl: NcclPrediction | str, found: Explanation) -> str:
    if isinstance(nccl, str):
        return f"no model: {nccl}"
    best_s = found.choice.best.estimate.seconds
    speed = gb_per_s_text(algbw_gb_per_s(found.size_bytes, nccl.seconds)) if nccl.seconds else "nothing moves"
    # What was measured and what is predicted are not held against each other.
    alike = found.choice.measured is None or found.choice.measured.best(NCCL) is not None
    against = f", {nccl.seconds / best_s:.2f} times as long as the fastest" if best_s and alike else ""
    return f"{nccl.words}: {seconds_text(nccl.seconds)}, {speed}{against}"


def explain_document(found: Explanation) -> dict[str, Any]:
    """The object of ``blink explain --json``."""
    request, forest = found.request, found.auto.forest
    best = found.choice.best.estimate
    return {
        "collective": request.collective.name,
        "topology": request.topology.name,
        "ranks": list(request.ranks),
        "size_bytes": found.size_bytes,
        "code": found.code.name,
        "libblink": _row_document(found.library),
        "choice": choice_document(found.choice),
        "measured_by": found.measured.by if found.measured is not None and found.choice.measured is not None else None,
        "absent": dict(found.auto.absent),
        "nccl": {"why_not": found.nccl}
        if isinstance(found.nccl, str)
        else {"how": found.nccl.words, "seconds": found.nccl.seconds},
        "bound_gb_per_s": float(forest.bound) * forest.topology.unit_gb_per_s,
        "in_switch_gb_per_s": combined.algbw_gb_per_s
        if isinstance(combined := in_switch(request, forest), Forest)
        else None,
        "decided_by": None if found.summary is None else decided_document(best, found.summary),
    }


def _row_document(row: ChoiceRow | str) -> dict[str, Any]:
    if isinstance(row, str):
        return {"why_not": row}
    return {
        "taken": row.candidate is not None,
        "algorithm": row.candidate.algorithm if row.candidate is not None else None,
        "protocol": row.protocol if row.candidate is not None else None,
        "measured": row.measured,
        "least_bytes": row.least,
        "most_bytes": row.below - 1,
        "why": row.why,
    }


# Between processes of one host.
@dataclass(frozen=True)
class HostExplanation:
    """``ways``: what serves the call, and its variants; ``cell``: what was measured there, None nothing."""

    collective: Collective
    size_bytes: int
    source: str
    ways: Sequence[Way]
    cell: Cell | None

    def text(self) -> str:
        """For people."""
        ranks = self.collective.world_size
        first, *variants = self.ways
        here = label(first)
        if variants:
            here += f", or {', or '.join(label(row) for row in variants)}: the group measures which while it works"
        lines = [
            f"{self.collective.name} of {size_text(self.size_bytes)} ({self.size_bytes:,} bytes) among {ranks} ranks "
            "of this host, on its CPUs",
            "",
            f"here    {here}",
            f"why     {self._why()}",
        ]
        return "\n".join(lines) + "\n"

    def _why(self) -> str:
        cell = self.cell
        if cell is None:
            return f"built in; blink tune -g {self.collective.world_size} measures what is the fastest on this machine"
        took = f"blink tune measured {cell.tried} candidates at {size_text(cell.size_bytes)} on {cell.measured}"
        now, base = cell.times[0], cell.times[-1]
        if now.algorithm == BUILT_IN or not cell.confirmed:
            return f"{took}, and none was clearly faster than what is built in ({seconds_text(base.seconds)})"
        gain = f"{seconds_text(now.seconds)}, and {seconds_text(base.seconds)} as it is built in"
        return f"{took}: {gain} ({self.source})"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "collective": self.collective.name,
            "ranks": self.collective.world_size,
            "size_bytes": self.size_bytes,
            "table": self.source or None,
            "rows": msgspec.to_builtins(self.ways),
            "measured": msgspec.to_builtins(self.cell),
        }


def explain_host(collective: Collective, size_bytes: int) -> HostExplanation:
    """By the table that a group would read now."""
    ranks = collective.world_size
    table, path, cell = table_for(ranks), path_of_host(ranks), None
    if table.source and path is not None:
        with suppress(OSError, UsageError):
            cell = cell_at(read(path, machine()).of(range(ranks)), collective, size_bytes)
    ways = table.choose(collective.name, size_bytes, Crossing.MEASURED)
    return HostExplanation(collective, size_bytes, table.source, ways, cell)
