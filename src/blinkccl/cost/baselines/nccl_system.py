"""A server as NCCL sees it: one path between each two GPUs, and the load of that path on links.

NCCL 2.30 (src/graph/paths.cc) fixes one path for every ordered pair of GPUs: the nearest *kind*, then the widest, then
the shortest, by its own count of links (:mod:`~blinkccl.cost.baselines.nccl_links`).

Every NVLink domain is one server here, as in NCCL, even if it spans several hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from blinkccl.cost.baselines.nccl_links import (
    LOC,
    NVB,
    NVL,
    PHB,
    PIX,
    PXB,
    VERSION,
    Arch,
    CountedLinks,
    arch_named,
    step_kind,
)
from blinkccl.errors import UnsupportedError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.catalog import APPLE
from blinkccl.topology.model import Topology
from blinkccl.topology.nvidia_smi import GRACE_NOTE
from blinkccl.topology.select import check_ranks
from blinkccl.trees.forest.model import Path

Arc = tuple[int, int]
#: The network's end of the arcs ``(card, NETWORK)`` and ``(NETWORK, card)``, which carry all of a card's traffic.
NETWORK = -1


@dataclass(frozen=True, slots=True)
class NcclHop:
    """NCCL's path between GPUs or to a network card; ``load`` is the load in GB/s of a 1 GB/s channel on each link."""

    path: Path
    kind: int
    gb_per_s: Fraction
    load: tuple[tuple[Arc, Fraction], ...]


@dataclass(frozen=True, slots=True)
class NcclNic:
    """A network card of a server, and the job's ``gpus`` beside it; ``enter`` and ``leave`` hold a hop for each.

    ``kind`` is PIX if it shares a PCIe switch with them, PXB for a switch further up, PHB for none.
    """

    vertex: int
    gb_per_s: Fraction
    kind: int
    gpus: tuple[int, ...]
    enter: Mapping[int, NcclHop]
    leave: Mapping[int, NcclHop]


@dataclass(frozen=True)
class NcclMachine:
    """One server as NCCL sees it; ``gpus`` are the job's by id, which is assumed to be their order on PCIe.

    ``capacity``: GB/s of each link that a hop crosses, by NCCL's constants. ``hops``: one per ordered pair of joined
    GPUs. ``pcie_gb_per_s``, ``nvlink_gb_per_s``: each GPU's PCIe link (if any), and all its NVLinks together.
    ``vendor`` is the processors'; ``nics`` are joined to these GPUs.
    """

    gpus: tuple[int, ...]
    arch: Arch
    vendor: str
    capacity: Mapping[Arc, Fraction]
    hops: Mapping[Arc, NcclHop]
    pcie_gb_per_s: Mapping[int, Fraction]
    nvlink_gb_per_s: Mapping[int, Fraction]
    nics: tuple[NcclNic, ...] = field(default=())

    @cached_property
    def max_gb_per_s(self) -> Fraction:
        """The widest path between two GPUs: no channel is faster."""
        return max((hop.gb_per_s for hop in self.hops.values()), default=Fraction(0))

    @cached_property
    def total_gb_per_s(self) -> Fraction:
        """The rate of the best-linked GPU by its PCIe link or all its NVLinks, the most that channels need."""
        return max(max(self.pcie_gb_per_s.get(g, Fraction(0)), self.nvlink_gb_per_s[g]) for g in self.gpus)

    @cached_property
    def switched(self) -> bool:
        """True if all GPUs are on one NVSwitch, so that all orders of them are equal."""
        middles = {hop.path[1:-1] for hop in self.hops.values()}
        return len(self.gpus) > 1 and len(middles) == 1 and self._one_nvswitch(next(iter(middles)))

    def _one_nvswitch(self, middle: tuple[int, ...]) -> bool:
        pairs = len(self.gpus) * (len(self.gpus) - 1)
        return len(middle) == 1 and len(self.hops) == pairs and all(hop.kind == NVL for hop in self.hops.values())

    @cached_property
    def split(self) -> bool:
        """True if NVLink forms exactly two groups of GPUs; NCCL then requires at least two rings.

        One pass finds the groups, as in NCCL, so a chain with links out of the GPUs' order may count as two.
        """
        group = list(range(len(self.gpus)))
        for i, a in enumerate(self.gpus):
            for j in range(i + 1, len(self.gpus)):
                hop = self.hops.get((a, self.gpus[j]))
                if hop is not None and hop.kind == NVL:
                    group[j] = group[i]
        return sum(group.count(number) > 1 for number in range(len(group))) == 2

    @cached_property
    def kinds(self) -> tuple[int, int]:
        """The nearest and the farthest kind of path between two GPUs; LOC for a single GPU."""
        kinds = [hop.kind for hop in self.hops.values()]
        return (min(kinds), max(kinds)) if kinds else (LOC, LOC)


