"""Machines of 2024 to 2026: the verbs give one answer, and it is that of the links.

The files are written anew from facts of public reports. Expected numbers follow from the links, or name a report.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

import blinkccl

FIXTURES = files("blinkccl.topology") / "fixtures"
TRAY = str(FIXTURES / "gb200-tray.nccl.xml")


def document(blink, *command):
    ended = blink(*command, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def bound_of_plan(document):
    rate, _, below = document["bound"].partition("/")
    return int(rate) / int(below or 1) * document["unit_gb_per_s"]


@pytest.mark.parametrize("gpus", [(0, 1), (0, 1, 2), (0, 1, 2, 3)], ids=len)
def test_verbs_state_one_bound_on_a_grace_blackwell_tray(blink, gpus):
    # Every element leaves each of n ranks 2 (n - 1) / n times over 18 lanes of 50 GB/s, where nothing is reduced in
    # the switch. C2C would add the processors' 224 GB/s, but no store goes through a processor to a peer.
    n = len(gpus)
    expected = 18 * 50 * n / (2 * (n - 1))
    job = ("allreduce", "--topo", TRAY, "--gpus", ",".join(map(str, gpus)))
    plan = document(blink, "plan", *job)
    assert {link["kind"] for link in plan["topology"]["links"]} == {"nvlink"}
    assert bound_of_plan(plan) == pytest.approx(expected)
    for verb in ("sim", "explain"):
        assert document(blink, verb, *job, "-s", "1G")["bound_gb_per_s"] == pytest.approx(expected)


def test_a_grace_blackwell_tray_shows_its_nvlinks(blink):
    shown = blink("topo", TRAY).out
    assert shown.count("NV18") == 12
    assert "PHB" not in shown


@pytest.mark.parametrize(("machine", "links"), [("mist", "fast"), (TRAY, "all")])
def test_kernels_bound_stands_beside_the_bound_of_all_links(blink, machine, links):
    job = ("allreduce", "--topo", machine, "--gpus", "0,1", "--links", links)
    stated = bound_of_plan(document(blink, "plan", *job))
    for verb in ("sim", "explain"):
        assert document(blink, verb, *job, "-s", "64M")["bound_gb_per_s"] == pytest.approx(stated)
        printed = " ".join(blink(verb, *job, "-s", "64M").out.split())
        assert "only into a processor's memory" in printed


def test_mscclpp_gets_no_channel_through_a_processors_memory(blink, tmp_path):
    job = ("plan", "allreduce", "--topo", TRAY, "--gpus", "0,1")
    for links, code in (("fast", 0), ("all", 2)):
        plan = tmp_path / f"{links}.json"
        assert blink(*job, "--links", links, "-o", plan).code == 0
        ended = blink("export", plan, "--to", "mscclpp", "-o", tmp_path / "x.json")
        assert ended.code == code
    assert "the memory of CPU0" in ended.err


def algorithms(document):
    return {row["algorithm"]: row for row in document["sizes"][-1]["algorithms"]}


@pytest.mark.parametrize("name", ["four-a100-nv4.nvidia-smi.txt", "gb200-tray.nccl.xml"])
def test_rows_of_a_machine_outside_the_catalogue_have_rates_of_one_kind(blink, name):
    # A ring through all lanes is the same ring for both, so only their chunks and latencies differ.
    rows = algorithms(document(blink, "sim", "allreduce", "--topo", str(FIXTURES / name), "-s", "4G"))
    assert rows["nccl-2.4"]["busbw_gb_per_s"] == pytest.approx(rows["optimal"]["busbw_gb_per_s"], rel=0.05)


@pytest.mark.parametrize(("code", "absent"), [("kernels", "nccl-2.4"), ("copies", "nccl-2.30")])
def test_nominal_rates_stand_beside_no_others(blink, code, absent):
    table = document(blink, "sim", "allreduce", "--topo", "ring:4", "--code", code, "-s", "1G")
    assert absent not in algorithms(table)
    assert "nominal" in table["absent"][absent]


#: One GPU, C2C to its processor, and a NIC on another PCIe root.
GRACE_HOPPER = """<system version="1">
  <cpu numaid="0" arch="arm64" vendor="ARM">
    <pci busid="0009:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"><c2c bw="45000" count="10"/></gpu>
    </pci>
    <pci busid="0002:01:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000" port="1" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"""


def test_nccl_has_no_time_through_a_grace_processor(blink, tmp_path):
    # Two GH200 measured 79.7 and 96.1 GB/s (nccl#1579), where the model without P2C said 2.40.
    (tmp_path / "gh200.xml").write_text(GRACE_HOPPER)
    job = ("allreduce", "--topo", f"2x {tmp_path / 'gh200.xml'} @ 400Gbps")
    table = document(blink, "sim", *job, "-s", "1G")
    assert "P2C" in table["absent"]["nccl-2.30"]
    assert "P2C" in blink("plan", *job).out
    assert "P2C" in document(blink, "explain", *job, "-s", "1G")["nccl"]["why_not"]


def test_two_l40s_of_two_sockets_are_predicted_as_measured(blink):
    # Two L40S of two sockets with peer access between them: busbw 20 GB/s at 1 GiB (nccl-tests log of a public thread).
    # The file names the GPUs, so PCIe is of generation 4, and the bus between processors carries one such link.
    machine = str(FIXTURES / "two-l40s.nvidia-smi.txt")
    rows = algorithms(document(blink, "sim", "allreduce", "--topo", machine, "-s", "1G"))
    assert rows["nccl-2.30"]["busbw_gb_per_s"] == pytest.approx(20, rel=0.05)
    assert rows["optimal"]["busbw_gb_per_s"] == pytest.approx(20, rel=0.05)


def test_every_verb_prints_what_is_assumed(blink, tmp_path):
    machine, plan = str(FIXTURES / "two-l40s.nvidia-smi.txt"), tmp_path / "plan.json"
    job = ("allreduce", "--topo", machine)
    assert blink("plan", *job, "-o", plan).code == 0
    rates = ["the PCIe link of a GPU 24 GB/s", "the bus between processors 24 GB/s"]
    for verb in (("plan", *job), ("sim", *job), ("explain", *job, "-s", "1M"), ("check", plan)):
        assert document(blink, *verb)["assumed"] == rates
        assert f"assumed {'; '.join(rates)}" in " ".join(blink(*verb).out.split())
    stated = f"{machine} @ pcie=gen4, smp=20GB/s"
    assert document(blink, "sim", "allreduce", "--topo", stated)["assumed"] == []


#: A workstation's GPU on Wi-Fi (PCIe x1), a tunnel, and a port of 1 Gbit/s; the file gives the GPU's PCIe no speed.
DESK = """<system version="1">
  <cpu numaid="0" arch="arm64" vendor="ARM">
    <pci busid="0001:01:00.0" class="0x028000" link_speed="5.0 GT/s PCIe" link_width="1">
      <nic><net name="wlan0" dev="0" speed="10000" port="0"/></nic>
    </pci>
    <pci busid="0002:01:00.0" class="0x020000" link_speed="8.0 GT/s PCIe" link_width="4">
      <nic><net name="eth0" dev="2" speed="1000" port="0"/><net name="eth1" dev="3" speed="25000" port="0"/></nic>
    </pci>
    <pci busid="000f:01:00.0" class="0x030000" link_width="16">
      <gpu dev="0" sm="121" rank="0" gdr="0"/>
    </pci>
    <nic><net name="tun0" dev="1" speed="10000" port="0"/></nic>
  </cpu>
