"""Comparisons printed beside a plan: the runner-up, today's NCCL, the paper's rings, and in-network reduction.

Times of NCCL, and of the plan at the same size beside it, use the effective rates of links. The paper's baseline,
NCCL 2.4, and the plan beside it use nominal rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from blinkccl.cost.baselines.nccl_links import VERSION
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.show.plan_text import bottleneck
from blinkccl.show.text import count, gb_per_s_text, seconds_text, times_of_nccl
from blinkccl.trees.algorithms import ring
from blinkccl.trees.algorithms.in_switch import in_switch_forest
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import certificate_document
from blinkccl.trees.forest.model import Cut, Forest
from blinkccl.units import algbw_gb_per_s, size_text

if TYPE_CHECKING:
    from blinkccl.cost.baselines.nccl import RingBaseline
    from blinkccl.cost.baselines.nccl_server import NcclPrediction
    from blinkccl.cost.choice.auto import Choice, Timed

#: Default for S.
SIZE_BYTES = 64 << 20
NAME = f"nccl-{VERSION[0]}.{VERSION[1]}"
#: Limits on steps and ranks of a plan that is timed, in a fifth of a second; larger ones need blink sim.
MOST_STEPS, MOST_RANKS = 2_000, 64
#: Below this rate a time is printed instead.
LEAST_GB_PER_S = 0.1
_OVER = {"NVL": "NVLink", "NVB": "NVLink and a relay", "C2C": "C2C", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe"}
#: The paper's baseline, with its year.
PAPER = "NCCL 2.4, Blink's baseline of 2019"
#: Limit on switches listed by name.
_NAMED = 3


def beside_plan(forest: Forest, request: Request, size_bytes: int, algbw: Callable[[int], float]) -> Iterator[str]:
    """Lines on today's NCCL, the paper's NCCL and in-network reduction, if they apply; ``algbw`` as below."""
    from blinkccl.cost.baselines.nccl import ring_baseline

    lines = [nccl_sentence(forest, request, size_bytes, algbw), ring_sentence(ring_baseline(request), forest)]
    combined = None if forest.combining else in_switch(request, forest)
    lines += [] if combined is None else [in_switch_sentence(combined, forest)]
    yield from filter(None, lines)


# Choice of the algorithm.
def choice_text(choice: Choice) -> str:
    """The fastest algorithm with its time, and the time of the runner-up."""
    estimate, second = choice.best.estimate, choice.runner_up
    text = f"auto: {_named(choice.best)} is the fastest at {size_text(estimate.size_bytes)}"
    if second is None:
        return f"{text}; no other algorithm serves the job"
    lead = f"{choice.lead:.1%} longer" if choice.lead >= 0.0005 else "as long"
    return f"{text}; next {_named(second)}, {lead}"


def _named(one: Timed) -> str:
    time = f"{seconds_text(one.estimate.seconds)}, {gb_per_s_text(one.estimate.algbw_gb_per_s)}"
    return f"{one.plan.name} ({time}, {one.estimate.detail})"


def choice_document(choice: Choice) -> dict[str, Any]:
    """The choice in ``blink plan --json``: all simulated algorithms, best first, and lower bounds for the others."""
    return {
        "size_bytes": choice.best.estimate.size_bytes,
        "measured": choice.measured is not None,
        "timed": [
            {"algorithm": one.plan.name, "seconds": one.estimate.seconds, "protocol": one.estimate.protocol or None}
            for one in choice.timed
        ],
        "at_least_seconds": choice.floors_s,
    }


# NCCL.
def nccl_sentence(forest: Forest, request: Request, size_bytes: int, algbw: Callable[[int], float]) -> str:
    """NCCL and the plan at one size; "" on processors, and if nothing moves.

    ``algbw``: the plan's algbw in GB/s at a size.
    """
    from blinkccl.cost.baselines.nccl import nccl_230_fault, nccl_today  # slow to import

    if any(request.topology.vertex[rank].kind != "gpu" for rank in request.ranks):
        return ""
    prediction = nccl_today(request, size_bytes) if len(forest.ranks) <= MOST_RANKS else nccl_230_fault(request)
    if isinstance(prediction, str):
        return f"nccl    no prediction: {prediction}"
    steps = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    if prediction is None or steps > MOST_STEPS:
        return f"nccl    not simulated for a plan of {steps:,} steps; run blink sim with --algo optimal,{NAME}"
    if not size_bytes or not prediction.seconds:
        return ""
    rate = algbw_gb_per_s(size_bytes, prediction.seconds)
    try:
        plan_rate = algbw(size_bytes)
    except BlinkError as error:
        return f"nccl    {_reached(size_bytes, rate)} by {NAME} ({how(prediction)}); this plan is not timed: {error}"
    if not plan_rate:
        return ""
    small = min(rate, plan_rate) < LEAST_GB_PER_S
    same = seconds_text(size_bytes / plan_rate * 1e-9) if small else gb_per_s_text(plan_rate)
    than = times_of_nccl(plan_rate / rate)
    nccl = f"nccl    {_reached(size_bytes, rate, small)} by {NAME} ({how(prediction)})"
    return f"{nccl}; this plan {same}: {than}, effective rates"


def _reached(size_bytes: int, gb_per_s: float, small: bool = False) -> str:
    """``26.2 GB/s algbw at 64M``, or ``9.3 µs for 64 bytes``."""
    if small:
        size = size_text(size_bytes) if size_bytes >= 1 << 10 else count(size_bytes, "byte")
        return f"{seconds_text(size_bytes / gb_per_s * 1e-9)} for {size}"
    return f"{gb_per_s_text(gb_per_s)} algbw at {size_text(size_bytes)}"


def how(prediction: NcclPrediction) -> str:
    """``ring Simple over NVLink and a relay``."""
    over = _OVER.get(prediction.over, "PCIe and the bus between processors" if prediction.over else "")
    words = prediction.words.removeprefix("NCCL ")
    return f"{words} over {over}" if over else words


def ring_sentence(baseline: RingBaseline, forest: Forest) -> str:
    """The paper's rings beside the rate of ``forest``; "" if there is nothing to compare."""
    if forest.algorithm == "ring" or forest.collective.name not in ring.SERVED:
        return ""
    if baseline.gb_per_s is None:
        return f"paper   no ring by the rule of {PAPER}: {baseline.reason}"
    where = count(baseline.rings, "ring") if baseline.fast else "no NVLink ring, so one over PCIe"
    if baseline.cables:
        where = "one ring over the cables, in one direction"
    than = times_of_nccl(forest.algbw_gb_per_s / baseline.gb_per_s)
    rates = f"{gb_per_s_text(baseline.gb_per_s)} algbw by the rule of {PAPER} ({where})"
    return f"paper   {rates}; this plan {gb_per_s_text(forest.algbw_gb_per_s)}: {than}, nominal rates"


