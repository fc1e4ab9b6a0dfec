"""NCCL's cost model: the algorithm and protocol that NCCL selects for a size, and its estimate of their time.

When a communicator is set up, NCCL 2.30 (src/graph/tuning.cc) gives every pair of algorithm and protocol a latency and
a bandwidth. Each call uses the pair with the least ``latency + bytes / bandwidth``. This module has the tables and
rules for rings and trees; the channels come from :mod:`~blinkccl.cost.baselines.nccl_search`.

- *Latency*: a base, and per step one that depends on the link. A ring has 2(n−1) steps for AllReduce, n−1 for AllGather
  and ReduceScatter. A tree is a chain inside a server, and 2·((n/servers − 1)·inside + ⌊log₂ servers⌋·between).
- *Bandwidth*: that of the channels, times the efficiency of the protocol. LL carries 4 bytes of data in 8, LL128 120 in
  128. LL has a limit by architecture on one server, and by the vendor of the processors on several.

Differences: CollNet and PAT are left out, and NVLS is in :mod:`~blinkccl.cost.baselines.nccl_server`. Network cards are
assumed to state no latency of their own, as InfiniBand's. Numbers are exact fractions, where NCCL has single floats.

All times are NCCL's estimates. A tree's time may fall as S doubles, since NCCL has a factor for each power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkccl.cost.baselines.nccl_links import KINDS, NVB, PXB, PXN, arch_named
from blinkccl.cost.baselines.nccl_search import Channels
from blinkccl.units import algbw_gb_per_s, bus_factor

PROTOCOLS = ("LL", "LL128", "Simple")
#: Algorithms in NCCL's order: of equal times the first wins.
ALGORITHMS = ("tree", "ring")
SERVED = ("broadcast", "reduce", "allreduce", "allgather", "reduce_scatter")


def _row(numbers: str) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, numbers.split()))


#: µs of a call, by protocol.
BASE_US = {"tree": _row("6.8 14 8.4"), "ring": _row("6.6 14 8.4")}
#: µs of a step, by link and protocol.
STEP_US = {
    ("nvlink", "tree"): _row("0.6 1.25 4.0"),
    ("nvlink", "ring"): _row("0.6 1.9 3.4"),
    ("pcie", "tree"): _row("1.0 1.9 4.0"),
    ("pcie", "ring"): _row("1.0 2.5 5.7"),
    ("net", "tree"): _row("5.0 8.5 14"),
    ("net", "ring"): _row("2.7 4.0 14"),
}
#: Minimum compute capability of each row of the tables below: volta (and older), ampere, hopper, blackwell.
ROWS = (0, 80, 90, 100)
#: Maximum GB/s of LL: on one server by architecture, on 2 and on more by vendor (row 0 Intel, row 1 AMD).
LL_GB_PER_S = (_row("39 39 20.4"), _row("87.7 22.5 19"), _row("141 45 35"), _row("282 90 70"))
#: Maximum GB/s of one channel, on 1, 2 and more servers.
RING_LL128_GB_PER_S = (_row("20 20 20"), _row("20 20 20"), _row("36.7 36.7 36.7"), _row("40 40 40"))
TREE_LL128_GB_PER_S = (_row("20 20 20"), _row("20 20 20"), _row("36.7 36.7 29"), _row("55.6 31.67 20"))
TREE_GB_PER_S = (_row("26.5 18.5 10"), _row("24 23.6 17.8"), _row("38.7 41.4 36"), _row("70 42.8 24"))
#: Factors on the bandwidth of trees from 64 B, 128 B, … 256 MiB on.
TREE_CORRECTION = {
    "LL": _row("1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1"),
    "LL128": _row("1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1"),
    "Simple": _row(".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9"),
}
CORRECTED_FROM_BYTES = 64
#: Factors on the latency of a ring's AllReduce between servers from 64 bytes per rank and channel on: before Ampere,
#: and from it on.
PLATEAU = (Fraction("1.9"), Fraction("1.4"))
MOST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class NcclEstimate:
    """NCCL's estimate for one of :data:`ALGORITHMS` and :data:`PROTOCOLS`, with algbw and busbw of nccl-tests."""

    algorithm: str
    protocol: str
    seconds: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float

    @property
    def words(self) -> str:
        """Algorithm and protocol, like "ring LL"; NVLS has one protocol only."""
        return self.algorithm if self.algorithm == "NVLS" else f"{self.algorithm} {self.protocol}"


