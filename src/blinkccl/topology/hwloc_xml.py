"""Reader of ``lstopo`` XML (hwloc 2).

Packages become hosts, PCI bridges with several branches become switches, and OS devices become GPUs and NICs. GPUs are
the devices of hwloc's NVML, RSMI or CUDA backend, with its numbers; without such a backend, PCI devices of a GPU class
and vendor. NVLinks and xGMI links come from the matrices ``NVLinkBandwidth`` and ``XGMIBandwidth`` (MB/s per
direction). Source: hwloc's documentation and its DTD, ``hwloc2.dtd``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations

from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology import pcie_tree
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.limits import MAX_GB_PER_S, MAX_MATRIX_DEVICES, at
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import NOTHING, Stated
from blinkccl.topology.xml_tree import Element, parse_xml

PCIE_GB_PER_S, XGMI_GB_PER_S = 12, 50
_BACKENDS = ("nvml", "rsmi", "cuda")
_GPU_PCI = re.compile(r"(?:03|12)[0-9a-f]{2} \[(?:10de|1002):")
_OPENFABRICS, _NETWORK = "3", "2"
_SPEED = r"[0-9]{1,4}(?:\.[0-9]{1,9})?"
#: hwloc's GB/s of a PCIe lane (transfer rate × encoding / 8), by NCCL's number for its speed.
_LANES = {
    15: Fraction("0.25"),
    30: Fraction("0.5"),
    60: Fraction(128, 130),
    120: Fraction(256, 130),
    240: Fraction(512, 130),
    480: Fraction("7.5625"),
}
#: GB/s that hwloc's older RSMI backend writes for every pair of a hive, also for pairs over several links.
_ANY_XGMI = 100
_ARCHITECTURES = {"ppc64le": "ppc64", "aarch64": "arm64"}


@dataclass
class _HwlocReading:
    """State while a file is read: GPUs by their element, and the vertex of each element that has one."""

    source: str
    box: Assembly
    root: Element
    stated: Stated
    vertex: dict[Element, int] = field(default_factory=dict)
    #: GPUs by their place on PCIe (a PCI device, or the OS device alone), and the processor of each place.
    gpus_of: dict[Element, list[int]] = field(default_factory=dict)
    host_of: dict[Element, Element] = field(default_factory=dict)
    #: GPUs with NVLinks to their host, whose PCIe therefore needs a vertex of its own.
    to_host: list[int] = field(default_factory=list)
    #: Number of PCIe links without a speed in the file.
    unknown: int = 0

    def wrong(self, element: Element, text: str) -> TopologyError:
        """A TopologyError with ``text`` and the line of ``element``."""
        return at(self.source, element.line, text)


def looks_like(text: str) -> bool:
    """True if ``text`` is XML with hwloc's root element."""
    return text.lstrip()[:1] == "<" and re.search(r"<topology[\s>]", text[:4000]) is not None


def parse(text: str, source: str = "lstopo XML", stated: Stated = NOTHING) -> Topology:
    """The machine in a file written by ``lstopo FILE.xml``.

    PCIe rates are the file's, in NCCL's count (12 GB/s for generation 3 ×16). The bus between processors has NCCL's
    rate for the model. NICs are left out unless their rate is ``stated``.

    Raises
    ------
    TopologyError
        With the line: not well-formed, a version other than hwloc 2's, no GPU, a duplicate device, invalid numbers,
        a matrix that is incomplete, not symmetric, or of unknown objects.
    """
    root = parse_xml(text, source, "topology")
    if root.tag != "topology":
        raise at(source, root.line, f"the root is <{root.tag}>, expected <topology>, as lstopo writes it")
    version = root.attributes.get("version", "1")
    if not version.startswith("2."):
        raise at(source, root.line, f"<topology> version {version!r}, expected 2.0, which lstopo of hwloc 2 writes")
    reading = _HwlocReading(source, Assembly(source, "lstopo"), root, stated)
    _find_gpus(reading)
    hosts = _find_hosts(reading)
    _add_matrices(reading)
    for host in hosts:
        _add_pcie(reading, host)
    _join_hosts(reading, hosts)
    _add_nics(reading)
    _note_rates(reading)
    stated.declare(reading.box)
    return reading.box.finish()


