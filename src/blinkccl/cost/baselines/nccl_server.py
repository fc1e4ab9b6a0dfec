"""NCCL 2.30 on a job's GPUs: its model, corrected on one server by the rates of public runs.

- *Rings and trees*: :mod:`blinkccl.cost.baselines.nccl_model`. NCCL rounds the speed of channels down to a step of its
  ladder (360 GB/s for the 370.8 that it counts of an H100), but its data moves at the rate of the links. With Simple,
  rings therefore use the remaining rate of the links, up to the rate measured for rings: 20 GB/s over PCIe, where NCCL
  counts 24.
- *NVLS*: in-network reduction and multicast in the NVSwitch of Hopper and later, for 3 GPUs or more. The rate of
  AllReduce comes from published nccl-tests runs on 4 to 8 H100s and exceeds NCCL's own model. Its latency is that of
  two hops, below NCCL's model. On Blackwell both come from a table of 72 GPUs. AllGather and ReduceScatter follow
  NCCL's model (0.85 of the channels' rate on Hopper, 0.74 on Blackwell, 25 us) without its deduction for the last
  channel, so they are never slower than that.

``blink sim`` and the choice of plans for ``libblink.so`` use these times of NCCL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import inf

from blinkccl.cost.baselines.nccl_links import VERSION
from blinkccl.cost.baselines.nccl_model import BASE_US, PROTOCOLS, STEP_US, CostLine, NcclEstimate, choose
from blinkccl.cost.baselines.nccl_search import Channels, search
from blinkccl.cost.baselines.nccl_system import NcclHop, NcclMachine, nvlink_domains, on_grace, see
from blinkccl.cost.simulate.calibration import Calibration, calibration_for, link_cost
from blinkccl.errors import UnsupportedError
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Topology
from blinkccl.topology.select import joining_links
from blinkccl.units import algbw_gb_per_s, bus_factor

#: busbw of NVLS AllReduce by number of GPUs, as a part of a GPU's NVLink rate; more than 8 GPUs count as 8. Source:
#: public nccl-tests logs of H100 servers, whose GPUs have 450 GB/s. None covers 3 GPUs, which are assumed to equal 4.
NVLS_RATE = {
    ranks: Fraction(gb_per_s, 450) for ranks, gb_per_s in ((3, 370), (4, 370), (5, 420), (6, 440), (7, 460), (8, 480))
}
#: On Blackwell: busbw of 8 GPUs and more as a part of a GPU's NVLink rate, and µs of a call per GPU. Both are fitted
#: to 72 GPUs, 512 MiB to 8 GiB (858.7 GB/s and 574 µs; pull request 43 of coreweave/nccl-tests). Fewer GPUs are assumed
#: to have the same part of that as on Hopper.
BLACKWELL_NVLS, BLACKWELL_NVLS_US = Fraction("858.7") / 900, Fraction(8)
#: NCCL's efficiency of NVLS channels for AllGather and ReduceScatter, and their latency.
NVLS_EFFICIENCY, NVLS_US = {"hopper": Fraction("0.85"), "blackwell": Fraction("0.74")}, Fraction(25)
#: The minimum number of GPUs for NVLS.
_LEAST_NVLS = 3


@dataclass(frozen=True, slots=True)
class NcclPrediction:
    """NCCL's time: ``words`` like "NCCL ring LL", and in ``over`` the farthest path of its rings or trees, or ""."""

    seconds: float
    words: str
    over: str = ""


