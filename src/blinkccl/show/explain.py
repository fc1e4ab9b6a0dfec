"""The program that runs a call of S bytes, and the reason: the fastest algorithm, libblink.so's row, NCCL, the bound.

libblink.so chooses among the few programs that it plans when a communicator is created. Its table has a row for each
range of sizes, and this module reads the same rows. ``auto`` with a size considers every algorithm, so it may find a
faster one. Between processes of one host, the row of the host's table serves the call.
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
from blinkccl.nccl.programs import DEFAULT, CandidatePrograms, candidates, without_memories
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.runtime.host_table import Crossing, label, machine, path_of_host, table_for
from blinkccl.show.beside import choice_document, in_switch, in_switch_sentence
from blinkccl.show.plan_text import assumed_lines, certificate_lines
from blinkccl.show.sim_text import decided_document, not_here_text, summary_text
from blinkccl.show.text import gb_per_s_text, ids, rate_text, seconds_text
from blinkccl.topology.gpus import MOST_OF_A_HOST
from blinkccl.topology.select import joining_links
from blinkccl.topology.stated import assumed
from blinkccl.trees.algorithms.bounds import bound_gb_per_s
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.tables import BUILT_IN, GPUS, NCCL, Cell, MeasuredTable, Way, cell_at, read
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s, size_text


@dataclass(frozen=True)
class Explanation:
    """All results; a missing one is replaced by the reason, a sentence without a full stop.

    ``library`` is the row of libblink.so's table for the size. ``choice`` holds the fastest of all algorithms and the
    runner-up. ``summary`` is the fastest one's use of time; None if nothing moves, or if the time was measured instead
    of simulated. ``measured`` is the table that applied to all sizes in it.
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
    """Plan and time the job; UnsupportedError if no algorithm serves it.

    Cost: two to four seconds on 8 GPUs of a DGX-1V, beside the planning. Most of it is planning libblink.so's programs:
    those of all collectives together determine which ones fit into its memory.
    """
    code = code_of(request)
    auto = prepare(request, conditions, code, () if measured is None else measured.of(request.ranks))
    choice = auto.choose(size_bytes, places=2)
    run = choice.best.estimate.simulation
    summary = summarise(run.traced()) if run is not None and run.seconds and choice.measured is None else None
    nccl = _predictor(request)
    library = _library(request, size_bytes, nccl, measured)
    prediction = _prediction(request, size_bytes, choice.measured, nccl)
    return Explanation(request, size_bytes, conditions, code, auto, choice, library, prediction, summary, measured)


def _predictor(request: Request) -> NcclPredictor | str:
    """A predictor of NCCL's time, or the reason why it cannot predict."""
    fault = kernels_fault(request)
    if fault is not None:
        return fault
    return NcclPredictor(JobPlacement(request.topology, request.ranks), gpu_of(request.topology).capability)


def _prediction(
    request: Request, size_bytes: int, cell: Cell | None, nccl: NcclPredictor | str
) -> NcclPrediction | str:
    """NCCL's time; from a measured cell, scaled from the cell's size to ``size_bytes`` as Blink's times are."""
    time = None if cell is None else cell.best(NCCL)
    if cell is None or time is None or isinstance(nccl, str) or nccl.caveat:
        return nccl_today(request, size_bytes)
    at_size, at_cell = (nccl.at(request.collective, size).seconds for size in (size_bytes, cell.size_bytes))
    if not at_size or not at_cell:
        return nccl_today(request, size_bytes)
    return NcclPrediction(at_size * time.seconds / at_cell, "NCCL, measured")


def _library(
    request: Request, size_bytes: int, nccl: NcclPredictor | str, measured: MeasuredTable | None
) -> ChoiceRow | str:
    if isinstance(nccl, str):
        return nccl
    if len(request.ranks) > MOST_OF_A_HOST:
        return f"{len(request.ranks)} GPUs are on several hosts, whose jobs it leaves to NCCL"
    try:
        planned = _planned(request)
    except BlinkError as error:
        return str(error)
    gpu = gpu_of(request.topology)
    # libblink.so itself uses only measurements on GPUs.
    cells = measured.of(request.ranks) if measured is not None and measured.kind == GPUS else ()
    rows = rows_of(request.collective, planned, Terms(gpu.capability, gpu.blocks, measured=cells), nccl)
    return next(row for row in rows if row.least <= size_bytes < row.below)