def _note_rates(reading: _HwlocReading) -> None:
    """Add notes on the origin of the rates of PCIe and of the bus."""
    for key, what in (("pcie", "the PCIe link of a GPU"), ("smp", "the bus between processors")):
        if key in reading.stated.names():
            reading.stated.rate(reading.box, key, what, 0)
        elif key == "pcie":
            reading.box.notes.append(
                "PCIe rates are those seen by lstopo, which are too low if a GPU was idle or an older NVML "
                'was used; to state the rate: "FILE @ pcie=gen5"'
            )
    if reading.unknown:
        reading.box.notes.append(
            f"{reading.unknown} PCIe links are assumed to be generation 3 ×16, as lstopo saw no speed"
        )


def _type(element: Element) -> str:
    return element.attributes.get("type", "")


def _objects(root: Element, kind: str) -> list[Element]:
    return [element for element in root.below("object") if _type(element) == kind]


def _find_gpus(reading: _HwlocReading) -> None:
    """Add the GPUs with their backend's numbers, each with its PCI device."""
    devices = _objects(reading.root, "OSDev")
    for backend in _BACKENDS:
        device_of: dict[int, Element] = {}
        for device in devices:
            match = re.fullmatch(rf"{backend}([0-9]{{1,4}})", device.attributes.get("name", ""))
            if match is not None and device_of.setdefault(int(match[1]), device) is not device:
                line = device_of[int(match[1])].line
                raise reading.wrong(device, f"{backend}{match[1]} appears twice, first in line {line}")
        if device_of:
            _add_gpus(reading, sorted(device_of.items()))
            return
    bare = [x for x in _objects(reading.root, "PCIDev") if _GPU_PCI.match(x.attributes.get("pci_type", ""))]
    if not bare:
        raise TopologyError(
            f"{reading.source}: no GPU: no OS device nvml0, rsmi0 or cuda0, and no PCI device of a GPU's class; run "
            "lstopo with all I/O devices (lstopo --whole-io FILE.xml), on Debian with libhwloc-plugins"
        )
    reading.box.notes.append("GPUs are in PCI order, as this lstopo found no NVML, ROCm or CUDA device")
    _add_gpus(reading, list(enumerate(bare)))


def _add_gpus(reading: _HwlocReading, numbered: list[tuple[int, Element]]) -> None:
    if len(numbered) > MAX_MATRIX_DEVICES:
        raise reading.wrong(numbered[-1][1], f"{len(numbered)} GPUs; at most {MAX_MATRIX_DEVICES}")
    for number, element in numbered:
        slot = next((x for x in element.above() if _type(x) == "PCIDev"), element)
        reading.vertex[element] = reading.box.add("gpu", f"GPU{number}")
        reading.gpus_of.setdefault(slot, []).append(reading.vertex[element])


def _find_hosts(reading: _HwlocReading) -> list[Element]:
    """Add a vertex for each package (socket) with GPUs; without packages above GPUs, for the nearest object above."""
    hosts: list[Element] = []
    packages: dict[Element, list[Element]] = {}
    for package in _objects(reading.root, "Package"):
        for above in package.above():
            packages.setdefault(above, []).append(package)
    for slot in reading.gpus_of:
        host = reading.host_of[slot] = _host(slot, packages)
        if host not in reading.vertex:
            number = host.attributes.get("os_index", "") if _type(host) == "Package" else ""
            reading.vertex[host] = reading.box.add("host", f"CPU{number[:9]}" if number else _type(host)[:40])
            hosts.append(host)
    return hosts


def _host(element: Element, packages: dict[Element, list[Element]]) -> Element:
    """The package of a device; else its nearest object above, or the single package below that."""
    own = next((x for x in element.above() if _type(x) == "Package"), None)
    if own is not None:
        return own
    near = next(x for x in element.above() if _type(x) not in ("Bridge", "PCIDev", "OSDev"))
    below = packages.get(near, [])
    return below[0] if len(below) == 1 else near


