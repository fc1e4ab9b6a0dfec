"""Pieces of evidence, each with its place: the input of every rule.

Readers of files and of this machine make the pieces; rules never see a file. A :class:`Case` holds all of them.
Numbers are those of the source, in GB/s, bytes and seconds; None means that the source does not state them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from blinkccl.topology.model import Topology

#: The source of pieces that come from no file.
THIS_MACHINE = "this machine"


class _Read(msgspec.Struct, frozen=True):
    """Base of all pieces. Control characters in texts become question marks, because terminals print the texts."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            text = getattr(self, name)
            if isinstance(text, str) and not text.isprintable():
                msgspec.structs.force_setattr(self, name, printable(text))


class Location(_Read, frozen=True):
    """A file, or :data:`THIS_MACHINE`, and the line where that helps."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}" if self.line else self.source


class MatrixText(msgspec.Struct, frozen=True):
    """The lines of a matrix; unlike other texts it may have several."""

    text: str


class Evidence(_Read, frozen=True):
    """Base of all evidence: the place where it was read."""

    place: Location


class MachineRead(Evidence, frozen=True):
    """A topology; ``inferred`` gives the source of the inference if no file states it.

    ``matrix``: the text of nvidia-smi that it was read from, whose rates depend on the GPUs' names. ``named``: the name
    from another file that was used for it.
    """

    topology: Topology
    inferred: str = ""
    matrix: MatrixText | None = None
    named: str = ""

    @property
    def gpus(self) -> int:
        """Number of ranks that are GPUs."""
        return sum(self.topology.vertex[rank].kind == "gpu" for rank in self.topology.ranks)

    @property
    def switched(self) -> bool:
        """True if NVLinks lead to a switch, which may reduce."""
        return any(x.kind == "nvlink" and self.topology.is_transit(x.dst) for x in self.topology.links)


class Device(Evidence, frozen=True):
    """A ``gpu``, a ``nic`` or a PCIe ``bridge``: its NUMA node, and its PCIe link now and at most.

    ``idle``: its link may have been turned down to save power. Devices of one ``model`` are compared with each other.
    """

    kind: str
    name: str
    model: str = ""
    numa: int | None = None
    width: int | None = None
    max_width: int | None = None
    gt_per_s: float | None = None
    max_gt_per_s: float | None = None
    idle: bool = False


class NvLinks(Evidence, frozen=True):
    """Numbers of NVLinks of one GPU that are up and that are down."""

    gpu: str
    up: int
    down: int


class PeerAccess(Evidence, frozen=True):
    """Permission of GPU ``a`` to access GPU ``b``; ``nvlink``: NVLink joins them; ``why``: cause of a refusal."""

    a: str
    b: str
    allowed: bool
    nvlink: bool = False
    why: str = ""


class NicPath(Evidence, frozen=True):
    """Distance from a NIC to a GPU, in nvidia-smi's words: PIX PXB PHB NODE SYS."""

    nic: str
    gpu: str
    kind: str


class Processor(Evidence, frozen=True):
    """The processors: vendor, and the family that NCCL's model uses."""

    vendor: str
    family: int
    sockets: int = 1


class SocketBus(Evidence, frozen=True):
    """GB/s between two processors, as NCCL counts it."""

    gb_per_s: float


class Iommu(Evidence, frozen=True):
    """``state``: "off", "passthrough" or "translating"; ``how``: the source of this."""

    state: str
    how: str


class Acs(Evidence, frozen=True):
    """Number of PCIe bridges whose Access Control Services redirect peer traffic to the root, and of all bridges."""

    redirecting: int
    bridges: int


class Setting(Evidence, frozen=True):
    """An environment variable that a library has read."""

    name: str
    value: str


class NcclVersion(Evidence, frozen=True):
    version: tuple[int, ...]


class ChannelHop(Evidence, frozen=True):
    """One hop of NCCL, from rank ``src`` to ``dst`` by ``transport`` (P2P, SHM or NET); ``detail`` is the full text."""

    src: int
    dst: int
    transport: str
    detail: str


class RingGraph(Evidence, frozen=True):
    """NCCL's search: ``channels`` of ``gb_per_s`` for a pattern (4: ring), over paths up to ``kind``."""

    pattern: int
    channels: int
    gb_per_s: float
    kind: str
    ranks: int | None = None

    @property
    def total_gb_per_s(self) -> float:
        """The busbw that NCCL expects: the sum over all channels."""
        return self.channels * self.gb_per_s


