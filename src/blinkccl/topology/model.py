"""The topology model: a directed graph of vertices and links.

The model is independent of algorithms. Capacities are integers in units of ``unit_gb_per_s``, which keeps proofs about
rates exact; on a machine with one class of links the unit is one lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, inf

from blinkccl.errors import TopologyError

#: Vertices that can be ranks. ``cpu`` is a core or NUMA node of a machine without GPUs.
RANK_KINDS = ("gpu", "cpu")
#: All other vertices only forward data: unicast, no reduction, no multicast. Data that cross a ``memory`` are stored
#: there; a ``host`` may forward them (:mod:`blinkccl.topology.memories`).
TRANSIT_KINDS = ("switch", "nic", "host", "memory")
VERTEX_KINDS = RANK_KINDS + TRANSIT_KINDS
LINK_KINDS = ("nvlink", "xgmi", "c2c", "pcie", "smp", "net", "shm")
#: Kinds that ``--links fast`` prefers inside a server. C2C is left out. It joins a GPU to its processor, and no
#: store goes through the processor to another GPU.
FAST_KINDS = ("nvlink", "xgmi", "shm")
#: Tools whose output describes a real machine.
READ_PROVENANCES = ("nvml", "nvidia-smi", "rocm-smi", "amd-smi", "nccl-xml")
PROVENANCES = (*READ_PROVENANCES, "catalog", "declared", "measured", "lstopo", "synthetic", "host")


@dataclass(frozen=True, slots=True)
class Vertex:
    """One device: ``kind`` is one of :data:`VERTEX_KINDS`, ``server`` the index of its server.

    ``part_of``: the id of the whole vertex, if this vertex is one of the paths through it; else None.
    ``combines``: a switch with in-network reduction and multicast (NVLink SHARP, SHARP). Only the plans of
    :mod:`blinkccl.trees.algorithms.in_switch` use it; all others treat the switch as forwarding.
    ``sm``: compute capability of an NVIDIA GPU times ten (90 for 9.0), None if the source does not imply it.
    ``peers``: False for a GPU whose driver grants no P2P over PCIe, as its product name implies.
    """

    id: int
    kind: str
    server: int = 0
    name: str = ""
    part_of: int | None = None
    combines: bool = False
    sm: int | None = None
    peers: bool = True

    @property
    def label(self) -> str:
        return self.name or f"{self.kind.upper()}{self.id}"


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: ``capacity`` in units of the topology, ``gb_per_s`` = capacity × unit.

    The source end writes the data, or the destination end reads them; on real machines one can be much slower.
    ``capacity`` is the rate of writes, and ``read_capacity`` that of reads if it differs. Links prepared for planning
    have one capacity: ``by`` is "write" or "read" if it holds for one of these only, "" if for both.
    """

    src: int
    dst: int
    capacity: int
    kind: str
    gb_per_s: float
    provenance: str
    read_capacity: int | None = None
    by: str = ""


@dataclass(frozen=True)
class Topology:
    """A directed graph with at most one link per ordered pair of vertices.

    ``unit_gb_per_s`` is GB/s (1e9 bytes per second) of one unit of capacity; ``notes`` list a reader's assumptions and
    omissions ("GPU1's nvlink to itself dropped"). TopologyError for duplicate ids, unknown kinds or ends, self-links,
    duplicate links, and capacities or rates that are not positive.
    """

    name: str
    unit_gb_per_s: float
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        ids = {v.id for v in self.vertices}
        if len(ids) != len(self.vertices):
            raise TopologyError(f"{self.name}: vertex ids are not unique")
        if not 0 < self.unit_gb_per_s < inf:
            raise TopologyError(f"{self.name}: unit_gb_per_s must be a positive number, got {self.unit_gb_per_s!r}")
        for v in self.vertices:
            if v.kind not in VERTEX_KINDS:
                raise TopologyError(
                    f"{self.name}: vertex {v.id} has unknown kind {v.kind!r}; expected one of {', '.join(VERTEX_KINDS)}"
                )
            if v.id < 0 or v.server < 0:
                raise TopologyError(f"{self.name}: vertex {v.id} on server {v.server}: ids must not be negative")
        seen: set[tuple[int, int]] = set()
        for link in self.links:
            fault = _fault(link, ids, seen)
            if fault is not None:
                raise TopologyError(f"{self.name}: link {link.src} → {link.dst}{fault}")
            seen.add((link.src, link.dst))

    @cached_property
    def vertex(self) -> dict[int, Vertex]:
        """Vertices by id."""
        return {v.id: v for v in self.vertices}

    @cached_property
    def link(self) -> dict[tuple[int, int], Link]:
        """Links by ordered pair of ends."""
        return {(x.src, x.dst): x for x in self.links}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ids of the vertices that can be ranks, ascending."""
        return tuple(sorted(v.id for v in self.vertices if v.kind in RANK_KINDS))

    def is_transit(self, vertex: int) -> bool:
        """True if ``vertex`` only forwards data (a switch, NIC, host bridge or memory)."""
        return self.vertex[vertex].kind in TRANSIT_KINDS

    def noted(self, *notes: str) -> Topology:
        """The same topology with ``notes`` added."""
        return replace(self, notes=self.notes + notes)


def _fault(link: Link, ids: set[int], seen: set[tuple[int, int]]) -> str | None:
    """The fault of ``link``, given the links ``seen`` before; None if valid."""
    if link.src not in ids or link.dst not in ids:
        return " names an unknown vertex"
    if link.src == link.dst:
        return " joins a vertex to itself"
    if (link.src, link.dst) in seen:
        return " is given twice; sum parallel links into one capacity"
    if not isinstance(link.capacity, int) or isinstance(link.capacity, bool) or link.capacity <= 0:
        return f": capacity must be a positive integer, got {link.capacity!r}"
    if link.read_capacity is not None and (type(link.read_capacity) is not int or link.read_capacity <= 0):
        return f": read_capacity must be a positive integer, got {link.read_capacity!r}"
    if link.by not in ("", "write", "read"):
        return f": by must be write or read, got {link.by!r}"
    if not 0 < link.gb_per_s < inf:
        return f": gb_per_s must be a positive number, got {link.gb_per_s!r}"
    if link.kind not in LINK_KINDS:
        return f": unknown kind {link.kind!r}; expected one of {', '.join(LINK_KINDS)}"
    if link.provenance not in PROVENANCES:
        return f": unknown provenance {link.provenance!r}; expected one of {', '.join(PROVENANCES)}"
    return None


def common_unit(rates: Iterable[Fraction]) -> Fraction:
    """The greatest common divisor of positive rates; 1 when there are none."""
    num, den = 0, 1
    for rate in rates:
        common = den * rate.denominator // gcd(den, rate.denominator)
        num = gcd(num * (common // den), rate.numerator * (common // rate.denominator))
        den = common
    return Fraction(num, den) if num else Fraction(1)
