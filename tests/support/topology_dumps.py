"""Machines in the output formats of other tools: own samples for the readers of :mod:`blinkccl.topology.formats`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int]


@dataclass(frozen=True)
class Machine:
    """GPUs behind PCIe switches of ``per_switch`` on each of ``sockets`` (GPUs spread evenly), and links between pairs.

    ``links`` counts NVLinks or xGMI links by pair (a < b); ``nics`` has the GPUs whose switch also has a NIC.
    """

    gpus: int
    sockets: int = 2
    per_switch: int = 1
    links: Mapping[Pair, int] = field(default_factory=dict)
    nics: Sequence[int] = ()

    def socket(self, gpu: int) -> int:
        return gpu * self.sockets // self.gpus

    def switch(self, gpu: int) -> Pair:
        mine = [x for x in range(self.gpus) if self.socket(x) == self.socket(gpu)]
        return self.socket(gpu), mine.index(gpu) // self.per_switch

    def count(self, a: int, b: int) -> int:
        return self.links.get((min(a, b), max(a, b)), 0)


def table(header: Sequence[str], cell: Callable[[int, int], str], width: int = 13) -> str:
    lines = ["".join([" " * width, *(f"{name:<{width}}" for name in header)]).rstrip()]
    for a, name in enumerate(header):
        lines.append("".join([f"{name:<{width}}", *(f"{cell(a, b):<{width}}" for b in range(len(header)))]).rstrip())
    return "\n".join(lines)


def _xgmi_links_between(machine: Machine, a: int, b: int) -> int:
    """Return the number of xGMI links on the shortest path; 0 without a path."""
    seen, level, steps = {a}, [a], 0
    while level:
        if b in level:
            return steps
        level = [y for x in level for y in range(machine.gpus) if machine.count(x, y) and y not in seen]
        seen.update(level)
        level, steps = list(dict.fromkeys(level)), steps + 1
    return 0


def amd_cells(machine: Machine, link_mb_per_s: int = 50_000) -> dict[str, Callable[[int, int], str]]:
    """Return the cells of AMD's tables; ``link_mb_per_s`` 0 for a driver without rates."""

    def kind(a: int, b: int) -> str:
        return "XGMI" if _xgmi_links_between(machine, a, b) else "PCIE"

    def weight(a: int, b: int) -> str:
        steps = _xgmi_links_between(machine, a, b)
        return str(15 * steps or (40 if machine.socket(a) == machine.socket(b) else 72))

    def hops(a: int, b: int) -> str:
        return "1" if kind(a, b) == "XGMI" else "2" if machine.socket(a) == machine.socket(b) else "3"

    def bandwidth(a: int, b: int) -> str:
        count = machine.count(a, b)
        return f"{link_mb_per_s}-{count * link_mb_per_s}" if count else "0-0"

    return {"type": kind, "weight": weight, "hops": hops, "bandwidth": bandwidth}


def rocm_smi(machine: Machine, link_mb_per_s: int = 50_000, numa: bool = True) -> str:
    """Return the output of ``rocm-smi --showtopo --showtopoaccess --shownodesbw``."""
    cells = amd_cells(machine, link_mb_per_s)
    names = [f"GPU{gpu}" for gpu in range(machine.gpus)]

    def shown(title: str, cell: Callable[[int, int], str], own: str) -> str:
        return f"{f' {title} ':=^80}\n" + table(names, lambda a, b: own if a == b else cell(a, b)) + "\n"

    parts = [f"\n{' ROCm System Management Interface ':=^80}"]
    parts.append(shown("Weight between two GPUs", cells["weight"], "0"))
    parts.append(shown("Hops between two GPUs", cells["hops"], "0"))
    parts.append(shown("Link Type between two GPUs", cells["type"], "0"))
    if numa:
        parts.append(f"{' Numa Nodes ':=^80}")
        for gpu in range(machine.gpus):
            for what in ("Node", "Affinity"):
                parts.append(f"GPU[{gpu}]\t\t: (Topology) Numa {what}: {machine.socket(gpu)}")
    parts.append(shown("Link accessibility between two GPUs", lambda a, b: "True", "True"))
    parts.append(shown("Bandwidth", cells["bandwidth"], "N/A").rstrip())
    parts.append('Format: min-max; Units: mps\n"0-0" min-max bandwidth: no direct link')
    parts.append(f"{' End of ROCm SMI Log ':=^80}")
    return "\n".join(parts) + "\n"


