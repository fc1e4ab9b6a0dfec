"""From "how far apart are these two devices" to the PCIe tree that explains it.

``nvidia-smi`` names the common ancestor of each pair: PIX (one bridge), PXB (several bridges), PHB and NODE
(the processor), SYS (the bus between processors). Distances to a common ancestor form an ultrametric, so
each level is an equivalence relation, and its classes are the switches and hosts. Pairs joined by NVLink
hide their PCIe distance; a NIC that is near both tells it (d(a, b) ≤ max(d(a, n), d(n, b))), and
where none is, equal CPU affinity is taken as a hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.topology.assembly import Assembly
from blinkccl.topology.stated import Stated

#: Distance by cell; old drivers wrote SOC for SYS.
DISTANCE = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
PIX, PXB, NODE, SYS = 1, 2, 4, 5


class ContradictionError(Exception):
    """Two devices that other cells put nearer together (within ``limit``) than their own cell says."""

    def __init__(self, a: int, b: int, limit: int) -> None:
        super().__init__(f"{a} and {b} are farther apart than {limit}")
        self.a, self.b, self.limit = a, b, limit


def classes(distances: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Devices grouped by known distance at most ``limit``; 0 means unknown. Groups and members ascending."""
    count = len(distances)
    group = [-1] * count
    members: list[list[int]] = []
    for start in range(count):
        if group[start] >= 0:
            continue
        group[start] = len(members)
        found = [start]
        for device in found:
            row = distances[device]
            for other in range(count):
                if group[other] < 0 and 0 < row[other] <= limit:
                    group[other] = group[start]
                    found.append(other)
        members.append(sorted(found))
    for found in members:
        for a in found:
            row = distances[a]
            for b in found:
                if row[b] > limit:
                    raise ContradictionError(a, b, limit)
    return members


def levels(distances: Sequence[Sequence[int]]) -> tuple[list[list[int]], ...]:
    """Devices grouped by one bridge, by several bridges, and by processor."""
    return tuple(classes(distances, limit) for limit in (PIX, PXB, NODE))


def merge_by_affinity(
    hosts: list[list[int]], distances: Sequence[Sequence[int]], affinity: Sequence[str]
) -> list[list[int]]:
    """Hosts with those joined that the matrix leaves open and that share a CPU affinity.

    A SYS cell between two groups always keeps them apart, whatever the affinity says: a P100 page shows the
    same affinity for all its GPUs. Groups without any affinity join the first group that no SYS cell forbids.
    """
    merged: list[list[int]] = []
    for host in hosts:
        mine = _affinities(host, affinity)
        for other in merged:
            theirs = _affinities(other, affinity)
            unlike = mine and theirs and not any(x in theirs for x in mine)
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

    A switch becomes a vertex where two or more things hang on it; other devices only told us the groups.
    More than two hosts meet at one bus vertex, so that no host gets more than its one port.
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
                _attach_leaf(box, leaf, host if upper is None else upper, pcie_gb_per_s)
    _join_hosts(box, vertices, smp_gb_per_s)


def _within(groups: list[list[int]], wanted: list[int]) -> list[list[int]]:
    inside = set(wanted)
    parts = [[d for d in group if d in inside] for group in groups]
    return [part for part in parts if part]


def _attach_leaf(box: Assembly, gpus: list[int], parent: int, pcie_gb_per_s: Fraction | int) -> None:
    if len(gpus) == 1:
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
    """A NIC, how far it is from the GPUs that are nearest to it, and which these are; what its own slot carries."""

    name: str
    distance: int
    gpus: Sequence[int]
    pcie_gb_per_s: Fraction | None = None


def add_nics(box: Assembly, nics: Sequence[Nic], stated: Stated) -> None:
    """Join every NIC to the GPUs nearest to it, at the stated rate; without one leave all out, with a note.

    Where some are behind a PCIe switch with a GPU, these are the network of the GPUs, and those farther away (for
    storage and management) are left out; where none is, the nearest of all are taken.
    """
    if not nics:
        return
    if stated.nic is None:
        names = ", ".join(nic.name for nic in nics)
        box.notes.append(
            f'NICs left out, as {box.provenance} does not give their rate: {names}; state it: "FILE @ nic=400Gbps"'
        )
        return
    nearest = max(PXB, min(nic.distance for nic in nics))
    far = [nic.name for nic in nics if nic.distance > nearest]
    rate = stated.rate(box, "nic", "each NIC", 0)
    for nic in nics:
        if nic.distance <= nearest:
            slot = rate if nic.pcie_gb_per_s is None else min(rate, nic.pcie_gb_per_s)
            if slot < rate:
                box.notes.append(f"{nic.name}: {float(slot):g} GB/s, as its PCIe link has no more")
            vertex = box.add("nic", nic.name)
            for gpu in nic.gpus:
                box.join(gpu, vertex, slot, "net")
    if far:
        box.notes.append(f"NICs left out, as others are nearer to the GPUs: {', '.join(far)}")
