"""Topologies, and what their files say beside: PCIe links, NUMA nodes, NICs, processors.

NCCL's XML is the richest: it has every PCIe link as the slot and the device allow it, the processors by family, and
where the NICs are. ``nvidia-smi topo -m`` has how far each NIC is from each GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from blinkccl.doctor.evidence import Device, Graph, Machine, NicPath, NvLinks, Piece, Place, Processor
from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_graph, nccl_xml, nvidia_smi
from blinkccl.topology.model import Topology
from blinkccl.topology.xml_tree import Element, parse_xml

_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")


def from_matrix(text: str, place: Place, notes: list[str]) -> Iterator[Piece]:
    """The machine of ``nvidia-smi topo -m``, its NVLinks, how far its NICs are; ``place`` is its first line."""
    source = str(place)
    cells = nvidia_smi.read_cells(text, source)
    try:
        yield _machine(place, nvidia_smi.parse(text, source))
    except TopologyError as error:  # a machine with a fault may be none that we know to plan on
        notes.append(str(error))
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
            continue  # another port of a card that is told already
        for gpu in gpus:
            if cells.cells[nic][gpu] in _NEAR:
                yield NicPath(place, cells.names[nic], f"GPU{gpu}", cells.cells[nic][gpu])


def from_xml(text: str, source: str, notes: list[str]) -> Iterator[Piece]:
    """NCCL's topology or graph XML. A topology without <gpu> tags still says how its devices are linked."""
    root = parse_xml(text, source)
    if root.tag == "graphs":
        yield from _graphs(root, source)
        return
    try:
        yield _machine(Place(source), nccl_xml.parse(text, source))
    except TopologyError as error:
        notes.append(str(error))
    yield from _devices(root, source)
    yield from _processors(root, source)
    yield from _nic_paths(root, source)
    yield from _nvlinks(root, source)


def _machine(place: Place, topology: Topology) -> Machine:
    """The machine, called by its file's name alone: these formats have no name, and folders say nothing."""
    return Machine(place, replace(topology, name=PurePath(place.source).name or topology.name))


def _graphs(root: Element, source: str) -> Iterator[Piece]:
    for graph in nccl_graph.graphs_of(root, source):
        if graph.orders and graph.pattern:
            yield Graph(
                Place(source, graph.line),
                graph.pattern,
                len(graph.orders),
                graph.gb_per_s,
                graph.kind,
                len(set(graph.orders[0])),
            )


def _devices(root: Element, source: str) -> Iterator[Piece]:
    for cpu in root.all("cpu"):
        numa = _whole(cpu.attributes.get("numaid"))
        for pci in cpu.below("pci"):
            kind, name = _named(pci)
            model = " ".join(pci.attributes.get(key, "") for key in ("vendor", "device", "subsystem_device"))
            width = _whole(pci.attributes.get("link_width")) or None
            speed = re.match(r"([\d.]+)", pci.attributes.get("link_speed", "").strip())
            yield Device(
                Place(source, pci.line), kind, name, model, numa, width, gt_per_s=float(speed[1]) if speed else None
            )


def _named(pci: Element) -> tuple[str, str]:
    gpu, nic = next(iter(pci.all("gpu")), None), next(iter(pci.all("nic")), None)
    if gpu is not None:
        return "gpu", f"GPU{gpu.attributes.get('dev', '?')}"
    if nic is not None:
        return "nic", _nic_name(nic)
    return "bridge", f"PCI {pci.attributes.get('busid', '?')}"


def _nic_name(nic: Element) -> str:
    return next((net.attributes["name"] for net in nic.all("net") if "name" in net.attributes), "NIC")[:64]


def _processors(root: Element, source: str) -> Iterator[Piece]:
    cpus = [cpu for cpu in root.all("cpu") if cpu.attributes.get("vendor")]
    if cpus:
        first = cpus[0].attributes
        yield Processor(
            Place(source, cpus[0].line), first["vendor"].strip(), _whole(first.get("familyid")) or 0, len(cpus)
        )


def _nic_paths(root: Element, source: str) -> Iterator[Piece]:
    """How far NICs are from GPUs: PIX below one bridge, PHB below one processor, else SYS."""
    gpus = [gpu for gpu in root.below("gpu") if "dev" in gpu.attributes]
    for nic in root.below("nic"):
        if not any(_whole(net.attributes.get("speed")) for net in nic.all("net")):
            continue
        over = _above(nic)
        for gpu in gpus:
            common = next((element for element in _above(gpu) if element in over), None)
            kind = "SYS" if common is None or common.tag == "system" else "PHB" if common.tag == "cpu" else "PIX"
            yield NicPath(Place(source, nic.line), _nic_name(nic), f"GPU{gpu.attributes['dev']}", kind)


def _above(element: Element) -> list[Element]:
    found = []
    parent = element.parent
    while parent is not None:
        found.append(parent)
        parent = parent.parent
    return found


def _nvlinks(root: Element, source: str) -> Iterator[Piece]:
    gpus = [gpu for gpu in root.below("gpu") if "dev" in gpu.attributes]
    if not any(gpu.all("nvlink") for gpu in gpus):
        return
    for gpu in gpus:
        up = sum(_whole(link.attributes.get("count")) or 0 for link in gpu.all("nvlink"))
        yield NvLinks(Place(source, gpu.line), f"GPU{gpu.attributes['dev']}", up, 0)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,9}", text) else None
