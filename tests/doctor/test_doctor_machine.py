"""This machine as a document, from a fake driver and file system, without secrets."""

import getpass
import json
import socket

from blinkccl.apps.doctor import gathered
from blinkccl.apps.doctor.diagnose import diagnose
from blinkccl.apps.doctor.evidence import Acs, Case, Device, Host, Iommu, NvLinks, PeerAccess
from blinkccl.apps.doctor.this_machine import gather
from blinkccl.topology.formats import parse_topology
from support.fake_nvml import FakeNvml


def _system(tmp_path, iommu="DMA", acs=True):
    """A file system with two GPUs, a network card, and a bridge with Access Control Services."""
    devices = tmp_path / "sys/bus/pci/devices"
    for name, code in (("0000:a0:00.0", "0x030200"), ("0000:a1:00.0", "0x030200"), ("0000:c0:00.0", "0x020700")):
        device = devices / name
        device.mkdir(parents=True)
        files = {
            "class": code,
            "vendor": "0x10de" if code == "0x030200" else "0x15b3",
            "device": "0x2235",
            "numa_node": "1",
        }
        files |= {"current_link_width": "8", "max_link_width": "16", "current_link_speed": "16.0 GT/s PCIe"}
        for key, value in files.items():
            (device / key).write_text(value + "\n")
        (device / "iommu_group").mkdir()
        (device / "iommu_group/type").write_text(iommu + "\n")
    bridge = devices / "0000:00:01.0"
    bridge.mkdir()
    (bridge / "class").write_text("0x060400\n")
    first = (0x01 | 0x140 << 20).to_bytes(4, "little")
    second = (0x0D).to_bytes(4, "little") + b"\0\0" + (0x1D if acs else 0).to_bytes(2, "little")
    (bridge / "config").write_bytes(bytes(0x100) + first + bytes(0x3C) + second + bytes(16))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("BOOT_IMAGE=/vmlinuz root=UUID=1234 ro secret=hunter2\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("200000 100000\n")
    return tmp_path


def _nvml():
    nvml = FakeNvml(2, {(0, 1): 2})
    nvml.answers["nvmlDeviceGetCurrPcieLinkWidth"] = lambda gpu: 8 if gpu else 16
    nvml.answers["nvmlDeviceGetCurrPcieLinkGeneration"] = lambda gpu: 1
    nvml.answers["nvmlDeviceGetPerformanceState"] = lambda gpu: 8
    nvml.answers["nvmlDeviceGetP2PStatus"] = lambda a, b, index: 0
    return nvml


def _case(document):
    case = Case()
    case.add(gathered.pieces(json.loads(json.dumps(document)), "this machine"))
    return case


def test_what_is_told_of_a_machine(tmp_path):
    case = _case(gather(nvml=_nvml(), root=_system(tmp_path)))
    gpus = [device for device in case.of(Device) if device.kind == "gpu"]
    assert [(g.width, g.max_width, g.gt_per_s, g.max_gt_per_s, g.idle, g.numa) for g in gpus] == [
        (16, 16, 2.5, 16.0, True, 1), (8, 16, 2.5, 16.0, True, 1),
    ]  # fmt: skip
    assert [(links.up, links.down) for links in case.of(NvLinks)] == [(2, 1), (2, 1)]
    assert [one.allowed for one in case.of(PeerAccess)] == [True]
    assert case.of(Iommu)[0].state == "translating"
    assert (case.of(Acs)[0].redirecting, case.of(Acs)[0].bridges) == (1, 1)
    assert case.of(Host)[0].quota == 2.0
    causes = [finding.cause for finding in diagnose(case).findings if finding.wrong]
    assert {"pcie-narrow", "iommu", "acs"} <= set(causes)
    assert "pcie-slow" not in causes  # the GPUs are idle


def test_a_machine_in_order(tmp_path):
    nvml = _nvml()
    nvml.answers["nvmlDeviceGetCurrPcieLinkWidth"] = lambda gpu: 16
    case = _case(gather(nvml=nvml, root=_system(tmp_path, "identity", acs=False)))
    assert case.of(Iommu)[0].state == "passthrough"
    wrong = {finding.cause for finding in diagnose(case).findings if finding.wrong}
    assert wrong <= {"cpu-quota", "shared-memory", "no-driver"}


def test_nothing_secret_is_gathered(tmp_path, monkeypatch):
    for name in ("NCCL_TOPO_FILE", "NCCL_SOCKET_IFNAME", "NCCL_COMM_ID", "BLINK_STORE", "HOME"):
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    xml = (
        '<system version="1"><cpu host_hash="0xfeedbeef"/><nic guid="0xabcdef"/><cpu host_hash="0xfeedbeef"/></system>'
    )
    document = gather(xml, _nvml(), _system(tmp_path))
    text = json.dumps(document)
    for secret in ("secret", "feedbeef", "abcdef", "hunter2", "1234"):
        assert secret not in text
    for name in (getpass.getuser(), socket.gethostname()):
        assert len(name) < 5 or name not in text
    assert document["settings"]["NCCL_PROTO"] == "LL"
    assert document["nccl_topology"].count('host_hash=\\"0x1\\"'.replace("\\", "")) == 2


def test_a_gathered_file_is_a_topology_too(tmp_path):
    document = gather(nvml=_nvml(), root=_system(tmp_path))
    topology = parse_topology(json.dumps(document).encode(), "g.json")
    assert topology.ranks == (0, 1)
    assert topology.link[0, 1].kind == "nvlink"
