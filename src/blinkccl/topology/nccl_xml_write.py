"""Writer of NCCL's topology XML, for ``NCCL_TOPO_FILE`` and for :mod:`~.nccl_xml`.

NCCL's format covers GPUs, PCIe trees, NVLink, one NVSwitch plane, C2C, and NICs on PCIe, in one server. Anything else
(xGMI, several servers, links with different rates per direction) is refused; JSON covers everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from xml.sax.saxutils import quoteattr

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology import nccl_xml
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.connectivity import reachable
from blinkccl.topology.model import Topology
from blinkccl.topology.select import ids_text, network_for

#: Transfer rates of PCIe in GT/s, in order of preference.
_SPEEDS = ("8", "16", "32", "64", "5", "2.5")


@dataclass
class _XmlPlan:
    """The tree to write: the PCIe parent of each vertex, and its children."""

    topology: Topology
    rate: dict[tuple[int, int], Fraction]
    parent: dict[int, int]
    children: dict[int, list[int]]
    hosts: list[int]

    def subtree(self, vertex: int) -> set[int]:
        """``vertex`` and its descendants."""
        return reachable(vertex, self.children)


def write(topology: Topology) -> str:
    """``topology`` as NCCL topology XML, without an XML declaration, which NCCL's parser refuses.

    A GPU joined to its processor by NVLink or C2C alone reads back with additional PCIe, as NCCL has no other
    place for a GPU. A NIC is written below the lowest bridge above all its GPUs, and the reader joins it with every
    GPU there. So two GPUs below one bridge, each with its own NIC, both read back with both NICs.

    Raises
    ------
    UnsupportedError
        With the reason, if the topology does not fit NCCL's XML.
    """
    _check(topology)
    plan = _plan(topology)
    lines = ['<system version="1">']
    for number, host in enumerate(plan.hosts):
        keys = ("numaid", "arch", "vendor", "familyid", "modelid")
        attributes = dict(zip(keys, map(str, (number, *_processor(plan, host))), strict=True))
        lines.append(f"  <cpu{_attributes(attributes)}>")
        for child in plan.children.get(host, []):
            lines.extend(_device(plan, child, 2))
        lines.append("  </cpu>")
    lines.append("</system>")
    return "\n".join(lines) + "\n"


def _check(topology: Topology) -> None:
    if len({v.server for v in topology.vertices}) > 1:
        raise UnsupportedError(f"{topology.name} has several servers, but NCCL's XML describes one; write JSON")
    foreign = [v.label for v in topology.vertices if v.kind == "cpu"]
    if foreign:
        raise UnsupportedError(f"{topology.name}: the ranks {', '.join(foreign[:4])} are no GPUs; write JSON")
    for x in topology.links:
        if x.kind in ("xgmi", "shm"):
            raise UnsupportedError(f"{topology.name}: NCCL's XML has no place for {x.kind} links; write JSON")
        ends = {topology.vertex[x.src].kind, topology.vertex[x.dst].kind}
        if "gpu" not in ends and x.kind != "pcie" and (x.kind != "smp" or ends != {"host"}):
            raise UnsupportedError(
                f"{topology.name}: NCCL's XML has no place for the {x.kind} link {x.src} → {x.dst} between vertices "
                "that are no GPUs; write JSON"
            )
        back = topology.link.get((x.dst, x.src))
        if back is None or back.capacity != x.capacity or back.kind != x.kind:
            raise UnsupportedError(
                f"{topology.name}: link {x.src} → {x.dst} differs from its other direction; NCCL's XML gives both one "
                "rate; write JSON"
            )
    planes = [
        v.id
        for v in topology.vertices
        if v.kind == "switch" and any(x.kind == "nvlink" and x.src == v.id for x in topology.links)
    ]
    if len(planes) > 1:
        raise UnsupportedError(
            f"{topology.name} has {len(planes)} NVSwitch planes, which NCCL treats as one; write JSON"
        )


def _plan(topology: Topology) -> _XmlPlan:
    """The forest of PCIe links, with hosts as roots."""
    unit = exact_unit(topology)
    rate = {(x.src, x.dst): x.capacity * unit for x in topology.links}
    pcie: dict[int, list[int]] = {}
    for x in topology.links:
        if x.kind == "pcie":
            pcie.setdefault(x.src, []).append(x.dst)
    hosts = [v.id for v in topology.vertices if v.kind == "host"]
    plan = _XmlPlan(topology, rate, {}, {}, hosts)
    for host in hosts:
        stack = [host]
        while stack:
            vertex = stack.pop()
            for other in pcie.get(vertex, []):
                if other == plan.parent.get(vertex):
                    continue
                if other in plan.parent or other in hosts:
                    raise UnsupportedError(
                        f"{topology.name}: PCIe link {vertex} → {other} closes a cycle or joins two hosts, but "
                        "this format has a tree below each host; write JSON"
                    )
                plan.parent[other] = vertex
                plan.children.setdefault(vertex, []).append(other)
                stack.append(other)
    _place_others(plan)
    return plan


def _place_others(plan: _XmlPlan) -> None:
    """Place GPUs without PCIe at the host of their NVLink or C2C, and NICs near their GPUs."""
    topology = plan.topology
    for gpu in (g for g in topology.ranks if g not in plan.parent):
        home = next((x.dst for x in topology.links if x.src == gpu and x.dst in plan.hosts), None)
        if home is None:
            raise UnsupportedError(
                f"{topology.name}: {topology.vertex[gpu].label} has no link to a processor, "
                "and NCCL's XML has a place for GPUs on PCIe only; write JSON"
            )
        plan.parent[gpu] = home
        plan.children.setdefault(home, []).append(gpu)
    for nic in (v.id for v in topology.vertices if v.kind == "nic" and v.id not in plan.parent):
        gpus = {x.dst for x in topology.links if x.src == nic and x.dst in topology.ranks}
        if gpus:
            home = _lowest_above(plan, gpus)
            plan.parent[nic] = home
            plan.children.setdefault(home, []).append(nic)


def _lowest_above(plan: _XmlPlan, gpus: set[int]) -> int:
    """The lowest vertex above all ``gpus``; without one, the host of the first GPU."""
    vertex = plan.parent[min(gpus)]
    while not gpus <= plan.subtree(vertex) and vertex in plan.parent:
        vertex = plan.parent[vertex]
    return vertex


def _processor(plan: _XmlPlan, host: int) -> tuple[str, str, int, int]:
    rates = sorted({plan.rate[host, x.dst] for x in plan.topology.links if x.kind == "smp" and x.src == host})
    if not rates:
        return nccl.PROCESSORS[10]
    if len(rates) > 1 or rates[0].denominator != 1 or int(rates[0]) not in nccl.PROCESSORS:
        shown = ", ".join(f"{float(r):g}" for r in rates)
        raise UnsupportedError(
            f"{plan.topology.name}: NCCL knows no processor with {shown} GB/s to the next; write JSON"
        )
    return nccl.PROCESSORS[int(rates[0])]


def _device(plan: _XmlPlan, vertex: int, depth: int) -> Iterator[str]:
    """The lines of one PCI device or bridge and of its descendants."""
    pad = "  " * depth
    kind = plan.topology.vertex[vertex].kind
    pci = {"busid": _busid(vertex), "class": {"gpu": "0x030200", "nic": "0x020700"}.get(kind, "0x060400")}
    above = _rate_above(plan, vertex)
    yield f"{pad}<pci{_attributes(pci | _pcie_attributes(plan, vertex, above))}>"
    if kind == "gpu":
        yield from _gpu(plan, vertex, depth + 1)
    elif kind == "nic":
        yield from _nic(plan, vertex, depth + 1)
    for child in plan.children.get(vertex, []):
        yield from _device(plan, child, depth + 1)
    yield f"{pad}</pci>"


def _rate_above(plan: _XmlPlan, vertex: int) -> Fraction:
    """GB/s of the PCIe link above; if the topology has none, a rate that does not limit the network."""
    link = plan.topology.link.get((vertex, plan.parent[vertex]))
    if link is not None and link.kind == "pcie":
        return plan.rate[vertex, plan.parent[vertex]]
    return nccl.pcie_gb_per_s(480 if plan.topology.vertex[vertex].kind == "nic" else 60, 16)


def _busid(vertex: int) -> str:
    return f"{vertex >> 8 & 0xFFFF:04x}:{vertex & 0xFF:02x}:00.0"


def _pcie_attributes(plan: _XmlPlan, vertex: int, gb_per_s: Fraction) -> dict[str, str]:
    """A speed and a width that NCCL converts to ``gb_per_s``; ×16 is preferred."""
    for width in (16, 8, 4, 2, 1, *range(32, 0, -1)):
        for speed in _SPEEDS:
            if nccl.pcie_gb_per_s(nccl.PCI_SPEED[speed], width) == gb_per_s:
                return {"link_speed": f"{float(speed)} GT/s PCIe", "link_width": str(width)}
    raise UnsupportedError(
        f"{plan.topology.name}: no PCIe link has {float(gb_per_s):g} GB/s (vertex {vertex}); write JSON"
    )


def _gpu(plan: _XmlPlan, gpu: int, depth: int) -> Iterator[str]:
    pad = "  " * depth
    number = str(plan.topology.ranks.index(gpu))
    sm = _compute_capability(plan.topology, plan.rate)
    yield f"{pad}<gpu{_attributes({'dev': number, 'sm': str(sm), 'rank': number, 'gdr': '1'})}>"
    for x in plan.topology.links:
        if x.src != gpu:
            continue
        if x.kind == "nvlink":
            count = str(int(plan.rate[x.src, x.dst] / nccl.nvlink_lane_gb_per_s(sm)))
            kind = {"gpu": "0x030200", "switch": "0x068000"}.get(plan.topology.vertex[x.dst].kind, "0x068001")
            yield f"{pad}  <nvlink{_attributes({'target': _busid(x.dst), 'count': count, 'tclass': kind})}/>"
        elif x.kind == "c2c":
            bandwidth = str(int(plan.rate[x.src, x.dst] * 1000))
            yield f"{pad}  <c2c{_attributes({'bw': bandwidth, 'count': '1'})}/>"
    yield f"{pad}</gpu>"


def _compute_capability(topology: Topology, rate: dict[tuple[int, int], Fraction]) -> int:
    """The ``sm`` of the oldest GPU, if it is known, or else one whose lane rate divides every NVLink."""
    rates = [rate[x.src, x.dst] for x in topology.links if x.kind == "nvlink"]
    known = [sm for gpu in topology.ranks if (sm := topology.vertex[gpu].sm) is not None]
    for sm in (*([min(known)] if known else []), 70, 60):
        if all((r / nccl.nvlink_lane_gb_per_s(sm)).denominator == 1 for r in rates):
            return sm
    raise UnsupportedError(f"{topology.name}: its NVLinks are no whole number of lanes of 25 or 20 GB/s; write JSON")


def _nic(plan: _XmlPlan, nic: int, depth: int) -> Iterator[str]:
    pad = "  " * depth
    gb_per_s = max((plan.rate[x.src, x.dst] for x in plan.topology.links if x.src == nic), default=Fraction(0))
    name = plan.topology.vertex[nic].label
    dev = [v.id for v in plan.topology.vertices if v.kind == "nic"].index(nic)
    net = {
        "name": name,
        "dev": str(dev),
        "speed": str(int(gb_per_s * 8000)),
        "port": "1",
        "latency": "0.000000",
        "guid": hex(nic),
        "maxconn": "65536",
        "gdr": "1",
    }
    yield f"{pad}<nic>"
    yield f"{pad}  <net{_attributes(net)}/>"
    yield f"{pad}</nic>"


def _attributes(values: dict[str, str]) -> str:
    return "".join(f" {key}={quoteattr(value)}" for key, value in values.items())


# Loss check: the file is read back and compared with the topology. The XML describes the devices' places, not their
# links, so some topologies read back with additional links.
#: Rounds of refinement: from the GPUs to the root of any PCIe tree and back.
_ROUNDS = 8
#: Class of each vertex, from all facts known about it; renumbered in each round.
_Colours = dict[int, int]


def differences(topology: Topology, text: str) -> list[str]:
    """One sentence for each choice of links whose network differs when ``text`` is read back.

    Networks are compared by colour refinement from the GPUs, in their order; forwarding vertices have no identity of
    their own. Cost: O(links × rounds).
    """
    again = nccl_xml.parse(text, topology.name)
    changes = []
    if again.ranks != topology.ranks:
        changes.append(f"GPUs {ids_text(topology.ranks)} become {ids_text(again.ranks)}")
    for choice in ("fast", "pcie", "all"):
        before, after = _network(topology, choice), _network(again, choice)
        if not _same(before, after):
            changes.append(f"--links {choice} gives {_instead(before, after)}")
    # NICs: a single server has no plan on them, but clusters of it are joined by them.
    if not changes and not _same(topology, again):
        changes.append(f"it has {_instead(topology, again)}")
    return changes


def _instead(before: Topology | None, after: Topology | None) -> str:
    if _counted(before) == _counted(after):
        return f"{_counted(after)} with other ends or rates"
    return f"{_counted(after)} instead of {_counted(before)}"


def _network(topology: Topology, links: str) -> Topology | None:
    """The network of all GPUs on ``links``; None if these do not connect them."""
    try:
        return network_for(topology, topology.ranks, links, stored=False)
    except TopologyError:
        return None


def _counted(network: Topology | None) -> str:
    if network is None:
        return "GPUs that are not connected"
    kinds: dict[str, int] = {}
    for link in network.links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    return " + ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) + " links"


def _same(a: Topology | None, b: Topology | None) -> bool:
    if a is None or b is None:
        return a is b
    colours = [{v.id: _first(t, v.id) for v in t.vertices} for t in (a, b)]
    for _ in range(_ROUNDS):
        numbers: dict[object, int] = {}
        colours = [dict(_refined(t, own, numbers)) for t, own in zip((a, b), colours, strict=True)]
        if sorted(colours[0].values()) != sorted(colours[1].values()):
            return False
    return True


def _first(topology: Topology, vertex: int) -> int:
    """A GPU's index among the ranks; for other vertices a number for their kind."""
    if vertex in topology.ranks:
        return topology.ranks.index(vertex)
    return -1 - ("switch", "nic", "host").index(topology.vertex[vertex].kind)


def _refined(topology: Topology, colours: _Colours, numbers: dict[object, int]) -> Iterator[tuple[int, int]]:
    """Each vertex with a number for its colour, its links, and the colours at their other ends."""
    around: dict[int, list[tuple[str, float, bool, int]]] = {v.id: [] for v in topology.vertices}
    for x in topology.links:
        around[x.src].append((x.kind, x.gb_per_s, True, colours[x.dst]))
        around[x.dst].append((x.kind, x.gb_per_s, False, colours[x.src]))
    for vertex, links in around.items():
        yield vertex, numbers.setdefault((colours[vertex], tuple(sorted(links))), len(numbers))
