"""A topology as the matrix that ``nvidia-smi topo -m`` prints: data, for others to lay out and colour."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology, Vertex

#: What cells can be, for a legend; NV#, XGMI# and the like begin with these letters.
LEGEND = (
    ("X", "the GPU itself"),
    ("NV#", "# NVLinks, directly or through NVSwitch"),
    ("XGMI#", "# xGMI links"),
    ("C2C", "chip to chip"),
    ("SHM", "shared memory of one host"),
    ("PIX", "one PCIe switch"),
    ("PXB", "several PCIe switches, but no processor"),
    ("PHB", "PCIe and a processor"),
    ("SYS", "the bus between processors"),
    ("NET", "a network"),
    ("-", "no way"),
)
_LANE_GB_PER_S = {"xgmi": (50,), "nvlink": (25, 20)}
_MARK = {"nvlink": "NV", "xgmi": "XGMI"}
#: Kinds from near to far: a way through transit vertices is classed by its farthest link.
_NEARNESS = {"nvlink": 0, "xgmi": 0, "c2c": 0, "shm": 1, "pcie": 2, "smp": 3, "net": 4}


@dataclass(frozen=True, slots=True)
class Matrix:
    """``header`` names the columns; each row begins with its GPU's name, then one cell per GPU."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """How one rank reaches another: farthest kind, what was crossed, and the narrowest fast link on it."""

    far: int
    hosts: int
    switches: int
    gb_per_s: Fraction
    kind: str


def matrix(topology: Topology) -> Matrix:
    """Cells of :data:`LEGEND` for every pair of ranks.

    A cell names the nearest way from the row's rank to the column's, directly or over switches, hosts and
    NICs, never over another rank. The last column gives the server where there are several.
    O(ranks × links).
    """
    ranks = topology.ranks
    servers = {topology.vertex[r].server for r in ranks}
    names = [_name(topology.vertex[r]) for r in ranks]
    header = ("", *names, *(("server",) if len(servers) > 1 else ()))
    ahead: dict[int, list[tuple[int, Fraction, str]]] = {}
    unit = exact_unit(topology)
    for x in topology.links:
        ahead.setdefault(x.src, []).append((x.dst, x.capacity * unit, x.kind))
    lanes = {kind: _lane(topology, kind, unit) for kind in _MARK}
    rows = []
    for name, rank in zip(names, ranks, strict=True):
        ways = _ways(topology, rank, ahead)
        cells = ["X" if other == rank else _cell(ways.get(other), lanes) for other in ranks]
        own = (str(topology.vertex[rank].server),) if len(servers) > 1 else ()
        rows.append((name, *cells, *own))
    return Matrix(header, tuple(rows))


def _name(vertex: Vertex) -> str:
    return f"{vertex.kind.upper()}{vertex.id}"


def _lane(topology: Topology, kind: str, unit: Fraction) -> Fraction:
    """GB/s of a lane: the nominal rate that divides all links of the kind, else the smallest of them."""
    rates = [x.capacity * unit for x in topology.links if x.kind == kind]
    for lane in _LANE_GB_PER_S[kind]:
        if all((rate / lane).denominator == 1 for rate in rates):
            return Fraction(lane)
    return min(rates)


def _ways(topology: Topology, source: int, ahead: dict[int, list[tuple[int, Fraction, str]]]) -> dict[int, _Way]:
    """The nearest way from ``source`` to every vertex: by farthest kind first, then by vertices crossed."""
    best: dict[int, _Way] = {source: _Way(0, 0, 0, Fraction(0), "")}
    for far in range(max(_NEARNESS.values()) + 1):
        level = list(best)
        while level:
            following: list[int] = []
            for vertex in level:
                if vertex != source and not topology.is_transit(vertex):
                    continue
                for other, gb_per_s, kind in ahead.get(vertex, ()):
                    if _NEARNESS[kind] <= far and other not in best:
                        best[other] = _extended(topology, best[vertex], vertex, source, gb_per_s, kind)
                        following.append(other)
            level = following
    return best


def _extended(topology: Topology, way: _Way, vertex: int, source: int, gb_per_s: Fraction, kind: str) -> _Way:
    crossed = "" if vertex == source else topology.vertex[vertex].kind
    narrowest = min(way.gb_per_s, gb_per_s) if way.gb_per_s else gb_per_s
    return _Way(
        max(way.far, _NEARNESS[kind]),
        way.hosts + (crossed == "host"),
        way.switches + (crossed == "switch"),
        narrowest,
        kind,
    )


def _cell(way: _Way | None, lanes: dict[str, Fraction]) -> str:
    if way is None:
        return "-"
    if way.far == 0 and way.hosts == 0:
        return f"{_MARK[way.kind]}{int(way.gb_per_s / lanes[way.kind])}" if way.kind in _MARK else "C2C"
    if way.far == _NEARNESS["shm"]:
        return "SHM"
    if way.far <= _NEARNESS["pcie"]:
        return "PHB" if way.hosts else "PIX" if way.switches <= 1 else "PXB"
    return "SYS" if way.far == _NEARNESS["smp"] else "NET"