# In-network reduction.
def in_switch(request: Request, plan: Forest) -> Forest | str | None:
    """The trees that use in-network reduction in the switches of the job's links, for comparison with ``plan``.

    None without such switches, and for collectives other than AllReduce that gain nothing: if their plan reaches a cut
    or has no trees. A sentence if the trees cannot be computed.
    """
    collective = request.collective
    if collective.name != "allreduce" and (plan.optimal and isinstance(plan.certificate, Cut)):
        return None
    try:
        return in_switch_forest(request.network, collective, request.ranks)
    except UnsupportedError as error:
        return str(error) if collective.name == "allreduce" else None


def in_switch_sentence(combined: Forest | str, plan: Forest) -> str:
    """One line on in-network reduction, beside the plan's rate."""
    if isinstance(combined, str):
        return f"switch  not computed: {combined}"
    labels = [v.label for v in combined.topology.vertices if v.combines]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    limit = "nothing is faster" if combined.optimal else _at_most(combined)
    part = plan.algbw_gb_per_s / combined.algbw_gb_per_s
    return (
        f"switch  {gb_per_s_text(combined.algbw_gb_per_s)} algbw with reduction in {', '.join(labels[:_NAMED])}{more} "
        f"({count(combined.trees_per_block, 'tree')}; {limit}, by the links {bottleneck(combined.certificate)}); "
        f"the plan, which reduces at ranks, has {part:.0%} of it"
    )


def _at_most(forest: Forest) -> str:
    return f"nothing passes {gb_per_s_text(float(forest.bound) * forest.topology.unit_gb_per_s)}"


def in_switch_document(combined: Forest | str) -> dict[str, Any]:
    """The same as JSON: rates in units of the topology, as fractions (all of it: ``blink plan --algo in_switch``)."""
    if isinstance(combined, str):
        return {"not_computed": combined}
    return {
        "rate": str(combined.rate),
        "bound": str(combined.bound),
        "gb_per_s": combined.algbw_gb_per_s,
        "switches": [v.id for v in combined.topology.vertices if v.combines],
        "trees": combined.trees_per_block,
        "certificate": certificate_document(combined.certificate),
    }