def _add_pcie(reading: _HwlocReading, host: Element) -> None:
    """Add the PCI tree over the GPUs of ``host``: a bridge with several branches is a switch, others extend a link."""
    holding: dict[Element, None] = {}
    for slot in reading.gpus_of:
        if reading.host_of[slot] is host:
            for element in chain([slot], slot.above()):
                holding[element] = None
    stack: list[tuple[Element, int, Fraction | None]]
    stack = [(x, reading.vertex[host], None) for x in _tops(holding)]
    while stack:
        element, above, rate = stack.pop()
        rate = _slower(rate, _speed(reading, element))
        below = [child for child in element.all("object") if child in holding]
        gpus = reading.gpus_of.get(element, [])
        parts = len(below) + len(gpus) > 1 and element.attributes.get("bridge_type", "1-1") == "1-1"
        if parts or any(gpu in reading.to_host for gpu in gpus):
            switch = reading.box.add("switch", f"PCI {element.attributes.get('pci_busid', '')[:20]}")
            reading.box.join(switch, above, _rate(reading, rate), "pcie")
            above = switch
            rate = rate if gpus else None
        for gpu in gpus:
            reading.box.join(gpu, above, _rate(reading, rate), "pcie")
        stack.extend((child, above, rate) for child in reversed(below))


def _tops(holding: dict[Element, None]) -> list[Element]:
    """The bridges (or devices) without a PCI object directly above, last in the file first."""
    io = ("Bridge", "PCIDev", "OSDev")
    tops = [x for x in holding if _type(x) in io and x.parent is not None and _type(x.parent) not in io]
    return sorted(tops, key=lambda x: x.line, reverse=True)


