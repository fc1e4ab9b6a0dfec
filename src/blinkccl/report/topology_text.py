"""A topology as the matrix that ``nvidia-smi topo -m`` prints, coloured by nearness, and a summary."""

from __future__ import annotations

from blinkccl.report.paint import Paint, plain
from blinkccl.report.units_text import count, gb_per_s_text, ids
from blinkccl.topology.matrix import LEGEND, matrix
from blinkccl.topology.model import TRANSIT_KINDS, Link, Topology

#: Cells by their letters, without the number of lanes: near is green, far is red.
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


def topology_text(topology: Topology, paint: Paint = plain) -> str:
    """The matrix of ranks, what the letters mean, the links by kind with their origin, and the notes.

    Cost: O(ranks × links).
    """
    lines = [
        paint(_title(topology), "bold"),
        "",
        *_matrix(topology, paint),
        "",
        *_legend(topology),
        "",
        *_links(topology),
        *(f"note    {note}" for note in topology.notes),
    ]
    return "\n".join(lines) + "\n"


def _title(topology: Topology) -> str:
    kinds: dict[str, int] = {}
    for vertex in topology.vertices:
        kinds[vertex.kind] = kinds.get(vertex.kind, 0) + 1
    ranks = [count(number, kind.upper()) for kind, number in kinds.items() if kind not in TRANSIT_KINDS]
    transit = [
        count(number, kind if kind != "nic" else "NIC") for kind, number in kinds.items() if kind in TRANSIT_KINDS
    ]
    servers = len({topology.vertex[rank].server for rank in topology.ranks})
    where = f" on {servers} servers" if servers > 1 else ""
    return f"{topology.name}: {', '.join([*ranks, *transit])}{where}"


def _matrix(topology: Topology, paint: Paint) -> list[str]:
    cells = matrix(topology)
    table = [cells.header, *cells.rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(cells.header))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(cells.header, widths, strict=True)).rstrip()]
    for row in cells.rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        painted = [
            paint(text, _STYLES.get(cell.rstrip("0123456789"), "")) if i else text
            for i, (cell, text) in enumerate(zip(row, padded, strict=True))
        ]
        # Painted text ends in an escape code, so only plain text can be trimmed; padding harms no terminal.
        lines.append("  ".join(painted) if paint is not plain else "  ".join(padded).rstrip())
    return lines


def _legend(topology: Topology) -> list[str]:
    """What the cells that occur mean."""
    seen = {cell.rstrip("0123456789") for row in matrix(topology).rows for cell in row[1:]}
    return [f"  {mark:<6} {meaning}" for mark, meaning in LEGEND if mark.rstrip("#") in seen]


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
    return lines + ([f"note    no link at {ids(isolated)}"] if isolated else [])
