"""What switches that combine would make of a collective, in words and as a document."""

from __future__ import annotations

from typing import Any

from blinkccl.errors import UnsupportedError
from blinkccl.show.plan_text import bottleneck
from blinkccl.show.text import count, gb_per_s_text
from blinkccl.trees.algorithms.in_switch import in_switch_forest
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import certificate_document
from blinkccl.trees.forest.model import Cut, Forest

#: Switches that are named.
_NAMED = 3


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
