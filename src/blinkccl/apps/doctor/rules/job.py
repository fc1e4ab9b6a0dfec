"""The job of a case: its GPUs and machine, measurements, the bound, and NCCL's expectation.

If the files do not state the job, it is inferred, and a note of the case gives the inference.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from blinkccl.apps.doctor.evidence import (
    THIS_MACHINE,
    Case,
    MachineRead,
    MeasuredCall,
    NcclVersion,
    RingGraph,
    SystemLink,
)
from blinkccl.apps.doctor.rules.servers import alike, gpu_name, server_of, with_names
from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import VERSION
from blinkccl.cost.baselines.nccl_model import SERVED
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.errors import BlinkError
from blinkccl.show.text import gb_per_s_text, ids
from blinkccl.topology.connectivity import parts
from blinkccl.topology.gpu_models import gpu_model
from blinkccl.topology.gpus import MOST_OF_A_HOST, guess_arch
from blinkccl.topology.model import FAST_KINDS, Link, Topology
from blinkccl.topology.select import ids_text, network_for
from blinkccl.topology.stated import assumed
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.in_switch import in_switch_forest
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Partition
from blinkccl.units import bus_factor

#: Message size if none was measured.
LARGE_BYTES = 1 << 30
#: Smaller messages measure latency rather than links.
LEAST_BYTES = 16 << 20
#: With more GPUs in three or more islands, the model of NCCL's search takes seconds.
MOST_SEARCHED = 6
#: NCCL_TOPO_PATTERN_RING.
RING_PATTERN = 4
#: NCCL's model uses practical rates, about 80 % of nominal on NVLink. A result below these parts of the bound is
#: therefore due to NCCL's channels.
GAP_ON_NVLINK, GAP = 0.7 * 0.8, 0.5
#: Slower links in a topology are mostly those of virtual bridges.
LEAST_REAL_GB_PER_S = 1
#: The part of the bound that RCCL reaches on a full mesh: 322 of 448 GB/s on eight MI300X (AMD's RCCL tests).
RCCL_PART = 0.72


@dataclass(frozen=True, slots=True)
class ProvedBound:
    """The proved bound on busbw in GB/s, its cut, and the kinds of links that it rests on."""

    busbw_gb_per_s: float
    cut: str
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expected:
    """The busbw that NCCL's own model predicts (or RCCL's usual part of the links), and its source in words."""

    busbw_gb_per_s: float
    how: str
    kind: str


@dataclass(frozen=True)
class MeasuredJob:
    """A job. ``ranks`` are vertices of ``machine``; ``measured`` is its best large row, ``largest`` its last.

    ``graph``: the rings that NCCL printed or dumped for it.
    """

    machine: MachineRead
    ranks: tuple[int, ...]
    collective: str
    graph: RingGraph | None
    measured: MeasuredCall | None = None
    largest: MeasuredCall | None = None
    version: tuple[int, int] = VERSION

    @property
    def topology(self) -> Topology:
        return self.machine.topology

    @property
    def whole(self) -> bool:
        """True if the job has all GPUs of the machine."""
        return len(self.ranks) == len(self.topology.ranks)

    @property
    def name(self) -> str:
        return f"{self.collective} on the GPUs {ids_text(sorted(self.ranks))} of {self.topology.name}"

    @property
    def spec(self) -> str:
        """The options that describe the job on a command line."""
        gpus = "" if self.whole else f" --gpus {ids_text(self.ranks)}"
        source = self.topology.name if self.machine.inferred else self.machine.place.source
        if self.machine.named:
            file, _, rates = source.partition(" @ ")
            by_name = [one for one in self._stated_by_name if f"{one.partition('=')[0]}=" not in rates]
            source = f"{file} @ {', '.join([*([rates] if rates else []), *by_name])}"
        return ("" if source == THIS_MACHINE else f" --topo {shlex.quote(source)}") + gpus

    @property
    def _stated_by_name(self) -> list[str]:
        """The rates that the GPUs' name gives a matrix, as a user states them."""
        model = gpu_model(self.machine.named)
        assert model is not None
        joined = any(x.kind == "nvlink" for x in self.topology.links)
        lane = [f"nvlink={float(model.lane_gb_per_s):g}GB/s"] if joined and model.lane_gb_per_s is not None else []
        return [*lane, f"pcie=gen{model.pcie}"]

    @property
    def bound(self) -> ProvedBound | None:
        return bound_of(self.topology, self.ranks, self.collective)

    @property
    def expected(self) -> Expected | None:
        if len(self.ranks) > MOST_SEARCHED and len(self.islands()) > 2 and self.joined_somewhere:
            return None
        size = self.measured.size_bytes if self.measured is not None else LARGE_BYTES
        if any(x.kind == "xgmi" for x in self.topology.links):
            return self._expected_of_rccl
        return expected_of(self.topology, self.ranks, self.collective, size, self.version)

    @property
    def _expected_of_rccl(self) -> Expected | None:
        """RCCL's rate on a full mesh of xGMI; None elsewhere."""
        bound = self.bound
        if bound is None or self.collective not in SERVED or not alike(self.topology):
            return None
        return Expected(RCCL_PART * bound.busbw_gb_per_s, f"{RCCL_PART:.0%} of the links", "XGMI")

    @property
    def joined_somewhere(self) -> bool:
        """True if the machine has NVLink or a similar link."""
        return any(x.kind in FAST_KINDS for x in self.topology.links)

    @property
    def split(self) -> bool:
        """True if the GPUs of some server are in several islands, on a machine with NVLink."""
        servers = {self.topology.vertex[rank].server for rank in self.ranks}
        return self.joined_somewhere and len(self.islands()) > len(servers)

    @property
    def assumed(self) -> list[str]:
        """The assumed rates that the bound rests on, in words: no file states them."""
        bound = self.bound
        return [] if bound is None else assumed(self.topology, bound.kinds)

    @property
    def between_hosts(self) -> bool:
        """True if the GPUs are in several servers that NVLink does not join; NCCL's model ends at the server."""
        return len({self.topology.vertex[rank].server for rank in self.ranks}) > 1 and len(self.islands()) > 1

    @property
    def modelled_gb_per_s(self) -> float | None:
        """NCCL's modelled busbw; where the model takes too long, the least part of the bound that NCCL reaches."""
        if self.expected is not None:
            return self.expected.busbw_gb_per_s
        return None if self.bound is None or not self.certain else GAP * self.bound.busbw_gb_per_s

    @property
    def judgeable(self) -> bool:
        """True if the measurement can be compared with NCCL's own rings, or with rates that are known.

        A GPU's name makes the assumed rates of its own links known, and not those between processors.
        """
        if self.graph is not None:
            return True
        if self.between_hosts:
            return False
        named = self.measured is not None and gpu_model(self.measured.gpu) is not None
        bus = self.bound is not None and "smp" in self.bound.kinds
        return self.modelled_gb_per_s is not None and (not self.assumed or (named and not bus))

    @property
    def certain(self) -> bool:
        """True if files or the catalogue state all rates that the bound rests on; NCCL's XML states none of a bus."""
        kinds = frozenset[str]() if self.bound is None else self.bound.kinds
        links = [x for x in self.topology.links if x.kind in kinds]
        bus = any(x.kind == "smp" and x.provenance in ("nccl-xml", "nvml") for x in links)
        return not self.assumed and not bus and not any(x.provenance == "nvidia-smi" for x in links)

    @property
    def bound_text(self) -> str:
        """The bound and its cut, in words."""
        bound = self.bound
        if bound is None:
            return "unknown: no link joins these GPUs"
        taken = self.assumed
        condition = f" (assumed: {', '.join(taken)})" if taken else ""
        bus = [x for x in self.topology.links if x.kind == "smp" and x.provenance == "nccl-xml"]
        if bus and "smp" in bound.cut:
            condition = f" if the bus between sockets gives {bus[0].gb_per_s:g} GB/s (NCCL's constant)"
        return f"{gb_per_s_text(bound.busbw_gb_per_s)} busbw{condition}, by {bound.cut}"

    def islands(self) -> list[tuple[int, ...]]:
        """The job's GPUs, grouped by NVLink or similar links."""
        through = {*self.ranks, *(v.id for v in self.topology.vertices if v.kind == "switch")}
        fast = [(x.src, x.dst) for x in self.topology.links if x.kind in FAST_KINDS and {x.src, x.dst} <= through]
        return parts(sorted(self.ranks), fast)