def amd_smi(machine: Machine, link_mb_per_s: int = 50_000) -> str:
    """Return the output of ``amd-smi topology``."""
    cells = amd_cells(machine, link_mb_per_s)
    names = [f"0000:{16 * gpu + 12:02x}:00.0" for gpu in range(machine.gpus)]
    shown = [
        ("ACCESS", lambda a, b: "ENABLED", "ENABLED"),
        ("WEIGHT", cells["weight"], "0"),
        ("HOPS", cells["hops"], "0"),
        ("LINK TYPE", cells["type"], "SELF"),
        ("NUMA BW", cells["bandwidth"], "N/A"),
        ("CACHE COHERENCY", lambda a, b: "C", "SELF"),
    ]

    def printed(title: str, cell: Callable[[int, int], str], own: str) -> str:
        return f"{title} TABLE:\n{table(names, lambda a, b: own if a == b else cell(a, b))}\n"

    return "\n".join(printed(*row) for row in shown) + "\nLegend:\n  SELF = the GPU itself\n"


def nvidia_smi(machine: Machine, numa_of_memory: bool = False) -> str:
    """Return ``nvidia-smi topo -m`` of a 2024 driver, aligned by spaces; NICs as NIC#, and two legends."""
    gpus = [f"GPU{gpu}" for gpu in range(machine.gpus)]
    names = gpus + [f"NIC{nic}" for nic in range(len(machine.nics))]
    slots = [*range(machine.gpus), *machine.nics]

    def cell(a: int, b: int) -> str:
        lanes = machine.count(a, b) if max(a, b) < machine.gpus else 0
        x, y = slots[a], slots[b]
        if machine.switch(x) == machine.switch(y):
            near = "PIX"
        else:
            near = "NODE" if machine.socket(x) == machine.socket(y) else "SYS"
        return "X" if a == b else f"NV{lanes}" if lanes else near

    lines = ["".join(["        ", *(f"{x:<8}" for x in names), "CPU Affinity    NUMA Affinity   GPU NUMA ID"])]
    for a, name in enumerate(names):
        row = "".join([f"{name:<8}", *(f"{cell(a, b):<8}" for b in range(len(names)))])
        if a < machine.gpus:
            socket = machine.socket(a)
            row += f"{72 * socket}-{72 * socket + 71:<12} {socket:<15} {8 * a + 2 if numa_of_memory else 'N/A'}"
        lines.append(row.rstrip())
    lines += ["", "Legend:", "", "  X    = the GPU itself", "  NV#  = # NVLinks", "", "NIC Legend:", ""]
    lines += [f"  NIC{nic}: mlx5_{nic}" for nic in range(len(machine.nics))]
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: int) -> str:
    """Wrap ``text`` as a terminal of ``width`` columns does, without trailing blanks, as copied from the screen."""
    parts = (line[i : i + width].rstrip() for line in text.split("\n") for i in range(0, max(1, len(line)), width))
    return "\n".join(parts)


def _xml(tag: str, indent: int, body: Sequence[str] = (), **attributes: object) -> list[str]:
    pad, shown = "  " * indent, "".join(f' {key}="{value}"' for key, value in attributes.items())
    return [f"{pad}<{tag}{shown}>", *body, f"{pad}</{tag}>"] if body else [f"{pad}<{tag}{shown}/>"]


