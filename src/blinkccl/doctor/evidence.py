"""What was read, each piece with its place: the input of every rule.

Readers and the look at this machine make pieces; rules never see a file. A :class:`Case` holds all of them.
Numbers are as the source states them, in GB/s, bytes and seconds; None is "the source does not say".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from blinkccl.topology.model import Topology

#: What the places of pieces say that were not read from a file.
THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A file, or :data:`THIS_MACHINE`, and the line where that helps."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Piece:
    """What all pieces have: where it was read."""

    place: Place


@dataclass(frozen=True, slots=True)
class Machine(Piece):
    """A topology; ``inferred`` says from what, where nobody stated it."""

    topology: Topology
    inferred: str = ""


@dataclass(frozen=True, slots=True)
class Device(Piece):
    """A ``gpu``, a ``nic`` or a PCIe ``bridge``: its NUMA node, and its PCIe link now and at most.

    ``idle``: its link may have been turned down to save power. ``model`` tells which devices are alike.
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


@dataclass(frozen=True, slots=True)
class NvLinks(Piece):
    """NVLinks of one GPU that are up, and that are there and down."""

    gpu: str
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class PeerAccess(Piece):
    """Whether GPU ``a`` may read and write GPU ``b``; ``nvlink``: they are joined by it. ``why`` it may not."""

    a: str
    b: str
    allowed: bool
    nvlink: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class NicPath(Piece):
    """How far a NIC is from a GPU, in nvidia-smi's words: PIX PXB PHB NODE SYS."""

    nic: str
    gpu: str
    kind: str


@dataclass(frozen=True, slots=True)
class Processor(Piece):
    """The processors: who made them, and the family and model that NCCL goes by."""

    vendor: str
    family: int
    model: int
    sockets: int = 1


@dataclass(frozen=True, slots=True)
class SocketBus(Piece):
    """GB/s between two processors: as NCCL ``counted`` it, or as somebody measured it."""

    gb_per_s: float
    counted: bool


@dataclass(frozen=True, slots=True)
class Iommu(Piece):
    """``state``: "off", "passthrough", "translating"; ``how`` it was told."""

    state: str
    how: str


@dataclass(frozen=True, slots=True)
class Acs(Piece):
    """PCIe bridges whose Access Control Services send traffic between devices up to the root, of all that were read."""

    redirecting: int
    bridges: int


@dataclass(frozen=True, slots=True)
class Setting(Piece):
    """An environment variable that a library has read."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NcclVersion(Piece):
    version: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hop(Piece):
    """NCCL sends from rank ``src`` to ``dst`` by ``transport``: P2P, SHM or NET; ``detail`` is all of it."""

    src: int
    dst: int
    transport: str
    detail: str


@dataclass(frozen=True, slots=True)
class Graph(Piece):
    """NCCL's search: ``channels`` of ``gb_per_s`` for a pattern (4: ring), over paths up to ``kind``."""

    pattern: int
    channels: int
    gb_per_s: float
    kind: str
    ranks: int | None = None

    @property
    def total_gb_per_s(self) -> float:
        """Of all channels: the busbw that NCCL expects."""
        return self.channels * self.gb_per_s


@dataclass(frozen=True, slots=True)
class Network(Piece):
    """The network that NCCL uses, and the InfiniBand or RoCE cards that it has found."""

    used: str
    cards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuDirect(Piece):
    """Whether NCCL lets a NIC and a GPU exchange data without the processor's memory; ``why`` not."""

    allowed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Measured(Piece):
    """One collective of ``size_bytes`` (S, as nccl-tests counts) among ``ranks``: what it took.

    ``gpus`` are the devices by number and ``gpu`` their name, where the source lists them; ``wrong`` results counted.
    ``limit_gb_per_s``: the busbw that the source itself holds for possible (``blink bench``: by the memory).
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


@dataclass(frozen=True, slots=True)
class Started(Piece):
    """A benchmark that listed its ranks and printed no result."""

    ranks: int
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class RankState(Piece):
    """A rank of a group at some moment, mostly of a hang.

    ``state``: "" (nothing special), "missing", "dead", "unresponsive", "stopped", "failed", "initialising" or
    "timed out". ``calls`` counts the collectives that it has begun, ``done`` those that it has completed, each by name
    ("" for all together). ``doing`` is the call that it is in, ``line`` where its program stands. ``members`` are the
    ranks of the group, where the source says them. Rank -n stands for n ranks that are not told one by one.
    """

    group: str
    rank: int
    state: str = ""
    calls: tuple[tuple[str, int], ...] = ()
    done: int | None = None
    doing: str = ""
    members: tuple[int, ...] = ()
    line: str = ""
    waits_for: int | None = None


@dataclass(frozen=True, slots=True)
class Failure(Piece):
    """A line by which a library gave up: ``kind`` is "shm" (no shared memory) or "warning"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Host(Piece):
    """Memory and cores for ranks on processors: what a process here may use."""

    cpus: int
    quota: float | None = None
    numa_nodes: int = 1
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    ranks: int | None = None


P = TypeVar("P", bound=Piece)


@dataclass
class Case:
    """All that was read, in its order.

    ``notes`` are for people: what was left out or inferred, and from what. ``gpus`` is the job, as vertices of the
    machine, where somebody said it. ``read``: what each source was taken for.
    """

    pieces: list[Piece] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: dict[str, list[str]] = field(default_factory=dict)
    gpus: tuple[int, ...] | None = None

    def add(self, pieces: Iterable[Piece]) -> None:
        self.pieces.extend(pieces)

    def of(self, kind: type[P]) -> list[P]:
        """The pieces of one kind."""
        return [piece for piece in self.pieces if isinstance(piece, kind)]

    def setting(self, name: str) -> Setting | None:
        """The last one that was read."""
        return next((one for one in reversed(self.of(Setting)) if one.name == name), None)
