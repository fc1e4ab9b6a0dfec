"""What joins the ranks of a job: the topology, and the vertex of each rank.

Who says so, first to last: BLINK_TOPO, a SPEC as on Blink's command line; NCCL_TOPO_FILE, which means what it means to
NCCL; NVML. Several ranks on one GPU, which only tests have, get a clique by rule: their links are its memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from blinkccl.cost.baselines.nccl_links import VERSION, CountedLinks
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.nccl.peer_info import GpuJob
from blinkccl.topology import nccl_xml
from blinkccl.topology.formats import read_topology
from blinkccl.topology.limits import MAX_FILE_BYTES
from blinkccl.topology.model import Topology
from blinkccl.topology.nvml_errors import NO_GPUS, nvml_error
from blinkccl.topology.probe import probe
from blinkccl.topology.select import ids_text
from blinkccl.topology.spec import parse_spec
from blinkccl.topology.xml_tree import parse_xml

Note = Callable[[str], None]


@dataclass(frozen=True)
class JobPlacement:
    """A job on its topology: rank i is the vertex ``ranks[i]``. ``real``: these links are the machine's own.

    ``nccl`` is the version beside it, or that of the model where there is none.
    """

    topology: Topology
    ranks: tuple[int, ...]
    real: bool = True
    nccl: tuple[int, int] = VERSION

    @property
    def counted(self) -> CountedLinks:
        """The links as that NCCL counts them."""
        return CountedLinks(self.topology, self.nccl)


def place(job: GpuJob, note: Note = lambda text: None, nvml: Any = None) -> JobPlacement:
    """Where the ranks are; ``note`` is told what was assumed or left out, ``nvml`` is a module like pynvml."""
    where = _placed(job, note, nvml)
    return replace(where, nccl=job.nccl_version) if job.has_nccl else where


def _placed(job: GpuJob, note: Note, nvml: Any) -> JobPlacement:
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


def _refuse_instances(job: GpuJob) -> None:
    """Instances of one GPU have its bus id and UUIDs of their own; nothing joins them."""
    first: dict[str, tuple[int, str]] = {}
    for peer in job.peers:
        rank, uuid = first.setdefault(canonical(peer.bus_id), (peer.rank, peer.uuid))
        if uuid != peer.uuid:
            raise UnsupportedError(
                f"ranks {rank} and {peer.rank} are on two MIG instances of the GPU {peer.bus_id}, which cannot reach "
                "each other's memory"
            )


def _given(job: GpuJob, note: Note) -> JobPlacement:
    spec = job.setting("topo")
    topology = parse_spec(spec)
    if topology.vertex[topology.ranks[0]].kind != "gpu":
        raise TopologyError(f"BLINK_TOPO={spec}: expected a topology of GPUs, got one of processors")
    ids = _bus_ids_of_file(spec, topology)
    if ids:
        return JobPlacement(topology, _by_bus_id(job, topology, ids, f"BLINK_TOPO={spec}"))
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
    return JobPlacement(topology, tuple(topology.ranks[number] for number in numbers))


def _bus_ids_of_file(spec: str, topology: Topology) -> dict[str, int]:
    """Of NCCL's XML; no other topology has bus ids."""
    try:
        path = Path(spec)
        text = path.read_bytes()[: MAX_FILE_BYTES + 1].decode("utf-8-sig") if path.is_file() else ""
    except (OSError, ValueError):
        return {}
    return bus_ids_of_xml(text, topology) if nccl_xml.looks_like(text) else {}


def _by_bus_id(job: GpuJob, topology: Topology, vertices: Mapping[str, int], who: str) -> tuple[int, ...]:
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


def _on_one_gpu(job: GpuJob, note: Note) -> JobPlacement:
    together = ids_text(peer.rank for peer in job.peers if _neighbours(job, peer.uuid) > 1)
    topology = parse_spec(f"clique:{job.size}").noted(
        f"ranks {together} share GPUs: every rank is taken to reach every other alike"
    )
    note(topology.notes[-1])
    return JobPlacement(topology, topology.ranks, real=False)


def _neighbours(job: GpuJob, uuid: str) -> int:
    return sum(peer.uuid == uuid for peer in job.peers)


