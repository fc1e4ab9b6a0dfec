"""Topologies, and other data in their files: PCIe links, NUMA nodes, NICs, processors.

NCCL's XML is the richest: it has every PCIe link with the rate that slot and device allow, the family of the
processors and the position of the NICs. ``nvidia-smi topo -m`` has the distance from each NIC to each GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import msgspec

from blinkccl.apps.doctor.evidence import (
    Device,
    Evidence,
    GpuName,
    Location,
    MachineRead,
    MatrixText,
    NicPath,
    NvLinks,
    Processor,
    RingGraph,
    printable,
)
from blinkccl.apps.doctor.readers import Listener
from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_graph, nccl_xml, nvidia_smi
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.xml_tree import Element, parse_xml

_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")


#: The first row and the other rows of a matrix of nvidia-smi within a log.
_MATRIX = re.compile(r"^\s*GPU0\s+(?:GPU1|CPU|NIC|mlx)")
_MATRIX_ROW = re.compile(r"^\s*(?:GPU|NIC|[a-z]\w*_?)\d+\s")
MAX_MATRIX_LINES = 600


@dataclass
class MatrixReader(Listener):
    """Reader of ``nvidia-smi topo -m`` within a log; the matrix is returned when its rows end."""

    title = "nvidia-smi topo -m"
    lines: list[str] = field(default_factory=list)
    first: Location | None = None

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        if self.lines and (len(self.lines) >= MAX_MATRIX_LINES or not _MATRIX_ROW.match(line)):
            yield from self.end()
        if self.lines:
            self.lines.append(line)
        elif _MATRIX.match(line):
            self.lines, self.first = [line], place

    def end(self) -> Iterator[Evidence]:
        """The matrix read so far, if any."""
        lines, self.lines = self.lines, []
        if lines and self.first is not None:
            yield from from_matrix("\n".join(lines), self.first, self.notes)


def from_matrix(text: str, place: Location, notes: list[str]) -> Iterator[Evidence]:
    """The machine of ``nvidia-smi topo -m``, its NVLinks, and distances to its NICs; ``place`` is its first line."""
    source = str(place)
    cells = nvidia_smi.read_cells(text, source)
    try:
        yield msgspec.structs.replace(_machine(place, nvidia_smi.parse(text, source)), matrix=MatrixText(text))
    except TopologyError as error:  # a machine with a fault may be one that Blink cannot plan on
        notes.append(str(error))
    yield from (GpuName(place, name) for name in cells.products)
    gpus = range(cells.gpu_count)
    lanes = [[cells.lanes(a, b) for b in gpus if a != b] for a in gpus]
    if any(map(any, lanes)):
        switched = any(sum(row) > nvidia_smi.MAX_LANES_PER_GPU for row in lanes)
        for gpu, row in enumerate(lanes):
            yield NvLinks(place, f"GPU{gpu}", max(row) if switched else sum(row), 0)
    sockets = list(dict.fromkeys(cells.affinity[gpu] for gpu in gpus))
    for gpu in gpus:
        if cells.affinity[gpu]:
            yield Device(place, "gpu", f"GPU{gpu}", numa=sockets.index(cells.affinity[gpu]))
    nics = range(cells.gpu_count, len(cells.names))
    for nic in nics:
        if any(cells.cells[nic][other] == "PIX" for other in nics if other < nic):
            continue  # another port of a card that is already listed
        for gpu in gpus:
            if cells.cells[nic][gpu] in _NEAR:
                yield NicPath(place, cells.names[nic], f"GPU{gpu}", cells.cells[nic][gpu])


def from_other(text: str, source: str) -> Iterator[Evidence]:
    """The machine in a topology of another tool, which holds no further data."""
    yield _machine(Location(source), parse_topology(text.encode(), source))


def from_xml(text: str, source: str, notes: list[str]) -> Iterator[Evidence]:
    """The evidence in NCCL's topology or graph XML. A topology without <gpu> tags still has the links of devices."""
    root = parse_xml(text, source)
    if root.tag == "graphs":
        yield from _graphs(root, source)
        return
    try:
        topology = nccl_xml.parse(text, source)
        notes.extend(f"{source}: {note}" for note in topology.notes)
        yield _machine(Location(source), topology)
    except TopologyError as error:
        notes.append(str(error))
    yield from _devices(root, source)
    yield from _processors(root, source)
    yield from _nic_paths(root, source)
    yield from _nvlinks(root, source)


