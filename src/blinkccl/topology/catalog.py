"""Known machines by name, with the links of the vendors' documents.

Rates are nominal, in GB/s per direction; the simulator models the rates that copies reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for

#: One lane of NVLink 1; of NVLink 2, 3 and 4; of NVLink 5.
NVLINK1, NVLINK, NVLINK5 = 20, 25, 50
#: PCIe ×16 of generation 3, 4, 5 after encoding and headers, as NCCL counts it.
PCIE3, PCIE4, PCIE5 = 12, 24, 48
#: GB/s between sockets, from NCCL's constants: QPI and UPI, Infinity Fabric, Sapphire Rapids' UPI, POWER9's X-bus.
QPI, AMD_FABRIC, SPR_UPI, XBUS = 10, 16, 22, 32
#: GB/s of NVLink-C2C per direction: 900 GB/s of a Grace both ways, which two Blackwells share (NVIDIA's data sheets of
#: GH200 and GB200). Between two Graces NCCL counts 6.
C2C, GRACE_BUS = 450, 6
#: GB/s of an xGMI link each way: 128 both ways of an MI300X or MI325X, 153.6 of an MI355X (AMD's data sheets).
XGMI3, XGMI4 = Fraction(64), Fraction("76.8")
#: Compute capabilities, where the links alone do not identify the GPUs.
HOPPER, BLACKWELL, BLACKWELL_ULTRA, ADA, BLACKWELL_PCIE = 90, 100, 103, 89, 120

#: First word of the GPU names of Macs, which NCCL does not support.
APPLE = "Apple"
#: GB/s of a Thunderbolt 5 link each way, as reported by macOS (exo-explore/exo, issue 1390).
THUNDERBOLT5 = 10

#: The hybrid cube mesh: pairs of GPUs and the NVLink 2 lanes between them. NVLink 1 has one lane per pair.
CUBE_MESH = (
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A registry row."""

    about: str
    build: Callable[[Assembly], None]


@dataclass(frozen=True, slots=True)
class _Pcie:
    """A PCIe tree: GPUs in order fill switches, then switches fill hosts; ``upper`` adds a second switch level."""

    gb_per_s: int
    smp: int
    gpus_per_switch: int = 2
    switches_per_host: int = 2
    upper: int = 0

    def attach(self, box: Assembly, gpus: Sequence[int]) -> None:
        """Add the tree over ``gpus`` and join its hosts pairwise."""
        leaves = _level(box, gpus, self.gpus_per_switch, "switch", "PCIe", self.gb_per_s)
        if self.upper:
            leaves = _level(box, leaves, self.upper, "switch", "PCIe-up", self.gb_per_s)
        hosts = _level(box, leaves, self.switches_per_host, "host", "CPU", self.gb_per_s)
        for a, b in combinations(hosts, 2):
            box.join(a, b, self.smp, "smp")