def _from_nccl_file(job: GpuJob, file: str, note: Note) -> JobPlacement | None:
    """None where the file cannot say it: NCCL completes such files itself by what it detects, and so do we."""
    try:
        topology = read_topology(Path(file), file)
        vertices = _bus_ids_of_file(file, topology)
        return JobPlacement(topology, _by_bus_id(job, topology, vertices, f"NCCL_TOPO_FILE={file}"))
    except TopologyError as error:
        note(f"NCCL_TOPO_FILE: {error}; the GPUs are probed instead")
        return None


def _probed(job: GpuJob, nvml: Any) -> JobPlacement:
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
    return JobPlacement(topology, tuple(ranks))


def without(where: JobPlacement, bad: Mapping[tuple[int, int], str]) -> JobPlacement:
    """The place without the direct links between the GPUs of each ordered pair of *ranks* whose copies failed.

    ``bad`` says what was seen. The links of both directions go, as trees are used up and down. Ways through a switch
    stay, as others use them: :func:`blinkccl.nccl.programs.candidates` leaves out what needs such a pair.
    """
    ranks, topology = where.ranks, where.topology
    gone = {(ranks[a], ranks[b]) for pair in bad for a, b in (pair, pair[::-1])}
    notes = tuple(
        f"GPU{ranks[a]} → GPU{ranks[b]}: missing, measured: {why}"
        + ("; their direct links are left out" if (ranks[a], ranks[b]) in topology.link else "")
        for (a, b), why in bad.items()
    )
    links = tuple(x for x in topology.links if (x.src, x.dst) not in gone)
    return replace(where, topology=replace(topology, links=links).noted(*notes))


# --- which vertex is which GPU, by PCI bus id


def canonical(bus_id: str) -> str:
    """``0000:1a:00.0``; CUDA, NVML and NCCL write an id with a domain of four or eight digits, in either case."""
    domain, _, rest = bus_id.lower().partition(":")
    short = domain.lstrip("0").rjust(4, "0")
    return f"{short}:{rest}" if "." in rest else f"{short}:{rest}.0"


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU as NVML knows it; ``uuid`` in 32 hexadecimal digits, as in GpuPeerInfo, and ``mig`` its mode."""

    bus_id: str
    uuid: str
    mig: bool


def seen_by_nvml(nvml: Any = None) -> tuple[Seen, ...]:
    """This machine's GPUs by NVML's numbers, which are the vertices that the probe gives."""
    driver = import_module("pynvml") if nvml is None else nvml
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        if error.value in NO_GPUS:
            raise UnsupportedError(
                "NVML is not there or knows no GPUs, so nobody tells their links; give the topology with BLINK_TOPO"
            ) from error
        raise nvml_error(error.value, "starting") from error
    try:
        return tuple(_seen(driver, index) for index in range(driver.nvmlDeviceGetCount()))
    except driver.NVMLError as error:
        raise nvml_error(error.value, "asking for the bus ids of GPUs") from error
    finally:
        driver.nvmlShutdown()


def _seen(driver: Any, index: int) -> Seen:
    handle = driver.nvmlDeviceGetHandleByIndex(index)
    bus_id, uuid = driver.nvmlDeviceGetPciInfo(handle).busId, driver.nvmlDeviceGetUUID(handle)
    try:
        current, _ = driver.nvmlDeviceGetMigMode(handle)
    except driver.NVMLError:  # a GPU that has no such mode
        current = 0
    digits = re.sub("[^0-9a-f]", "", _text(uuid).lower().removeprefix("gpu-"))
    return Seen(canonical(_text(bus_id)), digits, current == 1)


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def bus_ids_of_xml(text: str, topology: Topology) -> dict[str, int]:
    """Vertex by bus id, of GPUs by their ``dev`` in ``text``; what several servers have in common is left out."""
    named: dict[str, list[int]] = {}
    for rank in topology.ranks:
        named.setdefault(topology.vertex[rank].name, []).append(rank)
    found: dict[str, list[int]] = {}
    for gpu in parse_xml(text, topology.name).below("gpu"):
        bus_id = "" if gpu.parent is None else gpu.parent.attributes.get("busid", "")
        if bus_id:
            found.setdefault(canonical(bus_id), []).extend(named.get(f"GPU{gpu.attributes.get('dev')}", []))
    return {bus_id: vertices[0] for bus_id, vertices in found.items() if len(vertices) == 1}
