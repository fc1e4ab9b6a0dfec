"""The topology of a job, with the vertex of each rank.

Its source is the first of: BLINK_TOPO, a SPEC as on Blink's command line; NCCL_TOPO_FILE, with its meaning in NCCL;
NVML. Several ranks on one GPU, which only tests have, get a clique, because their links are the GPU's memory.
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
    """A job on its topology: rank i is the vertex ``ranks[i]``; ``real`` is False for the clique of one GPU.

    ``nccl`` is the version of the job's NCCL, or that of the model without NCCL.
    """

    topology: Topology
    ranks: tuple[int, ...]
    real: bool = True
    nccl: tuple[int, int] = VERSION

    @property
    def counted(self) -> CountedLinks:
        """The links in the constants of that version of NCCL."""
        return CountedLinks(self.topology, self.nccl)


def place(job: GpuJob, note: Note = lambda text: None, nvml: Any = None) -> JobPlacement:
    """The place of the ranks; ``note`` gets assumptions and left-out links, ``nvml`` is a module like pynvml."""
    where = _placed(job, note, nvml)
    return replace(where, nccl=job.nccl_version) if job.has_nccl else where


def _placed(job: GpuJob, note: Note, nvml: Any) -> JobPlacement:
    _refuse_instances(job)
    if job.setting("topo"):
        return _declared(job, note)
    if job.shared > 1:
        return _on_one_gpu(job, note)
    file = job.setting("nccl_topo_file")
    if file:
        placed = _from_nccl_file(job, file, note)
        if placed is not None:
            return placed
    return _probed(job, nvml)


def _refuse_instances(job: GpuJob) -> None:
    """Refuse MIG instances of one GPU: they have one bus id and different UUIDs, and no links join them."""
    first: dict[str, tuple[int, str]] = {}
    for peer in job.peers:
        rank, uuid = first.setdefault(canonical(peer.bus_id), (peer.rank, peer.uuid))
        if uuid != peer.uuid:
            raise UnsupportedError(
                f"ranks {rank} and {peer.rank} are on two MIG instances of the GPU {peer.bus_id}, which cannot reach "
                "each other's memory"
            )


def _declared(job: GpuJob, note: Note) -> JobPlacement:
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
    kind = "device" if by_device else "rank"
    for peer, number in zip(job.peers, numbers, strict=True):
        if number >= len(topology.ranks):
            raise TopologyError(
                f"BLINK_TOPO={spec} has {len(topology.ranks)} GPUs: expected {kind} numbers below that, but rank "
                f"{peer.rank} has {kind} {number}"
            )
    note(f"BLINK_TOPO={spec}: GPUs are assigned by the ranks' {kind} numbers")
    return JobPlacement(topology, tuple(topology.ranks[number] for number in numbers))


def _bus_ids_of_file(spec: str, topology: Topology) -> dict[str, int]:
    """Vertices by bus id, from NCCL's XML; other topologies have no bus ids."""
    try:
        path = Path(spec)
        text = path.read_bytes()[: MAX_FILE_BYTES + 1].decode("utf-8-sig") if path.is_file() else ""
    except (OSError, ValueError):
        return {}
    return bus_ids_of_xml(text, topology) if nccl_xml.looks_like(text) else {}


def _by_bus_id(job: GpuJob, topology: Topology, vertices: Mapping[str, int], source: str) -> tuple[int, ...]:
    ranks = []
    for peer in job.peers:
        vertex = vertices.get(canonical(peer.bus_id))
        if vertex is None:
            known = ", ".join(sorted(vertices)) or "none"
            raise TopologyError(f"{source} has no GPU {peer.bus_id} of rank {peer.rank}; it has {known}")
        ranks.append(vertex)
    if len(set(ranks)) < len(ranks):
        raise TopologyError(f"{source}: several ranks are on one GPU; expected one each")
    return tuple(ranks)


def _on_one_gpu(job: GpuJob, note: Note) -> JobPlacement:
    together = ids_text(peer.rank for peer in job.peers if _neighbours(job, peer.uuid) > 1)
    topology = parse_spec(f"clique:{job.size}").noted(
        f"ranks {together} share GPUs: all links between ranks are assumed to be equal"
    )
    note(topology.notes[-1])
    return JobPlacement(topology, topology.ranks, real=False)


