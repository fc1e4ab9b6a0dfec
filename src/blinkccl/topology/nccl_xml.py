"""Reader of NCCL's and RCCL's topology XML (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``).

Processors become hosts, PCI bridges become switches, and all NVSwitch chips become one switch (as in NCCL, whose files
hold several servers only if NVLink spans them). A ``<nic>`` becomes a NIC joined to its nearest GPUs on PCIe. RCCL's
files have version 2 and xGMI links; there ``sm`` counts compute units, and ``gcn`` names the architecture. A note names
each element that is not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.gpu_models import gpu_model
from blinkccl.topology.limits import MAX_GB_PER_S, at
from blinkccl.topology.model import Topology
from blinkccl.topology.select import ids_text
from blinkccl.topology.stated import NOTHING, PERHAPS_A_LINK, TO_COUNT, Stated
from blinkccl.topology.xml_tree import Element, parse_xml

#: Versions of the format: NCCL's and RCCL's.
_VERSIONS = ("1", "2")
_WORDS = {"nvlink": "NVLink", "xgmi": "xGMI link"}
_ELEMENTS = ("system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "nic", "net")
#: PCIe speeds that mean nothing, as sysfs writes them for devices without a link.
_UNKNOWN_SPEED = re.compile(r"unknown( speed)?", re.IGNORECASE)
#: Ports of at most this rate are for management if others are faster.
_MANAGEMENT_MBIT = 1000
_COMPLETE = (
    "NCCL completes such a file at run time; run any NCCL program on that machine with "
    "NCCL_TOPO_DUMP_FILE=complete.xml, and give complete.xml instead"
)


@dataclass
class _Reading:
    """State while a file is read."""

    source: str
    box: Assembly
    gpus: list[Element] = field(default_factory=list)
    vertex: dict[Element, int] = field(default_factory=dict)
    server: dict[Element, int] = field(default_factory=dict)
    stated: Stated = NOTHING
    #: GB/s of ×16 where the file does not give it, once it is needed.
    open_pcie: Fraction | None = None

    def wrong(self, element: Element, text: str) -> TopologyError:
        """A TopologyError with ``text`` and the line of ``element``."""
        return at(self.source, element.line, text)

    def number(self, element: Element, key: str, default: int | None = None) -> int:
        """An attribute that is a whole number of at most nine digits."""
        if key not in element.attributes and default is not None:
            return default
        return int(element.read(key, r"[0-9]{1,9}", "a whole number from 0 to 999999999", self.source))


def looks_like(text: str) -> bool:
    """True if ``text`` looks like XML."""
    return text.lstrip()[:1] == "<"


def parse(text: str, source: str = "NCCL XML", stated: Stated = NOTHING) -> Topology:
    """The machine that an NCCL topology file describes.

    GPUs get ids in the order of ``dev`` (server by server, if ``host_hash`` distinguishes servers). Rates are
    nominal: NVLink 20, 25 or 50 GB/s a lane by compute capability, xGMI by ``gcn``, PCIe by NCCL's width × speed / 80,
    networks as in the file.

    Raises
    ------
    TopologyError
        With the line: not well-formed, a document type, a *graph* file, no ``<gpu>`` tags (with the missing
        facts), duplicate bus ids or devices, invalid numbers, NVLink counts that differ between both ends.
    """
    root = parse_xml(text, source)
    _check_root(root, source)
    reading = _Reading(source, Assembly(source, "nccl-xml"), stated=stated)
    _number_servers(reading, root)
    _find_gpus(reading, root)
    servers = {reading.server[gpu] for gpu in reading.gpus}
    for gpu in reading.gpus:
        number = f"GPU{gpu.attributes['dev']}"
        label = number if len(servers) < 2 else f"{reading.server[gpu]}/{number}"
        reading.vertex[gpu] = reading.box.add("gpu", label, reading.server[gpu], _compute_capability(reading, gpu))
    if len(servers) > 1:
        owned = {
            server: [reading.vertex[gpu] for gpu in reading.gpus if reading.server[gpu] == server] for server in servers
        }
        reading.box.notes += [f"host {server} has the GPUs {ids_text(owned[server])}" for server in sorted(servers)]
    hosts = _add_pcie(reading, root)
    _join_hosts(reading, hosts)
    _add_nvlinks(reading)
    _add_c2c(reading)
    _add_nics(reading, root)
    if stated.pcie is not None and reading.open_pcie is None:
        raise TopologyError(f"{source}: pcie=…: the file has the link_speed of every PCIe link; leave it out")
    _note_unknown(reading, root)
    return reading.box.finish()


def _check_root(root: Element, source: str) -> None:
    if root.tag == "graphs":
        raise at(
            source,
            root.line,
            "this is a graph file (NCCL_GRAPH_FILE: the rings and trees that NCCL chose), not a topology; give the "
            "topology (NCCL_TOPO_DUMP_FILE)",
        )
    if root.tag != "system":
        raise at(source, root.line, f"the root is <{root.tag}>, expected <system>, as NCCL_TOPO_DUMP_FILE writes it")
    if root.attributes.get("version", "1") not in _VERSIONS:
        raise at(source, root.line, f"<system> version {root.attributes['version']!r}, expected 1 (RCCL: 2)")


def _compute_capability(reading: _Reading, gpu: Element) -> int | None:
    """The ``sm`` of an NVIDIA GPU; None without one."""
    if "gcn" in gpu.attributes or "sm" not in gpu.attributes:
        return None
    sm = reading.number(gpu, "sm")
    return sm if 10 <= sm <= 999 else None


def _note_unknown(reading: _Reading, root: Element) -> None:
    """Note the elements that no rule reads, once per tag."""
    unknown: dict[str, list[int]] = {}
    stack = [root]
    while stack:
        element = stack.pop()
        if element.tag not in _ELEMENTS:
            unknown.setdefault(element.tag[:64], []).append(element.line)
        stack.extend(element.children)
    for tag, lines in unknown.items():
        reading.box.notes.append(
            f"{len(lines)} <{tag}> left out, the first in line {min(lines)}: an unknown element, {PERHAPS_A_LINK}"
        )


def _number_servers(reading: _Reading, root: Element) -> None:
    """Assign a server to every ``host_hash``; processors without one form one server."""
    servers: dict[str, int] = {}
    for cpu in root.all("cpu"):
        server = servers.setdefault(cpu.attributes.get("host_hash", ""), len(servers))
        for tag in ("pci", "gpu", "nic"):
            for element in cpu.below(tag):
                reading.server[element] = server
        reading.server[cpu] = server
    _check_busids(reading, root)


def _check_busids(reading: _Reading, root: Element) -> None:
    first: dict[tuple[int, str], Element] = {}
    for pci in root.below("pci"):
        busid = _busid(pci)
        if not busid:
            raise reading.wrong(pci, "<pci> without busid")
        known = first.setdefault((reading.server.get(pci, 0), busid), pci)
        if known is not pci:
            raise reading.wrong(pci, f"busid {busid} appears twice, first in line {known.line}")


def _busid(pci: Element) -> str:
    return pci.attributes.get("busid", "").lower()


def _find_gpus(reading: _Reading, root: Element) -> None:
    """Collect the GPUs by server and ``dev``; as in NCCL, GPUs without a rank are left out if others have one."""
    tags = [gpu for gpu in root.below("gpu") if gpu in reading.server]
    if not tags:
        raise TopologyError(_no_gpus(reading, root))
    ranked = [gpu for gpu in tags if "rank" in gpu.attributes]
    if ranked and len(ranked) < len(tags):
        reading.box.notes.append(f"{len(tags) - len(ranked)} <gpu> without rank left out, as NCCL does")
    bare = [
        pci
        for pci in root.below("pci")
        if pci.attributes.get("class", "").startswith(nccl.CLASS_GPU) and not pci.all("gpu")
    ]
    if bare:
        reading.box.notes.append(
            f"{len(bare)} PCI devices of class GPU without <gpu> left out, the first in line {bare[0].line}"
        )
    gpu_at: dict[tuple[int, int], Element] = {}
    for gpu in ranked or tags:
        key = reading.server[gpu], reading.number(gpu, "dev")
        if key in gpu_at:
            raise reading.wrong(gpu, f"<gpu> dev {key[1]} appears twice, first in line {gpu_at[key].line}")
        if gpu.parent is None or gpu.parent.tag != "pci":
            raise reading.wrong(gpu, "<gpu> outside of a <pci>, so its bus id is unknown")
        gpu_at[key] = gpu
    reading.gpus = [gpu_at[key] for key in sorted(gpu_at)]


def _no_gpus(reading: _Reading, root: Element) -> str:
    devices = [pci for pci in root.below("pci") if pci.attributes.get("class", "").startswith(nccl.CLASS_GPU)]
    if devices:
        shown = ", ".join(_busid(pci) for pci in devices[:8]) + (", …" if len(devices) > 8 else "")
        what = (
            f"{len(devices)} PCI devices of class GPU ({shown}; the first in line {devices[0].line}) have no <gpu> tag"
        )
    else:
        leaves = [pci for pci in root.below("pci") if not pci.children]
        what = f"none of the {len(leaves)} PCI devices has a <gpu> tag, and none has class {nccl.CLASS_GPU}… of a GPU"
    return (
        f"{reading.source}: {what}, so device numbers, compute capabilities (sm) and NVLinks are missing. {_COMPLETE}"
    )


def _add_pcie(reading: _Reading, root: Element) -> list[Element]:
    """Add processors and the bridges above GPUs, with their links; return the processors above GPUs."""
    hosts = []
    for cpu in root.all("cpu"):
        if not any(gpu in reading.vertex for gpu in cpu.below("gpu")):
            continue
        hosts.append(cpu)
        number = cpu.attributes.get("numaid", "")
        reading.vertex[cpu] = reading.box.add("host", f"CPU{number}", reading.server[cpu])
        stack = [(pci, cpu) for pci in reversed(cpu.all("pci"))]
        while stack:
            pci, parent = stack.pop()
            if _add_pci(reading, pci, parent):
                stack.extend((child, pci) for child in reversed(pci.all("pci")))
    for gpu in reading.gpus:
        if not any(gpu.above("cpu")):
            raise reading.wrong(gpu, "<gpu> outside of a <cpu>")
    return hosts


def _add_pci(reading: _Reading, pci: Element, parent: Element) -> bool:
    """Add the device or bridge ``pci`` if it leads to a GPU; return True if there may be more below it."""
    own = [gpu for gpu in pci.all("gpu") if gpu in reading.vertex]
    if len(own) > 1:
        raise reading.wrong(own[1], "a second <gpu> in one <pci>")
    deeper = any(gpu in reading.vertex for child in pci.all("pci") for gpu in child.below("gpu"))
    if not own and not deeper:
        return False
    if own and not deeper and not _reaches_host_otherwise(own[0], parent):
        reading.vertex[pci] = reading.vertex[own[0]]
    else:
        reading.vertex[pci] = reading.box.add("switch", f"PCI {_busid(pci)}", reading.server[pci])
        if own:
            reading.box.join(reading.vertex[own[0]], reading.vertex[pci], _pcie_rate(reading, pci), "pcie")
    reading.box.join(reading.vertex[pci], reading.vertex[parent], _pcie_rate(reading, pci), "pcie")
    return deeper


def _reaches_host_otherwise(gpu: Element, parent: Element) -> bool:
    """True if NVLink or C2C joins GPU and processor directly too, so that PCIe needs a vertex of its own."""
    to_cpu = any(x.attributes.get("tclass", "").startswith(nccl.CLASS_IBM_CPU) for x in gpu.all("nvlink"))
    return parent.tag == "cpu" and (to_cpu or bool(gpu.all("c2c")))


def _pcie_rate(reading: _Reading, pci: Element) -> Fraction:
    """NCCL's rate of the link above ``pci``, whose default width is ×16; an assumed rate where no speed is given."""
    width = reading.number(pci, "link_width", 0) if pci.attributes.get("link_width") else 0
    if width > 64:
        raise reading.wrong(pci, f"<pci> link_width {width}, expected at most 64")
    width = width or nccl.PCI_DEFAULT_WIDTH
    text = pci.attributes.get("link_speed", "").strip()
    if not text or _UNKNOWN_SPEED.fullmatch(text):
        return _assumed_pcie(reading) * width / nccl.PCI_DEFAULT_WIDTH
    match = re.match(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", text)
    key = match[1].removesuffix(".0") if match else ""
    if key not in nccl.PCI_SPEED:
        raise reading.wrong(
            pci, f"<pci> link_speed {text!r}, expected one of " + ", ".join(f"{s} GT/s" for s in nccl.PCI_SPEED)
        )
    return nccl.pcie_gb_per_s(nccl.PCI_SPEED[key], width)


def _assumed_pcie(reading: _Reading) -> Fraction:
    """GB/s of ×16 where the file gives no speed, of the generation of the oldest GPU. NCCL itself takes 8 GT/s."""
    if reading.open_pcie is None:
        generations = [_generation(reading, gpu) for gpu in reading.gpus]
        generation, why = min(generations) if all(generations) else 3, ", as its GPUs have" if all(generations) else ""
        usual = nccl.pcie_gb_per_s(nccl.PCI_SPEED_OF[generation], nccl.PCI_DEFAULT_WIDTH)
        basis = f"generation {generation}{why}"
        reading.open_pcie = reading.stated.rate(reading.box, "pcie", "PCIe ×16 of unknown speed", usual, basis)
    return reading.open_pcie


def _generation(reading: _Reading, gpu: Element) -> int:
    """The generation of PCIe of a GPU by ``sm`` or ``gcn``; 0 if unknown."""
    model, sm = gpu_model(gpu.attributes.get("gcn", "")), _compute_capability(reading, gpu)
    if sm is not None:
        return 5 if sm >= 90 else 4 if sm >= 80 else 3
    return 0 if model is None else model.pcie


def _join_hosts(reading: _Reading, hosts: list[Element]) -> None:
    """Join the processors of a server by a bus, at the stated rate, or at NCCL's constant for the slower one."""
    rates = {
        cpu: nccl.smp_gb_per_s(
            cpu.attributes.get("arch", ""),
            cpu.attributes.get("vendor", ""),
            reading.number(cpu, "modelid", 0) if cpu.attributes.get("modelid") else 0,
        )
        for cpu in hosts
    }
    pairs = [(a, b) for i, a in enumerate(hosts) for b in hosts[:i] if reading.server[a] == reading.server[b]]
    if not pairs:
        reading.box.notes += ["a rate for smp is stated, but there is no smp link"] if reading.stated.smp else []
        return
    slowest = min(min(rates[a], rates[b]) for a, b in pairs)
    basis = "NCCL's constant for these processors"
    rate = reading.stated.rate(reading.box, "smp", "the bus between processors", slowest, basis)
    for a, b in pairs:
        own, source = (rate, "declared") if reading.stated.smp is not None else (min(rates[a], rates[b]), None)
        reading.box.join(reading.vertex[a], reading.vertex[b], own, "smp", source)


def _add_nvlinks(reading: _Reading) -> None:
    direct: dict[tuple[Element, Element], tuple[int, Element]] = {}
    switch: int | None = None
    for gpu in reading.gpus:
        links = [*gpu.all("nvlink"), *gpu.all("xgmi")]
        lane = _lane(reading, gpu) if links else 0
        for link in links:
            count = _lanes(reading, link)
            target = _target(reading, gpu, link)
            if target == "switch":
                if switch is None:
                    switch = reading.box.add("switch", "NVSwitch", reading.server[gpu])
                reading.box.join(reading.vertex[gpu], switch, count * lane, "nvlink")
            elif target == "cpu":
                host = reading.vertex[next(gpu.above("cpu"))]
                reading.box.join(reading.vertex[gpu], host, count * lane, "nvlink")
            elif isinstance(target, Element):
                known = direct.get((gpu, target), (0, link))[0]
                direct[gpu, target] = known + count, link
    _add_direct(reading, direct)


def _lane(reading: _Reading, gpu: Element) -> Fraction | int:
    """GB/s of one NVLink or xGMI link of a GPU."""
    if gpu.all("xgmi"):
        return nccl.xgmi_gb_per_s(gpu.attributes.get("gcn", ""))
    return nccl.nvlink_lane_gb_per_s(reading.number(gpu, "sm"))


def _lanes(reading: _Reading, link: Element) -> int:
    count = reading.number(link, "count")
    if not 1 <= count <= 64:
        raise reading.wrong(link, f"<{link.tag}> count {count}, expected 1 … 64")
    return count


def _target(reading: _Reading, gpu: Element, link: Element) -> Element | str | None:
    """The end of an NVLink: a GPU's element, ``"switch"``, ``"cpu"``, or None if it leads nowhere."""
    busid = link.attributes.get("target", "").lower()
    kind = link.attributes.get("tclass", "")
    if busid in nccl.HIDDEN_NVSWITCH or kind.startswith(nccl.CLASS_NVSWITCH):
        return "switch"
    if kind.startswith(nccl.CLASS_IBM_CPU):
        return "cpu"
    label = f"GPU{gpu.attributes['dev']}"
    if gpu.parent is not None and _busid(gpu.parent) == busid:
        reading.box.notes.append(f"line {link.line}: {_WORDS[link.tag]} of {label} to itself left out")
        return None
    others = [
        x
        for x in reading.gpus
        if x.parent is not None and _busid(x.parent) == busid and reading.server[x] == reading.server[gpu]
    ]
    if not others:
        reading.box.notes.append(
            f"line {link.line}: {_WORDS[link.tag]} of {label} to {busid or 'nothing'} left out, as there is no such GPU"
        )
        return None
    return others[0]


def _add_direct(reading: _Reading, direct: dict[tuple[Element, Element], tuple[int, Element]]) -> None:
    for (a, b), (count, link) in direct.items():
        back = direct.get((b, a))
        if back is None or back[0] != count:
            other = "none" if back is None else f"{back[0]} (line {back[1].line})"
            raise reading.wrong(
                link,
                f"{count} {_WORDS[link.tag]}s from GPU{a.attributes['dev']} to GPU{b.attributes['dev']}, but {other} "
                "in the other direction",
            )
        slower = min(_lane(reading, x) for x in (a, b))
        reading.box.arc(reading.vertex[a], reading.vertex[b], count * slower, link.tag)


def _add_c2c(reading: _Reading) -> None:
    """Add chip-to-chip links between a GPU and its processor: ``bw`` × ``count`` in MB/s."""
    for gpu in reading.gpus:
        for link in gpu.all("c2c"):
            gb_per_s = Fraction(reading.number(link, "bw") * _lanes(reading, link), 1000)
            if not 0 < gb_per_s <= MAX_GB_PER_S:
                raise reading.wrong(link, f"<c2c> of {float(gb_per_s):g} GB/s; expected more than 0")
            reading.box.join(reading.vertex[gpu], reading.vertex[next(gpu.above("cpu"))], gb_per_s, "c2c")


def _add_nics(reading: _Reading, root: Element) -> None:
    """Add the NICs of the network between servers: those that are listed, or all but :func:`_not_of_cluster`."""
    nics = {nic: nic.all("net") for nic in root.below("nic")}
    fastest = max((_speed(reading, port) for ports in nics.values() for port in ports), default=0)
    reading.stated.check_nics([_net_name(port) for ports in nics.values() for port in ports], reading.source)
    for nic, all_ports in nics.items():
        ports = [port for port in all_ports if reading.stated.counts(_net_name(port))]
        reasons = {} if reading.stated.nics else {x: _not_of_cluster(reading, nic, x, fastest) for x in ports}
        ports = [port for port in ports if not reasons.get(port)]
        left = ", ".join(dict.fromkeys(f"{_net_name(x)} is {why}" for x, why in reasons.items() if why))
        if left:
            reading.box.notes.append(f"line {nic.line}: NIC left out, as {left}; to count some: {TO_COUNT}")
        speeds, near = [_speed(reading, port) for port in ports], _nearest_gpus(reading, nic)
        if ports and (not any(speeds) or not near):
            reading.box.notes.append(
                f"line {nic.line}: <nic> left out, as it has no port of known speed or no GPU near it"
            )
        elif ports:
            _add_nic(reading, nic, near, Fraction(sum(speeds), 8000), "+".join(map(_net_name, ports)))


def _add_nic(reading: _Reading, nic: Element, near: list[Element], rate: Fraction, name: str) -> None:
    """Join a NIC to its GPUs, at most at the rate of its PCIe link; an unknown slot is taken to suffice."""
    speed = "" if nic.parent is None or nic.parent.tag != "pci" else nic.parent.attributes.get("link_speed", "")
    if nic.parent is not None and speed.strip() and not _UNKNOWN_SPEED.fullmatch(speed.strip()):
        rate = min(rate, _pcie_rate(reading, nic.parent))
    vertex = reading.box.add("nic", name[:64], reading.server[near[0]])
    for gpu in near:
        reading.box.join(reading.vertex[gpu], vertex, rate, "net")


def _net_name(port: Element) -> str:
    return port.attributes.get("name", "net")


def _not_of_cluster(reading: _Reading, nic: Element, port: Element, fastest: int) -> str:
    """The reason that a port is no part of a network between servers, in words; "" if it may be.

    A tunnel and a container's bridge have the rate of whatever carries them, of which the kernel reports 10 Gbit/s.
    """
    parent = nic.parent.attributes.get("class", "") if nic.parent is not None else ""
    if parent.startswith(nccl.CLASS_WIRELESS) or re.match(r"wl|wwan", _net_name(port)):
        return "wireless"
    if re.match(r"(tun|tap|tailscale|wg|docker|veth|virbr|br-|cni|flannel|cali|lo$)", _net_name(port)):
        return "a tunnel or a bridge"
    return "for management" if _speed(reading, port) <= _MANAGEMENT_MBIT < fastest else ""


def _speed(reading: _Reading, port: Element) -> int:
    """Mbit/s of a port; 0 if the file does not give it."""
    speed = reading.number(port, "speed", 0)
    if speed > 8000 * MAX_GB_PER_S:
        raise reading.wrong(port, f"<net> speed {speed} Mbit/s; expected at most {8000 * MAX_GB_PER_S}")
    return speed


def _nearest_gpus(reading: _Reading, nic: Element) -> list[Element]:
    """The GPUs below the nearest ancestor of ``nic`` with any GPU."""
    above = nic.parent
    while above is not None and above.tag != "system":
        gpus = [gpu for gpu in above.below("gpu") if gpu in reading.vertex]
        if gpus:
            return sorted(gpus, key=lambda gpu: reading.vertex[gpu])
        above = above.parent
    return []
