"""PCIe trees derived from the distances between devices.

``nvidia-smi`` names the common ancestor of each pair: PIX (one bridge), PXB (several bridges), PHB and NODE
(the processor), SYS (the bus between processors). Distances to a common ancestor form an ultrametric, so
each level is an equivalence relation, and its classes are the switches and hosts. NVLink cells hide the PCIe
distance of a pair. A NIC ``n`` near both bounds it by d(a, b) ≤ max(d(a, n), d(n, b)); without one, equal CPU
affinity is used as a hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.topology.assembly import Assembly
from blinkccl.topology.stated import NICS, TO_COUNT, Stated

#: Distance by cell; old drivers wrote SOC for SYS.
DISTANCE = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
PIX, PXB, NODE, SYS = 1, 2, 4, 5


class ContradictionError(Exception):
    """Two devices whose own cell says a larger distance than other cells allow (``limit``)."""

    def __init__(self, a: int, b: int, limit: int) -> None:
        super().__init__(f"{a} and {b} are farther apart than {limit}")
        self.a, self.b, self.limit = a, b, limit


def classes(distances: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Groups of devices with known distances of at most ``limit``; 0 means unknown. Groups and members ascending."""
    count = len(distances)
    group = [-1] * count
    members: list[list[int]] = []
    for start in range(count):
        if group[start] >= 0:
            continue
        group[start] = len(members)
        connected = [start]
        for device in connected:
            row = distances[device]
            for other in range(count):
                if group[other] < 0 and 0 < row[other] <= limit:
                    group[other] = group[start]
                    connected.append(other)
        members.append(sorted(connected))
    for group_members in members:
        for a in group_members:
            row = distances[a]
            for b in group_members:
                if row[b] > limit:
                    raise ContradictionError(a, b, limit)
    return members


def levels(distances: Sequence[Sequence[int]]) -> tuple[list[list[int]], ...]:
    """Groups of devices below one bridge, below several bridges, and below one processor."""
    return tuple(classes(distances, limit) for limit in (PIX, PXB, NODE))


def merge_by_affinity(
    hosts: list[list[int]], distances: Sequence[Sequence[int]], affinity: Sequence[str]
) -> list[list[int]]:
    """Merge hosts that share a CPU affinity, if the matrix allows it.

    A SYS cell between two groups always keeps them apart, even with equal affinity, because a matrix of P100s
    shows the same affinity for all GPUs. Groups without any affinity join the first group without a SYS cell to them.
    """
    merged: list[list[int]] = []
    for host in hosts:
        mine = _affinities(host, affinity)
        for other in merged:
            other_affinities = _affinities(other, affinity)
            unlike = mine and other_affinities and not any(x in other_affinities for x in mine)
            if not unlike and all(distances[a][b] < SYS for a in host for b in other):
                other.extend(host)
                break
        else:
            merged.append(list(host))
    return merged


def _affinities(host: list[int], affinity: Sequence[str]) -> list[str]:
    return [affinity[device] for device in host if affinity[device]]


def attach(
    box: Assembly,
    hosts: list[list[int]],
    pxb: list[list[int]],
    pix: list[list[int]],
    gpu_count: int,
    pcie_gb_per_s: Fraction | int,
    smp_gb_per_s: Fraction | int,
) -> None:
    """Add hosts and switches over the GPUs (devices 0 … ``gpu_count`` − 1, with the same vertex ids).

    A switch with at least two GPUs or switches below becomes a vertex; other devices only served to find the groups.
    Below a switch of several bridges, each GPU is below a bridge of its own: their distance is PXB and not PIX.
    More than two hosts are joined through one bus vertex, so that each host keeps its single port.
    """
    vertices: list[int] = []
    for number, members in enumerate(hosts):
        gpus = [d for d in members if d < gpu_count]
        if not gpus:
            continue
        host = box.add("host", f"CPU{number}")
        vertices.append(host)
        for below in _within(pxb, gpus):
            leaves = _within(pix, below)
            upper = box.add("switch", f"PCIe{len(box.vertices)}") if len(leaves) > 1 else None
            if upper is not None:
                box.join(upper, host, pcie_gb_per_s, "pcie")
            for leaf in leaves:
                _attach_leaf(box, leaf, host if upper is None else upper, pcie_gb_per_s, upper is not None)
    _join_hosts(box, vertices, smp_gb_per_s)


def _within(groups: list[list[int]], wanted: list[int]) -> list[list[int]]:
    inside = set(wanted)
    parts = [[d for d in group if d in inside] for group in groups]
    return [part for part in parts if part]


def _attach_leaf(box: Assembly, gpus: list[int], parent: int, pcie_gb_per_s: Fraction | int, bridged: bool) -> None:
    if len(gpus) == 1 and not bridged:
        box.join(gpus[0], parent, pcie_gb_per_s, "pcie")
        return
    switch = box.add("switch", f"PCIe{len(box.vertices)}")
    box.join(switch, parent, pcie_gb_per_s, "pcie")
    box.join_all(gpus, switch, pcie_gb_per_s, "pcie")


def _join_hosts(box: Assembly, hosts: list[int], smp_gb_per_s: Fraction | int) -> None:
    if len(hosts) == 2:
        box.join(hosts[0], hosts[1], smp_gb_per_s, "smp")
    elif len(hosts) > 2:
        box.join_all(hosts, box.add("switch", "SMP"), smp_gb_per_s, "smp")


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC, its nearest GPUs and their distance, and GB/s of its own PCIe slot."""

    name: str
    distance: int
    gpus: Sequence[int]
    pcie_gb_per_s: Fraction | None = None


def add_nics(box: Assembly, nics: Sequence[Nic], stated: Stated) -> None:
    """Join every NIC to its nearest GPUs at the stated rate; without a stated rate, leave all out and add a note.

    NICs behind a PCIe switch with a GPU are the GPUs' network; NICs farther away (for storage and management) are left
    out. If no NIC is that close, the nearest ones are used.
    """
    if not nics:
        return
    if stated.nic is None:
        names = ", ".join(nic.name for nic in nics)
        box.notes.append(
            f'NICs left out, as {box.provenance} does not give their rate: {names}; to state it: "FILE @ nic=400Gbps"'
        )
        return
    stated.check_nics([nic.name for nic in nics], box.name)
    others = [nic.name for nic in nics if not stated.counts(nic.name)]
    nics = [nic for nic in nics if stated.counts(nic.name)]
    nearest = max(nic.distance for nic in nics) if stated.nics else max(PXB, min(nic.distance for nic in nics))
    far = [nic.name for nic in nics if nic.distance > nearest]
    rate = stated.rate(box, "nic", "each NIC", 0)
    for nic in nics:
        if nic.distance <= nearest:
            slot = rate if nic.pcie_gb_per_s is None else min(rate, nic.pcie_gb_per_s)
            if slot < rate:
                box.notes.append(f"{nic.name}: {float(slot):g} GB/s, the limit of its PCIe link")
            vertex = box.add("nic", nic.name)
            for gpu in nic.gpus:
                box.join(gpu, vertex, slot, "net")
    if far:
        box.notes.append(
            f"NICs left out, as others are nearer to the GPUs: {', '.join(far)}; to count some: {TO_COUNT}"
        )
    if others:
        box.notes.append(f"NICs left out, as {NICS} lists others: {', '.join(others)}")
