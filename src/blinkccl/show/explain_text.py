"""What runs a call and why, as people read it and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blinkccl.cost.choice.costs import NCCL_NAMES
from blinkccl.nccl.choices import BEYOND, PREDICTED_MARGIN, ChoiceRow
from blinkccl.nccl.nccl_predictor import NcclPrediction
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.choice_text import choice_document
from blinkccl.show.in_switch import in_switch, in_switch_sentence
from blinkccl.show.plan_text import certificate_lines
from blinkccl.show.sim_text import decided_document, not_here_text, summary_text
from blinkccl.show.text import bytes_text, gb_per_s_text, ids, rate_text, seconds_text
from blinkccl.trees.algorithms.tables import NCCL
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s

if TYPE_CHECKING:
    from blinkccl.cost.choice.auto import Choice, Timed
    from blinkccl.show.explain import Explanation


def explain_text(found: Explanation, why: bool = False) -> str:
    """Who runs it, who is the fastest, what NCCL would do, what the bound is, and what decides.

    ``why``: also why the others serve no such job.
    """
    request, best = found.request, found.choice.best
    size = f"{bytes_text(found.size_bytes)} ({found.size_bytes:,} bytes)"
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
        return f"from {bytes_text(row.least)} on"
    return f"from {bytes_text(row.least)} to below {bytes_text(row.below)}"


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
    return [f"by      {table.by}: measured at {bytes_text(cell.size_bytes)} on {cell.measured}"]


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
        "schema_version": SCHEMA_VERSION,
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