def see(
    topology: Topology, ranks: Sequence[int], arch: str, version: tuple[int, int] = VERSION
) -> tuple[NcclMachine, ...]:
    """The servers of a job as NCCL sees them, without other GPUs and their links."""
    check_ranks(topology, ranks)
    check_nvidia(topology, ranks)
    sight = _Sight(topology, frozenset(ranks), arch_named(arch), version)
    return tuple(sight.server(gpus) for gpus in nvlink_domains(topology, ranks))


def check_nvidia(topology: Topology, ranks: Sequence[int]) -> None:
    """Raise UnsupportedError unless all ranks are NVIDIA GPUs."""
    foreign = [topology.vertex[rank].label for rank in ranks if topology.vertex[rank].kind != "gpu"]
    if foreign:
        raise UnsupportedError(f"NCCL runs on GPUs, but {foreign[0]} of {topology.name} is a processor")
    kinds = {x.kind for x in topology.links}
    if "xgmi" in kinds:
        raise UnsupportedError(f"NCCL runs on NVIDIA GPUs, but {topology.name} joins its GPUs by xGMI")
    apple = [topology.vertex[rank].label for rank in ranks if APPLE in topology.vertex[rank].name.split("/")[-1]]
    if apple:
        raise UnsupportedError(f"NCCL runs on NVIDIA GPUs, but {apple[0]} of {topology.name} is Apple's")


