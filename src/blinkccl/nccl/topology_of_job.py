"""What joins the ranks of a job: the topology, and the vertex of each rank.

Who says so, first to last: BLINK_TOPO, a SPEC as on Blink's command line; NCCL_TOPO_FILE, which means what it means to
NCCL; NVML. Several ranks on one GPU, which only tests have, get a clique by rule: their links are its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.nccl.bus_ids import bus_ids_of_xml, canonical, seen_by_nvml
from blinkccl.nccl.peer_info import Job
from blinkccl.topology import nccl_xml
from blinkccl.topology.formats import read_topology
from blinkccl.topology.limits import MAX_FILE_BYTES
from blinkccl.topology.model import Topology
from blinkccl.topology.probe import probe
from blinkccl.topology.select import ids_text
from blinkccl.topology.spec import parse_spec

Note = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A job on its topology: rank i is the vertex ``ranks[i]``. ``real``: these links are the machine's own."""

    topology: Topology
    ranks: tuple[int, ...]
    real: bool = True


def place(job: Job, note: Note = lambda text: None, nvml: Any = None) -> Place:
    """Where the ranks are.

    Parameters
    ----------
    note
        Told what was assumed or left out.
    nvml
        As of :func:`~blinkccl.topology.probe.probe`.

    Raises
    ------
    TopologyError
        If BLINK_TOPO is no topology, or too small a one; or as :func:`~blinkccl.topology.probe.probe`.
    UnsupportedError
        If nobody tells the links, or GPUs are cut into MIG instances.
    """
    _refuse_instances(job)
    if job.setting("topo"):
        return _given(job, note)
    if job.shared > 1:
        return _on_one_gpu(job, note)
    file = job.setting("nccl_topo_file")
    if file:
        found = _from_nccl_file(job, file, note)
        if found is not None:
            return found
    return _probed(job, nvml)


def _refuse_instances(job: Job) -> None:
    """Instances of one GPU have its bus id and UUIDs of their own; nothing joins them."""
    first: dict[str, tuple[int, str]] = {}
    for peer in job.peers:
        rank, uuid = first.setdefault(canonical(peer.bus_id), (peer.rank, peer.uuid))
        if uuid != peer.uuid:
            raise UnsupportedError(
                f"ranks {rank} and {peer.rank} are on two MIG instances of the GPU {peer.bus_id}, which cannot reach "
                "each other's memory"
            )


def _given(job: Job, note: Note) -> Place:
    spec = job.setting("topo")
    topology = parse_spec(spec)
    if topology.vertex[topology.ranks[0]].kind != "gpu":
        raise TopologyError(f"BLINK_TOPO={spec}: expected a topology of GPUs, got one of processors")
    ids = _bus_ids_of_file(spec, topology)
    if ids:
        return Place(topology, _by_bus_id(job, topology, ids, f"BLINK_TOPO={spec}"))
    devices = [peer.device for peer in job.peers]
    by_device = len(set(devices)) == len(devices)
    numbers = devices if by_device else [peer.rank for peer in job.peers]
    what = "device" if by_device else "rank"
    for peer, number in zip(job.peers, numbers, strict=True):
        if number >= len(topology.ranks):
            raise TopologyError(
                f"BLINK_TOPO={spec} has {len(topology.ranks)} GPUs: expected {what} numbers below that, but rank "
                f"{peer.rank} has {what} {number}"
            )
    note(f"BLINK_TOPO={spec}: GPUs are taken by the ranks' {what} numbers")
    return Place(topology, tuple(topology.ranks[number] for number in numbers))


def _bus_ids_of_file(spec: str, topology: Topology) -> dict[str, int]:
    """Of NCCL's XML; no other topology has bus ids."""
    try:
        path = Path(spec)
        text = path.read_bytes()[: MAX_FILE_BYTES + 1].decode("utf-8-sig") if path.is_file() else ""
    except (OSError, ValueError):
        return {}
    return bus_ids_of_xml(text, topology) if nccl_xml.looks_like(text) else {}