def _level(box: Assembly, below: Sequence[int], width: int, kind: str, name: str, gb_per_s: int) -> list[int]:
    """One parent for every ``width`` vertices of ``below``."""
    parents = box.add_many(kind, -(-len(below) // width), name)
    for i, child in enumerate(below):
        box.join(child, parents[i // width], gb_per_s, "pcie")
    return parents


def _hybrid_cube_mesh(box: Assembly, lane: int, doubled: bool) -> None:
    gpus = box.add_many("gpu", 8, "GPU")
    for a, b, lanes in CUBE_MESH:
        box.join(a, b, lane * (lanes if doubled else 1), "nvlink")
    _Pcie(PCIE3, QPI).attach(box, gpus)


def _gpus(box: Assembly, count: int, sm: int | None) -> list[int]:
    return [box.add("gpu", f"GPU{i}", sm=sm) for i in range(count)]


def _nvswitch_box(
    box: Assembly,
    gpu_count: int,
    lanes: int,
    pcie: _Pcie | None,
    nic_gb_per_s: int = 0,
    lane: int = NVLINK,
    sm: int | None = None,
) -> None:
    """GPUs on one NVSwitch vertex; as in NCCL, all switch chips are one non-blocking plane."""
    gpus = _gpus(box, gpu_count, sm)
    box.join_all(gpus, box.add("switch", "NVSwitch"), lanes * lane, "nvlink")
    if pcie is not None:
        pcie.attach(box, gpus)
    if nic_gb_per_s:
        _nic_each(box, gpus, nic_gb_per_s)


def _nic_each(box: Assembly, gpus: Sequence[int], gb_per_s: int) -> None:
    for gpu, nic in zip(gpus, box.add_many("nic", len(gpus), "NIC"), strict=True):
        box.join(gpu, nic, gb_per_s, "net")


def _grace_tray(box: Assembly, nic_gb_per_s: int, sm: int) -> None:
    """A compute tray of an NVL72 alone: two Graces, each with two Blackwells on C2C, and a NIC for each GPU.

    NVIDIA's data sheets: 18 NVLinks 5 lead from each GPU to the rack's NVSwitches. PCIe, over which no data of a
    collective goes, is left out.
    """
    gpus = _gpus(box, 4, sm)
    box.join_all(gpus, box.add("switch", "NVSwitch"), 18 * NVLINK5, "nvlink")
    hosts = box.add_many("host", 2, "CPU")
    for gpu in gpus:
        box.join(gpu, hosts[gpu // 2], Fraction(C2C, 2), "c2c")
    box.join(hosts[0], hosts[1], GRACE_BUS, "smp")
    _nic_each(box, gpus, nic_gb_per_s)


def _gh200(box: Assembly) -> None:
    """GH200 in a server of its own: C2C to a Grace, and a 400 Gb/s NIC, as most servers have. NVIDIA's data sheet."""
    gpus = _gpus(box, 1, HOPPER)
    box.join(gpus[0], box.add("host", "CPU0"), C2C, "c2c")
    _nic_each(box, gpus, 50)


def _instinct(box: Assembly, xgmi: Fraction) -> None:
    """AMD's platforms of eight, from their data sheets: one xGMI link for every pair of GPUs.

    Each GPU has a PCIe 5 switch and a 400 Gb/s NIC, as in servers sold with the platform.
    """
    gpus = box.add_many("gpu", 8, "GPU")
    for a, b in combinations(gpus, 2):
        box.join(a, b, xgmi, "xgmi")
    _Pcie(PCIE5, AMD_FABRIC, 1, 4).attach(box, gpus)
    _nic_each(box, gpus, 50)


def _mist(box: Assembly) -> None:
    """IBM AC922: three NVLinks between the GPUs of a socket, and three from each GPU to its POWER9."""
    gpus = box.add_many("gpu", 4, "GPU")
    hosts = box.add_many("host", 2, "CPU")
    for socket, host in enumerate(hosts):
        a, b = gpus[2 * socket : 2 * socket + 2]
        box.join(a, b, 3 * NVLINK, "nvlink")
        box.join_all((a, b), host, 3 * NVLINK, "nvlink")
    box.join(hosts[0], hosts[1], XBUS, "smp")


def _cedar(box: Assembly) -> None:
    """Dell C4140: two NVLinks for every pair; PCIe 3 ×16 from each GPU to the host of its socket."""
    gpus = box.add_many("gpu", 4, "GPU")
    for a, b in combinations(gpus, 2):
        box.join(a, b, 2 * NVLINK, "nvlink")
    hosts = _level(box, gpus, 2, "host", "CPU", PCIE3)
    box.join(hosts[0], hosts[1], QPI, "smp")


def _mi250(box: Assembly) -> None:
    """Eight MI250 modules of two GCDs: a model, since vendors wire eight modules differently.

    The two GCDs of a module share 4 xGMI links (200 GB/s). The modules form a cube: GCD ``2m + p`` has one
    link (50 GB/s) to the GCD of the same half ``p`` in each of the modules ``m ^ 1``, ``m ^ 2``, ``m ^ 4``.
    Thus every GCD has 7 links, in the same pattern. Each has one NIC of 16 GB/s, as in public models.
    """
    gpus = box.add_many("gpu", 16, "GPU")
    for module in range(8):
        box.join(2 * module, 2 * module + 1, 200, "xgmi")
        for other in (module ^ 1, module ^ 2, module ^ 4):
            if other > module:
                box.join(2 * module, 2 * other, 50, "xgmi")
                box.join(2 * module + 1, 2 * other + 1, 50, "xgmi")
    _Pcie(PCIE4, AMD_FABRIC, switches_per_host=4).attach(box, gpus)
    _nic_each(box, gpus, 16)


def _pcie_box(box: Assembly, gpu_count: int, pcie: _Pcie, pair_lanes: int = 0, sm: int | None = None) -> None:
    """A PCIe server; with ``pair_lanes``, each pair of neighbours 2i and 2i + 1 has an NVLink bridge."""
    gpus = _gpus(box, gpu_count, sm)
    if pair_lanes:
        for a, b in zip(gpus[::2], gpus[1::2], strict=True):
            box.join(a, b, pair_lanes * NVLINK, "nvlink")
    pcie.attach(box, gpus)


def _dgx_spark(box: Assembly) -> None:
    """DGX Spark: a ConnectX-7 with two QSFP ports of 200 Gb/s, which share two PCIe 5 ×4 links.

    The two PCIe links carry 24 GB/s per direction by NCCL's count. Measured: 23.74 over one cable
    (NVIDIA/dgx-spark-playbooks, pull request 103), and 20 to 25 over both (ServeTheHome on the GB10's networking).
    Each direction has a vertex of its own, because the card does not forward between its ports by default.
    """
    gpu = box.add("gpu", "GB10")
    out, back = box.add("host", "PCIe out"), box.add("host", "PCIe in")
    box.arc(gpu, out, 2 * PCIE5 // 4, "pcie")
    box.arc(back, gpu, 2 * PCIE5 // 4, "pcie")
    for port in box.add_many("nic", 2, "p"):
        box.arc(out, port, 25, "net")
        box.arc(port, back, 25, "net")


def _mac_studio(box: Assembly) -> None:
    """Mac Studio with M3 Ultra: the port next to Ethernet, one of six, has no RDMA (exo-explore/exo, issue 1293)."""
    gpu = box.add("gpu", f"{APPLE} M3 Ultra")
    box.join_all(box.add_many("nic", 5, "tb"), gpu, THUNDERBOLT5, "net")


#: The registry, in the order in which it is listed.
CATALOG: dict[str, Machine] = {
    "dgx-1p": Machine(
        "8×P100, hybrid cube mesh of NVLink 1", lambda box: _hybrid_cube_mesh(box, NVLINK1, doubled=False)
    ),
    "dgx-1v": Machine(
        "8×V100, hybrid cube mesh of NVLink 2, as p3.16xlarge",
        lambda box: _hybrid_cube_mesh(box, NVLINK, doubled=True),
    ),
    "dgx-2": Machine(
        "16×V100 on NVSwitch, 6 lanes each", lambda box: _nvswitch_box(box, 16, 6, _Pcie(PCIE3, QPI, upper=2))
    ),
    "dgx-a100": Machine(
        "8×A100 on NVSwitch, 12 lanes and a 200 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 12, _Pcie(PCIE4, AMD_FABRIC), nic_gb_per_s=25),
    ),
    "hgx-h100": Machine(
        "8×H100 on NVSwitch, 18 lanes and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 18, _Pcie(PCIE5, SPR_UPI, 1, 4), nic_gb_per_s=50),
    ),
    "hgx-h200": Machine(
        "8×H200 on NVSwitch, 18 lanes and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 18, _Pcie(PCIE5, SPR_UPI, 1, 4), nic_gb_per_s=50),
    ),
    # NVIDIA's user guide of the DGX B200: 1.8 TB/s of NVLink 5 per GPU, sum of both ways; eight ConnectX-7.
    "dgx-b200": Machine(
        "8×B200 on NVSwitch, 18 lanes of NVLink 5 and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 18, _Pcie(PCIE5, SPR_UPI, 1, 4), nic_gb_per_s=50, lane=NVLINK5),
    ),
    # NVIDIA's pages: one NVLink domain of 18 trays, each with four GPUs and their NICs. The nine switch trays are one
    # plane, as in a server. The rack is one server here, since NVLink joins all its GPUs. The Grace processors are
    # left out: no data of a collective crosses them.
    "gb200-nvl72": Machine(
        "72×B200 of a rack on NVSwitch, 18 lanes of NVLink 5 and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 72, 18, None, nic_gb_per_s=50, lane=NVLINK5),
    ),
    # NVIDIA's user guide of the DGX B300: NVLink 5 as in the B200, and eight ConnectX-8 of 800 Gb/s. Its PCIe 6 is
    # counted as PCIe 5, which NCCL's log prints for it.
    "dgx-b300": Machine(
        "8×B300 on NVSwitch, 18 lanes of NVLink 5 and an 800 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 18, _Pcie(PCIE5, SPR_UPI, 1, 4), 100, NVLINK5, BLACKWELL_ULTRA),
    ),
    "gb200-tray": Machine(
        "4×B200 and two Graces of a GB200 NVL72, a 400 Gb/s NIC each", lambda box: _grace_tray(box, 50, BLACKWELL)
    ),
    "gb300-tray": Machine(
        "4×B300 and two Graces of a GB300 NVL72, an 800 Gb/s NIC each",
        lambda box: _grace_tray(box, 100, BLACKWELL_ULTRA),
    ),
    # NVIDIA's pages: the rack of the GB200, with ConnectX-8.
    "gb300-nvl72": Machine(
        "72×B300 of a rack on NVSwitch, 18 lanes of NVLink 5 and an 800 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 72, 18, None, 100, NVLINK5, BLACKWELL_ULTRA),
    ),
    "gh200": Machine("1 GH200: a Hopper on C2C to its Grace, and a 400 Gb/s NIC", _gh200),
    # NVIDIA's data sheets of the export models: 900 GB/s of NVLink in all for the H20, 400 for the H800.
    "hgx-h20": Machine(
        "8×H20 on NVSwitch, 18 lanes and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 18, _Pcie(PCIE5, SPR_UPI, 1, 4), 50, sm=HOPPER),
    ),
    "hgx-h800": Machine(
        "8×H800 on NVSwitch, 8 lanes and a 400 Gb/s NIC each",
        lambda box: _nvswitch_box(box, 8, 8, _Pcie(PCIE5, SPR_UPI, 1, 4), 50, sm=HOPPER),
    ),
    "mi300x": Machine(
        "8×MI300X, every pair by one xGMI link, and a 400 Gb/s NIC each", lambda box: _instinct(box, XGMI3)
    ),
    "mi325x": Machine(
        "8×MI325X, every pair by one xGMI link, and a 400 Gb/s NIC each", lambda box: _instinct(box, XGMI3)
    ),
    "mi355x": Machine(
        "8×MI355X, every pair by one xGMI link, and a 400 Gb/s NIC each", lambda box: _instinct(box, XGMI4)
    ),
    "mist": Machine("IBM AC922: 4×V100, NVLink to each other and to the POWER9s", _mist),
    "cedar": Machine("Dell C4140: 4×V100, every pair by two NVLinks", _cedar),
    "mi250": Machine("8 modules MI250 = 16 GCDs on xGMI (a model)", _mi250),
    "pcie-8gpu": Machine(
        "8 GPUs on PCIe 3 alone, two per switch, four per socket", lambda box: _pcie_box(box, 8, _Pcie(PCIE3, QPI))
    ),
    "pcie-4gpu-nvlink-pairs": Machine(
        "4×A100 PCIe, NVLink bridges over 0-1 and 2-3",
        lambda box: _pcie_box(box, 4, _Pcie(PCIE4, AMD_FABRIC, 1, 2), pair_lanes=12),
    ),
    "pcie-8gpu-nvlink-pairs": Machine(
        "8×A100 PCIe, NVLink bridges over neighbours",
        lambda box: _pcie_box(box, 8, _Pcie(PCIE4, AMD_FABRIC), pair_lanes=12),
    ),
    # NVIDIA's data sheets: PCIe ×16 of generation 4 and 5, no NVLink. Two GPUs per switch and four per socket, as in
    # NVIDIA's reference designs of eight; vendors differ.
    "l40s-8": Machine(
        "8×L40S on PCIe 4, two per switch, four per socket (a model)",
        lambda box: _pcie_box(box, 8, _Pcie(PCIE4, SPR_UPI), sm=ADA),
    ),
    "rtx-pro-6000-8": Machine(
        "8×RTX PRO 6000 on PCIe 5, two per switch, four per socket (a model)",
        lambda box: _pcie_box(box, 8, _Pcie(PCIE5, SPR_UPI), sm=BLACKWELL_PCIE),
    ),
    "dgx-spark": Machine("1 GB10 with two 200 Gb/s ports, which share 24 GB/s; takes cables", _dgx_spark),
    "mac-studio": Machine("1 M3 Ultra with five Thunderbolt 5 ports of 80 Gb/s; takes cables", _mac_studio),
}

#: Other names of these machines; NVIDIA's DGX servers have the links of the HGX boards in them.
ALIASES = {
    "dgx-h100": "hgx-h100",
    "dgx-h200": "hgx-h200",
    "hgx-a100": "dgx-a100",
    "a100": "dgx-a100",
    "h100": "hgx-h100",
    "h200": "hgx-h200",
    "h20": "hgx-h20",
    "h800": "hgx-h800",
    "hgx-b300": "dgx-b300",
    "b300": "dgx-b300",
    "gb300": "gb300-nvl72",
    "hgx-b200": "dgx-b200",
    "b200": "dgx-b200",
    "gb200": "gb200-nvl72",
    "nvl72": "gb200-nvl72",
}


@lru_cache(maxsize=len(CATALOG))
def machine(name: str) -> Topology:
    """The catalog's machine ``name``; the TopologyError for an unknown name lists the catalog."""
    if name not in CATALOG:
        raise TopologyError(f"no machine {name!r} in the catalog; it has {', '.join(CATALOG)}")
    box = Assembly(name, "catalog")
    CATALOG[name].build(box)
    return box.finish()


# The allocations counted in the papers: connected sets of GPUs, one per isomorphism class.
#: Width of the link between two GPUs of an allocation, by their positions in it.
Widths = dict[tuple[int, int], int]


@lru_cache(maxsize=8)
def connected_allocations(name: str, smallest: int = 3) -> tuple[tuple[int, ...], ...]:
    """One allocation of each isomorphism class of NVLink-connected GPU sets of a machine, by size, then by ids.

    With 3 to 8 GPUs there are 46 for ``dgx-1v`` and 14 for ``dgx-1p`` (Blink, MLSys 2020, §5.2).
    """
    topology = machine(name)
    allocations: list[tuple[int, ...]] = []
    forms: dict[tuple[tuple[int, ...], ...], list[Widths]] = {}
    for size in range(smallest, len(topology.ranks) + 1):
        for gpus in combinations(topology.ranks, size):
            try:
                network = network_for(topology, gpus, "fast")
            except TopologyError:
                continue
            if any(link.kind != "nvlink" for link in network.links):
                continue
            widths = {(gpus.index(x.src), gpus.index(x.dst)): x.capacity for x in network.links}
            form = _invariant(size, widths)
            if not any(_isomorphic(size, widths, other) for other in forms.get(form, [])):
                forms.setdefault(form, []).append(widths)
                allocations.append(gpus)
    return tuple(allocations)


def _invariant(size: int, widths: Widths) -> tuple[tuple[int, ...], ...]:
    """The sorted widths at every vertex: equal for isomorphic graphs."""
    return tuple(sorted(tuple(sorted(w for (u, _), w in widths.items() if u == v)) for v in range(size)))


def _isomorphic(size: int, one: Widths, other: Widths) -> bool:
    return any(
        all(other.get((order[u], order[v])) == w for (u, v), w in one.items()) for order in permutations(range(size))
    )
