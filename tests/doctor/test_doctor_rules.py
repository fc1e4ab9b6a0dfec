"""Rules, one condition at a time: causes, beside inputs that resemble them and are none."""

from dataclasses import replace

import msgspec
import pytest

from blinkccl.apps.doctor.diagnose import diagnose
from blinkccl.apps.doctor.evidence import (
    Acs,
    Case,
    ChannelCounts,
    ChannelHop,
    Device,
    Failure,
    Host,
    Iommu,
    Location,
    MachineRead,
    MeasuredCall,
    NcclVersion,
    NetworkInUse,
    NicPath,
    NvLinks,
    PeerAccess,
    Processor,
    RankReport,
    RingGraph,
    Setting,
    SocketBus,
    Started,
    SystemLink,
)
from blinkccl.apps.doctor.rules.job import bound_of
from blinkccl.topology.catalog import machine
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.probe import this_host
from blinkccl.topology.spec import parse_spec

HERE, THERE = Location("a.log", 1), Location("b.log", 1)
DGX1, PCIE, H100 = (MachineRead(HERE, machine(name)) for name in ("dgx-1v", "pcie-8gpu", "hgx-h100"))
CPUS = MachineRead(HERE, this_host([0, 1], [0, 0]))
SHM, P2P, PLAIN, DIRECT, SOCKET = (
    ChannelHop(HERE, 0, 1, detail.partition("/")[0], detail)
    for detail in ("SHM/direct", "P2P/IPC", "NET/IB/0", "NET/IB/0/GDRDMA", "NET/Socket/0")
)
CLOSE = NicPath(HERE, "NIC0", "GPU0", "PIX")
TURIN = Processor(HERE, "AuthenticAMD", 26, 2)
GIB = 1 << 30


def _row(busbw, ranks=8, size=GIB, **more):
    return MeasuredCall(HERE, "allreduce", ranks, size, 1e-3, busbw, **more)


def _rank(rank, calls=5, done=None, **more):
    return RankReport(HERE, "g", rank, calls=(("", calls),), done=done, members=(0, 1, 2), **more)


def _gpus(**more):
    return [Device(HERE, "gpu", f"GPU{i}", "V", **(more if i == 3 else {})) for i in range(4)]


def _pcie(now, usual=16, kind="gpu", idle=False):
    numbers = [(usual, None)] * 3 + [(now, None)]
    return [
        Device(HERE, kind, f"GPU{i}", "V", gt_per_s=n, max_gt_per_s=m, idle=idle) for i, (n, m) in enumerate(numbers)
    ]


def _uplinks(*rates):
    """Two GPUs on links of 16 GB/s below a PCIe switch whose links to the hosts have these GB/s."""
    hosts = range(3, 3 + len(rates))
    kinds = {0: "gpu", 1: "gpu", 2: "switch"} | dict.fromkeys(hosts, "host")
    links = [
        (0, 2, 16),
        (2, 0, 16),
        (1, 2, 16),
        (2, 1, 16),
        *((2, up, rate) for up, rate in zip(hosts, rates, strict=True)),
    ]
    return MachineRead(
        HERE,
        Topology(
            "bridged",
            0.5,
            tuple(Vertex(vertex, kind) for vertex, kind in kinds.items()),
            tuple(Link(src, dst, int(2 * rate), "pcie", float(rate), "nccl-xml") for src, dst, rate in links),
        ),
    )


def _reads(part):
    """A PCIe machine with this ratio of read rate to write rate."""
    links = tuple(replace(x, read_capacity=round(x.capacity * part)) for x in PCIE.topology.links)
    return MachineRead(HERE, replace(PCIE.topology, links=links))


def _channels(on, part):
    """Rings of NCCL at this part of the bound."""
    most = bound_of(on.topology, on.topology.ranks, "allreduce")
    return RingGraph(HERE, 4, 1, part * most.busbw_gb_per_s, "NVL")


def _nics(*names):
    return [NicPath(HERE, name, f"GPU{gpu}", "PHB" if gpu < 2 else "SYS") for name in names for gpu in range(4)]


