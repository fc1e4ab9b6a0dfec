"""The present machine: its GPUs through NVML, or its CPUs if it has no GPUs.

NVML's P2P status decides, not the hardware: two GPUs count as joined by NVLink only if P2P is available. In
virtual machines and partitions, links can be up although P2P may not use them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology import pcie_tree
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology
from blinkccl.topology.nvml_errors import NO_GPUS, NOT_TOLD, nvml_error
from blinkccl.topology.select import ids_text

#: Copies by one core from memory to memory; an assumption, not measured on the host.
SHM_GB_PER_S = 10
SMP_GB_PER_S = 10
#: Above this number of CPUs, NUMA nodes become the ranks.
MAX_CPU_RANKS = 16
#: From nvml.h, as nvidia-ml-py's constant for the first of these is a tuple by mistake.
P2P_NVLINK, P2P_OK = 2, 0
REMOTE_GPU, REMOTE_SWITCH = 0, 2
MAX_NVLINKS = 36
_ANCESTOR = {0: 1, 10: 1, 20: 2, 30: 3, 40: 4, 50: 5}


def probe(nvml: Any = None) -> Topology:
    """The present machine; ``nvml`` is a module with the functions of ``pynvml``, by default that of nvidia-ml-py.

    The result has GPUs with NVLinks and PCIe, provenance ``nvml``. Without a driver or GPUs it has the CPUs or NUMA
    nodes on a shared-memory switch, provenance ``host``. Its notes list the assumptions. TopologyError if NVML exists
    but fails, by :mod:`~.nvml_errors`; UnsupportedError if it does not support a required query.
    """
    driver = import_module("pynvml") if nvml is None else nvml
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        if error.value in NO_GPUS:
            return this_host()
        raise nvml_error(error.value, "starting") from error
    try:
        gpus = _Gpus.read(_Driver(driver))
    finally:
        driver.nvmlShutdown()
    return gpus.topology() if gpus.busids else this_host()


@dataclass(frozen=True)
class _Driver:
    """Calls into NVML, with its errors converted to Blink's."""

    nvml: Any

    def ask(self, doing: str, function: str, *arguments: Any) -> Any:
        """The answer; raises Blink's error for NVML's code."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError as error:
            raise nvml_error(error.value, doing) from error

    def ask_if_told(self, doing: str, function: str, *arguments: Any) -> Any:
        """The answer, or None if this GPU or driver does not support the query."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in NOT_TOLD or error.value == 2:  # 2: an NVLink number that this GPU does not have
                return None
            raise nvml_error(error.value, doing) from error


@dataclass
class _Gpus:
    """NVML's answers, from which the topology is built."""

    busids: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    capability: list[int] = field(default_factory=list)
    pcie_gb_per_s: list[Fraction] = field(default_factory=list)
    #: Per GPU: active NVLinks by the bus id of the GPU at the other end, and the number of all others.
    direct: list[dict[str, int]] = field(default_factory=list)
    switched: list[int] = field(default_factory=list)
    p2p: list[list[bool]] = field(default_factory=list)
    distance: list[list[int]] = field(default_factory=list)

    @classmethod
    def read(cls, driver: _Driver) -> _Gpus:
        """Query all GPUs; O(GPUs²) calls."""
        gpus = cls()
        count = driver.ask("counting GPUs", "nvmlDeviceGetCount")
        handles = [driver.ask(f"opening GPU {i}", "nvmlDeviceGetHandleByIndex", i) for i in range(count)]
        for i, handle in enumerate(handles):
            gpus._read_one(driver, i, handle)
        for i, a in enumerate(handles):
            gpus.p2p.append([i != j and _p2p(driver, i, j, a, b) for j, b in enumerate(handles)])
            gpus.distance.append([0 if i == j else _distance(driver, i, j, a, b) for j, b in enumerate(handles)])
        return gpus

    def _read_one(self, driver: _Driver, i: int, handle: Any) -> None:
        self.busids.append(_busid(driver.ask(f"bus id of GPU {i}", "nvmlDeviceGetPciInfo", handle).busId))
        name = driver.ask(f"name of GPU {i}", "nvmlDeviceGetName", handle)
        self.names.append(name.decode() if isinstance(name, bytes) else str(name))
        major, minor = driver.ask(f"capability of GPU {i}", "nvmlDeviceGetCudaComputeCapability", handle)
        self.capability.append(10 * major + minor)
        self.pcie_gb_per_s.append(_pcie(driver, i, handle))
        direct, switched = _nvlinks(driver, i, handle)
        self.direct.append(direct)
        self.switched.append(switched)

    def topology(self) -> Topology:
        """The machine with these answers."""
        box = Assembly("this machine", "nvml")
        for i in range(len(self.busids)):
            box.add("gpu", f"GPU{i}", sm=self.capability[i])
        box.notes.append(f"GPUs by NVML's numbers: {', '.join(sorted(set(self.names)))}")
        self._join_direct(box)
        self._join_switched(box)
        self._join_pcie(box)
        return box.finish()

    def _lane(self, a: int) -> int:
        return nccl.nvlink_lane_gb_per_s(self.capability[a])

    def _lanes(self, a: int, b: int) -> int:
        return min(self.direct[a].get(self.busids[b], 0), self.direct[b].get(self.busids[a], 0))

    def _join_direct(self, box: Assembly) -> None:
        for a in range(len(self.busids)):
            for b in range(a + 1, len(self.busids)):
                lanes = self._lanes(a, b)
                joined = self.p2p[a][b] and self.p2p[b][a]
                if lanes and not joined:
                    box.notes.append(
                        f"GPU{a} and GPU{b} share {lanes} NVLinks, but P2P over them is off, so they are left out"
                    )
                elif lanes:
                    box.join(a, b, lanes * min(self._lane(a), self._lane(b)), "nvlink")

    def _join_switched(self, box: Assembly) -> None:
        """Add a switch vertex for each group of GPUs that reach each other by NVLink without a common link."""
        count = range(len(self.busids))
        over = [[1 if self.p2p[a][b] and self.p2p[b][a] and not self._lanes(a, b) else 0 for b in count] for a in count]
        for group in (g for g in pcie_tree.classes(over, 1) if len(g) > 1):
            if not all(over[a][b] for a in group for b in group if a != b):
                raise TopologyError(
                    f"NVML: P2P over NVSwitch among the GPUs {ids_text(group)} holds for some pairs "
                    'only, which does not fit a switch; check "nvidia-smi topo -p2p n" and '
                    "the fabric manager, or give a file with --topo"
                )
            switch = box.add("switch", "NVSwitch")
            for a in group:
                if not self.switched[a]:
                    box.notes.append(
                        f"GPU{a}: P2P over NVLink works, but its NVLinks are hidden, so one lane is assumed"
                    )
                box.join(a, switch, max(1, self.switched[a]) * self._lane(a), "nvlink")

    def _join_pcie(self, box: Assembly) -> None:
        try:
            pix, pxb, node = pcie_tree.levels(self.distance)
        except pcie_tree.ContradictionError as error:
            raise TopologyError(
                f"NVML: the common ancestors of GPU{error.a} and GPU{error.b} contradict those of the other "
                "GPUs; give the topology as a file with --topo"
            ) from None
        slowest = min(self.pcie_gb_per_s)
        pcie_tree.attach(box, node, pxb, pix, len(self.busids), slowest, SMP_GB_PER_S)
        box.notes.append(
            f"PCIe is {float(slowest):g} GB/s by generation and width; the bus between processors is assumed to have "
            f"{SMP_GB_PER_S} GB/s, as NVML does not say"
        )