def _neighbours(job: GpuJob, uuid: str) -> int:
    return sum(peer.uuid == uuid for peer in job.peers)


def _from_nccl_file(job: GpuJob, file: str, note: Note) -> JobPlacement | None:
    """The place by a file; None if the file is incomplete, as NCCL too completes such files by detection."""
    try:
        topology = read_topology(Path(file), file)
        vertices = _bus_ids_of_file(file, topology)
        return JobPlacement(topology, _by_bus_id(job, topology, vertices, f"NCCL_TOPO_FILE={file}"))
    except TopologyError as error:
        note(f"NCCL_TOPO_FILE: {error}; the GPUs are probed instead")
        return None


def _probed(job: GpuJob, nvml: Any) -> JobPlacement:
    gpus = seen_by_nvml(nvml)
    by_bus = {gpu.bus_id: vertex for vertex, gpu in enumerate(gpus)}
    by_uuid = {gpu.uuid: vertex for vertex, gpu in enumerate(gpus)}
    ranks = []
    for peer in job.peers:
        vertex = by_bus.get(canonical(peer.bus_id), by_uuid.get(peer.uuid))
        if vertex is None:
            known = ", ".join(gpu.bus_id for gpu in gpus)
            raise UnsupportedError(
                f"NVML of rank 0's process has no GPU {peer.bus_id} of rank {peer.rank}; it has {known}. Containers "
                "must share their GPUs for Blink"
            )
        if gpus[vertex].mig:
            raise UnsupportedError(f"the GPU {peer.bus_id} of rank {peer.rank} is in MIG mode, which has no P2P")
        ranks.append(vertex)
    topology = probe(nvml)
    if len(topology.ranks) != len(gpus) or len(set(ranks)) < len(ranks):
        raise UnsupportedError(f"NVML lists {len(gpus)} GPUs, but links of {len(topology.ranks)}; try again")
    return JobPlacement(topology, tuple(ranks))


def without(where: JobPlacement, bad: Mapping[tuple[int, int], str]) -> JobPlacement:
    """The place without the direct links between each ordered pair of *ranks* in ``bad``, whose copies failed.

    ``bad`` has the faults. Links of both directions go, because trees run up and down. Paths through a switch stay for
    other pairs; :func:`blinkccl.nccl.programs.candidates` refuses programs that need such a pair.
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


# --- vertices of GPUs by PCI bus id


def canonical(bus_id: str) -> str:
    """The id as ``0000:1a:00.0``; CUDA, NVML and NCCL use domains of four or eight digits, in upper or lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    short = domain.lstrip("0").rjust(4, "0")
    return f"{short}:{rest}" if "." in rest else f"{short}:{rest}.0"


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU in NVML; ``uuid`` has 32 hexadecimal digits, as in GpuPeerInfo, and ``mig`` is True in MIG mode."""

    bus_id: str
    uuid: str
    mig: bool


def seen_by_nvml(nvml: Any = None) -> tuple[Seen, ...]:
    """This machine's GPUs in the order of NVML, which are the vertices of the probe."""
    driver = import_module("pynvml") if nvml is None else nvml
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        if error.value in NO_GPUS:
            raise UnsupportedError(
                "NVML is not available or has no GPUs, so their links are unknown; give the topology with BLINK_TOPO"
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
    except driver.NVMLError:  # a GPU without this mode
        current = 0
    digits = re.sub("[^0-9a-f]", "", _text(uuid).lower().removeprefix("gpu-"))
    return Seen(canonical(_text(bus_id)), digits, current == 1)


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def bus_ids_of_xml(text: str, topology: Topology) -> dict[str, int]:
    """Vertices by bus id, for GPUs by their ``dev`` in ``text``; bus ids that several servers share are left out."""
    named: dict[str, list[int]] = {}
    for rank in topology.ranks:
        named.setdefault(topology.vertex[rank].name, []).append(rank)
    vertices_of: dict[str, list[int]] = {}
    for gpu in parse_xml(text, topology.name).below("gpu"):
        bus_id = "" if gpu.parent is None else gpu.parent.attributes.get("busid", "")
        if bus_id:
            vertices_of.setdefault(canonical(bus_id), []).extend(named.get(f"GPU{gpu.attributes.get('dev')}", []))
    return {bus_id: vertices[0] for bus_id, vertices in vertices_of.items() if len(vertices) == 1}