def jobs(case: Case) -> list[MeasuredJob]:
    """One job per set of GPUs and collective measured; without measurements, an AllReduce of all GPUs."""
    rows: dict[tuple[str, int, tuple[int, ...], str, int], list[MeasuredCall]] = {}
    for row in case.of(MeasuredCall):
        rows.setdefault((row.collective, row.ranks, row.gpus, row.gpu, row.hosts), []).append(row)
    log_version = case.last(NcclVersion)
    version = VERSION if log_version is None else (log_version.version[0], log_version.version[1])
    result = []
    for group in rows.values():
        large = [row for row in group if row.size_bytes >= LEAST_BYTES]
        best = max(large, key=lambda row: row.busbw_gb_per_s, default=None)
        host = None if best is None else machine_of(case, best)
        ranks = None if host is None or best is None else _ranks(case, host.topology, best)
        if best is not None and host is not None and ranks is not None:
            last = max(group, key=lambda row: (row.size_bytes, row.busbw_gb_per_s))
            result.append(
                MeasuredJob(host, ranks, best.collective, stated(case, best.ranks, best.hosts), best, last, version)
            )
    if not rows and (read := machines_with_gpus(case)):
        last_read = with_names(read[-1], gpu_name(case))
        ranks = case.gpus or last_read.topology.ranks
        if len(ranks) > 1:
            result.append(MeasuredJob(last_read, ranks, "allreduce", stated(case, len(ranks)), version=version))
    return result