def _slower(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    return b if a is None else a if b is None else min(a, b)


def _rate(reading: _HwlocReading, rate: Fraction | None) -> Fraction:
    if reading.stated.pcie is not None:
        return reading.stated.pcie
    reading.unknown += rate is None
    return Fraction(PCIE_GB_PER_S) if rate is None else rate


def _speed(reading: _HwlocReading, element: Element) -> Fraction | None:
    """The link over a device or bridge in NCCL's GB/s, from hwloc's rate; None if hwloc gives none."""
    if "pci_link_speed" not in element.attributes:
        return None
    speed = Fraction(element.read("pci_link_speed", _SPEED, "GB/s, e.g. 15.753846", reading.source))
    for nccl_speed, lane in _LANES.items():
        width = round(speed / lane)
        if width in (1, 2, 4, 8, 12, 16, 32) and abs(speed - width * lane) < speed / 50:
            return nccl.pcie_gb_per_s(nccl_speed, width)
    return speed * Fraction(3, 4) or None


def _join_hosts(reading: _HwlocReading, hosts: list[Element]) -> None:
    """Join the hosts by the bus between processors, at NCCL's rate."""
    if len(hosts) < 2:
        return
    rates = {host: _bus(reading, host) for host in hosts}
    for a, b in combinations(hosts, 2):
        reading.box.join(reading.vertex[a], reading.vertex[b], min(rates[a], rates[b]), "smp")


def _bus(reading: _HwlocReading, host: Element) -> Fraction:
    if reading.stated.smp is not None:
        return reading.stated.smp
    infos = {
        x.attributes.get("name"): x.attributes.get("value", "") for e in [*host.above(), host] for x in e.all("info")
    }
    architecture = infos.get("Architecture", "")
    model = infos.get("CPUModelNumber", "")
    number = int(model) if re.fullmatch(r"[0-9]{1,9}", model) else 0
    kind = _ARCHITECTURES.get(architecture, architecture)
    return Fraction(nccl.smp_gb_per_s(kind, infos.get("CPUVendor", ""), number))


def _add_matrices(reading: _HwlocReading) -> None:
    matrices = [x for tag in ("distances2", "distances2hetero") for x in reading.root.all(tag)]
    kinds = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
    known = [x for x in matrices if x.attributes.get("name") in kinds]
    if not known:
        reading.box.notes.append("no NVLink or xGMI: the file has no matrix of them (was lstopo built without NVML?)")
    by_index = {x.attributes["gp_index"]: x for x in reading.root.below("object") if "gp_index" in x.attributes}
    for matrix in known:
        kind = kinds[matrix.attributes["name"]]
        _add_matrix(reading, matrix, kind, _ends(reading, matrix, kind, by_index))


def _add_matrix(reading: _HwlocReading, matrix: Element, kind: str, ends: list[int | None]) -> None:
    """Add links of ``kind`` between GPUs, to the NVSwitch (one vertex for all its chips), and to processors (POWER)."""
    values = " ".join(x.text for x in matrix.all("u64values")).split()
    count = len(ends)
    if len(values) != count * count or not all(re.fullmatch(r"[0-9]{1,12}", value) for value in values):
        name = matrix.attributes["name"]
        raise reading.wrong(matrix, f"{name}: {len(values)} values, expected {count} × {count} whole numbers")
    numbers = [int(value) for value in values]
    links = {(a, b): Fraction(numbers[a * count + b], 1000) for a, b in combinations(range(count), 2)}
    if kind == "xgmi":
        links = _xgmi(reading, matrix, links)
    for a, b in combinations(range(count), 2):
        forth, back = numbers[a * count + b], numbers[b * count + a]
        if forth != back or forth > 1000 * MAX_GB_PER_S:
            problem = f"{forth} and {back} MB/s between objects {a} and {b}"
            raise reading.wrong(matrix, f"{problem}, expected the same both ways, at most {1000 * MAX_GB_PER_S}")
        one, other = ends[a], ends[b]
        if forth and one is not None and other is not None and one != other:
            reading.box.join(one, other, links[a, b], kind)
            kinds = [reading.box.vertices[end].kind for end in (one, other)]
            reading.to_host.extend(end for end in (one, other) if "host" in kinds)


def _xgmi(
    reading: _HwlocReading, matrix: Element, links: dict[tuple[int, int], Fraction]
) -> dict[tuple[int, int], Fraction]:
    """The matrix's GB/s; if hwloc knew no rate, the rate of one link for every pair."""
    if any(rate not in (0, _ANY_XGMI) for rate in links.values()):
        if reading.stated.xgmi is not None:
            raise reading.wrong(matrix, "this matrix contains the xGMI rates; remove the stated one")
        return links
    why = "one link, as this hwloc writes 100000 MB/s for every pair, whatever its links"
    rate = reading.stated.rate(reading.box, "xgmi", "the xGMI link of two GPUs", XGMI_GB_PER_S, why)
    return dict.fromkeys(links, rate)


def _ends(reading: _HwlocReading, matrix: Element, kind: str, by_index: dict[str, Element]) -> list[int | None]:
    """The vertices of a matrix's objects; None for objects without a vertex (such as GPUs that are left out)."""
    words = " ".join(x.text for x in matrix.all("indexes")).split()
    if not 2 <= len(words) <= 2 * MAX_MATRIX_DEVICES:
        raise reading.wrong(matrix, f"{len(words)} objects, expected 2 to {2 * MAX_MATRIX_DEVICES}")
    ends: list[int | None] = []
    switch: int | None = None
    for word in words:
        element = by_index.get(word.rpartition(":")[2])
        if element is None:
            raise reading.wrong(matrix, f"unknown object {word[:40]!r}; expected a gp_index of this file")
        if element in reading.vertex:
            ends.append(reading.vertex[element])
        elif kind == "nvlink" and _type(element) == "PCIDev":
            if switch is None:
                switch = reading.box.add("switch", "NVSwitch")
            ends.append(switch)
        else:
            ends.append(None)
    return ends


def _add_nics(reading: _HwlocReading) -> None:
    """Add InfiniBand and RoCE devices; network interfaces if there are none."""
    below: dict[Element, list[int]] = {}
    for slot, gpus in reading.gpus_of.items():
        for above in slot.above():
            below.setdefault(above, []).extend(gpus)
    devices = [x for x in _objects(reading.root, "OSDev") if x.parent is not None and _type(x.parent) == "PCIDev"]
    nics: list[pcie_tree.Nic] = []
    for kind in (_OPENFABRICS, _NETWORK):
        nics = nics or [_nic(reading, x, below) for x in devices if x.attributes.get("osdev_type") == kind]
    if len(nics) > MAX_MATRIX_DEVICES:
        raise TopologyError(f"{reading.source}: {len(nics)} NICs; at most {MAX_MATRIX_DEVICES}")
    pcie_tree.add_nics(reading.box, nics, reading.stated)


def _nic(reading: _HwlocReading, device: Element, below: dict[Element, list[int]]) -> pcie_tree.Nic:
    """A NIC with the GPUs ``below`` its nearest common ancestor with any GPU."""
    slot, *others = device.above()
    near = next(above for above in others if above in below)
    bridge = _type(near) == "Bridge" and near.attributes.get("bridge_type", "1-1") == "1-1"
    distance = pcie_tree.PXB if bridge else pcie_tree.SYS if _type(near) == "Machine" else pcie_tree.NODE
    name = device.attributes.get("name", "NIC")[:64]
    return pcie_tree.Nic(name, distance, sorted(below[near]), _speed(reading, slot))
