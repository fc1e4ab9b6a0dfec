"""The rate of a ring by the rule of NCCL 2.4 (2019): the baseline of Blink's paper, beside every plan.

Both rates are nominal ones. What NCCL does today is :mod:`~blinkccl.show.nccl_today`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.show.text import count, gb_per_s_text, times_of_nccl
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import FAST_KINDS
from blinkccl.topology.select import PCIE_CHOICES
from blinkccl.trees.algorithms import ring
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: The baseline by its name and year.
PAPER = "NCCL 2.4, Blink's baseline of 2019"


@dataclass(frozen=True)
class RingBaseline:
    """What NCCL 2.4's rings reach: algbw in GB/s, None where there is no ring, for ``reason``.

    ``rings`` are the distinct ones, in lanes if ``fast`` (NVLink or its kin); else NCCL has fallen back to PCIe, or
    takes ``cables``.
    """

    gb_per_s: float | None
    rings: int = 0
    fast: bool = False
    reason: str = ""
    draw: Callable[[], Forest] | None = None
    cables: bool = False

    @cached_property
    def forest(self) -> Forest | None:
        """The rings' plan, drawn when it is asked for: on 1,024 GPUs 8 rings have 8 million hops."""
        return None if self.draw is None else self.draw()

    def sentence(self, forest: Forest) -> str:
        """A line for people, beside the rate of ``forest``; "" where there is nothing to compare."""
        if forest.algorithm == "ring" or forest.collective.name not in ring.SERVED:
            return ""
        if self.gb_per_s is None:
            return f"paper   no ring by the rule of {PAPER}: {self.reason}"
        where = count(self.rings, "ring") if self.fast else "no NVLink ring, so one over PCIe"
        if self.cables:
            where = "one ring over the cables, one way round"
        than = times_of_nccl(forest.algbw_gb_per_s / self.gb_per_s)
        rates = f"{gb_per_s_text(self.gb_per_s)} algbw by the rule of {PAPER} ({where})"
        return f"paper   {rates}; this plan {gb_per_s_text(forest.algbw_gb_per_s)}: {than}, nominal rates"


def ring_baseline(request: Request) -> RingBaseline:
    """The rate of rings for ``request``, which never relay through other GPUs. Cost: one search for cycles."""
    request = replace(request, relays=False)
    try:
        ring.require_served(request)
        network, found = ring.rings_for(request)
    except (UnsupportedError, TopologyError) as error:
        if request.collective.name not in ring.SERVED:
            return RingBaseline(None, reason=str(error))
        if ring.over_cables(request.topology, request.ranks):
            return RingBaseline(None, reason=str(error).removeprefix("ring: ").removesuffix("; use --algo optimal"))
        if cables_of(request.topology):
            return RingBaseline(None, reason="NCCL 2.4's rule closes none over NVLink and these cables")
        # What ring says of itself is advice for somebody who asked for it, not for a baseline.
        if len({request.topology.vertex[rank].server for rank in request.ranks}) > 1:
            return RingBaseline(None, reason="the network joins no ends of the servers' lines of GPUs")
        where = "" if request.links in PCIE_CHOICES else "no NVLink ring through all ranks, and "
        return RingBaseline(None, reason=f"{where}no PCIe that would close one")

    def draw() -> Forest:
        return ring.on_rings(request, "ring", network, found)

    fast = any(link.kind in FAST_KINDS for link in network.links)
    rate = ring.rate(request, found) if request.collective.root is None else draw().rate
    rings = ring.counted(request.topology, network, found) if fast else 1
    cables = ring.over_cables(network, request.ranks)
    return RingBaseline(float(rate) * network.unit_gb_per_s, rings, fast, draw=draw, cables=cables)