def _busid(raw: bytes | str) -> str:
    """Lower case, with a four-digit domain; NVML writes four digits in some places and eight in others."""
    text = (raw.decode() if isinstance(raw, bytes) else raw).lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def _p2p(driver: _Driver, i: int, j: int, a: Any, b: Any) -> bool:
    doing = f"P2P status of GPU {i} and GPU {j}"
    status: int | None = driver.ask_if_told(doing, "nvmlDeviceGetP2PStatus", a, b, P2P_NVLINK)
    return status == P2P_OK


def _distance(driver: _Driver, i: int, j: int, a: Any, b: Any) -> int:
    """A distance as in :mod:`~.pcie_tree`; through the processor if the driver does not tell."""
    doing = f"common ancestor of GPU {i} and GPU {j}"
    level = driver.ask_if_told(doing, "nvmlDeviceGetTopologyCommonAncestor", a, b)
    return 3 if level is None else _ANCESTOR.get(int(level), 5)


def _pcie(driver: _Driver, i: int, handle: Any) -> Fraction:
    """GB/s by the largest generation and width of GPU and slot, since the current ones drop on idle GPUs."""
    generation = driver.ask_if_told(f"PCIe generation of GPU {i}", "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = driver.ask_if_told(f"PCIe width of GPU {i}", "nvmlDeviceGetMaxPcieLinkWidth", handle)
    speed = nccl.PCI_SPEED_OF.get(generation or 3, nccl.PCI_DEFAULT_SPEED)
    return nccl.pcie_gb_per_s(speed, width or nccl.PCI_DEFAULT_WIDTH)


def _nvlinks(driver: _Driver, i: int, handle: Any) -> tuple[dict[str, int], int]:
    """Active NVLinks of one GPU: per bus id of a remote GPU, and the number of all others."""
    direct: dict[str, int] = {}
    others = 0
    for link in range(MAX_NVLINKS):
        doing = f"NVLink {link} of GPU {i}"
        state = driver.ask_if_told(doing, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        if not state:
            continue
        kind = driver.ask_if_told(doing, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        remote = driver.ask_if_told(doing, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if kind == REMOTE_GPU and remote is not None:
            busid = _busid(remote.busId)
            direct[busid] = direct.get(busid, 0) + 1
        elif kind in (REMOTE_SWITCH, None) or kind > REMOTE_SWITCH:
            others += 1
    return direct, others


def this_host(cpus: Sequence[int] | None = None, nodes: Sequence[int] | None = None) -> Topology:
    """CPUs as ranks on one shared-memory switch, by default the host's; NUMA nodes on hosts with many CPUs."""
    if cpus is None:
        cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else range(os.cpu_count() or 1)
    nodes = _numa_nodes() if nodes is None else nodes
    box = Assembly("this host", "host")
    if len(cpus) > MAX_CPU_RANKS and len(nodes) > 1:
        ranks = [box.add("cpu", f"NUMA{node}") for node in nodes]
        box.notes.append(f"{len(cpus)} CPUs: one rank per NUMA node")
    else:
        ranks = [box.add("cpu", f"CPU{cpu}") for cpu in cpus[:MAX_CPU_RANKS]]
        if len(cpus) > len(ranks):
            box.notes.append(f"{len(cpus)} CPUs: the first {len(ranks)} are ranks")
    box.join_all(ranks, box.add("switch", "SHM"), SHM_GB_PER_S, "shm")
    box.notes.append(f"no NVIDIA GPUs on this machine: CPUs over shared memory, at an assumed {SHM_GB_PER_S} GB/s each")
    return box.finish()


def _numa_nodes(read: Callable[[], str] | None = None) -> list[int]:
    """Numbers of the online NUMA nodes; [0] if the system does not list them."""
    try:
        text = Path("/sys/devices/system/node/online").read_text() if read is None else read()
    except OSError:
        return [0]
    nodes: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            return [0]
        nodes.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return nodes
