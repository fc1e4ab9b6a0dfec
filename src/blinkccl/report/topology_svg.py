"""A topology as an SVG picture: ranks on a circle per server, what joins them inside it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, cos, pi, sin, sqrt
from xml.sax.saxutils import escape

from blinkccl.report.text import gb_per_s_text
from blinkccl.topology.model import Link, Topology, Vertex

_COLOURS = {
    "nvlink": "#2e7d32",
    "xgmi": "#2e7d32",
    "c2c": "#00838f",
    "pcie": "#757575",
    "smp": "#c62828",
    "net": "#6a1b9a",
    "shm": "#00838f",
}
#: How far from the centre of its server a vertex stands, by kind, as a part of the server's radius.
_ORBIT = {"gpu": 1.0, "cpu": 1.0, "nic": 1.25, "switch": 0.6, "host": 0.25, "memory": 0.25}
_FILL = {
    "gpu": "#c8e6c9",
    "cpu": "#c8e6c9",
    "nic": "#e1bee7",
    "switch": "#eceff1",
    "host": "#ffcdd2",
    "memory": "#ffcdd2",
}
_RADIUS = 13


@dataclass(frozen=True, slots=True)
class _Place:
    x: float
    y: float


def topology_svg(topology: Topology) -> str:
    """The picture as text: a line for both directions of a link, as wide as it is fast, with its ends as a tooltip."""
    places, size = _layout(topology)
    fastest = max((link.gb_per_s for link in topology.links), default=1.0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size.x:.0f} {size.y:.0f}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        f"<title>{escape(topology.name)}</title>",
        f'<rect width="{size.x:.0f}" height="{size.y:.0f}" fill="white"/>',
    ]
    for link in topology.links:
        back = topology.link.get((link.dst, link.src))
        if back is None or link.src < link.dst:
            lines.append(_line(topology, link, back, places, fastest))
    lines += [_node(vertex, places[vertex.id]) for vertex in topology.vertices]
    return "\n".join([*lines, *_legend(topology, size), "</svg>"]) + "\n"


def _layout(topology: Topology) -> tuple[dict[int, _Place], _Place]:
    """Where each vertex stands, and the size of the picture: servers in a grid, what belongs to none below."""
    homes = sorted({topology.vertex[rank].server for rank in topology.ranks})
    groups: dict[int, dict[str, list[int]]] = {server: {} for server in homes}
    between = [vertex.id for vertex in topology.vertices if vertex.server not in groups]
    for vertex in topology.vertices:
        if vertex.server in groups:
            orbit = "gpu" if vertex.kind == "cpu" else vertex.kind
            groups[vertex.server].setdefault(orbit, []).append(vertex.id)
    crowd = max((len(members) for kinds in groups.values() for members in kinds.values()), default=1)
    radius = max(90.0, crowd * 3.2 * _RADIUS / pi)
    cell = 2 * radius * _ORBIT["nic"] + 5 * _RADIUS
    columns = max(1, ceil(sqrt(len(homes))))
    height = ceil(len(homes) / columns) * cell
    places: dict[int, _Place] = {}
    for i, server in enumerate(homes):
        centre = _Place(cell * (i % columns + 0.5), cell * (i // columns + 0.5))
        for kind, members in groups[server].items():
            places.update(_orbit(centre, radius * _ORBIT[kind], members))
    for i, lone in enumerate(between):
        places[lone] = _Place(columns * cell * (i + 0.5) / len(between), height + 2 * _RADIUS)
    return places, _Place(columns * cell, height + 5 * _RADIUS * bool(between) + 2 * _RADIUS)


def _orbit(centre: _Place, radius: float, members: list[int]) -> dict[int, _Place]:
    """``members`` round ``centre``, from the top, clockwise."""
    angles = [2 * pi * (i + 0.5) / len(members) - pi / 2 for i in range(len(members))]
    return {
        vertex: _Place(centre.x + radius * cos(angle), centre.y + radius * sin(angle))
        for vertex, angle in zip(members, angles, strict=True)
    }


def _line(topology: Topology, link: Link, back: Link | None, places: dict[int, _Place], fastest: float) -> str:
    a, b = places[link.src], places[link.dst]
    forth = f"{topology.vertex[link.src].label} → {topology.vertex[link.dst].label}: {gb_per_s_text(link.gb_per_s)}"
    if back is None:
        title, dash = f"{forth}, one way", ' stroke-dasharray="5 3"'
    elif back.gb_per_s == link.gb_per_s:
        title, dash = f"{forth} each way", ""
    else:
        title, dash = f"{forth}, back {gb_per_s_text(back.gb_per_s)}", ' stroke-dasharray="9 2"'
    return (
        f'<line x1="{a.x:.1f}" y1="{a.y:.1f}" x2="{b.x:.1f}" y2="{b.y:.1f}" '
        f'stroke="{_COLOURS[link.kind]}" stroke-width="{1 + 4 * link.gb_per_s / fastest:.2f}" '
        f'stroke-opacity="0.75"{dash}>'
        f"<title>{escape(f'{title} ({link.kind}, {link.provenance})')}</title></line>"
    )


def _node(vertex: Vertex, at: _Place) -> str:
    return (
        f"<g><title>{escape(f'{vertex.label} ({vertex.kind})')}</title>"
        f'<circle cx="{at.x:.1f}" cy="{at.y:.1f}" r="{_RADIUS}" '
        f'fill="{_FILL[vertex.kind]}" stroke="#37474f"/>'
        f'<text x="{at.x:.1f}" y="{at.y + 4:.1f}">{vertex.id}</text></g>'
    )


def _legend(topology: Topology, size: _Place) -> list[str]:
    kinds = list(dict.fromkeys(link.kind for link in topology.links))
    step = size.x / (len(kinds) + 1)
    return [
        f'<text x="{step * (i + 1):.1f}" y="{size.y - 8:.1f}" fill="{_COLOURS[kind]}">{kind}</text>'
        for i, kind in enumerate(kinds)
    ]