</system>
"""


def rates_of(spec, kind):
    return {link.gb_per_s for link in blinkccl.topo(str(spec)).links if link.kind == kind}


def test_wifi_tunnels_and_management_are_no_cluster_network(blink, tmp_path):
    desk = tmp_path / "desk.xml"
    desk.write_text(DESK)
    notes = blink("topo", desk).out
    for reason in ("wlan0 is wireless", "tun0 is a tunnel", "eth0 is for management"):
        assert reason in notes
    assert rates_of(desk, "net") == {3.0}  # 25 Gbit/s, of which PCIe 3 x4 carries 24
    assert rates_of(desk, "pcie") == {48.0}  # sm_121 has PCIe 5
    assert rates_of(f"{desk} @ pcie=gen4", "pcie") == {24.0}
    assert rates_of(f"{desk} @ nics=wlan0+eth0", "net") == {0.375, 0.125}
    ended = blink("topo", f"{desk} @ nics=mlx5_0")
    assert (ended.code, "the file has wlan0, eth0, eth1, tun0" in " ".join(ended.err.split())) == (2, True)


def test_a_stated_rate_in_place_of_the_files_is_noted(blink, tmp_path):
    desk = tmp_path / "desk.xml"
    desk.write_text(DESK)
    shown = " ".join(blink("topo", f"2x {desk} @ 200Gbps").out.split())
    assert "each NIC has 25 GB/s as stated, in place of the file's rate: eth1 3 GB/s" in shown


def test_explain_names_the_links_of_the_library_where_they_are_others(blink):
    # With all links trees on NVLink and PCIe are 1.5 times as fast as NCCL; libblink.so plans on PCIe alone there.
    job = ("explain", "allreduce", "--topo", "pcie-4gpu-nvlink-pairs", "-s", "64M", "--links", "all")
    assert document(blink, *job)["libblink"]["links"] == "pcie"
    printed = " ".join(blink(*job).out.split())
    assert "here libblink.so plans on --links pcie alone: leaves it to NCCL" in printed


def test_eight_mi300x_read_from_a_dump_are_predicted_as_measured(blink):
    # rccl-tests on eight MI300X: 322 GB/s of busbw (a public thread). The file gives xGMI no rate. AMD says that copies
    # reach 48 of 64 GB/s, and nobody says what switching peer access off costs there.
    spec = f"{FIXTURES / 'mi300x.amd-smi.txt'} @ xgmi=64GB/s"
    table = document(blink, "sim", "allreduce", "--topo", spec, "-s", "1G")
    fastest = max(row["busbw_gb_per_s"] for row in algorithms(table).values())
    assert fastest == pytest.approx(322, rel=0.05)
    assert "peer access" in table["absent"]["hybrid"]


@pytest.mark.parametrize("pcie", ["gen3", "gen4", "gen5"])
def test_rows_over_pcie_have_rates_of_one_kind(blink, pcie):
    spec = f"{FIXTURES / 'two-l40s.nvidia-smi.txt'} @ pcie={pcie}"
    rows = algorithms(document(blink, "sim", "allreduce", "--topo", spec, "-s", "4G"))
    assert rows["nccl-2.4"]["busbw_gb_per_s"] == pytest.approx(rows["optimal"]["busbw_gb_per_s"], rel=0.05)
