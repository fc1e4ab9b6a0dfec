"""Machines built link by link, with exact rates until a unit of capacity is chosen; and copies of several machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology.model import READ_PROVENANCES, Link, Topology, Vertex, common_unit

#: Limit against nonsense input; 16 servers of an NVL72 row have 2,500 vertices.
MAX_VERTICES = 4096
#: A clique of 256 has 65,280 directed links.
MAX_LINKS = 100_000
#: Least GB/s per GPU to NVSwitches with in-network reduction: 18 lanes of an H100 pass, 12 lanes of an A100 do not.
COMBINING_GB_PER_S = 400
#: Least compute capability of GPUs whose NVSwitches reduce: Hopper.
COMBINING_SM = 90


@dataclass(frozen=True, slots=True)
class Rated:
    """One direction of a link before a unit is chosen: exact GB/s instead of a capacity."""

    gb_per_s: Fraction
    kind: str
    provenance: str


@dataclass
class Assembly:
    """A machine under construction; ``provenance`` is the default origin of its links."""

    name: str
    provenance: str
    vertices: list[Vertex] = field(default_factory=list)
    links: dict[tuple[int, int], Rated] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str = "", server: int = 0, sm: int | None = None, peers: bool = True) -> int:
        """Add one vertex with the next free id, and return that id; TopologyError beyond :data:`MAX_VERTICES`."""
        number = len(self.vertices)
        if number >= MAX_VERTICES:
            raise TopologyError(f"{self.name}: more than {MAX_VERTICES} vertices, which is the limit")
        self.vertices.append(Vertex(number, kind, server, name, sm=sm, peers=peers))
        return number

    def add_many(self, kind: str, count: int, name: str, server: int = 0) -> list[int]:
        """Add ``count`` vertices named ``name0``, ``name1``, …, and return their ids."""
        return [self.add(kind, f"{name}{i}", server) for i in range(count)]

    def arc(self, src: int, dst: int, gb_per_s: Fraction | int, kind: str, provenance: str | None = None) -> None:
        """Add one direction of a link; rates of parallel links are summed, TopologyError if their kinds differ."""
        rate = Rated(Fraction(gb_per_s), kind, provenance or self.provenance)
        if rate.gb_per_s <= 0:
            raise TopologyError(f"{self.name}: link {src} → {dst}: rate must be positive, got {gb_per_s} GB/s")
        known = self.links.get((src, dst))
        if known is not None:
            if known.kind != kind:
                raise TopologyError(
                    f"{self.name}: {src} → {dst} is joined by {known.kind} and by {kind}; route one of them through a "
                    "switch or host vertex of its own"
                )
            rate = Rated(known.gb_per_s + rate.gb_per_s, kind, known.provenance)
        self.links[src, dst] = rate
        if len(self.links) > MAX_LINKS:
            raise TopologyError(f"{self.name}: more than {MAX_LINKS} links, which is the limit")

    def join(self, a: int, b: int, gb_per_s: Fraction | int, kind: str, provenance: str | None = None) -> None:
        """Add both directions of a link, ``gb_per_s`` GB/s each."""
        self.arc(a, b, gb_per_s, kind, provenance)
        self.arc(b, a, gb_per_s, kind, provenance)

    def join_all(self, many: Iterable[int], centre: int, gb_per_s: Fraction | int, kind: str) -> None:
        """Join every vertex of ``many`` with ``centre``."""
        for vertex in many:
            self.join(vertex, centre, gb_per_s, kind)

    def finish(self) -> Topology:
        """The topology; its unit is the greatest common divisor of the rates.

        Switches get ``combines`` if NVLink joins them to a Hopper or later GPU. Where compute capabilities are unknown,
        a GPU with at least :data:`COMBINING_GB_PER_S` in total counts as one.
        """
        unit = common_unit(rate.gb_per_s for rate in self.links.values())
        links = tuple(
            Link(src, dst, int(rate.gb_per_s / unit), rate.kind, float(rate.gb_per_s), rate.provenance)
            for (src, dst), rate in sorted(self.links.items())
        )
        return Topology(self.name, float(unit), self._vertices(), links, tuple(self.notes))

    def _vertices(self) -> tuple[Vertex, ...]:
        kind = [vertex.kind for vertex in self.vertices]
        ports = [
            (src, dst, rate.gb_per_s)
            for (src, dst), rate in self.links.items()
            if rate.kind == "nvlink" and (kind[src], kind[dst]) == ("gpu", "switch")
        ]
        whole: dict[int, Fraction] = {}
        for gpu, _, gb_per_s in ports:
            whole[gpu] = whole.get(gpu, Fraction(0)) + gb_per_s
        combine = {switch for gpu, switch, _ in ports if self._combines(gpu, whole[gpu])}
        return tuple(replace(vertex, combines=vertex.id in combine) for vertex in self.vertices)

    def _combines(self, gpu: int, gb_per_s: Fraction) -> bool:
        sm = self.vertices[gpu].sm
        return gb_per_s >= COMBINING_GB_PER_S if sm is None else sm >= COMBINING_SM


def exact_unit(topology: Topology) -> Fraction:
    """``unit_gb_per_s`` as the exact decimal number of its text, so that 0.1 stays one tenth."""
    return Fraction(repr(topology.unit_gb_per_s))


# Several servers, side by side.
def copies(
    box: Assembly, servers: Sequence[tuple[str, Topology]], nic_gb_per_s: Fraction | None = None
) -> list[dict[int, int]]:
    """Put named machines side by side, each as one server; return the new id of each old vertex, per server.

    Ids: all ranks first, server by server in ascending order of their old ids, then all other vertices likewise.
    ``nic_gb_per_s`` replaces the rate of all network links.
    """
    ids: list[dict[int, int]] = [{} for _ in servers]
    for transit in (False, True):
        for server, (name, machine) in enumerate(servers):
            for old in sorted(v.id for v in machine.vertices if machine.is_transit(v.id) == transit):
                vertex = machine.vertex[old]
                ids[server][old] = box.add(vertex.kind, f"{name}/{vertex.label}", server, vertex.sm, vertex.peers)
    overruled = dict.fromkeys(_overruled(machine, nic_gb_per_s) for _, machine in servers)
    box.notes.extend(note for note in overruled if note)
    for number, (_, machine) in zip(ids, servers, strict=True):
        _copy_links(box, machine, number, nic_gb_per_s)
    box.notes.extend(dict.fromkeys(note for _, machine in servers for note in machine.notes))
    return ids


def nics_of(machine: Topology) -> list[int]:
    """The NICs of ``machine``, ascending."""
    return sorted(v.id for v in machine.vertices if v.kind == "nic")


def _overruled(machine: Topology, nic_gb_per_s: Fraction | None) -> str:
    """A note on the rates of NICs in a file that ``nic_gb_per_s`` replaces; "" without any."""
    unit, label = exact_unit(machine), {v.id: v.label for v in machine.vertices}
    rates = {
        label[x.dst]: x.capacity * unit for x in machine.links if _of_file(x) and machine.vertex[x.dst].kind == "nic"
    }
    replaced = [f"{name} {float(rate):g}" for name, rate in rates.items() if nic_gb_per_s not in (None, rate)]
    if not replaced or nic_gb_per_s is None:
        return ""
    return (
        f"each NIC has {float(nic_gb_per_s):g} GB/s as stated, in place of the file's rate: {', '.join(replaced)} GB/s"
    )


def _of_file(link: Link) -> bool:
    return link.kind == "net" and link.provenance in READ_PROVENANCES


def _copy_links(box: Assembly, machine: Topology, number: dict[int, int], nic_gb_per_s: Fraction | None) -> None:
    unit = exact_unit(machine)
    for x in machine.links:
        if x.kind == "net" and nic_gb_per_s is not None:
            box.arc(number[x.src], number[x.dst], nic_gb_per_s, "net", "declared")
        else:
            box.arc(number[x.src], number[x.dst], x.capacity * unit, x.kind, x.provenance)


def nic_rate(machine: Topology, nic: int, nic_gb_per_s: Fraction | None) -> tuple[Fraction, str]:
    """GB/s and provenance of a NIC on its network side: ``nic_gb_per_s``, else the rate of its widest link."""
    if nic_gb_per_s is not None:
        return nic_gb_per_s, "declared"
    widest = max((x for x in machine.links if x.src == nic), key=lambda x: x.capacity, default=None)
    if widest is None:
        raise TopologyError(
            f"{machine.name}: {machine.vertex[nic].label} has no link, so its rate is "
            'unknown; give the network\'s rate with "@ 40Gbps"'
        )
    return widest.capacity * exact_unit(machine), widest.provenance
