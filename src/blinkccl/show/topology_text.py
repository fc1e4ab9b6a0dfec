"""A topology as a matrix like that of ``nvidia-smi topo -m``, coloured by nearness, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.show.text import Paint, columns, count, fit, gb_per_s_text, ids, plain
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.fabric import cables_of, gbit_text
from blinkccl.topology.memories import HOST_KINDS
from blinkccl.topology.model import TRANSIT_KINDS, Link, Topology, Vertex
from blinkccl.topology.stated import to_state_all

#: Colours of cells by their letters, without the number of lanes: green for near, red for far.
_STYLES = {
    "X": "dim",
    "NV": "green",
    "XGMI": "green",
    "C2C": "green",
    "SHM": "cyan",
    "PIX": "cyan",
    "PXB": "cyan",
    "PHB": "yellow",
    "SYS": "red",
    "NET": "magenta",
    "-": "dim",
}
#: Limit on ranks of a whole matrix, enough for one server.
_WHOLE = 8
_ALIKE = "  A-B    ranks with equal cells, in one row and column; where both cross is the cell of any two of them"
#: Each host vertex is a PCIe root complex, of which a processor may have several.
_TRANSIT = {"switch": "switch", "nic": "NIC", "host": "host bridge", "memory": "host memory"}


def topology_text(topology: Topology, paint: Paint = plain, width: int | None = None) -> str:
    """The matrix of ranks, its legend, links by kind with their origin, and the notes. O(ranks × links).

    Above :data:`_WHOLE` ranks, ranks with equal cells share one row and one column.
    """
    cells = matrix(topology)
    cells = alike(topology, cells) if len(cells.rows) > _WHOLE else cells
    sentences = [
        *_legend(cells, len(topology.ranks)),
        "",
        *_links(topology),
        *_cables(topology),
        *(f"note    {note}" for note in (*topology.notes, to_state_all(topology)) if note),
    ]
    lines = [paint(fit(_title(topology), width), "bold"), "", *_matrix(cells, paint, width), ""]
    return "\n".join([*lines, *(fit(line, width) for line in sentences)]) + "\n"


def _title(topology: Topology) -> str:
    kinds: dict[str, int] = {}
    for vertex in topology.vertices:
        kinds[vertex.kind] = kinds.get(vertex.kind, 0) + 1
    ranks = [count(number, kind.upper()) for kind, number in kinds.items() if kind not in TRANSIT_KINDS]
    transit = [count(number, _TRANSIT[kind]) for kind, number in kinds.items() if kind in TRANSIT_KINDS]
    servers = len({topology.vertex[rank].server for rank in topology.ranks})
    where = f" on {servers} servers" if servers > 1 else ""
    return f"{topology.name}: {', '.join([*ranks, *transit])}{where}"


def _matrix(cells: LinkMatrix, paint: Paint, width: int | None) -> list[str]:
    def look(row: int, cell: str) -> str:
        return _STYLES.get(cell.rstrip("0123456789"), "") if row else ""

    return columns(cells.header, cells.rows, range(len(cells.header)), width, look=look, paint=paint)


def _legend(cells: LinkMatrix, ranks: int) -> list[str]:
    """Explanation of the cells that occur, and of the rows of a matrix of ``ranks``."""
    marks = {cell.rstrip("0123456789") for row in cells.rows for cell in row[1:]}
    meanings = [f"  {mark:<6} {meaning}" for mark, meaning in LEGEND if mark.rstrip("#") in marks]
    return [*meanings, _ALIKE] if len(cells.rows) < ranks else meanings


def _unbalanced(topology: Topology) -> list[str]:
    """Notes on switches with different input and output capacities."""
    inputs, outputs = Counter[int](), Counter[int]()
    for link in topology.links:
        inputs[link.dst] += link.capacity
        outputs[link.src] += link.capacity
    return [
        f"note    {each.label} receives {inputs[each.id]} and sends {outputs[each.id]} units: not all of its "
        "links can be full"
        for each in topology.vertices
        if each.kind == "switch" and inputs[each.id] != outputs[each.id]
    ]


def _links(topology: Topology) -> list[str]:
    """One line per kind and origin of links."""
    groups: dict[tuple[str, str], list[Link]] = {}
    for link in topology.links:
        groups.setdefault((link.kind, link.provenance), []).append(link)
    lines = [f"unit    {gb_per_s_text(topology.unit_gb_per_s)} per unit of capacity"]
    for (kind, provenance), links in groups.items():
        rates = sorted({link.gb_per_s for link in links})
        shown = " or ".join(f"{rate:g}" for rate in rates[:3])
        if len(rates) > 3:
            shown = f"{rates[0]:g} to {rates[-1]:g}"
        lines.append(f"links   {len(links)} {kind} (directed), {shown} GB/s each; origin: {provenance}")
    isolated = [v for v in topology.ranks if not any(v in (link.src, link.dst) for link in topology.links)]
    return [*lines, *([f"note    no link at {ids(isolated)}"] if isolated else []), *_unbalanced(topology)]


#: Cables that are listed one by one.
_MOST_CABLES = 32


def _cables(topology: Topology) -> list[str]:
    """One line per cable."""
    cables = cables_of(topology)
    ends = [" – ".join(topology.vertex[v].label for v in (x.src, x.dst)) for x in cables]
    width = max(map(len, ends), default=0)
    lines = [f"cable   {end:<{width}}  {gbit_text(x.gb_per_s)}" for end, x in zip(ends, cables, strict=True)]
    more = len(lines) - _MOST_CABLES
    return [*lines[:_MOST_CABLES], f"cables  and {more} more"] if more > 0 else lines


# Cells of the matrix.
#: Possible cells, for a legend; NV#, XGMI# and the like begin with these letters.
LEGEND = (
    ("X", "the GPU itself"),
    ("NV#", "# NVLinks, directly or through NVSwitch"),
    ("XGMI#", "# xGMI links"),
    ("C2C", "chip to chip"),
    ("SHM", "shared memory of one host"),
    ("PIX", "one PCIe switch"),
    ("PXB", "several PCIe switches, but no processor"),
    ("PHB", "PCIe and a host bridge; nvidia-smi marks several of one NUMA node (NODE)"),
    ("SYS", "the bus between processors"),
    ("NET", "a network"),
    ("-", "no path, or only over other ranks"),
)
_LANE_GB_PER_S = {"xgmi": (50, 64), "nvlink": (25, 20)}
#: Most NVLinks of a GPU; if a rate needs more links of 25 GB/s, they are NVLinks 5.
_MOST_NVLINKS, _NVLINK5_GB_PER_S = 18, 50
_MARK = {"nvlink": "NV", "xgmi": "XGMI"}
#: Kinds from near to far; a path through transit vertices has the class of its farthest link.
_NEARNESS = {"nvlink": 0, "xgmi": 0, "c2c": 1, "shm": 1, "pcie": 2, "smp": 3, "net": 4}


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """``header`` names the columns; each row begins with its GPU's name, then one cell per GPU."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """A path from one rank to another: its farthest kind, its vertices, and its narrowest fast link."""

    far: int
    hosts: int
    switches: int
    gb_per_s: Fraction
    kind: str


