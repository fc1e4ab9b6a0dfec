"""What NCCL would take for the same call: the time that a plan must beat.

- *Rings and trees*: NCCL's own channel search and cost model (:mod:`blinkccl.baselines.nccl_model`), for the five
  collectives that it has algorithms for. NCCL rounds the speed of channels down to a step of its ladder (360 GB/s for
  the 370.8 that it counts of an H100), but moves data as fast as links do. So by Simple rings get what links have left.
- *Sends and receives*: AllToAll, Gather and Scatter. All messages go at once on NCCL's paths, and the busiest link
  says how long that takes: less than it would be, as NCCL's channels per peer are not counted.
- *NVLS*: what the NVSwitch of Hopper and later combines and multicasts, for 3 GPUs or more. For AllReduce the rate is
  that of published nccl-tests runs on 4 to 8 H100s, which is more than NCCL's own model says, and the latency that of
  two hops, which is less. AllGather and ReduceScatter are NCCL's model (0.85 of the channels' rate on Hopper, 0.74 on
  Blackwell, 25 us), without what it takes off for its last channel: never slower than that.
- *A ring of ours*, at the costs that our plans are given, where NCCL's model has no answer (several ranks on a GPU,
  links that it does not know). That knows neither NCCL's channels nor its tuning, and the reason is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.baselines.nccl_model import BASE_US, PROTOCOLS, SERVED, STEP_US, choose
from blinkccl.baselines.nccl_search import Channels, search
from blinkccl.baselines.nccl_system import NVL, VERSION, Server, see
from blinkccl.collectives.spec import Collective
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.nccl.costs import RATE, architecture, protocols_of, timing
from blinkccl.nccl.programs import SLOTS, CandidateProgram, links_for
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.lower import lower
from blinkccl.units import bus_factor

#: busbw of an AllReduce in the switch by GPUs, as a part of what a GPU's NVLinks have together; of 8 for more.
NVLS_RATE = {3: 370 / 450, 4: 370 / 450, 5: 420 / 450, 6: 440 / 450, 7: 460 / 450, 8: 480 / 450}
#: What NCCL counts of its channels for AllGather and ReduceScatter in the switch, and the latency.
NVLS_EFFICIENCY, NVLS_US = {"hopper": 0.85, "blackwell": 0.74}, 25.0
#: NCCL sends messages of up to so many bytes by LL (its parameter P2P_LL_THRESHOLD).
P2P_LL_BYTES = 16384
#: GPUs that reduce in the switch at least.
_LEAST_NVLS = 3
#: A stand-in for what nobody can model: the first that serves a collective.
_STAND_INS = ("ring", "one_hop")
#: Of a stand-in's messages.
_PARTS, _CAPACITY = 4, {"ll": 16 << 10, "ll128": 30 << 10, "simple": 1 << 20}


@dataclass(frozen=True, slots=True)
class NcclPrediction:
    """``words``: who takes that long, like "NCCL ring LL"."""

    seconds: float
    words: str


class NcclPredictor:
    """NCCL of a version on a job whose oldest GPU has this compute capability (90 for 9.0)."""

    def __init__(self, place: JobPlacement, capability: int, version: tuple[int, int] = VERSION) -> None:
        self._place, self._capability, self._version = place, capability, version
        self._arch = architecture(capability)
        self._stood_in: dict[Collective, CandidateProgram] = {}

    @cached_property
    def _searched(self) -> Channels | str:
        """NCCL's channels, or why there are none."""
        if not self._place.real:
            return "several ranks share a GPU"
        try:
            return search(self._place.topology, self._place.ranks, self._arch, self._version)
        except BlinkError as error:
            return " ".join(str(error).split())

    @property
    def caveat(self) -> str:
        """Why NCCL's own model is not used; "" where it is."""
        return "" if isinstance(self._searched, Channels) else self._searched

    def at(self, collective: Collective, size_bytes: int) -> NcclPrediction:
        """What NCCL would take for S bytes; UnsupportedError where nothing can be said."""
        if not isinstance(self._searched, Channels):
            return self._stand_in(collective, size_bytes)
        if collective.name not in SERVED:
            return self._sends(collective, size_bytes)
        chosen = choose(self._searched, collective.name, size_bytes)
        seconds = chosen.seconds / (self._spare if (chosen.algorithm, chosen.protocol) == ("ring", "Simple") else 1.0)
        found = NcclPrediction(seconds, f"NCCL {chosen.algorithm} {chosen.protocol}")
        in_switch = self._nvls(self._searched, collective, size_bytes)
        return found if in_switch is None or found.seconds <= in_switch.seconds else in_switch

    @cached_property
    def _server(self) -> Server:
        servers = see(self._place.topology, self._place.ranks, self._arch, self._version)
        if len(servers) != 1:
            raise UnsupportedError("the ranks are of several NVLink domains")
        return servers[0]

    @cached_property
    def _spare(self) -> float:
        """By how much all rings could be faster before the first link is full; 1 where there are several servers."""
        if not isinstance(self._searched, Channels) or self._searched.servers > 1:
            return 1.0
        server = self._server
        used: dict[tuple[int, int], Fraction] = {}
        for ring in self._searched.rings:
            for pair in pairwise((*ring, ring[0])):
                for arc, share in server.hops[pair].load:
                    used[arc] = used.get(arc, Fraction(0)) + share
        each = Fraction(self._searched.gb_per_s_per_channel)
        return max(1.0, float(min(server.capacity[arc] / (load * each) for arc, load in used.items())))

    def _nvls(self, channels: Channels, collective: Collective, size_bytes: int) -> NcclPrediction | None:
        """What the switch takes; None where it combines nothing."""
        ranks = collective.world_size
        if self._arch not in NVLS_EFFICIENCY or ranks < _LEAST_NVLS or not self._server.switched:
            return None
        if collective.name == "allreduce":
            arch = self._server.arch
            port = min(self._server.nvlink_gb_per_s.values()) / arch.lane_gb_per_s * arch.nominal_gb_per_s
            rate = NVLS_RATE[min(ranks, max(NVLS_RATE))] * float(port) / _factor(collective)
            return NcclPrediction(_latency_s("Simple", True, 2) + size_bytes / (rate * 1e9), "NCCL NVLS")
        if collective.name in ("allgather", "reduce_scatter"):
            rate = channels.count * channels.gb_per_s_per_channel * NVLS_EFFICIENCY[self._arch] * (ranks - 1) / ranks
            return NcclPrediction(NVLS_US * 1e-6 + size_bytes / (rate * 1e9), "NCCL NVLS")
        return None

    def _sends(self, collective: Collective, size_bytes: int) -> NcclPrediction:
        """One message per pair, all at once."""
        server, ranks = self._server, self._place.ranks
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
        times = {"Simple": _latency_s("Simple", nvlink, 1) + moving}
        if message <= P2P_LL_BYTES:
            times["LL"] = _latency_s("LL", nvlink, 1) + moving / RATE["ll"]
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
        return NcclPrediction(min(times), f"a {candidate.algorithm.replace('_', '-')} in NCCL's place")


def _factor(collective: Collective) -> float:
    return float(bus_factor(collective.name, collective.world_size))


def _latency_s(protocol: str, nvlink: bool, hops: int) -> float:
    column = PROTOCOLS.index(protocol)
    step = STEP_US["nvlink" if nvlink else "pcie", "tree"][column]
    return float(BASE_US["ring"][column] + hops * step) * 1e-6


def _planned(place: JobPlacement, collective: Collective) -> CandidateProgram:
    reasons = []
    for name in _STAND_INS:
        try:
            forest = algorithm(name).plan(Request(place.topology, collective, place.ranks, links_for(place)))
        except UnsupportedError as error:
            reasons.append(str(error))
            continue
        return CandidateProgram(name, forest, lower(forest, slots=SLOTS))
    raise UnsupportedError(f"nothing to compare {collective.name} with: {'; '.join(reasons)}")
