"""The present machine, with a fake NVML."""

import pynvml
import pytest

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology import probe as probe_module
from blinkccl.topology.catalog import CUBE_MESH, machine
from blinkccl.topology.nvml_errors import NVML_ERRORS, nvml_error
from blinkccl.topology.probe import probe, this_host
from blinkccl.topology.select import network_for
from support.fake_nvml import FakeNvml


def dgx_1v() -> FakeNvml:
    return FakeNvml(8, {(a, b): w for a, b, w in CUBE_MESH})


def test_a_live_dgx_1v_is_the_catalogs() -> None:
    nvml = dgx_1v()
    topology = probe(nvml)
    assert nvml.closed == 1
    live, known = (network_for(t, t.ranks) for t in (topology, machine("dgx-1v")))
    assert {k: (x.capacity, x.gb_per_s) for k, x in live.link.items()} == {
        k: (x.capacity, x.gb_per_s) for k, x in known.link.items()
    }
    assert {x.provenance for x in topology.links} == {"nvml"}
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {24.0}
    assert sum(v.kind == "host" for v in topology.vertices) == 2
    assert sum(v.kind == "switch" for v in topology.vertices) == 4


def test_p2p_status_overrides_the_state_of_a_link() -> None:
    nvml = dgx_1v()
    nvml.p2p_off = {(0, 3), (3, 0), (1, 2)}
    topology = probe(nvml)
    nvlinks = {pair for pair, x in topology.link.items() if x.kind == "nvlink"}
    assert not {(0, 3), (3, 0), (1, 2), (2, 1)} & nvlinks
    assert "GPU0 and GPU3 share 2 NVLinks, but P2P over them is off, so they are left out" in topology.notes


def test_links_to_switches_become_one_switch() -> None:
    topology = probe(FakeNvml(8, switch_lanes=18, capability=(9, 0)))
    network = network_for(topology, topology.ranks)
    assert len(network.links) == 16
    assert {x.gb_per_s for x in network.links} == {450.0}


def test_hidden_nvlinks_count_as_one_lane() -> None:
    nvml = FakeNvml(4, switch_lanes=2)
    nvml.fails["nvmlDeviceGetNvLinkState"] = 3
    topology = probe(nvml)
    assert {x.gb_per_s for x in topology.links if x.kind == "nvlink"} == {25.0}
    assert any("hidden, so one lane is assumed" in note for note in topology.notes)


def test_a_switch_that_joins_some_pairs_only_is_refused() -> None:
    nvml = FakeNvml(4, switch_lanes=6)
    nvml.p2p_off = {(0, 1), (1, 0)}
    with pytest.raises(TopologyError, match="holds for some pairs only"):
        probe(nvml)


def test_a_silent_driver_leaves_pcie_through_the_processor() -> None:
    nvml = FakeNvml(2)
    for name in (
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
    ):
        nvml.fails[name] = 3
    topology = probe(nvml)
    assert [(x.src, x.dst, x.gb_per_s) for x in topology.links if x.src < x.dst] == [(0, 2, 12.0), (1, 2, 12.0)]


def test_contradicting_ancestors_are_refused() -> None:
    nvml = FakeNvml(3)
    levels = {(0, 1): 10, (1, 2): 10, (0, 2): 50}
    nvml.answers["nvmlDeviceGetTopologyCommonAncestor"] = lambda a, b: levels[min(a, b), max(a, b)]
    with pytest.raises(TopologyError, match="contradict"):
        probe(nvml)


@pytest.mark.parametrize("code", [9, 12, 28])
def test_without_a_driver_the_host_is_the_machine(code: int) -> None:
    nvml = FakeNvml(1)
    nvml.fails["nvmlInit"] = code
    assert {x.kind for x in probe(nvml).links} == {"shm"}
    assert {x.kind for x in probe(FakeNvml(0)).links} == {"shm"}


def test_failures_are_blink_errors_and_nvml_is_closed() -> None:
    nvml = dgx_1v()
    nvml.fails["nvmlDeviceGetHandleByIndex"] = 15
    with pytest.raises(TopologyError, match=r"NVML, opening GPU 0: a GPU has fallen off the bus \(code 15\); ask"):
        probe(nvml)
    assert nvml.closed == 1
    nvml.fails = {"nvmlInit": 18}
    with pytest.raises(TopologyError, match="driver and library have different versions"):
        probe(nvml)
    nvml.fails = {"nvmlDeviceGetNvLinkState": 999}
    with pytest.raises(TopologyError, match="an internal error of the driver"):
        probe(nvml)


def test_the_error_table_is_total() -> None:
    known = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert known <= set(NVML_ERRORS)
    assert isinstance(nvml_error(3, "x"), UnsupportedError)
    assert "unknown to this version of Blink (code 4711)" in str(nvml_error(4711, "x"))


def test_few_cpus_are_ranks_themselves() -> None:
    topology = this_host([0, 1, 2], [0])
    assert [topology.vertex[r].label for r in topology.ranks] == ["CPU0", "CPU1", "CPU2"]
    assert {topology.vertex[r].kind for r in topology.ranks} == {"cpu"}
    assert {(x.kind, x.provenance) for x in topology.links} == {("shm", "host")}
    assert len(network_for(topology, topology.ranks).links) == 6


def test_many_cpus_give_way_to_numa_nodes() -> None:
    topology = this_host(range(192), [0, 1])
    assert [topology.vertex[r].label for r in topology.ranks] == ["NUMA0", "NUMA1"]
    assert len(this_host(range(64), [0]).ranks) == 16
    assert len(this_host([5], [0]).ranks) == 1


@pytest.mark.parametrize(("text", "nodes"), [("0-1\n", [0, 1]), ("0,2-3", [0, 2, 3]), ("", [0]), ("what", [0])])
def test_numa_nodes_as_linux_writes_them(text: str, nodes: list[int]) -> None:
    assert probe_module._numa_nodes(lambda: text) == nodes
