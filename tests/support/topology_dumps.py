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