class SystemLink(Evidence, frozen=True):
    """A link in the tree that NCCL prints of a server: ``kind`` is PCI, NVL, XGMI, SYS or another word of NCCL.

    ``node`` is its lower end ("GPU/4000"), ``above`` its upper end ("PCI/2000", "CPU/0"); ``gpus`` counts the GPUs at
    or below ``node``.
    """

    kind: str
    gb_per_s: float
    node: str
    above: str
    gpus: int


class ChannelCounts(Evidence, frozen=True):
    """NCCL's numbers of channels for collectives, and of those with in-network reduction (NVLS)."""

    rings: int
    nvls: int


class GpuName(Evidence, frozen=True):
    """The product name of a GPU, from a list of GPUs."""

    name: str


class NetworkInUse(Evidence, frozen=True):
    """The network that NCCL uses, and the InfiniBand or RoCE cards that it lists."""

    used: str
    cards: tuple[str, ...] = ()


class MeasuredCall(Evidence, frozen=True):
    """A measurement of one collective of ``size_bytes`` (S, as nccl-tests counts) among ``ranks``.

    ``gpus`` are the devices by number and ``gpu`` their name, if the source lists them; ``wrong`` counts wrong results.
    ``limit_gb_per_s``: the largest busbw possible according to the source (``blink bench``: by memory).
    """

    collective: str
    ranks: int
    size_bytes: int
    seconds: float
    busbw_gb_per_s: float
    wrong: float = 0.0
    gpus: tuple[int, ...] = ()
    gpu: str = ""
    hosts: int = 1
    limit_gb_per_s: float | None = None


class UnnamedCall(Evidence, frozen=True):
    """A measurement of a collective that the source does not name; ``fits``: those with its columns and bandwidths."""

    ranks: int
    size_bytes: int
    busbw_gb_per_s: float
    fits: tuple[str, ...] = ()
    gpu: str = ""


class Started(Evidence, frozen=True):
    """A benchmark that listed its ranks and printed no result."""

    ranks: int
    gpu: str = ""


class RankReport(Evidence, frozen=True):
    """The state of a rank of a group at some moment, usually in a hang.

    ``state``: "" (nothing special), "missing", "dead", "unresponsive", "stopped", "failed", "initialising" or
    "timed out". ``calls`` counts the collectives begun, by name ("" for all together), and ``done`` those completed.
    ``doing`` is the call in progress, ``line`` the line of the program. ``members`` are the ranks of the group, if the
    source lists them. Rank -n stands for n ranks that are not listed individually.
    """

    group: str
    rank: int
    state: str = ""
    calls: tuple[tuple[str, int], ...] = ()
    done: int | None = None
    doing: str = ""
    members: tuple[int, ...] = ()
    line: str = ""


class Failure(Evidence, frozen=True):
    """A line in which a library gave up; ``kind``: "shm" (no shared memory), "gpudirect" (no RDMA) or "warning"."""

    kind: str
    text: str


class Host(Evidence, frozen=True):
    """Memory and cores that processes here may use, for ranks on CPUs."""

    cpus: int
    quota: float | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    ranks: int | None = None


P = TypeVar("P", bound=Evidence)


@dataclass
class Case:
    """All pieces, in the order in which they were read.

    ``notes`` are for people: omissions and inferences with their source. ``gpus`` is the job, as vertices of the
    machine, if the user gave it. ``read``: the kinds of evidence by source.
    """

    pieces: list[Evidence] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: dict[str, list[str]] = field(default_factory=dict)
    gpus: tuple[int, ...] | None = None

    def add(self, pieces: Iterable[Evidence]) -> None:
        self.pieces.extend(pieces)

    def of(self, kind: type[P]) -> list[P]:
        """The pieces of one kind."""
        return [piece for piece in self.pieces if isinstance(piece, kind)]

    def failures(self, kind: str) -> list[Failure]:
        return [failure for failure in self.of(Failure) if failure.kind == kind]

    def last(self, kind: type[P]) -> P | None:
        """The piece of a kind that was read last."""
        return next((piece for piece in reversed(self.pieces) if isinstance(piece, kind)), None)


def printable(text: str) -> str:
    """``text`` on one line, with "?" for every character that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)