def nvlink_domains(topology: Topology, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """The job's GPUs by NVLink domain: by server, or by servers that NVLink joins."""
    first = {topology.vertex[v].server: topology.vertex[v].server for v in sorted(ranks)}

    def home(server: int) -> int:
        return server if first[server] == server else home(first[server])

    fabric: dict[int, int] = {}
    present = frozenset(ranks)
    for src, dst in sorted((x.src, x.dst) for x in topology.links if x.kind == "nvlink" and x.src in present):
        if dst not in present and not topology.is_transit(dst):
            continue
        server = topology.vertex[src].server
        other = topology.vertex[dst].server if dst in present else fabric.setdefault(dst, server)
        low, high = sorted((home(server), home(other)))
        first[high] = low
    domains: dict[int, list[int]] = {}
    for gpu in sorted(ranks, key=lambda v: (topology.vertex[v].server, v)):
        domains.setdefault(home(topology.vertex[gpu].server), []).append(gpu)
    return [tuple(gpus) for gpus in domains.values()]


def on_grace(topology: Topology, ranks: Sequence[int]) -> bool:
    """True if C2C joins GPUs of the job to their processors."""
    present = frozenset(ranks)
    return GRACE_NOTE in topology.notes or any(x.kind == "c2c" and x.src in present for x in topology.links)


class _Sight:
    """The part of a topology that a job uses, in NCCL's constants."""

    def __init__(self, topology: Topology, ranks: frozenset[int], arch: Arch, version: tuple[int, int]) -> None:
        self.topology, self.ranks, self.arch = topology, ranks, arch
        self.counted = CountedLinks(topology, version)
        unit = exact_unit(topology)
        visible = {v.id for v in topology.vertices if v.id in ranks or topology.is_transit(v.id)}
        links = [x for x in topology.links if x.src in visible and x.dst in visible]
        self.kind = {(x.src, x.dst): x.kind for x in links}
        self.rate = {(x.src, x.dst): self.counted.gb_per_s(x.kind, x.capacity * unit, arch) for x in links}
        self.ahead: dict[int, list[int]] = {}
        self.behind: dict[int, list[int]] = {}
        # Widest first, in NCCL's order of links, which decides between equal paths.
        for src, dst in sorted(self.rate, key=lambda arc: (-self.rate[arc], arc)):
            self.ahead.setdefault(src, []).append(dst)
            self.behind.setdefault(dst, []).append(src)

    def server(self, gpus: tuple[int, ...]) -> NcclMachine:
        hops = {(src, dst): hop for dst in gpus for src, hop in self._paths_to(dst, gpus).items()}
        arcs = [(gpu, other) for gpu in gpus for other in self.ahead.get(gpu, ())]
        pcie = {a: self.rate[a, b] for a, b in arcs if self.kind[a, b] == "pcie"}
        nvlink = {
            g: sum((self.rate[a, b] for a, b in arcs if a == g and self.kind[a, b] == "nvlink"), Fraction(0))
            for g in gpus
        }
        nics = tuple(self._nics(gpus, pcie))
        crossed = [*hops.values(), *(hop for nic in nics for way in (nic.enter, nic.leave) for hop in way.values())]
        capacity = {arc: self.rate[arc] for hop in crossed for arc, _ in hop.load if NETWORK not in arc}
        for nic in nics:
            capacity[nic.vertex, NETWORK] = capacity[NETWORK, nic.vertex] = nic.gb_per_s
        return NcclMachine(gpus, self.arch, self.counted.vendor(gpus[0]), capacity, hops, pcie, nvlink, nics)

    def _paths_to(self, target: int, gpus: tuple[int, ...]) -> dict[int, NcclHop]:
        """NCCL's path from every GPU of ``gpus`` to ``target``, improved in rounds outward from the target."""
        best: dict[int, tuple[int, Fraction, Path]] = {target: (LOC, Fraction(5000), (target,))}
        layer = [target]
        while layer:
            further: dict[int, None] = {}
            for node in layer:
                for above in self.behind.get(node, ()):
                    longer = self._extended(best[node], above)
                    if longer is not None and (above not in best or _distance(longer) < _distance(best[above])):
                        best[above] = longer
                        further[above] = None
            layer = list(further)
        return {gpu: self._hop(*best[gpu]) for gpu in gpus if gpu in best and gpu != target}

    def _extended(self, label: tuple[int, Fraction, Path], above: int) -> tuple[int, Fraction, Path] | None:
        kind, gb_per_s, path = label
        arc = above, path[0]
        if above in path or self.kind[arc] == "net":
            return None
        step = step_kind(self.topology, *arc)
        if path[0] in self.ranks and len(path) > 1:
            # Only NVLink relays through a GPU, and only between two GPUs that are directly joined to it.
            if len(path) > 2 or kind != NVL or step != NVL or above not in self.ranks:
                return None
            step = NVB
        return max(kind, step), min(gb_per_s, self.rate[arc]), (above, *path)

    def _hop(self, kind: int, gb_per_s: Fraction, path: Path) -> NcclHop:
        load: dict[Arc, Fraction] = {}
        for a, b in pairwise(path):
            share = self.counted.share(kind, path[0]) if self.kind[a, b] == "pcie" else Fraction(1)
            load[a, b] = load.get((a, b), Fraction(0)) + share
            if self.kind[a, b] == "nvlink" and self.topology.vertex[b].kind == "host":
                load[b, a] = load.get((b, a), Fraction(0)) + 1
        return NcclHop(path, kind, gb_per_s, tuple(sorted(load.items())))

    def _nics(self, gpus: tuple[int, ...], pcie: Mapping[int, Fraction]) -> list[NcclNic]:
        beside: dict[int, list[int]] = {}
        for gpu in gpus:
            for other in sorted(self.ahead.get(gpu, ())):
                if self.kind[gpu, other] == "net":
                    beside.setdefault(other, []).append(gpu)
        return [self._nic(vertex, joined, gpus, pcie) for vertex, joined in sorted(beside.items())]

    def _nic(self, vertex: int, joined: list[int], gpus: tuple[int, ...], pcie: Mapping[int, Fraction]) -> NcclNic:
        """The card, on the lowest switch above all GPUs joined to it and equally near to all GPUs below that switch.

        Without such a switch, the card is on the processor of each GPU.
        """
        above = [self._switches(gpu) for gpu in joined]
        at = next((v for v in above[0] if all(v in others for others in above)), None)
        if at is None:
            kind, siblings = PIX if len(joined) == 1 else PHB, []
        else:
            kind = PIX if all(switches[0] == at for switches in above) else PXB
            siblings = [g for g in gpus if g not in joined and at in self._switches(g)]
        # Assumption: the card's own PCIe link is as wide as a GPU's, and an Intel processor splits its packets too.
        more = self.counted.share(kind, gpus[0])
        gb_per_s = min([self.rate[vertex, joined[0]], *(pcie[g] / more for g in joined if g in pcie)])
        hops = {gpu: self._net_hops((vertex, joined[0]), gpu, kind, gb_per_s, at) for gpu in (*joined, *siblings)}
        enter, leave = {g: x[0] for g, x in hops.items()}, {g: x[1] for g, x in hops.items()}
        return NcclNic(vertex, gb_per_s, kind, tuple(hops), enter, leave)

    def _switches(self, gpu: int) -> tuple[int, ...]:
        """The PCIe switches above ``gpu``, nearest first."""
        return tuple(arc[1] for arc in self._way_up(gpu) if self.topology.vertex[arc[1]].kind == "switch")

    def _net_hops(self, card: Arc, gpu: int, kind: int, gb_per_s: Fraction, at: int | None) -> tuple[NcclHop, NcclHop]:
        """The hops from the card (with a GPU joined to it) to ``gpu`` and back, over the PCIe links between them."""
        vertex, joined = card
        way = self._way_up(gpu)
        switches = self._switches(gpu)
        up = way if kind == PHB else way[: 1 + switches.index(at) if at in switches else 1]
        leave = {(vertex, NETWORK): Fraction(1), **dict.fromkeys(up, self.counted.share(kind, gpu))}
        enter = {(NETWORK, vertex): Fraction(1), **{(b, a): Fraction(1) for a, b in up}}
        if up and self.arch.sm < 80:
            # Before Ampere, data from a card to a GPU loads the GPU's other direction by an eighth.
            enter[up[0]] = Fraction(1, 8)
        path: Path = (gpu, vertex)
        if path not in self.rate and at is not None:
            switches_beside = self._switches(joined)
            down = switches_beside[: switches_beside.index(at)]
            path = (*(arc[0] for arc in up), at, *reversed(down), joined, vertex)
        return (
            NcclHop(path[::-1], kind, gb_per_s, tuple(sorted(enter.items()))),
            NcclHop(path, kind, gb_per_s, tuple(sorted(leave.items()))),
        )

    def _way_up(self, gpu: int) -> list[Arc]:
        """The PCIe links from ``gpu`` to its processor; empty without such links."""
        way: list[Arc] = []
        at, visited = gpu, {gpu}
        while self.topology.vertex[at].kind != "host":
            beside = [b for b in self.ahead.get(at, ()) if self.kind[at, b] == "pcie"]
            above = [b for b in beside if b not in visited and b not in self.ranks]
            if not above:
                break
            nearest = min(above, key=lambda b: (self.topology.vertex[b].kind != "host", b))
            way.append((at, nearest))
            visited.add(nearest)
            at = nearest
        return way


def _distance(label: tuple[int, Fraction, Path]) -> tuple[int, Fraction, int]:
    return label[0], -label[1], len(label[2])