def _planned(request: Request) -> CandidatePrograms:
    place = JobPlacement(request.topology, request.ranks)
    return candidates(place, DEFAULT, gpu_of(request.topology).blocks, {})


# Text and JSON.
def explain_text(explanation: Explanation, why: bool = False) -> str:
    """The running program, the fastest algorithm, NCCL's behaviour, the bound, and the decisive costs.

    ``why``: also the reasons why other algorithms do not serve the job.
    """
    request, best = explanation.request, explanation.choice.best
    size = f"{size_text(explanation.size_bytes)} ({explanation.size_bytes:,} bytes)"
    head = f"{request.collective.name} of {size} among GPUs {ids(request.ranks)} of {request.topology.name}"
    network = explanation.auto.forest.topology
    stated = float(explanation.auto.forest.bound) * network.unit_gb_per_s
    part = f"{best.estimate.algbw_gb_per_s / stated:.0%}"
    whole = "" if network == request.network else _whole_bound_text(request)
    lines = [
        head,
        explanation.code.about(explanation.conditions),
        *assumed_lines(request.network),
        "",
        f"here    {_library_text(explanation.library, _library_links(explanation))}",
        *_fastest_lines(explanation.choice),
        *_measured_lines(explanation),
        f"nccl    {_nccl_text(explanation.nccl, explanation)}",
        f"bound   {whole}{rate_text(explanation.auto.forest.bound, network)} at any size, {part} of it at this one",
        *certificate_lines(explanation.auto.forest),
    ]
    combined = in_switch(request, explanation.auto.forest)
    if combined is not None:
        lines.append(in_switch_sentence(combined, explanation.auto.forest))
    text = "\n".join(lines) + "\n"
    if explanation.summary is not None:
        text += summary_text(best.plan.name, explanation.summary, best.estimate.seconds)
    if explanation.auto.absent:
        text += f"\n{not_here_text(explanation.auto.absent, why, '--why')}"
    return text


def _whole_bound_text(request: Request) -> str:
    """The bound of all links of the job, where kernels use fewer of them."""
    bound = gb_per_s_text(bound_gb_per_s(request))
    return f"{bound} on --links {request.links}; for kernels, without links that lead only into a processor's memory, "


def _library_links(explanation: Explanation) -> str:
    """The links on which libblink.so plans, if not the request's, as it uses one kind alone; else ""."""
    request = explanation.request
    if isinstance(explanation.library, str):
        return ""
    place = without_memories(JobPlacement(request.topology, request.ranks))
    links = joining_links(place.topology, place.ranks)[0]
    return "" if links == request.links else links