def lstopo(machine: Machine, kind: str = "NVLinkBandwidth", lane_mb_per_s: int = 25_000, switched: int = 0) -> str:
    """Return ``lstopo FILE.xml`` of hwloc 2.9; ``switched``: lanes from every GPU to each of two NVSwitch chips."""
    prefix = "rsmi" if kind == "XGMIBandwidth" else "nvml"
    packages: list[str] = []
    for socket in range(machine.sockets):
        switches = dict.fromkeys(machine.switch(x) for x in range(machine.gpus) if machine.socket(x) == socket)
        bridges = [line for i, s in enumerate(switches) for line in _bridge(machine, s, 16 * i + 64 * socket, prefix)]
        host_bridge = _xml("object", 3, bridges, type="Bridge", bridge_type="0-1", gp_index=5000 + socket)
        body = [
            *_xml("info", 3, name="CPUVendor", value="GenuineIntel"),
            *_xml("info", 3, name="CPUModelNumber", value=143),
            *_xml("object", 3, type="NUMANode", os_index=socket, gp_index=6000 + socket),
            *host_bridge,
        ]
        packages += _xml("object", 2, body, type="Package", os_index=socket, gp_index=7000 + socket)
    if switched:
        chips = [
            _xml("object", 2, type="PCIDev", subtype="NVSwitch", pci_type="0680 [10de:22a3]", gp_index=8000 + c)
            for c in (0, 1)
        ]
        packages += [line for chip in chips for line in chip]
    top = [*_xml("info", 2, name="Architecture", value="x86_64"), *packages]
    document = _xml("object", 1, top, type="Machine", os_index=0, gp_index=1)
    if machine.links or switched:
        document += _matrix(machine, kind, lane_mb_per_s, switched)
    head = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">']
    return "\n".join([*head, *_xml("topology", 0, document, version="2.0")]) + "\n"


def _bridge(machine: Machine, switch: Pair, bus: int, prefix: str) -> list[str]:
    """Return a root port, and below it the ports of a PCIe switch with the GPUs and the NIC of ``switch``."""
    speed = "31.507692"
    slots = []
    for gpu in (x for x in range(machine.gpus) if machine.switch(x) == switch):
        osdev = _xml("object", 7, type="OSDev", name=f"{prefix}{gpu}", osdev_type=1, gp_index=100 + gpu)
        slots.append((f"0302 [{'1002' if prefix == 'rsmi' else '10de'}:20b0]", osdev))
    for nic, gpu in enumerate(machine.nics):
        if machine.switch(gpu) == switch:
            osdev = _xml("object", 7, type="OSDev", name=f"mlx5_{nic}", osdev_type=3, gp_index=300 + nic)
            slots.append(("0207 [15b3:1021]", osdev))
    ports: list[str] = []
    for i, (pci_type, osdev) in enumerate(slots):
        busid = f"0000:{bus + i + 2:02x}:00.0"
        device = _xml("object", 6, osdev, type="PCIDev", pci_busid=busid, pci_type=pci_type, pci_link_speed=speed)
        ports += _xml("object", 5, device, type="Bridge", bridge_type="1-1", pci_link_speed=speed)
    busid = f"0000:{bus:02x}:01.0"
    return _xml("object", 4, ports, type="Bridge", bridge_type="1-1", pci_busid=busid, pci_link_speed=speed)


def _matrix(machine: Machine, kind: str, lane_mb_per_s: int, switched: int) -> list[str]:
    count = machine.gpus + (2 if switched else 0)
    objects = [f"OSDev:{100 + gpu}" for gpu in range(machine.gpus)] + ["PCIDev:8000", "PCIDev:8001"][
        : 2 * bool(switched)
    ]

    def value(a: int, b: int) -> int:
        if a == b:
            return 1_000_000
        if max(a, b) >= machine.gpus:
            return lane_mb_per_s * switched if min(a, b) < machine.gpus else 0
        return 0 if switched else lane_mb_per_s * machine.count(a, b)

    values = [value(a, b) for a in range(count) for b in range(count)]
    body = (
        [f'    <indexes length="9">{" ".join(objects)} </indexes>']
        if switched
        else [f'    <indexes length="9">{" ".join(x.partition(":")[2] for x in objects)} </indexes>']
    )
    for start in range(0, len(values), 10):
        body.append(f'    <u64values length="9">{" ".join(map(str, values[start : start + 10]))} </u64values>')
    if switched:
        return _xml("distances2hetero", 1, body, nbobjs=count, kind=9, name=kind)
    return _xml("distances2", 1, body, type="OSDev", nbobjs=count, kind=9, name=kind, indexing="gp")