def _numa():
    return [Device(HERE, "gpu", f"GPU{gpu}", "V", numa=gpu // 2) for gpu in range(4)]


def _with(topology, kind, **more):
    """The topology with changed links of one kind."""
    return MachineRead(
        HERE, replace(topology, links=tuple(replace(x, **more) if x.kind == kind else x for x in topology.links))
    )


B200 = "NVIDIA B200"


def _pci(rate, node, gpus=1):
    return SystemLink(HERE, "PCI", rate, node, "CPU/0", gpus)


def _nvl(gpus, rate):
    """The line of each GPU's NVLinks in NCCL's tree; the GPUs' names follow from the rate."""
    return [SystemLink(HERE, "NVL", rate, "NVS/0", f"GPU/{rate:g}{gpu}", 0) for gpu in range(gpus)]


CASES = {
    # Between hosts.
    "TCP between hosts": ([_row(1, hosts=2), NetworkInUse(HERE, "Socket")], "net-socket"),
    "sockets of one host are how NCCL starts": ([_row(1), NetworkInUse(HERE, "Socket")], ""),
    "hops over TCP": ([SOCKET], "net-socket"),
    "no GPUDirect": ([PLAIN, CLOSE], "no-gpudirect"),
    "some hops have GPUDirect": ([PLAIN, DIRECT, CLOSE], ""),
    "cards that are far cannot have it": ([PLAIN, NicPath(HERE, "NIC0", "GPU0", "PHB")], ""),
    "two cards on one socket": ([*_nics("NIC0", "NIC1"), *_numa()], "nic-far"),
    "one card is a note": ([*_nics("NIC0"), *_numa()], ""),
    # PCIe.
    "fewer lanes than most": (_gpus(width=8)[3:] + [Device(HERE, "gpu", f"GPU{i}", "V", width=16) for i in range(3)],
                              "pcie-narrow"),
    "fewer lanes than it can": ([Device(HERE, "gpu", "GPU0", "V", width=8, max_width=16)], "pcie-narrow"),
    "cards have fewer lanes than their slots": ([Device(HERE, "nic", "NIC0", "V", width=8, max_width=16)], ""),
    "2.5 GT/s under load": (_pcie(2.5), "pcie-slow"),
    "2.5 GT/s at rest": (_pcie(2.5, idle=True), ""),
    "a slow bridge above": ([_uplinks(3)], "pcie-uplink"),
    "a bridge of a quarter": ([_uplinks(4)], ""),
    "a slow bridge beside a fast one": ([_uplinks(3, 16)], ""),
    "reads at a third of the rate": ([_reads(0.33)], "one-way"),
    "reads at three times the rate": ([_reads(3)], "nccl-gap one-way"),
    "reads at two thirds of the rate": ([_reads(0.66)], ""),
    # NVLink.
    "a GPU of eight has fewer": ([NvLinks(HERE, f"GPU{i}", 6 - (i == 2), 0) for i in range(8)], "nvlink-down"),
    "a mesh of four is not all in view": ([NvLinks(HERE, f"GPU{i}", 6 - (i == 2), 0) for i in range(4)], ""),
    "links that say that they are down": ([NvLinks(HERE, f"GPU{i}", 6, int(i == 2)) for i in range(4)], "nvlink-down"),
    "as many down on each": ([NvLinks(HERE, f"GPU{i}", 12, 6) for i in range(4)], ""),
    # Sockets.
    "Zen 5 counted at 16 GB/s": ([TURIN, SocketBus(HERE, 16)], "socket-bus"),
    "counted right": ([TURIN, SocketBus(HERE, 32)], ""),
    "NCCL since 2.32": ([TURIN, SocketBus(HERE, 16), NcclVersion(HERE, (2, 32, 1))], ""),
    "one socket": ([Processor(HERE, "AuthenticAMD", 26, 1)], ""),
    "no data between sockets": ([TURIN, DGX1], ""),
    # P2P.
    "P2P refused": ([PeerAccess(HERE, "GPU0", "GPU1", False)], "p2p-off"),
    "P2P refused where NVLink joins all": ([PeerAccess(HERE, "GPU0", "GPU5", False), DGX1], ""),
    "NVLink without P2P, told once": ([PeerAccess(HERE, "GPU0", "GPU1", False, True), SHM], "nvlink-peer-broken"),
    "host memory between neighbours": ([DGX1, SHM], "p2p-off"),
    "a setting wants it so": ([DGX1, SHM, Setting(HERE, "NCCL_P2P_DISABLE", "1")], "setting"),
    "host memory between all is a note": ([SHM], ""),
    "host memory between GeForces": ([SHM, _row(5, 2, gpu="GeForce RTX 4090")], "p2p-off"),
    "host memory between some": ([SHM, P2P], ""),
    "an IOMMU": ([Iommu(HERE, "translating", "told")], "iommu"),
    "an IOMMU without GPUs": ([Iommu(HERE, "translating", "told"), CPUS], ""),
    "an IOMMU that passes": ([Iommu(HERE, "passthrough", "told")], ""),
    "ACS": ([Acs(HERE, 1, 4)], "acs"),
    "ACS off": ([Acs(HERE, 0, 4)], ""),
    # NCCL's channels.
    "less than NCCL reaches of NVLinks": ([DGX1, _channels(DGX1, 0.55)], "nccl-gap"),
    "what NCCL reaches of NVLinks": ([DGX1, _channels(DGX1, 0.57)], ""),
    "what NCCL reaches of PCIe": ([PCIE, _channels(PCIE, 0.55)], ""),
    "less than NCCL reaches of PCIe": ([PCIE, _channels(PCIE, 0.45)], "nccl-gap"),
    # NCCL's own lines.
    "bridges far below the links under them": ([_pci(0.2, "PCI/1", 2), _pci(24, "GPU/2")], "pcie-uplink"),
    "bridges that are all below any slot": ([_pci(0.2, "PCI/1", 2), _pci(0.4, "GPU/2")], "pcie-uplink"),
    "a slow link above no GPU": ([_pci(0.2, "PCI/1", 0), _pci(24, "GPU/2")], ""),
    "an older slot": ([_pci(12, "PCI/1", 2), _pci(24, "GPU/2")], ""),
    "rings below any link": ([RingGraph(HERE, 4, 2, 0.12, "PHB")], "ring-slow"),
    "rings of an old slot": ([RingGraph(HERE, 4, 1, 1.5, "PHB")], ""),
    "rings over PCIe where a switch joins all": (
        [_row(20, gpu=B200), RingGraph(HERE, 4, 1, 24, "SYS")], "nvlink-unused"),
    "the same on two hosts": ([_row(20, 16, hosts=2, gpu=B200), RingGraph(HERE, 4, 1, 24, "SYS", 8)], "nvlink-unused"),
    "rings over the switch": (
        [_row(700, gpu=B200), RingGraph(HERE, 4, 16, 40, "NVL"), ChannelCounts(HERE, 16, 16)], ""),
    "rings over PCIe where a mesh joins some": ([DGX1, RingGraph(HERE, 4, 12, 10, "PHB")], ""),
    "no NVLS where the switch reduces": ([_row(700, gpu=B200), ChannelCounts(HERE, 16, 0)], "no-nvls"),
    "no NVLS by a setting": (
        [_row(700, gpu=B200), ChannelCounts(HERE, 16, 0), Setting(HERE, "NCCL_NVLS_ENABLE", "0")], "setting"),
    "no NVLS among four, which may be on direct links": (
        [_row(300, 4, gpu="NVIDIA H100 80GB HBM3"), ChannelCounts(HERE, 16, 0)], ""),
    "no NVLS among four on a switch": (
        [_row(300, 4, gpu="NVIDIA H100 80GB HBM3"), ChannelCounts(HERE, 16, 0), *_nvl(4, 370.8)], "no-nvls"),
    "two of four A100s on direct links": (
        [_row(80, 2, gpu="NVIDIA A100-SXM4-40GB"), RingGraph(HERE, 4, 4, 20, "NVL", 2),
         *(SystemLink(HERE, "NVL", 80, f"GPU/{1 - g}", f"GPU/{g}", 0) for g in (0, 1))], ""),
    "three xGMI links of four MI300X": (
        [_row(135, 4, gpu="AMD Instinct MI300X"),
         *(SystemLink(HERE, "XGMI", 48, f"GPU/{b}", f"GPU/{a}", 0) for a in range(4) for b in range(4) if a != b)], ""),
    "two of them": (
        [_row(135, 4, gpu="AMD Instinct MI300X"),
         *(SystemLink(HERE, "XGMI", 48, f"GPU/{a ^ b}", f"GPU/{a}", 0) for a in range(4) for b in (1, 2))],
        "nvlink-down"),
    "no NVLS between two": ([_row(700, 2, gpu=B200), ChannelCounts(HERE, 16, 0)], ""),
    "no NVLS where no switch reduces": ([_row(230, gpu="NVIDIA A100-SXM4-80GB"), ChannelCounts(HERE, 24, 0)], ""),
    "half of the NVLinks": ([_row(700, gpu=B200), *_nvl(8, 360.9)], "nvlink-down"),
    "half of one GPU's": ([_row(700, gpu=B200), *_nvl(7, 721.8), *_nvl(1, 360.9)], "nvlink-down"),
    "all of them": ([_row(700, gpu=B200), *_nvl(8, 721.8)], ""),
    "an older generation of PCIe": ([_row(20, 2, gpu="NVIDIA L40S"), _pci(12, "GPU/1")], "pcie-slow"),
    "its own": ([_row(20, 2, gpu="NVIDIA L40S"), _pci(24, "GPU/1")], ""),
    "an older one beside NVLink is a note": ([_row(700, gpu=B200), _pci(24, "GPU/1"), *_nvl(8, 721.8)], ""),
    "a graph of other GPUs": ([Failure(HERE, "warning", "XML Import Channel : dev 3 not found.")], "graph-file"),
    # P2P across processors.
    "P2P forced and slow": ([_row(1.8, gpu="NVIDIA L20"), P2P, Setting(HERE, "NCCL_P2P_LEVEL", "SYS")], "p2p-forced"),
    "P2P forced and fast": ([_row(18, gpu="NVIDIA L20"), P2P, Setting(HERE, "NCCL_P2P_LEVEL", "SYS")], ""),
    "P2P forced and unmeasured": ([P2P, Setting(HERE, "NCCL_P2P_LEVEL", "5")], ""),
    "P2P forced where NVLink carries it": ([_row(20, 2, gpu=B200), P2P, Setting(HERE, "NCCL_P2P_LEVEL", "SYS")],
                                           "measured-low"),
    # Servers by name.
    "a B200 at half speed": ([_row(400, gpu=B200)], "measured-low"),
    "a B200": ([_row(832, gpu=B200)], ""),
    "four of eight": ([_row(300, 4, gpu=B200)], "measured-low"),
    "a log that ends at 16 MiB": ([_row(248, size=16 << 20, gpu="NVIDIA H100 80GB HBM3")], ""),
    "less than half at 16 MiB": ([_row(180, size=16 << 20, gpu="NVIDIA H100 80GB HBM3")], "measured-low"),
    "an MI300X": ([_row(322, gpu="AMD Instinct MI300X")], ""),
    "an MI300X at half speed": ([_row(161, gpu="AMD Instinct MI300X")], "measured-low"),
    # Settings.
    "InfiniBand off between hosts": ([_row(1, hosts=2), Setting(HERE, "NCCL_IB_DISABLE", "1")], "setting"),
    "InfiniBand off on one host": ([Setting(HERE, "NCCL_IB_DISABLE", "1")], ""),
    "NVLS off on a switch": ([H100, Setting(HERE, "NCCL_NVLS_ENABLE", "0")], "setting"),
    "NVLS off on a mesh": ([DGX1, Setting(HERE, "NCCL_NVLS_ENABLE", "0")], ""),
    "trees on a switch": ([H100, Setting(HERE, "NCCL_ALGO", "Tree,Ring")], "setting"),
    "all but NVLS": ([H100, Setting(HERE, "NCCL_ALGO", "^NVLS,NVLSTree")], "setting"),
    "all but trees": ([H100, Setting(HERE, "NCCL_ALGO", "^Tree")], ""),
    "NVLS among others": ([H100, Setting(HERE, "NCCL_ALGO", "allreduce:nvls,ring;allgather:ring")], ""),
    "an algorithm of another collective": ([H100, Setting(HERE, "NCCL_ALGO", "broadcast:ring")], ""),
    "trees on a mesh": ([DGX1, Setting(HERE, "NCCL_ALGO", "Tree")], ""),
    "trees on an unknown machine": ([Setting(HERE, "NCCL_ALGO", "Tree")], ""),
    "the last value counts": ([Setting(HERE, "NCCL_PROTO", "LL"), Setting(HERE, "NCCL_PROTO", "Simple")], ""),
    "two channels": ([Setting(HERE, "NCCL_MAX_CTAS", "2")], "setting"),
    "three channels": ([Setting(HERE, "NCCL_MAX_CTAS", "3")], ""),
    "no number": ([Setting(HERE, "NCCL_BUFFSIZE", "many")], ""),
    # The host.
    "64 MiB": ([Host(HERE, 8, shm_bytes=64 << 20, shm_free_bytes=64 << 20)], "shared-memory"),
    "65 MiB": ([Host(HERE, 8, shm_bytes=65 << 20, shm_free_bytes=65 << 20)], ""),
    "full": ([Host(HERE, 8, shm_bytes=64 * GIB, shm_free_bytes=63 << 20)], "shared-memory"),
    "a quota": ([Host(HERE, 8, quota=4)], "cpu-quota"),
    "a quota of nearly all": ([Host(HERE, 8, quota=7.5)], ""),
    "more ranks than processors": ([Host(HERE, 8, ranks=9)], "too-few-processors"),
    "as many ranks": ([Host(HERE, 8, ranks=8)], ""),
    "more ranks than the quota": ([Host(HERE, 8, quota=4, ranks=5)], "too-few-processors"),
    "GPUs without a driver": ([CPUS, *_gpus()], "no-driver"),
    "GPUs with one": ([DGX1, *_gpus()], ""),
    "a tenth of what memory allows": ([_row(1, limit_gb_per_s=10)], "memory-bound"),
    "half of what memory allows": ([_row(5, limit_gb_per_s=10)], ""),
    # What was measured.
    "wrong sums": ([_row(1, wrong=2)], "wrong-results"),
    "two machines": ([DGX1, PCIE], "contradiction"),
    "more ranks than GPUs": ([DGX1, _row(1, 16)], "contradiction"),
    "more ranks on two hosts": ([DGX1, _row(1, 16, hosts=2)], ""),
    "small messages say nothing": ([DGX1, _row(1, 16, size=GIB >> 10)], ""),
    "faster than the links": ([DGX1, _row(900)], "contradiction"),
    "faster than the links, of a switch that may reduce": ([H100, _row(600)], ""),
    "faster than PCIe": ([_uplinks(16), _row(40, 2)], "contradiction"),
    "faster than bridges that do not exist": ([_uplinks(0.5), _row(40, 2)], "pcie-uplink"),
    "faster than links that nobody rated": ([_with(PCIE.topology, "pcie", provenance="nvidia-smi"), _row(30)], ""),
    "two versions in a log": ([NcclVersion(HERE, (2, 18, 3)), NcclVersion(HERE, (2, 19, 3))], "contradiction"),
    "two versions in two logs": ([NcclVersion(HERE, (2, 18, 3)), NcclVersion(THERE, (2, 19, 3))], ""),
    "large messages are slow": ([_row(100), _row(49, size=4 * GIB)], ""),
    "large messages are slow on a machine": ([H100, _row(480), _row(239, size=4 * GIB)], "falls-with-size"),
    "half is not less than half": ([H100, _row(480), _row(240, size=4 * GIB)], ""),
    "slower than NCCL's channels": ([RingGraph(HERE, 4, 12, 20, "NVL"), _row(160)], "measured-low"),
    "as fast as NCCL's channels": ([RingGraph(HERE, 4, 12, 20, "NVL"), _row(170)], ""),
    "channels of a tree are no rings": ([RingGraph(HERE, 1, 12, 20, "NVL"), _row(1)], ""),
    "channels of others": ([RingGraph(HERE, 4, 12, 20, "NVL", 4), _row(1)], ""),
    "another cause explains it": ([RingGraph(HERE, 4, 12, 20, "NVL"), _row(100), Acs(HERE, 1, 4)], "acs"),
    "no cause that slows one host": ([RingGraph(HERE, 4, 12, 20, "NVL"), _row(100), Host(HERE, 8, quota=4)],
                                     "cpu-quota measured-low"),
    # Jobs that stand still.
    "one is behind": ([_rank(0), _rank(1, 4), _rank(2)], "rank-behind"),
    "one has completed less": ([_rank(0, 5, 4), _rank(1, 5, 3, state="timed out"), _rank(2, 5, 4)], "rank-behind"),
    "a run that ended well": ([_rank(0, 5, 4), _rank(1, 5, 3), _rank(2, 5, 4)], ""),
    "one is dead": ([_rank(0), _rank(1, 4, state="dead"), _rank(2)], "rank-missing"),
    "one has not reported": ([_rank(0, doing="x"), _rank(1, doing="x")], "rank-missing"),
    "ranks that are not told one by one": ([_rank(0, doing="x"), _rank(-2)], ""),
    "one sets up": (
        [RankReport(HERE, "g", 0, "initialising", members=(0, 1)), RankReport(HERE, "g", 1, members=(0, 1))],
        "rank-missing",
    ),
    "one is in another call": ([_rank(0, doing="x"), _rank(1, doing="y"), _rank(2, doing="x")], "call-mismatch"),
    "all are in one call": ([_rank(rank, doing="x", state="timed out") for rank in range(3)], "stuck-in-call"),
    "no row": ([Started(HERE, 8)], "no-result"),
    "a warning of a run that hung": ([Started(HERE, 8), Failure(HERE, "warning", "x")], "nccl-warning no-result"),
    "a warning of a run with results": ([Started(HERE, 8), _row(1), Failure(HERE, "warning", "x")], "no-result"),
}  # fmt: skip


@pytest.mark.parametrize(("pieces", "causes"), CASES.values(), ids=CASES)
def test_what_is_wrong(pieces, causes):
    findings = diagnose(Case(pieces=list(pieces))).findings
    assert sorted({finding.cause for finding in findings if finding.wrong}) == causes.split()


def test_what_follows_from_another_cause_is_not_told():
    """A narrow link explains slow rings of NCCL, which are then no separate cause."""
    slow = RingGraph(HERE, 4, 1, 1, "PIX")
    narrow = Device(HERE, "gpu", "GPU0", "V", width=8, max_width=16)
    causes = [{f.cause for f in diagnose(Case(pieces=[DGX1, slow, *more])).findings} for more in ([], [narrow])]
    assert causes == [{"nccl-gap"}, {"pcie-narrow"}]


@pytest.mark.parametrize("forbidden", [False, True])
def test_rings_leave_nvlink_of_themselves_or_because_a_setting_wants_it(forbidden):
    pieces = [DGX1, _row(40, 4, gpus=(1, 4, 5, 6)), SHM, P2P]
    pieces += [Setting(HERE, "NCCL_P2P_LEVEL", "LOC")] if forbidden else []
    titles = [finding.title for finding in diagnose(Case(pieces=pieces)).findings]
    assert any(title.startswith("NCCL's rings leave NVLink") for title in titles) is not forbidden


@pytest.mark.parametrize(
    ("pieces", "verdict", "cause"),
    [
        ([], "unknown", ""),
        ([P2P, _row(20, 2)], "pass", ""),
        ([PeerAccess(HERE, "GPU0", "GPU1", True)], "pass", ""),
        ([P2P, _row(20, 2, wrong=3)], "veto", "wrong-results"),
        ([P2P, _row(20, 2), Iommu(HERE, "translating", "told")], "veto", "iommu"),
        ([P2P, Started(HERE, 2)], "veto", "no-result"),
        ([PeerAccess(HERE, "GPU0", "GPU1", False)], "veto", "p2p-off"),
        ([PeerAccess(HERE, "GPU0", "GPU1", False, True)], "veto", "nvlink-peer-broken"),
        ([SHM, _row(5, 2, gpu="NVIDIA GeForce RTX 4090")], "veto", "p2p-off"),
        ([P2P, _row(20, 2, gpu="NVIDIA GeForce RTX 4090")], "pass", ""),
        ([_row(1.8, gpu="NVIDIA L20"), P2P, Setting(HERE, "NCCL_P2P_LEVEL", "SYS")], "veto", "p2p-forced"),
    ],
)
def test_one_verdict_on_p2p_for_programs(pieces, verdict, cause):
    """A veto names the variables that keep all users of P2P off it."""
    answer = diagnose(Case(pieces=list(pieces))).document()["p2p"]
    assert (answer["verdict"], answer["cause"]) == (verdict, cause)
    without = {"NCCL_P2P_DISABLE": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
    assert answer["environment"] == (without if verdict == "veto" and cause != "p2p-forced" else {})
    assert bool(answer["vllm"]) is bool(answer["environment"])
    assert list(answer["unset"]) == (["NCCL_P2P_LEVEL"] if cause == "p2p-forced" else [])
    assert answer["evidence"] or verdict != "pass"


@pytest.mark.parametrize(
    ("pieces", "judged"),
    [
        ([_row(20, 2, gpu="NVIDIA L40S")], False),
        ([PCIE, _row(9)], True),
        ([_row(480, gpu="NVIDIA H200")], True),
        ([_row(20, 2), RingGraph(HERE, 4, 1, 20, "PIX", 2)], True),
        ([_row(20, 2, size=1 << 20)], True),
    ],
    ids=["no machine", "a machine", "a name", "NCCL's rings", "nothing large was measured"],
)
def test_the_verdict_says_what_could_not_be_judged(pieces, judged):
    diagnosis = diagnose(Case(pieces=pieces))
    assert not diagnosis.wrong
    assert diagnosis.healthy is judged
    assert bool(diagnosis.not_judged) is not judged
    assert ("nothing wrong was found" in diagnosis.verdict) is judged
    assert judged or "20 GB/s busbw of allreduce on 2 × NVIDIA L40S" in diagnosis.verdict


def test_cards_of_one_socket_matter_only_between_hosts():
    far_on = [{f.cause for f in diagnose(Case(pieces=[*_nics("a", "b"), *_numa(), *rows])).wrong}
                for rows in ([], [_row(5, 4)], [_row(5, 8, hosts=2)])]  # fmt: skip
    assert far_on == [{"nic-far"}, set(), {"nic-far"}]


@pytest.mark.parametrize("rows", [[], [_row(480)]], ids=["modelled", "measured"])
def test_more_than_the_bound_of_trees_is_explained_by_the_switch(rows):
    bound = next(f for f in diagnose(Case(pieces=[H100, *rows])).findings if f.cause == "bound")
    assert "in-network reduction in the NVSwitch (NVLS) can exceed it" in bound.why
    less = next(f for f in diagnose(Case(pieces=[H100, _row(400)])).findings if f.cause == "bound")
    assert "NVLS" not in less.why


@pytest.mark.parametrize(("machines", "hosts", "judged"), [("2x hgx-h200", 2, False), ("hgx-h200", 1, True)])
def test_a_rate_between_hosts_has_no_model_to_be_compared_with(machines, hosts, judged):
    """NCCL's reduction in NVSwitches of several servers is not modelled, so half of the rate cannot be told."""
    read = MachineRead(HERE, parse_spec(machines))
    diagnosis = diagnose(Case([read, _row(400, ranks=8 * hosts, hosts=hosts)]))
    assert (not diagnosis.not_judged) == judged
    assert all("no model of NCCL between hosts" in one for one in diagnosis.not_judged)
    assert diagnosis.healthy == judged


def test_a_small_part_of_the_bound_is_a_problem_between_hosts_too():
    read = MachineRead(HERE, parse_spec("2x hgx-h200"))
    assert [one.cause for one in diagnose(Case([read, _row(50, ranks=16, hosts=2)])).findings if one.wrong] == [
        "measured-low"
    ]


def test_a_part_of_the_bound_is_not_called_a_model():
    """An AllToAll, which NCCL's model does not cover."""
    low = [
        one
        for one in diagnose(Case([H100, msgspec.structs.replace(_row(50), collective="alltoall")])).findings
        if one.wrong
    ]
    assert [one.cause for one in low] == ["measured-low"]
    assert "50% of the bound, as its model does not cover this job" in low[0].bound
