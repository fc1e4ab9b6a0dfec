"""NCCL's time for the same call, which a plan must beat.

- *Rings, trees and NVLS*: :mod:`blinkccl.cost.baselines.nccl_server`, for the five collectives with algorithms in NCCL.
- *Sends and receives*: AllToAll, Gather and Scatter. All messages run at once on NCCL's paths, and the busiest link
  gives the time. It is a lower bound, because NCCL's channels per peer are not counted.
- *A ring of Blink*, at the costs of Blink's plans without the prologue of its kernels, if NCCL's model has no answer
  (several ranks on a GPU, unknown links). It covers neither NCCL's channels nor its tuning, and the reason is reported.
"""

from __future__ import annotations

from functools import cached_property

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import NVL
from blinkccl.cost.baselines.nccl_model import SERVED
from blinkccl.cost.baselines.nccl_server import NcclPrediction, NcclServer, latency_us
from blinkccl.cost.baselines.nccl_system import NcclMachine
from blinkccl.cost.choice.costs import PROLOGUE_US, RATE, architecture, protocols_of, timing
from blinkccl.cost.choice.programs import SLOTS, CandidateProgram
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.lower import lower
from blinkccl.topology.select import joining_links
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: Maximum message that NCCL sends with LL (its parameter P2P_LL_THRESHOLD).
P2P_LL_BYTES = 16384
#: Stand-ins for NCCL without a model: the first that serves a collective.
_STAND_INS = ("ring", "one_hop")
#: Parts and bytes of a stand-in's messages.
_PARTS, _CAPACITY = 4, {"ll": 16 << 10, "ll128": 30 << 10, "simple": 1 << 20}


class NcclPredictor:
    """NCCL on a job; ``capability`` is the oldest GPU's (90 for 9.0)."""

    def __init__(self, place: JobPlacement, capability: int) -> None:
        self._place, self._capability = place, capability
        self._arch = architecture(capability)
        self._stood_in: dict[Collective, CandidateProgram] = {}

    @cached_property
    def _nccl(self) -> NcclServer | str:
        """NCCL on the job, or the reason that it has no channels."""
        if not self._place.real:
            return "several ranks share a GPU"
        server = NcclServer(self._place.topology, tuple(self._place.ranks), self._arch, self._place.nccl)
        try:
            _ = server.channels
        except BlinkError as error:
            return " ".join(str(error).split())
        return server.through_memory or server

    @property
    def caveat(self) -> str:
        """The reason that NCCL's own model is not used; "" if it is used."""
        return self._nccl if isinstance(self._nccl, str) else ""

    def at(self, collective: Collective, size_bytes: int) -> NcclPrediction:
        """NCCL's time for S bytes; UnsupportedError if no model applies."""
        nccl = self._nccl
        if isinstance(nccl, str):
            return self._stand_in(collective, size_bytes)
        if collective.name not in SERVED:
            return self._sends(nccl.server, collective, size_bytes)
        return nccl.predicted(collective.name, size_bytes)

    def _sends(self, server: NcclMachine, collective: Collective, size_bytes: int) -> NcclPrediction:
        """The time of one message per pair, all at once."""
        ranks = self._place.ranks
        message = size_bytes / collective.world_size
        load: dict[tuple[int, int], float] = {}
        nvlink = True
        for item in collective.items():
            for (src, _), (dst, _) in zip(item.contributions, item.destinations, strict=True):
                if src == dst:
                    continue
                hop = server.hops.get((ranks[src], ranks[dst]))
                if hop is None:
                    raise UnsupportedError(f"NCCL has no path from rank {src} to rank {dst}")
                nvlink = nvlink and hop.kind == NVL
                for link, share in hop.load:
                    load[link] = load.get(link, 0.0) + message * float(share)
        moving = max((amount / (float(server.capacity[link]) * 1e9) for link, amount in load.items()), default=0.0)
        times = {"Simple": float(latency_us("Simple", nvlink, 1)) * 1e-6 + moving}
        if message <= P2P_LL_BYTES:
            times["LL"] = float(latency_us("LL", nvlink, 1)) * 1e-6 + moving / RATE["ll"]
        protocol = min(times, key=lambda name: times[name])
        return NcclPrediction(times[protocol], f"NCCL send/recv {protocol}")

    def _stand_in(self, collective: Collective, size_bytes: int) -> NcclPrediction:
        if collective not in self._stood_in:
            self._stood_in[collective] = _planned(self._place, collective)
        candidate = self._stood_in[collective]
        times = [
            timing(candidate, protocol, size_bytes, self._capability, _PARTS, _CAPACITY[protocol]).seconds
            for protocol in protocols_of(candidate, self._capability)
        ]
        return NcclPrediction(
            min(times) - PROLOGUE_US * 1e-6, f"a {candidate.algorithm.replace('_', '-')} in NCCL's place"
        )


def _planned(place: JobPlacement, collective: Collective) -> CandidateProgram:
    reasons = []
    links, _ = joining_links(place.topology, place.ranks)
    for name in _STAND_INS:
        try:
            forest = algorithm(name).plan(Request(place.topology, collective, place.ranks, links))
        except UnsupportedError as error:
            reasons.append(str(error))
            continue
        return CandidateProgram(name, forest, lower(forest, slots=SLOTS), place.counted)
    raise UnsupportedError(f"nothing to compare {collective.name} with: {'; '.join(reasons)}")