def _machine(place: Location, topology: Topology) -> MachineRead:
    """The machine, named after its file without the folder, because these formats have no name."""
    vertices = tuple(replace(vertex, name=printable(vertex.name)) for vertex in topology.vertices)
    return MachineRead(place, replace(topology, name=PurePath(place.source).name or topology.name, vertices=vertices))


def _graphs(root: Element, source: str) -> Iterator[Evidence]:
    for graph in nccl_graph.graphs_of(root, source):
        if graph.orders and graph.pattern:
            place, ranks = Location(source, graph.line), len(set(graph.orders[0]))
            yield RingGraph(place, graph.pattern, len(graph.orders), graph.gb_per_s, graph.kind, ranks)


def _host(element: Element, root: Element) -> int:
    """The number of the host of a device, by ``host_hash``."""
    hashes = list(dict.fromkeys(cpu.attributes.get("host_hash", "") for cpu in root.all("cpu")))
    return next((hashes.index(cpu.attributes.get("host_hash", "")) for cpu in element.above("cpu")), 0)


def _gpu_name(gpu: Element, root: Element) -> str:
    """``GPU1``, or ``1/GPU1`` with its host's number if the file has several hosts, as in the topology."""
    name = f"GPU{gpu.attributes.get('dev', '?')}"
    several = len({cpu.attributes.get("host_hash", "") for cpu in root.all("cpu")}) > 1
    return f"{_host(gpu, root)}/{name}" if several else name


def _devices(root: Element, source: str) -> Iterator[Evidence]:
    for cpu in root.all("cpu"):
        numa = _whole(cpu.attributes.get("numaid"))
        for pci in cpu.below("pci"):
            kind, name = _named(pci, root)
            model = " ".join(pci.attributes.get(key, "") for key in ("vendor", "device", "subsystem_device"))
            width = _whole(pci.attributes.get("link_width")) or None
            speed = re.match(r"\s*([\d.]+)", pci.attributes.get("link_speed", ""))
            rate = float(speed[1]) if speed else None
            yield Device(Location(source, pci.line), kind, name, model, numa, width, gt_per_s=rate)


def _named(pci: Element, root: Element) -> tuple[str, str]:
    gpu, nic = next(iter(pci.all("gpu")), None), next(iter(pci.all("nic")), None)
    if gpu is not None:
        return "gpu", _gpu_name(gpu, root)
    if nic is not None:
        return "nic", _nic_name(nic)
    return "bridge", f"PCI {pci.attributes.get('busid', '?')}"


def _nic_name(nic: Element) -> str:
    return next((net.attributes["name"] for net in nic.all("net") if "name" in net.attributes), "NIC")[:64]


def _processors(root: Element, source: str) -> Iterator[Evidence]:
    cpus = [cpu for cpu in root.all("cpu") if cpu.attributes.get("vendor")]
    if cpus:
        vendor, family = cpus[0].attributes["vendor"].strip(), _whole(cpus[0].attributes.get("familyid"))
        yield Processor(Location(source, cpus[0].line), vendor, family or 0, len(cpus))


def _nic_paths(root: Element, source: str) -> Iterator[Evidence]:
    """Distances from NICs to GPUs: PIX below one bridge, PXB below several, PHB below one processor, else SYS."""
    gpus = [gpu for gpu in root.below("gpu") if "dev" in gpu.attributes]
    for nic in root.below("nic"):
        if not any(_whole(net.attributes.get("speed")) for net in nic.all("net")):
            continue
        over = _above(nic)
        for gpu in (gpu for gpu in gpus if _host(gpu, root) == _host(nic, root)):
            way = _above(gpu)
            common = next(element for element in way if element in over)
            near = max(way.index(common), over.index(common)) <= 1
            kind = {"system": "SYS", "cpu": "PHB"}.get(common.tag, "PIX" if near else "PXB")
            yield NicPath(Location(source, nic.line), _nic_name(nic), _gpu_name(gpu, root), kind)


def _above(element: Element) -> list[Element]:
    return [] if element.parent is None else [element.parent, *_above(element.parent)]


def _nvlinks(root: Element, source: str) -> Iterator[Evidence]:
    gpus = [gpu for gpu in root.below("gpu") if "dev" in gpu.attributes]
    for gpu in gpus if any(gpu.all("nvlink") for gpu in gpus) else ():
        up = sum(_whole(link.attributes.get("count")) or 0 for link in gpu.all("nvlink"))
        yield NvLinks(Location(source, gpu.line), _gpu_name(gpu, root), up, 0)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,9}", text) else None
