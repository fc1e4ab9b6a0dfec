"""lstopo XML, with samples written for Blink."""

import re

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import NOTHING, Stated, parse_stated
from support import topology_dumps as dumps

H100 = dumps.Machine(8, per_switch=2, nics=(0, 2, 4, 6))
RING = dumps.Machine(4, links={(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 1})


def read(text: str, stated: Stated = NOTHING) -> Topology:
    return parse_topology(text.encode(), "x", stated=stated)


def rates(topology: Topology, kind: str) -> dict[tuple[str, str], float]:
    label = {v.id: v.label for v in topology.vertices}
    return {(label[x.src], label[x.dst]): x.gb_per_s for x in topology.links if x.kind == kind and x.src < x.dst}


def test_nvswitch_chips_are_one_switch() -> None:
    topology = read(dumps.lstopo(H100, switched=9))
    assert rates(topology, "nvlink") == {(f"GPU{gpu}", "NVSwitch"): 450.0 for gpu in range(8)}
    assert {x.provenance for x in topology.links} == {"lstopo"}


def test_bridges_with_branches_are_switches_and_others_extend_links() -> None:
    topology = read(dumps.lstopo(H100, switched=9))
    pcie = rates(topology, "pcie")
    assert len(pcie) == 8 + 4
    assert set(pcie.values()) == {24.0}, "hwloc's 31.5 GB/s, as NCCL counts them"
    assert [ends for ends in pcie if ends[0].startswith("CPU")] == [
        *(("CPU0", "PCI 0000:00:01.0"), ("CPU0", "PCI 0000:10:01.0")),
        *(("CPU1", "PCI 0000:40:01.0"), ("CPU1", "PCI 0000:50:01.0")),
    ]
    assert rates(topology, "smp") == {("CPU0", "CPU1"): 22.0}, "the model number is Sapphire Rapids'"


def test_nvlinks_between_gpus() -> None:
    topology = read(dumps.lstopo(RING))
    assert rates(topology, "nvlink") == {(f"GPU{a}", f"GPU{b}"): 25.0 * n for (a, b), n in RING.links.items()}


def test_xgmi_rates_come_from_the_matrix_if_hwloc_knew_them() -> None:
    known = dumps.lstopo(RING, "XGMIBandwidth", 50_000)
    assert set(rates(read(known), "xgmi").values()) == {50.0, 100.0}
    with pytest.raises(TopologyError, match=r"line .*this matrix contains the xGMI rates; remove the stated one"):
        read(known, parse_stated("xgmi=64GB/s", "x"))
    flat = dumps.lstopo(dumps.Machine(2, links={(0, 1): 1}), "XGMIBandwidth", 100_000)
    assert any("this hwloc writes 100000 MB/s" in note for note in read(flat).notes)
    assert set(rates(read(flat), "xgmi").values()) == {50.0}
    assert set(rates(read(flat, parse_stated("xgmi=64GB/s", "x")), "xgmi").values()) == {64.0}


def test_a_power9_gpu_reaches_its_host_by_nvlink_and_by_pcie() -> None:
    text = dumps.lstopo(dumps.Machine(1, 1, links={(0, 0): 1}))
    matrix = (
        '<distances2hetero nbobjs="2" kind="9" name="NVLinkBandwidth"><indexes length="1">OSDev:100 Package:7000 '
        '</indexes><u64values length="1">1000000 75000 75000 1000000 </u64values></distances2hetero>'
    )
    topology = read(re.sub(r"<distances2 .*</distances2>", matrix, text, flags=re.DOTALL))
    assert rates(topology, "nvlink") == {("GPU0", "CPU0"): 75.0}
    assert sorted(rates(topology, "pcie")) == [("CPU0", "PCI 0000:02:00.0"), ("GPU0", "PCI 0000:02:00.0")]


def test_nics_have_the_stated_rate_and_at_most_that_of_their_slot() -> None:
    text = dumps.lstopo(H100, switched=9)
    assert any("NICs left out, as lstopo does not give their rate: mlx5_0," in note for note in read(text).notes)
    topology = read(text, parse_stated("nic=100Gbps", "x"))
    pairs = {(gpu, f"mlx5_{gpu // 2}") for gpu in range(8)}
    assert rates(topology, "net") == {(f"GPU{gpu}", nic): 12.5 for gpu, nic in sorted(pairs)}
    fast = read(text, parse_stated("nic=400Gbps", "x"))
    assert set(rates(fast, "net").values()) == {24.0}
    assert "mlx5_0: 24 GB/s, the limit of its PCIe link" in fast.notes


def test_stated_rates_of_pcie_and_the_bus() -> None:
    topology = read(dumps.lstopo(H100, switched=9), parse_stated("pcie=gen5, smp=40GB/s", "x"))
    assert set(rates(topology, "pcie").values()) == {48.0}
    assert set(rates(topology, "smp").values()) == {40.0}
    assert {"the PCIe link of a GPU: 48 GB/s, as stated", "the bus between processors: 40 GB/s, as stated"} <= set(
        topology.notes
    )


def test_links_without_a_speed_and_gpus_without_a_backend() -> None:
    text = re.sub(r'pci_link_speed="[^"]*"', 'pci_link_speed="0.000000"', dumps.lstopo(dumps.Machine(4)))
    topology = read(text.replace('name="nvml', 'name="card'))
    assert [v.label for v in topology.vertices[:4]] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert set(rates(topology, "pcie").values()) == {12.0}
    assert "4 PCIe links are assumed to be generation 3 ×16, as lstopo saw no speed" in topology.notes
    assert "GPUs are in PCI order, as this lstopo found no NVML, ROCm or CUDA device" in topology.notes
    assert any("no NVLink or xGMI" in note for note in topology.notes)


def test_an_idle_gpu_keeps_the_slow_rate_of_the_file() -> None:
    text = dumps.lstopo(dumps.Machine(2))
    slow = read(re.sub(r'(0302 \[10de:20b0\]" pci_link_speed=)"[^"]*"', r'\1"4.000000"', text))
    assert set(rates(slow, "pcie").values()) == {3.0}, "16 lanes of generation 1"
    assert any("too low if a GPU was idle" in note for note in slow.notes)


SAMPLE = dumps.lstopo(RING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SAMPLE.replace('version="2.0"', 'version="3.0"'), "line 3: <topology> version '3.0', expected 2.0"),
        (SAMPLE.replace(' version="2.0"', ""), "line 3: <topology> version '1', expected 2.0"),
        (
            SAMPLE.replace('"hwloc2.dtd">', '"hwloc2.dtd" [<!ENTITY a "b">]>'),
            "line 2: document types and entities are refused",
        ),
        (SAMPLE.replace("nvml0", "eth0").replace("nvml", "ib").replace("10de", "15b3"), "no GPU: no OS device nvml0"),
        (SAMPLE.replace("nvml1", "nvml0"), r"line \d+: nvml0 appears twice, first in line \d+"),
        (SAMPLE.replace('speed="31.507692"', 'speed="fast"'), r"line \d+: <object> pci_link_speed is 'fast', exp"),
        (SAMPLE.replace("1000000", "", 1), r"line \d+: NVLinkBandwidth: 15 values, expected 4 × 4 whole numbers"),
        (SAMPLE.replace("50000", "75000", 1), r"line \d+: 75000 and 50000 MB/s between objects 0 and 1, expected the"),
        (SAMPLE.replace(">100 101", ">100 999"), r"line \d+: unknown object '999'"),
        (SAMPLE.replace(">100 101 102 103", ">100"), r"line \d+: 1 objects, expected 2 to"),
        (SAMPLE[:-20], "not well-formed"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read(text)
