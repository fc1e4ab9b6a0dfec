"""What switches that combine would make of an AllReduce, in words and as a document."""

from __future__ import annotations

from typing import Any

from blinkccl.algorithms.in_switch import InSwitch, in_switch_allreduce
from blinkccl.algorithms.registry import Request
from blinkccl.errors import UnsupportedError
from blinkccl.forest.document import certificate_document
from blinkccl.forest.model import Forest
from blinkccl.report.plan_text import bottleneck
from blinkccl.report.text import count, gb_per_s_text


def in_switch(request: Request, every_switch: bool = False) -> InSwitch | str | None:
    """The optimum with the switches of the job's links that combine, or with ``every_switch``.

    None where there are none, or for another collective; a sentence where there are too many.
    """
    if request.collective.name != "allreduce":
        return None
    network = request.network
    switches = [v.id for v in network.vertices if v.kind == "switch"] if every_switch else None
    try:
        return in_switch_allreduce(network, request.ranks, switches)
    except UnsupportedError as error:
        return str(error)


def in_switch_sentence(found: InSwitch | str, request: Request, forest: Forest) -> str:
    """A line for people."""
    if isinstance(found, str):
        return f"switch  not computed: {found}"
    names = [request.network.vertex[switch].label for switch in found.switches]
    verbs = "adds up and multicasts" if len(names) == 1 else "add up and multicast"
    trees, part = count(len(found.trees), "tree"), forest.algbw_gb_per_s / found.gb_per_s
    return (
        f"switch  {gb_per_s_text(found.gb_per_s)} algbw where {', '.join(names)} {verbs} too ({trees}; nothing is "
        f"faster, by the links {bottleneck(found.proof)}); the plan, which adds up at ranks, has {part:.0%} of it"
    )


def in_switch_document(found: InSwitch | str) -> dict[str, Any]:
    """The same for programs: rates in units of the topology as fractions, trees and prices in vertex ids."""
    if isinstance(found, str):
        return {"not_computed": found}
    return {
        "rate": str(found.rate),
        "gb_per_s": found.gb_per_s,
        "switches": list(found.switches),
        "trees": [
            {"weight": str(x.weight), "root": x.root, "up": list(map(list, x.up)), "down": list(map(list, x.down))}
            for x in found.trees
        ],
        "certificate": certificate_document(found.proof),
    }