@dataclass(frozen=True)
class NcclServer:
    """A version of NCCL on GPUs; ``arch`` is that of the oldest GPU, ``calibration`` by default the machine's."""

    topology: Topology
    ranks: tuple[int, ...]
    arch: str
    version: tuple[int, int] = VERSION
    calibration: Calibration | None = None

    @classmethod
    def of(cls, topology: Topology, ranks: Sequence[int], calibration: Calibration | None = None) -> NcclServer:
        """Today's NCCL, on GPUs whose architecture follows from their links."""
        return cls(topology, tuple(ranks), guess_arch(topology), calibration=calibration)

    @cached_property
    def channels(self) -> Channels:
        """The channels of NCCL's search; raises as :func:`~blinkccl.cost.baselines.nccl_search.search`."""
        return search(self.topology, self.ranks, self.arch, self.version)

    @cached_property
    def server(self) -> NcclMachine:
        """The one server that NCCL sees; UnsupportedError for several."""
        servers = see(self.topology, self.ranks, self.arch, self.version)
        if len(servers) != 1:
            raise UnsupportedError(f"the GPUs are in {len(servers)} NVLink domains; give GPUs of one server")
        return servers[0]

    def fault(self, collective: str) -> str | None:
        """The reason that the model has no time for a collective on these links, without full stop; None if it has."""
        if self.through_memory:
            return self.through_memory
        domains, grace = self._domains, on_grace(self.topology, self.ranks)
        if len(domains) > 1 and grace:
            return "on Grace servers NCCL reaches the network through the processor (P2C), which is not modelled"
        in_switch = self.arch in NVLS_EFFICIENCY and min(map(len, domains)) >= _LEAST_NVLS
        if len(domains) > 1 and in_switch and collective == "allreduce":
            return "NCCL may reduce in the NVSwitches of several servers (NVLSTree), which is not modelled"
        if grace and len(domains) == 1 and self._through_c2c:
            return "NCCL's path between GPUs leads through a Grace processor (C2C), which is not modelled"
        return None

    @cached_property
    def through_memory(self) -> str:
        """The reason that NCCL copies through the hosts' memories (SHM), at a rate that it does not model; else ""."""
        peers = all(self.topology.vertex[rank].peers for rank in self.ranks)
        if peers or joining_links(self.topology, self.ranks)[0] != "staged":
            return ""
        return "without P2P over PCIe NCCL copies through the hosts' memories (SHM), whose rate is not modelled"

    @cached_property
    def _domains(self) -> list[tuple[int, ...]]:
        return nvlink_domains(self.topology, self.ranks)

    @cached_property
    def _through_c2c(self) -> bool:
        links = self.topology.link
        return any(links[pair].kind == "c2c" for hop in self.server.hops.values() for pair in pairwise(hop.path))

    def at(self, collective: str, size_bytes: int) -> NcclEstimate:
        """NCCL's fastest algorithm and protocol for S bytes; of equal ones its own model's choice.

        UnsupportedError with the :meth:`fault`, if there is one.
        """
        fault = self.fault(collective)
        if fault is not None:
            raise UnsupportedError(fault)
        best = choose(self.channels, collective, size_bytes)
        if best.protocol == "Simple":
            reach = self._ring_reach if best.algorithm == "ring" else self._tree_reach
            best = replace(
                best,
                seconds=best.seconds / reach,
                algbw_gb_per_s=best.algbw_gb_per_s * reach,
                busbw_gb_per_s=best.busbw_gb_per_s * reach,
            )
        line = self.in_switch(collective)
        if line is None or best.seconds <= (seconds := float(line.time_us(size_bytes) / 1_000_000)):
            return best
        algbw = algbw_gb_per_s(size_bytes, seconds)
        return NcclEstimate(line.algorithm, line.protocol, seconds, algbw, algbw * self._factor(collective))

    @cached_property
    def spare(self) -> float:
        """The factor by which all rings could be faster before the first link is full; 1 for several servers."""
        if self.channels.servers > 1:
            return 1.0
        used: dict[tuple[int, int], Fraction] = {}
        for hop in self._ring_hops():
            for arc, share in hop.load:
                used[arc] = used.get(arc, Fraction(0)) + share
        each = Fraction(self.channels.gb_per_s_per_channel)
        return max(1.0, float(min(self.server.capacity[arc] / (load * each) for arc, load in used.items())))

    @cached_property
    def _ring_reach(self) -> float:
        """The factor by which rings on measured links are faster than NCCL's channels; 1 for several servers."""
        if self.channels.servers > 1:
            return 1.0
        crossings = Counter(arc for hop in self._ring_hops() for arc in pairwise(hop.path))
        each = float(self.channels.gb_per_s_per_channel)
        return min(self.spare, *(self._reached(arc) / (times * each) for arc, times in crossings.items()))

    def _ring_hops(self) -> Iterator[NcclHop]:
        for ring in self.channels.rings:
            for pair in pairwise((*ring, ring[0])):
                yield self.server.hops[pair]

    @cached_property
    def _tree_reach(self) -> float:
        """The part of NCCL's estimated rate that a tree reaches; 1 for several servers."""
        tree = self.channels.tree
        if tree is None or self.channels.servers > 1:
            return 1.0
        loads = [
            arc for order in tree.orders for chain in order for pair in pairwise(chain) for arc in self._load(pair)
        ]
        return min(1.0, *(self._reached(arc) * float(share / self.server.capacity[arc]) for arc, share in loads))

    def _load(self, pair: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Fraction]]:
        """The load on links of both directions between two GPUs."""
        yield from self.server.hops[pair].load
        yield from self.server.hops[pair[::-1]].load

    def _reached(self, arc: tuple[int, int]) -> float:
        """Measured GB/s of kernels on a link; infinite without a measurement."""
        costs, link = self.calibration or calibration_for(self.topology), self.topology.link[arc]
        return link_cost(costs, link).rate / 1e9 if costs.link_class(link).kernels else inf

    def in_switch(self, collective: str) -> CostLine | None:
        """The time of NVLS by size; None if the job cannot use NVLS."""
        ranks, channels = len(self.ranks), self.channels
        if self.arch not in NVLS_EFFICIENCY or ranks < _LEAST_NVLS or channels.servers > 1 or not self.server.switched:
            return None
        if collective == "allreduce":
            known = self.server.arch
            port = min(self.server.nvlink_gb_per_s.values()) / known.lane_gb_per_s * known.nominal_gb_per_s
            part, latency = NVLS_RATE[min(ranks, max(NVLS_RATE))], latency_us("Simple", True, 2)
            if self.arch == "blackwell":
                part *= BLACKWELL_NVLS / NVLS_RATE[max(NVLS_RATE)]
                latency = BLACKWELL_NVLS_US * ranks
            return CostLine("NVLS", "Simple", latency, part * port / Fraction(bus_factor(collective, ranks)))
        if collective in ("allgather", "reduce_scatter"):
            all_channels = channels.count * Fraction(channels.gb_per_s_per_channel)
            return CostLine("NVLS", "Simple", NVLS_US, all_channels * NVLS_EFFICIENCY[self.arch] * (ranks - 1) / ranks)
        return None

    def predicted(self, collective: str, size_bytes: int) -> NcclPrediction:
        """NCCL's time for S bytes, with its algorithm and protocol in words."""
        estimate = self.at(collective, size_bytes)
        return NcclPrediction(estimate.seconds, f"NCCL {estimate.words}", self._over(estimate.algorithm))

    def _over(self, algorithm: str) -> str:
        """The kind of the farthest path of a server, "" for NVLS and for several servers."""
        if self.channels.servers > 1:
            return ""
        if algorithm == "tree" and self.channels.tree is not None:
            return self.channels.tree.kind
        return self.channels.kind if algorithm == "ring" else ""

    def _factor(self, collective: str) -> float:
        return float(bus_factor(collective, len(self.ranks)))


def latency_us(protocol: str, nvlink: bool, hops: int) -> Fraction:
    """The latency of a call with ``hops`` hops, by NCCL's table."""
    column = PROTOCOLS.index(protocol)
    return BASE_US["ring"][column] + hops * STEP_US["nvlink" if nvlink else "pcie", "tree"][column]
