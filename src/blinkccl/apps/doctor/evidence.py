"""What was read, each piece with its place: the input of every rule.

Readers and the look at this machine make pieces; rules never see a file. A :class:`Case` holds all of them.
Numbers are as the source states them, in GB/s, bytes and seconds; None is "the source does not say".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from blinkccl.topology.model import Topology

#: What the places of pieces say that were not read from a file.
THIS_MACHINE = "this machine"


class _Read(msgspec.Struct, frozen=True):
    """What a file may say of itself, and a terminal or a line of a report must not obey, is a question mark."""

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


class Evidence(_Read, frozen=True):
    """What all pieces have: where it was read."""

    place: Location


class MachineRead(Evidence, frozen=True):
    """A topology; ``inferred`` says from what, where nobody stated it."""

    topology: Topology
    inferred: str = ""

    @property
    def gpus(self) -> int:
        """How many of its ranks are GPUs."""
        return sum(self.topology.vertex[rank].kind == "gpu" for rank in self.topology.ranks)

    @property
    def switched(self) -> bool:
        """Whether NVLinks lead to a switch, which may reduce."""
        return any(x.kind == "nvlink" and self.topology.is_transit(x.dst) for x in self.topology.links)


class Device(Evidence, frozen=True):
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


class NvLinks(Evidence, frozen=True):
    """NVLinks of one GPU that are up, and that are there and down."""

    gpu: str
    up: int
    down: int


class PeerAccess(Evidence, frozen=True):
    """Whether GPU ``a`` may read and write GPU ``b``; ``nvlink``: they are joined by it. ``why`` it may not."""

    a: str
    b: str
    allowed: bool
    nvlink: bool = False
    why: str = ""


class NicPath(Evidence, frozen=True):
    """How far a NIC is from a GPU, in nvidia-smi's words: PIX PXB PHB NODE SYS."""

    nic: str
    gpu: str
    kind: str


class Processor(Evidence, frozen=True):
    """The processors: who made them, and the family that NCCL goes by."""

    vendor: str
    family: int
    sockets: int = 1


class SocketBus(Evidence, frozen=True):
    """GB/s between two processors, as NCCL counts it."""

    gb_per_s: float


class Iommu(Evidence, frozen=True):
    """``state``: "off", "passthrough", "translating"; ``how`` it was told."""

    state: str
    how: str


class Acs(Evidence, frozen=True):
    """PCIe bridges whose Access Control Services send traffic between devices up to the root, of all that were read."""

    redirecting: int
    bridges: int


class Setting(Evidence, frozen=True):
    """An environment variable that a library has read."""

    name: str
    value: str


class NcclVersion(Evidence, frozen=True):
    version: tuple[int, ...]


class ChannelHop(Evidence, frozen=True):
    """NCCL sends from rank ``src`` to ``dst`` by ``transport``: P2P, SHM or NET; ``detail`` is all of it."""

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
        """Of all channels: the busbw that NCCL expects."""
        return self.channels * self.gb_per_s


class NetworkInUse(Evidence, frozen=True):
    """The network that NCCL uses, and the InfiniBand or RoCE cards that it has found."""

    used: str
    cards: tuple[str, ...] = ()


class MeasuredCall(Evidence, frozen=True):
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


class Started(Evidence, frozen=True):
    """A benchmark that listed its ranks and printed no result."""

    ranks: int
    gpu: str = ""


class RankReport(Evidence, frozen=True):
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


class Failure(Evidence, frozen=True):
    """A line by which a library gave up: ``kind`` is "shm" (no shared memory), "gpudirect" (no RDMA) or "warning"."""

    kind: str
    text: str


class Host(Evidence, frozen=True):
    """Memory and cores for ranks on processors: what a process here may use."""

    cpus: int
    quota: float | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    ranks: int | None = None


P = TypeVar("P", bound=Evidence)


@dataclass
class Case:
    """All that was read, in its order.

    ``notes`` are for people: what was left out or inferred, and from what. ``gpus`` is the job, as vertices of the
    machine, where somebody said it. ``read``: what each source was taken for.
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
    """``text`` without what a terminal would obey, on one line."""
    return "".join(c if c.isprintable() else "?" for c in text)