def _by_bus_id(job: Job, topology: Topology, vertices: Mapping[str, int], who: str) -> tuple[int, ...]:
    ranks = []
    for peer in job.peers:
        vertex = vertices.get(canonical(peer.bus_id))
        if vertex is None:
            known = ", ".join(sorted(vertices)) or "none"
            raise TopologyError(f"{who} knows no GPU {peer.bus_id}, which is rank {peer.rank}'s; it knows {known}")
        ranks.append(vertex)
    if len(set(ranks)) < len(ranks):
        raise TopologyError(f"{who}: several ranks are on one GPU; expected one each")
    return tuple(ranks)


def _on_one_gpu(job: Job, note: Note) -> Place:
    together = ids_text(peer.rank for peer in job.peers if _neighbours(job, peer.uuid) > 1)
    topology = parse_spec(f"clique:{job.size}").noted(
        f"ranks {together} share GPUs: every rank is taken to reach every other alike"
    )
    note(topology.notes[-1])
    return Place(topology, topology.ranks, real=False)


def _neighbours(job: Job, uuid: str) -> int:
    return sum(peer.uuid == uuid for peer in job.peers)


def _from_nccl_file(job: Job, file: str, note: Note) -> Place | None:
    """None where the file cannot say it: NCCL completes such files itself by what it detects, and so do we."""
    try:
        topology = read_topology(Path(file), file)
        vertices = _bus_ids_of_file(file, topology)
        return Place(topology, _by_bus_id(job, topology, vertices, f"NCCL_TOPO_FILE={file}"))
    except TopologyError as error:
        note(f"NCCL_TOPO_FILE: {error}; the GPUs are probed instead")
        return None


def _probed(job: Job, nvml: Any) -> Place:
    seen = seen_by_nvml(nvml)
    by_bus = {gpu.bus_id: vertex for vertex, gpu in enumerate(seen)}
    by_uuid = {gpu.uuid: vertex for vertex, gpu in enumerate(seen)}
    ranks = []
    for peer in job.peers:
        vertex = by_bus.get(canonical(peer.bus_id), by_uuid.get(peer.uuid))
        if vertex is None:
            known = ", ".join(gpu.bus_id for gpu in seen)
            raise UnsupportedError(
                f"NVML of rank 0's process knows no GPU {peer.bus_id}, which is rank {peer.rank}'s; it knows {known}. "
                "Containers must share their GPUs for Blink"
            )
        if seen[vertex].mig:
            raise UnsupportedError(f"the GPU {peer.bus_id} of rank {peer.rank} is in MIG mode, which has no P2P")
        ranks.append(vertex)
    topology = probe(nvml)
    if len(topology.ranks) != len(seen) or len(set(ranks)) < len(ranks):
        raise UnsupportedError(f"NVML tells of {len(seen)} GPUs, but of links of {len(topology.ranks)}; try again")
    return Place(topology, tuple(ranks))


def without(where: Place, pairs: Sequence[tuple[int, int]], why: Mapping[tuple[int, int], str]) -> Place:
    """The place without the direct links between the GPUs of each pair of *ranks*.

    Parameters
    ----------
    pairs
        Ordered pairs of ranks whose copies failed. The links of both directions go: trees are used up and down.
    why
        What was seen, by pair, for the notes.

    Notes
    -----
    Ways through a switch stay, as others use them; who plans must leave out what needs such a pair
    (:func:`blinkccl.nccl.programs.candidates`).
    """
    ranks, topology = where.ranks, where.topology
    gone = {(ranks[a], ranks[b]) for pair in pairs for a, b in (pair, pair[::-1])}
    notes = tuple(
        f"GPU{ranks[a]} → GPU{ranks[b]}: missing, measured: {why[a, b]}"
        + ("; their direct links are left out" if (ranks[a], ranks[b]) in topology.link else "")
        for a, b in pairs
    )
    links = tuple(x for x in topology.links if (x.src, x.dst) not in gone)
    return replace(where, topology=replace(topology, links=links).noted(*notes))