def _library_text(row: ChoiceRow | str, links: str) -> str:
    """libblink.so's behaviour for the size; ``links`` are its links, if the request has others."""
    if isinstance(row, str):
        return f"libblink.so is not used for this call: {row}"
    if links:
        return f"libblink.so plans on --links {links} alone: {_library_text(row, '').removeprefix('libblink.so ')}"
    if row.candidate is None:
        known = "predicted" if row.margin == PREDICTED_MARGIN else "measured"
        return (
            f"libblink.so leaves it to NCCL {_span(row)}: "
            f"none of its plans is {known} {row.margin:g} times as fast ({row.why})"
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
        return [*lines, "next    none: no other algorithm serves the job"]
    lead = f"{choice.lead:.1%} longer" if choice.lead >= 0.0005 else "as long"
    lines.append(f"next    {_timed(second)}: {lead}")
    slower = [one.plan.name for one in choice.timed[2:]]
    if slower:
        lines.append(f"slower  {', '.join(slower)}")
    if left:
        least = f"at least {seconds_text(min(left.values()))} by the load of their fullest links"
        lines.append(f"        {', '.join(left)}: {least}, so not simulated")
    return lines


def _measured_lines(explanation: Explanation) -> list[str]:
    """The origin of measured times, if any."""
    table, cell = explanation.measured, explanation.choice.measured
    if table is None or cell is None:
        return []
    return [f"by      {table.by}: measured at {size_text(cell.size_bytes)} on {cell.measured}"]


def _timed(one: Timed) -> str:
    time = one.estimate
    return f"{one.plan.name}: {seconds_text(time.seconds)}, {gb_per_s_text(time.algbw_gb_per_s)} ({time.detail})"


def _nccl_text(nccl: NcclPrediction | str, explanation: Explanation) -> str:
    if isinstance(nccl, str):
        return f"no model: {nccl}"
    best_s = explanation.choice.best.estimate.seconds
    speed = gb_per_s_text(algbw_gb_per_s(explanation.size_bytes, nccl.seconds)) if nccl.seconds else "nothing moves"
    # Measured and predicted times are not compared.
    comparable = explanation.choice.measured is None or explanation.choice.measured.best(NCCL) is not None
    against = f", {nccl.seconds / best_s:.2f} times as long as the fastest" if best_s and comparable else ""
    return f"{nccl.words}: {seconds_text(nccl.seconds)}, {speed}{against}"


def explain_document(explanation: Explanation) -> dict[str, Any]:
    """The object of ``blink explain --json``."""
    request, forest = explanation.request, explanation.auto.forest
    best = explanation.choice.best.estimate
    return {
        "collective": request.collective.name,
        "topology": request.topology.name,
        "ranks": list(request.ranks),
        "size_bytes": explanation.size_bytes,
        "code": explanation.code.name,
        "libblink": _row_document(explanation.library, _library_links(explanation) or request.links),
        "choice": choice_document(explanation.choice),
        "measured_by": explanation.measured.by
        if explanation.measured is not None and explanation.choice.measured is not None
        else None,
        "absent": dict(explanation.auto.absent),
        "nccl": {"why_not": explanation.nccl}
        if isinstance(explanation.nccl, str)
        else {"how": explanation.nccl.words, "seconds": explanation.nccl.seconds},
        "bound_gb_per_s": bound_gb_per_s(request)
        if forest.topology != request.network
        else float(forest.bound) * forest.topology.unit_gb_per_s,
        "assumed": assumed(request.network),
        "in_switch_gb_per_s": combined.algbw_gb_per_s
        if isinstance(combined := in_switch(request, forest), Forest)
        else None,
        "decided_by": None if explanation.summary is None else decided_document(best, explanation.summary),
    }


def _row_document(row: ChoiceRow | str, links: str) -> dict[str, Any]:
    if isinstance(row, str):
        return {"why_not": row}
    return {
        "links": links,
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
    """``ways``: the algorithm for the call, and its variants; ``cell``: the measurement for the size, or None."""

    collective: Collective
    size_bytes: int
    source: str
    ways: Sequence[Way]
    cell: Cell | None

    def text(self) -> str:
        """The report."""
        ranks = self.collective.world_size
        first, *variants = self.ways
        way = label(first)
        if variants:
            way += f", or {', or '.join(label(row) for row in variants)}: the group measures the fastest at run time"
        lines = [
            f"{self.collective.name} of {size_text(self.size_bytes)} ({self.size_bytes:,} bytes) among {ranks} ranks "
            "of this host, on its CPUs",
            "",
            f"way    {way}",
            f"why     {self._why()}",
        ]
        return "\n".join(lines) + "\n"

    def _why(self) -> str:
        cell = self.cell
        if cell is None:
            return f"built-in choice; blink tune -g {self.collective.world_size} measures the fastest on this machine"
        took = f"blink tune measured {cell.tried} candidates at {size_text(cell.size_bytes)} on {cell.measured}"
        fastest, base = cell.times[0], cell.times[-1]
        if fastest.algorithm == BUILT_IN or not cell.confirmed:
            return f"{took}, and none was clearly faster than the built-in choice ({seconds_text(base.seconds)})"
        gain = f"{seconds_text(fastest.seconds)}, and {seconds_text(base.seconds)} for the built-in choice"
        return f"{took}: {gain} ({self.source})"

    def document(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "collective": self.collective.name,
            "ranks": self.collective.world_size,
            "size_bytes": self.size_bytes,
            "table": self.source or None,
            "rows": msgspec.to_builtins(self.ways),
            "measured": msgspec.to_builtins(self.cell),
        }


def explain_host(collective: Collective, size_bytes: int) -> HostExplanation:
    """The explanation from the table that a group would read at present."""
    ranks = collective.world_size
    table, path, cell = table_for(ranks), path_of_host(ranks), None
    if table.source and path is not None:
        with suppress(OSError, UsageError):
            cell = cell_at(read(path, machine()).of(range(ranks)), collective, size_bytes)
    ways = table.choose(collective.name, size_bytes, Crossing.MEASURED)
    return HostExplanation(collective, size_bytes, table.source, ways, cell)