@dataclass(frozen=True, slots=True)
class CostLine:
    """The time of one algorithm and protocol: ``latency_us + bytes / (1000 · gb_per_s)`` with two corrections.

    ``gb_per_s`` is algbw at large sizes; ``correction`` has factors on it per power of two from 64 bytes on. From
    ``plateau_bytes`` on the latency is ``plateau`` times as long.
    """

    algorithm: str
    protocol: str
    latency_us: Fraction
    gb_per_s: Fraction
    correction: tuple[Fraction, ...] = ()
    plateau: Fraction = Fraction(1)
    plateau_bytes: int = 0

    def at(self, size_bytes: int) -> tuple[Fraction, Fraction]:
        """Latency in µs, and µs per byte, at this size."""
        latency = self.latency_us * (self.plateau if size_bytes >= self.plateau_bytes else 1)
        octave = (size_bytes // CORRECTED_FROM_BYTES).bit_length() - 1
        factor = self.correction[octave] if 0 <= octave < len(self.correction) else Fraction(1)
        return latency, 1 / (1000 * self.gb_per_s * factor)

    def time_us(self, size_bytes: int) -> Fraction:
        latency, per_byte = self.at(size_bytes)
        return latency + size_bytes * per_byte


def predict(channels: Channels, collective: str, size_bytes: int) -> tuple[NcclEstimate, ...]:
    """NCCL's estimates, fastest first, for S = ``size_bytes`` of one of :data:`SERVED`."""
    lines = sorted(cost_lines(channels, collective), key=lambda line: line.time_us(size_bytes))
    factor = float(bus_factor(collective, channels.ranks))
    estimates = []
    for line in lines:
        seconds = float(line.time_us(size_bytes) / 1_000_000)
        algbw = algbw_gb_per_s(size_bytes, seconds)
        estimates.append(NcclEstimate(line.algorithm, line.protocol, seconds, algbw, algbw * factor))
    return tuple(estimates)


def choose(channels: Channels, collective: str, size_bytes: int) -> NcclEstimate:
    """NCCL's choice: the first of :func:`predict`."""
    return predict(channels, collective, size_bytes)[0]


def cost_lines(channels: Channels, collective: str) -> tuple[CostLine, ...]:
    """The times of all algorithms and protocols that NCCL considers, in its order."""
    job = _Job(channels, collective, channels.ranks, channels.servers, arch_named(channels.arch).sm)
    algorithms = ALGORITHMS if collective == "allreduce" and channels.tree is not None else ("ring",)
    return tuple(
        job.ring(protocol) if algorithm == "ring" else job.tree(protocol)
        for algorithm in algorithms
        for protocol in PROTOCOLS
        if protocol != "LL128" or job.has_ll128(algorithm)
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """The inputs of the cost model: one collective on one job."""

    channels: Channels
    name: str
    ranks: int
    servers: int
    sm: int

    @property
    def _row(self) -> int:
        return sum(self.sm >= least for least in ROWS[1:])

    @property
    def _column(self) -> int:
        return min(self.servers, 3) - 1

    @property
    def _ring_steps(self) -> int:
        return {"allreduce": 2 * (self.ranks - 1), "broadcast": self.ranks, "reduce": self.ranks}.get(
            self.name, self.ranks - 1
        )

    @property
    def _ll_gb_per_s(self) -> Fraction:
        row = self._row if self.servers == 1 else int(self.channels.vendor == "AuthenticAMD")
        return LL_GB_PER_S[row][self._column]

    def has_ll128(self, algorithm: str) -> bool:
        """True if LL128 is allowed: every link of the path must keep stores of 128 bytes in one piece."""
        paths = self.channels.tree if algorithm == "tree" else self.channels
        assert paths is not None
        farthest = PXN if self.sm >= 90 else PXB
        near = not paths.net_kind or KINDS.index(paths.net_kind) <= farthest
        return self.sm >= 70 and near and KINDS.index(paths.kind) <= NVB

    def ring(self, protocol: str) -> CostLine:
        """A ring: every rank sends to the next, at ``ranks`` / steps of the channels' rate."""
        channels, p = self.channels, PROTOCOLS.index(protocol)
        each = Fraction(str(channels.gb_per_s_per_channel if self.servers <= 2 else channels.net_gb_per_s_per_channel))
        busbw = each * channels.count
        if protocol == "LL":
            busbw = min(self._ll_gb_per_s, busbw / 2)
        elif protocol == "LL128":
            busbw = min(busbw * Fraction(92, 100), channels.count * RING_LL128_GB_PER_S[self._row][self._column])
        gb_per_s = busbw * self.ranks / self._ring_steps
        latency = BASE_US["ring"][p] + self._ring_us(p)
        if self.servers == 1 or self.name != "allreduce" or protocol != "Simple":
            return CostLine("ring", protocol, latency, gb_per_s)
        plateau_bytes = 64 * _all_channels(channels, self.sm) * self.ranks
        return CostLine("ring", protocol, latency, gb_per_s, (), PLATEAU[self.sm >= 80], plateau_bytes)

    def _ring_us(self, p: int) -> Fraction:
        inside = "nvlink" if self.channels.kind == "NVL" else "pcie"
        if self.name in ("broadcast", "reduce"):
            # A pipeline. NCCL counts its fill only where the channels have several orders.
            link = inside if self.servers == 1 else "net"
            if self.channels.same:
                return STEP_US[link, "ring"][p]
            return self._ring_steps * STEP_US[link, "tree" if PROTOCOLS[p] == "Simple" else "ring"][p]
        each = STEP_US[inside, "ring"][p]
        if self.servers == 1:
            return self._ring_steps * each
        # Every step includes the time to post to the network.
        posting = (2 if self.channels.vendor == "AuthenticAMD" else 1) * (3 if PROTOCOLS[p] == "Simple" else 1)
        between = (2 if self.name == "allreduce" else 1) * (self.servers - 1)
        return (self._ring_steps - between) * max(each, Fraction(posting)) + between * self._net_us("ring", p)

    def _net_us(self, algorithm: str, p: int) -> Fraction:
        """µs of a step between servers; with one rank per server no other step hides it, so a tree's time applies."""
        return STEP_US["net", "tree" if self.ranks == self.servers else algorithm][p]

    def tree(self, protocol: str) -> CostLine:
        """A tree: up and down a chain in each server, and a double binary tree of the servers."""
        chains, p = self.channels.tree, PROTOCOLS.index(protocol)
        assert chains is not None
        count = min(len(chains.orders), self.channels.count)
        each = Fraction(str(chains.gb_per_s_per_channel if self.servers <= 2 else chains.net_gb_per_s_per_channel))
        busbw = min(each * count * Fraction(92, 100), count * TREE_GB_PER_S[self._row][self._column])
        if protocol == "LL":
            busbw = min(busbw * Fraction(10, 38), self._ll_gb_per_s)
        elif protocol == "LL128":
            left = Fraction(7, 9) if self.servers == 1 else Fraction(120, 128)
            busbw = min(busbw * left, count * TREE_LL128_GB_PER_S[self._row][self._column])
        if self.servers > 1 and self.sm >= 90:
            # From Hopper on, only the first GPU of a chain uses the network, which costs bandwidth.
            busbw *= Fraction(85, 100)
        inside = "nvlink" if chains.kind == "NVL" else "pcie"
        # On POWER NCCL favours trees: a step over PCIe costs as much as a ring's.
        power = self.channels.vendor == "IBM" and inside == "pcie" and protocol == "Simple"
        step = STEP_US[inside, "ring" if power else "tree"][p]
        levels = self.servers.bit_length() - 1
        latency = 2 * ((self.ranks // self.servers - 1) * step + levels * self._net_us("tree", p))
        return CostLine("tree", protocol, BASE_US["tree"][p] + latency, busbw / 2, TREE_CORRECTION[protocol])


def _all_channels(channels: Channels, sm: int) -> int:
    """The channels of a communicator: two for each of the search, and more for fast networks of Hopper."""
    count = min(MOST_CHANNELS, 2 * channels.count)
    return (
        2 * count if sm >= 90 and channels.servers > 1 and channels.gb_per_s_per_channel > 45 and count < 16 else count
    )