def matrix(topology: Topology) -> LinkMatrix:
    """Cells of :data:`LEGEND` for every pair of ranks, and the server column if there are several. O(ranks × links).

    A cell names the nearest path between two ranks, directly or over switches, hosts and NICs, never over a third rank.
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
    return LinkMatrix(header, tuple(rows))


def _name(vertex: Vertex) -> str:
    return f"{vertex.kind.upper()}{vertex.id}"


def alike(topology: Topology, whole: LinkMatrix) -> LinkMatrix:
    """``whole`` with one row and one column for all ranks with equal cells.

    The crossing of such a row and column has the cell between two of these ranks, so nothing is lost.
    Typical cost: O(ranks² × kinds of rows).
    """
    ranks = topology.ranks
    place = {rank: i for i, rank in enumerate(ranks)}
    cell = [row[1 : 1 + len(ranks)] for row in whole.rows]
    groups: list[list[int]] = []
    for rank in ranks:
        mine = next((group for group in groups if _are_alike(topology, cell, place, group[0], rank)), None)
        if mine is None:
            groups.append([rank])
        else:
            mine.append(rank)
    names = [f"{topology.vertex[group[0]].kind.upper()}{ids(group)}" for group in groups]
    rows = []
    for name, group in zip(names, groups, strict=True):
        first, second = place[group[0]], place[group[-1]]
        cells = [cell[first][second if other is group else place[other[0]]] for other in groups]
        rows.append((name, *cells, *whole.rows[first][1 + len(ranks) :]))
    return LinkMatrix(("", *names, *whole.header[1 + len(ranks) :]), tuple(rows))


def _are_alike(
    topology: Topology, cell: Sequence[Sequence[str]], place: Mapping[int, int], one: int, other: int
) -> bool:
    """True if both have the same kind and server, and equal cells to all others, in both directions."""
    a, b = topology.vertex[one], topology.vertex[other]
    i, j = place[one], place[other]
    if (a.kind, a.server) != (b.kind, b.server) or cell[i][j] != cell[j][i]:
        return False
    return all(cell[i][k] == cell[j][k] and cell[k][i] == cell[k][j] for k in range(len(cell)) if k not in (i, j))


def _lane(topology: Topology, kind: str, unit: Fraction) -> Fraction:
    """GB/s of a lane: the nominal rate that divides all links of the kind, else the smallest link."""
    rates = [x.capacity * unit for x in topology.links if x.kind == kind]
    if kind == "nvlink" and rates and max(rates) > _MOST_NVLINKS * _LANE_GB_PER_S[kind][0]:
        return Fraction(_NVLINK5_GB_PER_S)
    for lane in _LANE_GB_PER_S[kind]:
        if all((rate / lane).denominator == 1 for rate in rates):
            return Fraction(lane)
    return min(rates)


def _ways(topology: Topology, source: int, ahead: dict[int, list[tuple[int, Fraction, str]]]) -> dict[int, _Way]:
    """The nearest path from ``source`` to every vertex: by farthest kind first, then by number of vertices."""
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
        way.hosts + (crossed in HOST_KINDS),
        way.switches + (crossed == "switch"),
        narrowest,
        kind,
    )


def _cell(way: _Way | None, lanes: dict[str, Fraction]) -> str:
    if way is None:
        return "-"
    if way.far == 0 and way.hosts == 0:
        return f"{_MARK[way.kind]}{int(way.gb_per_s / lanes[way.kind])}"
    if way.far == _NEARNESS["shm"] and (way.kind == "shm" or way.hosts == 0):
        return way.kind.upper()
    if way.far <= _NEARNESS["pcie"]:
        return "PHB" if way.hosts else "PIX" if way.switches <= 1 else "PXB"
    return "SYS" if way.far == _NEARNESS["smp"] else "NET"
