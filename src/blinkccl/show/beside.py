"""Lines that stand beside a plan: who came next, today's NCCL, the paper's rings, and switches that combine.

What NCCL takes is at what links reach and not at nominal rates, and so is the plan's time at the same size beside it.
The paper's baseline, NCCL 2.4, and the plan beside that are at nominal rates.
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

#: S, where nobody says.
SIZE_BYTES = 64 << 20
NAME = f"nccl-{VERSION[0]}.{VERSION[1]}"
#: Steps of a plan, and its ranks, that are timed in a fifth of a second; larger ones wait for somebody who asks.
MOST_STEPS, MOST_RANKS = 2_000, 64
#: Below this a time says more than a rate.
LEAST_GB_PER_S = 0.1
_OVER = {"NVL": "NVLink", "NVB": "NVLink and a relay", "C2C": "C2C", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe"}
#: The baseline by its name and year.
PAPER = "NCCL 2.4, Blink's baseline of 2019"
#: Switches that are named.
_NAMED = 3


def beside_plan(forest: Forest, request: Request, size_bytes: int, ours: Callable[[int], float]) -> Iterator[str]:
    """NCCL today and in the paper, and combining switches, as far as there is something to say; ``ours`` as below."""
    from blinkccl.cost.baselines.nccl import ring_baseline

    lines = [nccl_sentence(forest, request, size_bytes, ours), ring_sentence(ring_baseline(request), forest)]
    combined = None if forest.combining else in_switch(request, forest)
    lines += [] if combined is None else [in_switch_sentence(combined, forest)]
    yield from filter(None, lines)


# Who came next.
def choice_text(choice: Choice) -> str:
    """Who is the fastest at which time, and what the runner-up takes."""
    estimate, second = choice.best.estimate, choice.runner_up
    text = f"auto: {_named(choice.best)} is the fastest at {size_text(estimate.size_bytes)}"
    if second is None:
        return f"{text}, and nothing else serves the job"
    lead = f"{choice.lead:.1%} longer" if choice.lead >= 0.0005 else "as long"
    return f"{text}; next {_named(second)}, {lead}"


def _named(one: Timed) -> str:
    time = f"{seconds_text(one.estimate.seconds)}, {gb_per_s_text(one.estimate.algbw_gb_per_s)}"
    return f"{one.plan.name} ({time}, {one.estimate.detail})"


def choice_document(choice: Choice) -> dict[str, Any]:
    """Of ``blink plan --json``: all that were simulated, best first, and what others take at least."""
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
def nccl_sentence(forest: Forest, request: Request, size_bytes: int, ours: Callable[[int], float]) -> str:
    """A line for people: NCCL and the plan at one size, like beside like; "" on processors, and where nothing moves.

    ``ours``: the plan's algbw, GB/s.
    """
    from blinkccl.cost.baselines.nccl import nccl_230_fault, nccl_today  # what times plans takes long to load

    if any(request.topology.vertex[rank].kind != "gpu" for rank in request.ranks):
        return ""
    theirs = nccl_today(request, size_bytes) if len(forest.ranks) <= MOST_RANKS else nccl_230_fault(request)
    if isinstance(theirs, str):
        return f"nccl    no number: {theirs}"
    steps = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    if theirs is None or steps > MOST_STEPS:
        return f"nccl    not timed beside a plan of {steps:,} steps: blink sim does, with --algo optimal,{NAME}"
    if not size_bytes or not theirs.seconds:
        return ""
    rate = algbw_gb_per_s(size_bytes, theirs.seconds)
    try:
        rate_of_ours = ours(size_bytes)
    except BlinkError as error:
        return f"nccl    {_reached(size_bytes, rate)} by {NAME} ({how(theirs)}); this plan is not timed: {error}"
    if not rate_of_ours:
        return ""
    small = min(rate, rate_of_ours) < LEAST_GB_PER_S
    same = seconds_text(size_bytes / rate_of_ours * 1e-9) if small else gb_per_s_text(rate_of_ours)
    than = times_of_nccl(rate_of_ours / rate)
    said = f"nccl    {_reached(size_bytes, rate, small)} by {NAME} ({how(theirs)})"
    return f"{said}; this plan {same}: {than}, effective rates"


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


def ring_sentence(found: RingBaseline, forest: Forest) -> str:
    """A line for people, beside the rate of ``forest``; "" where there is nothing to compare."""
    if forest.algorithm == "ring" or forest.collective.name not in ring.SERVED:
        return ""
    if found.gb_per_s is None:
        return f"paper   no ring by the rule of {PAPER}: {found.reason}"
    where = count(found.rings, "ring") if found.fast else "no NVLink ring, so one over PCIe"
    if found.cables:
        where = "one ring over the cables, one way round"
    than = times_of_nccl(forest.algbw_gb_per_s / found.gb_per_s)
    rates = f"{gb_per_s_text(found.gb_per_s)} algbw by the rule of {PAPER} ({where})"
    return f"paper   {rates}; this plan {gb_per_s_text(forest.algbw_gb_per_s)}: {than}, nominal rates"


# Switches that combine.
def in_switch(request: Request, plan: Forest) -> Forest | str | None:
    """The trees with the switches of the job's links that combine, beside ``plan``.

    None where there are none, and where there is nothing to gain for another collective than AllReduce: its plan
    reaches a cut, or has no trees. A sentence where nobody knows.
    """
    collective = request.collective
    if collective.name != "allreduce" and (plan.optimal and isinstance(plan.certificate, Cut)):
        return None
    try:
        return in_switch_forest(request.network, collective, request.ranks)
    except UnsupportedError as error:
        return str(error) if collective.name == "allreduce" else None


def in_switch_sentence(found: Forest | str, plan: Forest) -> str:
    """A line for people."""
    if isinstance(found, str):
        return f"switch  not computed: {found}"
    labels = [v.label for v in found.topology.vertices if v.combines]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    verbs = "adds up and multicasts" if len(labels) == 1 else "add up and multicast"
    proof = f"{'nothing is faster' if found.optimal else _at_most(found)}, by the links {bottleneck(found.certificate)}"
    part = plan.algbw_gb_per_s / found.algbw_gb_per_s
    return (
        f"switch  {gb_per_s_text(found.algbw_gb_per_s)} algbw where {', '.join(labels[:_NAMED])}{more} {verbs} too "
        f"({count(found.trees_per_block, 'tree')}; {proof}); the plan, which adds up at ranks, has {part:.0%} of it"
    )


def _at_most(found: Forest) -> str:
    return f"nothing passes {gb_per_s_text(float(found.bound) * found.topology.unit_gb_per_s)}"


def in_switch_document(found: Forest | str) -> dict[str, Any]:
    """The same for programs: rates in units of the topology as fractions (all: ``blink plan --algo in_switch``)."""
    if isinstance(found, str):
        return {"not_computed": found}
    return {
        "rate": str(found.rate),
        "bound": str(found.bound),
        "gb_per_s": found.algbw_gb_per_s,
        "switches": [v.id for v in found.topology.vertices if v.combines],
        "trees": found.trees_per_block,
        "certificate": certificate_document(found.certificate),
    }
