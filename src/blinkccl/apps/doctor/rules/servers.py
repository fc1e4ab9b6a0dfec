"""Servers by the names of their GPUs, and the names of the GPUs of a case."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from functools import lru_cache

from msgspec.structs import replace

from blinkccl.apps.doctor.evidence import Case, GpuName, Location, MachineRead, MeasuredCall, Started
from blinkccl.errors import TopologyError
from blinkccl.topology import nvidia_smi
from blinkccl.topology.catalog import machine
from blinkccl.topology.gpu_models import GpuModel, gpu_model
from blinkccl.topology.model import FAST_KINDS, Topology
from blinkccl.topology.stated import NOTHING, parse_stated

#: (name of the GPUs, their number in a host, machine): the server that these GPUs fill.
_SERVERS = (
    (r"P100-SXM2", 8, "dgx-1p"), (r"V100-SXM2", 8, "dgx-1v"), (r"V100-SXM3", 16, "dgx-2"),
    (r"A100-SXM4", 8, "dgx-a100"), (r"H100 80GB HBM3|H100[- ]SXM", 8, "hgx-h100"), (r"\bH200(?! NVL)", 8, "hgx-h200"),
    (r"H800(?! PCIe)", 8, "hgx-h800"), (r"H20\b", 8, "hgx-h20"), (r"\bB200", 8, "dgx-b200"), (r"\bB300", 8, "dgx-b300"),
    (r"GB200", 4, "gb200-tray"), (r"GB300", 4, "gb300-tray"), (r"MI300X", 8, "mi300x"), (r"MI325X", 8, "mi325x"),
    (r"MI355X", 8, "mi355x"), (r"\bL40S", 8, "l40s-8"), (r"RTX PRO 6000", 8, "rtx-pro-6000-8"),
)  # fmt: skip
#: Racks whose hosts NVLink joins: name of the GPUs, most GPUs of a host and of the rack, machine.
_RACKS = ((r"GB200", 4, 72, "gb200-nvl72"), (r"GB300", 4, 72, "gb300-nvl72"))


def server_of(place: Location, gpu: str, ranks: int, hosts: int = 1) -> MachineRead | None:
    """Return the server that these GPUs fill, or one of which they are a part.

    ``inferred`` has the reason. None for unknown names, and for other numbers.
    """
    for pattern, count, name in _SERVERS:
        if hosts == 1 and re.search(pattern, gpu) and (ranks == count or (1 < ranks < count and _in_parts(name))):
            return _inferred(place, gpu, ranks, name)
    for pattern, each, most, name in _RACKS:
        if hosts > 1 and re.search(pattern, gpu) and 1 < ranks <= min(most, each * hosts):
            return _inferred(place, gpu, ranks, name)
    return None


def _in_parts(name: str) -> bool:
    """True if some GPUs of this name are most likely a part of the server; four A100s are also sold on direct links."""
    topology = machine(name)
    mesh = not any(topology.is_transit(x.dst) for x in topology.links if x.kind in FAST_KINDS)
    return alike(topology) and (mesh or any(vertex.combines for vertex in topology.vertices))


def _inferred(place: Location, gpu: str, ranks: int, name: str) -> MachineRead:
    topology = machine(name)
    taken = name if ranks == len(topology.ranks) else f"a part of {name}"
    return MachineRead(place, topology, f"{ranks} GPUs called {gpu} are taken for {taken}; give --topo for certainty")


@lru_cache(maxsize=64)
def alike(topology: Topology) -> bool:
    """True if NVLink or xGMI joins all GPUs in the same way: through one switch, or every pair by an equal link."""
    fast = [x for x in topology.links if x.kind in FAST_KINDS]
    switches = {x.dst for x in fast if topology.is_transit(x.dst)}
    rates = {x.gb_per_s for x in fast}
    ends = {(x.src, x.dst) for x in fast}
    ranks = topology.ranks
    if len(ranks) < 2 or len(rates) != 1 or len(switches) > 1:
        return False
    return all((a, b) in ends for a in ranks for b in (*switches, *(() if switches else ranks)) if a != b)


def gpu_name(case: Case) -> str:
    """The name that most lists of GPUs give, "" without a list."""
    names = [one.gpu for one in case.of(MeasuredCall)] + [one.gpu for one in case.of(Started)]
    names = [name for name in names if name] + [one.name for one in case.of(GpuName)]
    return Counter(names).most_common(1)[0][0] if names else ""


def model_of(case: Case) -> GpuModel | None:
    """The facts about the GPUs of a case; None without a known name."""
    return gpu_model(gpu_name(case))


def with_names(read: MachineRead, name: str) -> MachineRead:
    """The machine of a matrix again, with the rates of GPUs of this name; other machines and stated rates unchanged."""
    if read.matrix is None or gpu_model(name) is None:
        return read
    topology = _named(read.matrix.text, name, read.place.source)
    if topology is None or topology.links == read.topology.links:
        return read
    return replace(read, topology=dataclasses.replace(topology, name=read.topology.name), named=name)


@lru_cache(maxsize=64)
def _named(matrix: str, name: str, source: str) -> Topology | None:
    try:
        rates = source.partition(" @ ")[2]
        return nvidia_smi.parse(f"GPU 0: {name}\n{matrix}", source, parse_stated(rates, source) if rates else NOTHING)
    except TopologyError:
        return None
