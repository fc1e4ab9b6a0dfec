"""Putting a machine together, vertex by vertex and link by link, before a unit of capacity is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology.model import Link, Topology, Vertex, common_unit

#: More than this is taken for nonsense rather than for a cluster: 16 servers of an NVL72 row have 2,500.
MAX_VERTICES = 4096
#: A clique of 256 has 65,280 directed links.
MAX_LINKS = 100_000


@dataclass(frozen=True, slots=True)
class Rated:
    """What is known of one direction of a link before a unit is chosen: exact GB/s instead of a capacity."""

    gb_per_s: Fraction
    kind: str
    provenance: str


@dataclass
class Assembly:
    """A machine under construction.

    Parameters
    ----------
    name
        For people.
    provenance
        Where the links come from, unless a link says otherwise.
    """

    name: str
    provenance: str
    vertices: list[Vertex] = field(default_factory=list)
    links: dict[tuple[int, int], Rated] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str = "", server: int = 0) -> int:
        """Add one vertex with the next free id, and return that id.

        Raises
        ------
        TopologyError
            If there are more than :data:`MAX_VERTICES`.
        """
        number = len(self.vertices)
        if number >= MAX_VERTICES:
            raise TopologyError(f"{self.name}: more than {MAX_VERTICES} vertices, the most we take")
        self.vertices.append(Vertex(number, kind, server, name))
        return number

    def add_many(self, kind: str, count: int, name: str, server: int = 0) -> list[int]:
        """Add ``count`` vertices named ``name0``, ``name1``, …, and return their ids."""
        return [self.add(kind, f"{name}{i}", server) for i in range(count)]

    def arc(self, src: int, dst: int, gb_per_s: Fraction | int, kind: str, provenance: str | None = None) -> None:
        """Add one direction of a link; parallel links of one kind add up.

        Raises
        ------
        TopologyError
            If the rate is not positive, or the pair is joined by another kind already.
        """
        rate = Rated(Fraction(gb_per_s), kind, provenance or self.provenance)
        if rate.gb_per_s <= 0:
            raise TopologyError(f"{self.name}: link {src} → {dst}: rate must be positive, got {gb_per_s} GB/s")
        known = self.links.get((src, dst))
        if known is not None:
            if known.kind != kind:
                raise TopologyError(
                    f"{self.name}: {src} → {dst} is joined by {known.kind} and by {kind}; "
                    "route "
                    "one of them through a switch or host vertex of its own"
                )
            rate = Rated(known.gb_per_s + rate.gb_per_s, kind, known.provenance)
        self.links[src, dst] = rate
        if len(self.links) > MAX_LINKS:
            raise TopologyError(f"{self.name}: more than {MAX_LINKS} links, the most we take")

    def join(self, a: int, b: int, gb_per_s: Fraction | int, kind: str, provenance: str | None = None) -> None:
        """Add both directions of a link, ``gb_per_s`` GB/s each."""
        self.arc(a, b, gb_per_s, kind, provenance)
        self.arc(b, a, gb_per_s, kind, provenance)

    def join_all(self, many: Iterable[int], hub: int, gb_per_s: Fraction | int, kind: str) -> None:
        """Join every vertex of ``many`` with ``hub``."""
        for vertex in many:
            self.join(vertex, hub, gb_per_s, kind)

    def finish(self) -> Topology:
        """The topology; its unit is the largest rate of which every link is a whole multiple.

        Raises
        ------
        TopologyError
            As :class:`~blinkccl.topology.model.Topology`.
        """
        unit = common_unit(rate.gb_per_s for rate in self.links.values())
        links = tuple(
            Link(src, dst, int(rate.gb_per_s / unit), rate.kind, float(rate.gb_per_s), rate.provenance)
            for (src, dst), rate in sorted(self.links.items())
        )
        return Topology(self.name, float(unit), tuple(self.vertices), links, tuple(self.notes))


def exact_unit(topology: Topology) -> Fraction:
    """``unit_gb_per_s`` as the decimal number that was meant, so that 0.1 stays one tenth."""
    return Fraction(repr(topology.unit_gb_per_s))