def best_rows(case: Case) -> list[MeasuredCall]:
    """The best large row of each collective and number of ranks."""
    best: dict[tuple[str, int], MeasuredCall] = {}
    for row in case.of(MeasuredCall):
        known = best.get((row.collective, row.ranks))
        if row.size_bytes >= LEAST_BYTES and (known is None or row.busbw_gb_per_s > known.busbw_gb_per_s):
            best[row.collective, row.ranks] = row
    return list(best.values())


def stated(case: Case, ranks: int, hosts: int = 1) -> RingGraph | None:
    """The last rings that NCCL printed or dumped for this number of ranks, on one host."""
    rings = [g for g in case.of(RingGraph) if g.pattern == RING_PATTERN and g.gb_per_s > 0 and g.ranks in (None, ranks)]
    model = gpu_model(gpu_name(case))
    if model is not None and model.amd:  # RCCL's channels share links, so their sum is no rate
        return None
    return rings[-1] if rings and hosts == 1 else None


def machines_with_gpus(case: Case) -> list[MachineRead]:
    """The machines with GPUs, in the order in which they were read."""
    return [machine for machine in case.of(MachineRead) if machine.gpus]


def machine_of(case: Case, row: MeasuredCall) -> MachineRead | None:
    """The machine that was read last, with the rates of GPUs of this name, or else the server that the name implies."""
    read = machines_with_gpus(case)
    if read:
        return with_names(read[-1], row.gpu or gpu_name(case))
    server = server_of(row.place, row.gpu, row.ranks, row.hosts)
    direct = any(link.kind == "NVL" and link.node.startswith("GPU/") for link in case.of(SystemLink))
    if server is not None and server.switched and direct:  # NCCL's tree shows another server
        return None
    if server is not None:
        case.notes.append(f"{row.place.source}: {server.inferred}")
    return server


def _ranks(case: Case, topology: Topology, row: MeasuredCall) -> tuple[int, ...] | None:
    """The vertices of a row's ranks; None if the machine cannot be theirs."""
    if case.gpus is not None and len(case.gpus) == row.ranks:
        return case.gpus
    if row.ranks == len(topology.ranks):
        return topology.ranks
    if row.ranks > len(topology.ranks) or row.ranks < 2:
        return None
    listed = len(row.gpus) == row.ranks == len(set(row.gpus)) and set(row.gpus) <= set(topology.ranks)
    if row.hosts > 1:  # a rack is one machine here, since NVLink joins its hosts
        return topology.ranks[: row.ranks] if len(topology.ranks) > MOST_OF_A_HOST and alike(topology) else None
    chosen = row.gpus if listed else topology.ranks[: row.ranks]
    if alike(topology):
        return tuple(chosen)
    how = "the log numbers them so" if listed else "programs use the first GPUs"
    case.notes.append(
        f"{row.place.source}: its {row.ranks} ranks are assumed to be GPUs {ids_text(chosen)}, because {how}; "
        "if CUDA_VISIBLE_DEVICES differs, give --gpus"
    )
    return tuple(chosen)


