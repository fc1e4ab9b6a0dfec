"""This machine as one document: NVML, PCIe from sysfs, the kernel's IOMMU, and the resources of a process here.

It only reads. It needs no root, but the kernel shows Access Control Services to root alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

from blinkccl.apps.doctor.gathered import VERSION, without_secrets
from blinkccl.apps.doctor.readers.tools import iommu_of
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.topology import probe as probing
from blinkccl.topology.json_format import to_document
from blinkccl.topology.probe import MAX_NVLINKS, P2P_NVLINK, P2P_OK
from blinkccl.topology.select import ids_text

_PCI = "sys/bus/pci/devices"
#: Prefixes of PCI device classes in sysfs.
_GPUS, _NIC, _BRIDGE = ("0x0300", "0x0302"), "0x02", "0x0604"
_NVIDIA = "0x10de"
#: PCI Express: the capability for access control of bridges, and its bit for redirecting requests upstream.
_ACS_CAPABILITY, _ACS_REDIRECT = 0x0D, 1 << 2
_GENERATION_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
#: From this performance state of NVML on, a GPU is idle and its link may be turned down.
_RESTING_STATE = 5
#: Environment variables of libraries, and those of them that may identify a person or host.
_SETTINGS = re.compile(r"(?:NCCL|BLINK|TORCH_NCCL|OMP)_\w+")
_PRIVATE = re.compile(r"FILE|PATH|ADDR|IFNAME|HCA|COMM_ID|PLUGIN|HOST|STORE|DIR|KEY|TOKEN", re.IGNORECASE)
_WAIT_S = 20


def gather(nccl_xml: str | None = None, nvml: Any = None, root: Path = Path("/")) -> dict[str, Any]:
    """The document that :mod:`~.gathered` reads; ``nccl_xml`` is NCCL's own dump, if there is one.

    ``nvml`` and ``root`` are the driver and the file system to read. Raises as
    :func:`~blinkccl.topology.probe.probe`.
    """
    topology = probing.probe() if nvml is None else probing.probe(nvml)
    driver = import_module("pynvml") if nvml is None else nvml
    has_gpus = any(topology.vertex[rank].kind == "gpu" for rank in topology.ranks)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "blink_gather": VERSION,
        "topology": to_document(topology),
        **(_by_nvml(driver, root) if has_gpus else {"devices": [], "nvlinks": [], "peers": []}),
        "kernel": _kernel(root),
        "host": _host(root),
        "settings": {k: v for k, v in sorted(os.environ.items()) if _SETTINGS.fullmatch(k) and not _PRIVATE.search(k)},
        "nvidia_smi_topo": _nvidia_smi() if has_gpus and nvml is None else "",
        "nccl_topology": without_secrets(nccl_xml) if nccl_xml else "",
    }
    document["devices"] += _pci(root, not has_gpus)
    return document


# NVML.


def _by_nvml(driver: Any, root: Path) -> dict[str, Any]:
    driver.nvmlInit()
    try:
        gpus = [driver.nvmlDeviceGetHandleByIndex(i) for i in range(driver.nvmlDeviceGetCount())]
        return {
            "devices": [_gpu(driver, number, gpu, root) for number, gpu in enumerate(gpus)],
            "nvlinks": _nvlinks(driver, gpus),
            "peers": _peers(driver, gpus),
        }
    finally:
        driver.nvmlShutdown()


def _ask(driver: Any, function: str, *arguments: Any) -> Any:
    """The driver's answer, or None if it has none."""
    try:
        return getattr(driver, function)(*arguments)
    except (driver.NVMLError, AttributeError):
        return None


def _gpu(driver: Any, number: int, gpu: Any, root: Path) -> dict[str, Any]:
    name, busid = driver.nvmlDeviceGetName(gpu), driver.nvmlDeviceGetPciInfo(gpu).busId
    name, busid = (text.decode() if isinstance(text, bytes) else str(text) for text in (name, busid))
    state = _ask(driver, "nvmlDeviceGetPerformanceState", gpu)
    width, generation = ("nvmlDeviceGet{}PcieLinkWidth", "nvmlDeviceGet{}PcieLinkGeneration")
    return {
        "kind": "gpu",
        "name": f"GPU{number}",
        "model": name,
        "numa": _numa(root / _PCI / busid.lower()[-12:]),
        "width": _ask(driver, width.format("Curr"), gpu),
        "max_width": _ask(driver, width.format("Max"), gpu),
        "gt_per_s": _GENERATION_GT_PER_S.get(_ask(driver, generation.format("Curr"), gpu)),
        "max_gt_per_s": _GENERATION_GT_PER_S.get(_ask(driver, generation.format("Max"), gpu)),
        "idle": state is None or state >= _RESTING_STATE,
    }