def rates(case: Case) -> tuple[str, str]:
    """NCCL's expectation and the measured rate, each as the beginning of a sentence; "" if unknown."""
    job = next((job for job in jobs(case) if job.measured is not None), None)
    if job is None or job.measured is None:
        return "", ""
    got = f"{gb_per_s_text(job.measured.busbw_gb_per_s)} busbw measured; "
    expected = job.expected
    return "" if expected is None else f"{gb_per_s_text(expected.busbw_gb_per_s)} busbw by NCCL's model; ", got


@lru_cache(maxsize=256)
def bound_of(topology: Topology, ranks: tuple[int, ...], collective: str) -> ProvedBound | None:
    """The limit for algorithms of unicast trees; None if no links join the ranks."""
    for links in ("fast", "all"):
        try:
            network = network_for(topology, ranks, links)
            proof = certificate_for(_collective(collective, len(ranks)), ranks, network)
        except BlinkError:
            continue
        algbw = float(proof.bound) * network.unit_gb_per_s
        kinds = frozenset(x.kind for x in _limiting(proof, network))
        return ProvedBound(algbw * float(bus_factor(collective, len(ranks))), cut_text(proof, network), kinds)
    return None


@lru_cache(maxsize=64)
def in_switch_busbw(topology: Topology, ranks: tuple[int, ...], collective: str) -> float | None:
    """Busbw of the bound with in-network reduction in NVSwitches; None if no switch reduces or the bound is unknown."""
    if collective != "allreduce":
        return None
    try:
        forest = in_switch_forest(network_for(topology, ranks), Collective(collective, len(ranks)), ranks)
    except BlinkError:
        return None
    return None if forest is None else forest.algbw_gb_per_s * float(bus_factor(collective, len(ranks)))


def _collective(name: str, size: int) -> Collective:
    rooted = name in ("broadcast", "reduce", "gather", "scatter")
    ends = {"src": 0, "dst": size - 1} if name == "sendrecv" else {"root": 0} if rooted else {}
    return Collective(name, size, **ends)


def _limiting(proof: Certificate, network: Topology) -> Iterator[Link]:
    """The links whose rates make the bound."""
    match proof:
        case Cut():
            yield from (x for x in network.links if (x.src in proof.side) != (x.dst in proof.side))
        case Partition():
            block = {v: number for number, part in enumerate(proof.blocks) for v in part}
            yield from (x for x in network.links if block.get(x.src) != block.get(x.dst))
        case Dual():
            yield from (network.link[u, v] for u, v, _ in proof.prices)


def cut_text(proof: Certificate, network: Topology) -> str:
    """The links of the bound, by the names that people know."""
    label = {v.id: v.label for v in network.vertices}
    match proof:
        case Cut():
            inside = [v for v in proof.side if v in network.ranks]
            outside = [v for v in network.ranks if v not in proof.side]
            return f"the links from {{{ids(inside)}}} to {{{ids(outside)}}}"
        case Partition():
            return "the links between " + " | ".join(f"{{{ids(block)}}}" for block in proof.blocks)
        case Dual():
            pairs = list(dict.fromkeys(tuple(sorted((u, v))) for u, v, _ in proof.prices))
            kinds = {network.link[u, v].kind for u, v, _ in proof.prices}
            named = ", ".join(f"{label[u]} – {label[v]}" for u, v in pairs[:3])
            more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
            return f"the {' and '.join(sorted(kinds))} links {named}{more}"


@lru_cache(maxsize=256)
def expected_of(
    topology: Topology, ranks: tuple[int, ...], collective: str, size_bytes: int, version: tuple[int, int]
) -> Expected | None:
    """NCCL's channels on this machine and its busbw at this size; None if its model does not cover the job."""
    if collective not in SERVED:
        return None
    try:
        nccl = NcclServer(topology, ranks, guess_arch(topology), version)
        channels, chosen = nccl.channels, nccl.at(collective, size_bytes)
    except BlinkError:
        return None
    how = f"{channels.count} × {channels.gb_per_s_per_channel:g} GB/s over {channels.kind}"
    return Expected(chosen.busbw_gb_per_s, f"{chosen.algorithm}, {how}", channels.kind)