def _nvlinks(driver: Any, gpus: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for number, gpu in enumerate(gpus):
        states = [_ask(driver, "nvmlDeviceGetNvLinkState", gpu, link) for link in range(MAX_NVLINKS)]
        known = states[: states.index(None)] if None in states else states
        if known:
            up = sum(map(bool, known))
            rows.append({"gpu": f"GPU{number}", "up": up, "down": len(known) - up})
    return rows


def _peers(driver: Any, gpus: list[Any]) -> list[dict[str, Any]]:
    """Pairs of GPUs, each once: NVML's permission of reads (0) and writes (1)."""
    rows = []
    for (i, a), (j, b) in combinations(enumerate(gpus), 2):
        read, write, nvlink = (_ask(driver, "nvmlDeviceGetP2PStatus", a, b, index) for index in (0, 1, P2P_NVLINK))
        if read is not None and write is not None:
            allowed = read == write == P2P_OK
            why = "" if allowed else f"NVML's P2P status: read {read}, write {write}"
            rows.append({"a": f"GPU{i}", "b": f"GPU{j}", "allowed": allowed, "nvlink": nvlink == P2P_OK, "why": why})
    return rows


def _nvidia_smi() -> str:
    """Output of ``nvidia-smi topo -m``, which names no host; "" if the tool is missing."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, timeout=_WAIT_S, check=True)
        return ended.stdout.decode("utf-8", "replace")
    return ""


# sysfs and /proc.


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None


def _numa(device: Path) -> int | None:
    """NUMA node of a device; None if the firmware does not state it."""
    node = _number(device / "numa_node")
    return None if node is None or node < 0 else node


def _speed(path: Path) -> float | None:
    match = re.match(r"([\d.]+) GT/s", _text(path))
    return float(match[1]) if match else None


def _pci(root: Path, gpus_too: bool) -> Iterator[dict[str, Any]]:
    """NICs, and GPUs if NVML does not list them; devices without a link of their own (in VMs) are omitted."""
    counts: Counter[str] = Counter()
    for path in _entries(root / _PCI):
        kind = "nic" if _text(path / "class").startswith(_NIC) else "gpu" if gpus_too and _is_gpu(path) else ""
        width = _number(path / "current_link_width")
        if not (kind and width):
            continue
        yield {
            "kind": kind,
            "name": f"{kind.upper()}{counts[kind]}",
            "model": f"{_text(path / 'vendor')} {_text(path / 'device')}",
            "numa": _numa(path),
            "width": width,
            "max_width": _number(path / "max_link_width"),
            "gt_per_s": _speed(path / "current_link_speed"),
            "max_gt_per_s": _speed(path / "max_link_speed"),
            "idle": kind == "gpu",
        }
        counts[kind] += 1


def _kernel(root: Path) -> dict[str, Any]:
    state, how = iommu_of(_text(root / "proc/cmdline")), "the kernel's command line"
    devices = _entries(root / _PCI)
    gpus = [path for path in devices if _is_gpu(path)]
    kinds = [kind for path in gpus if (kind := _text(path / "iommu_group/type"))]
    if kinds:
        translating = sum(kind.startswith("DMA") for kind in kinds)
        state = "translating" if translating else "passthrough"
        how = f"sysfs: {translating} of {len(gpus)} GPUs are in groups whose addresses are translated"
    elif gpus and not state and not _entries(root / "sys/kernel/iommu_groups"):
        state, how = "off", "sysfs has no IOMMU groups"
    bridges = [redirects for path in devices if (redirects := _acs(path)) is not None]
    return {"iommu": state, "how": how, "acs_bridges": len(bridges), "acs_redirecting": sum(bridges)}


def _is_gpu(device: Path) -> bool:
    return _text(device / "class").startswith(_GPUS) and _text(device / "vendor") == _NVIDIA


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _acs(device: Path) -> bool | None:
    """True if a bridge redirects requests between devices to the root; None for other devices or without permission."""
    space = b""
    with suppress(OSError):
        space = (device / "config").read_bytes() if _text(device / "class").startswith(_BRIDGE) else b""
    at = 0x100  # extended capabilities: a list of (16 bits id, 4 bits version, 12 bits next)
    for _ in range(64):
        if len(space) < at + 8 or at < 0x100:
            break
        head = int.from_bytes(space[at : at + 4], "little")
        if head & 0xFFFF == _ACS_CAPABILITY:
            return bool(int.from_bytes(space[at + 6 : at + 8], "little") & _ACS_REDIRECT)
        at = head >> 20
    return None


def _host(root: Path) -> dict[str, Any]:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nodes = [path for path in _entries(root / "sys/devices/system/node") if re.fullmatch(r"node\d+", path.name)]
    host: dict[str, Any] = {"cpus": cpus, "numa_nodes": max(1, len(nodes)), "quota": _quota(root)}
    with suppress(OSError):
        memory = os.statvfs(root / "dev/shm")
        host["shm_bytes"] = memory.f_frsize * memory.f_blocks
        host["shm_free_bytes"] = memory.f_frsize * memory.f_bavail
    return host


def _quota(root: Path) -> float | None:
    """Processor time granted by the control group, in processors; None: unlimited."""
    new = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(new) == 2 and new[0].isdigit() and new[1].isdigit():
        return int(new[0]) / max(1, int(new[1]))
    quota, period = (_number(root / "sys/fs/cgroup/cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period and quota > 0 else None


def summary(document: dict[str, Any]) -> str:
    """The devices of a gathered document, in a few words."""
    gpus = [row for row in document["devices"] if row["kind"] == "gpu"]
    if gpus:
        models = sorted({row["model"] for row in gpus if row["model"]})
        return f"{len(gpus)} GPUs ({', '.join(models)})"
    return f"{document['host']['cpus']} CPUs, NUMA nodes {ids_text(range(document['host']['numa_nodes']))}, no GPU"
