"""Places of a machine's parts in a picture, and routes of its links: pure geometry without colours.

A server is a box in the usual form: processors on top, PCIe switches below them, then the GPUs. GPUs stand in a row
over their NVSwitch, or on circles, one per socket, if links join them directly. Servers stand in rows, and the network
between them is a rail above each row. The two directions of a link are separate lines, each on the right of its
direction, as on a road. A picture of many servers is *folded*: the contents of a server exist, but are hidden until a
reader zooms in.

Lengths are in px at scale 1. The same topology gives the same places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, cos, hypot, pi, prod, sin, sqrt

from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import FAST_KINDS, Topology, Vertex

Point = tuple[float, float]
#: Size of a box with a name in it, and the space around it.
NODE_W, NODE_H, GAP = 58.0, 26.0, 16.0
#: Distance between rows of boxes; margin between a server's border and its contents, and height of its name.
ROW, MARGIN, HEAD = 74.0, 18.0, 26.0
#: Distance from a rail of the network to the servers below it, and the rail's height.
RAIL_GAP, RAIL_H = 44.0, 24.0
#: Limit on ranks in one row, and limit on ranks with names on a circle.
IN_ROW, NAMED_ON_CIRCLE = 10, 40
#: Above this number, servers are folded.
UNFOLDED = 8
_DOT = 14.0
#: Bends of a link around a box, in order of trial.
_BENDS = (0.0, 34.0, -34.0, 62.0, -62.0, 100.0, -100.0, 150.0, -150.0)
_TORUS = re.compile(r"torus:\d+(x\d+)+")


@dataclass(frozen=True, slots=True)
class DrawnPlace:
    """A box: its centre, width and height."""

    x: float
    y: float
    w: float = NODE_W
    h: float = NODE_H

    def moved(self, dx: float, dy: float) -> DrawnPlace:
        return replace(self, x=self.x + dx, y=self.y + dy)

    def holds(self, point: Point, margin: float = 0.0) -> bool:
        """True if ``point`` is inside, or within ``margin`` of the box."""
        return abs(point[0] - self.x) < self.w / 2 + margin and abs(point[1] - self.y) < self.h / 2 + margin

    def meets(self, other: DrawnPlace) -> bool:
        """True if both boxes overlap."""
        return 2 * abs(self.x - other.x) < self.w + other.w and 2 * abs(self.y - other.y) < self.h + other.h

    def towards(self, point: Point) -> Point:
        """The point of the border on the way from the centre to ``point``."""
        dx, dy = point[0] - self.x, point[1] - self.y
        part = min(self.w / 2 / abs(dx) if dx else 1e9, self.h / 2 / abs(dy) if dy else 1e9)
        return self.x + dx * min(part, 1.0), self.y + dy * min(part, 1.0)


@dataclass(frozen=True, slots=True)
class Server:
    """A server's border, and the vertices inside."""

    number: int
    place: DrawnPlace
    members: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PictureLayout:
    """``places`` by vertex; a network's vertex has a rail above each row of servers, the first of which is its place.

    ``routes``: the two ends of each directed link, or these and the control point of a parabola.
    """

    places: Mapping[int, DrawnPlace]
    rails: Mapping[int, tuple[DrawnPlace, ...]]
    servers: tuple[Server, ...]
    routes: Mapping[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float
    folded: bool


def layout(topology: Topology, sockets: Mapping[int, int] | None = None) -> PictureLayout:
    """Places and routes of all vertices and links; ``sockets`` gives the processor of a rank in the whole machine.

    Cost: O(links × vertices of a server); for cables between few servers, O(links × vertices of all).
    """
    homes = sorted({topology.vertex[rank].server for rank in topology.ranks})
    blocks = [_server(topology, home, sockets or sockets_of(topology)) for home in homes]
    lone = [vertex.id for vertex in topology.vertices if vertex.server not in set(homes)]
    cell_w, cell_h = max(block.w for block in blocks), max(block.h for block in blocks)
    columns = len(blocks) if len(blocks) <= 4 else _columns(len(blocks), cell_w, cell_h + RAIL_GAP + RAIL_H)
    step_x, step_y = cell_w + 2 * GAP, cell_h + 2 * GAP + (RAIL_GAP + RAIL_H if lone else 0.0)
    top = RAIL_H + RAIL_GAP + GAP if lone else GAP
    places: dict[int, DrawnPlace] = {}
    servers = []
    for i, (home, block) in enumerate(zip(homes, blocks, strict=True)):
        left, upper = GAP + i % columns * step_x + (cell_w - block.w) / 2, top + i // columns * step_y
        places |= {vertex: place.moved(left, upper) for vertex, place in block.places.items()}
        border = DrawnPlace(left + block.w / 2, upper + block.h / 2, block.w, block.h)
        ranks = tuple(v for v in block.places if not topology.is_transit(v))
        servers.append(Server(home, border, tuple(block.places), ranks))
    width = GAP + columns * step_x - GAP
    rows = ceil(len(blocks) / columns)
    rails = _rails(lone, width, [GAP + RAIL_H / 2 + row * step_y for row in range(rows)])
    places |= {vertex: rail[0] for vertex, rail in rails.items()}
    routes = _routes(topology, places, rails, servers)
    height = top + (rows - 1) * step_y + cell_h + GAP
    return PictureLayout(places, rails, tuple(servers), routes, width, height, len(servers) > UNFOLDED)


def _columns(count: int, w: float, h: float) -> int:
    """The number of columns that makes the picture about 16 by 10."""
    return max(1, min(count, round(sqrt(count * h / w * 1.6))))


def _rails(lone: Sequence[int], width: float, heights: Sequence[float]) -> dict[int, tuple[DrawnPlace, ...]]:
    """One rail per row of servers for each vertex between them; several vertices share the width."""
    part = (width - 2 * GAP - (len(lone) - 1) * GAP) / max(1, len(lone))
    return {
        vertex: tuple(DrawnPlace(GAP + part / 2 + i * (part + GAP), y, part, RAIL_H) for y in heights)
        for i, vertex in enumerate(lone)
    }


def sockets_of(topology: Topology) -> dict[int, int]:
    """The host of each rank over PCIe switches; ranks without one are left out."""
    near: dict[int, list[int]] = {}
    for link in topology.links:
        if link.kind == "pcie":
            near.setdefault(link.src, []).append(link.dst)
    hosts_of = {}
    for rank in topology.ranks:
        level, reached = [rank], {rank}
        while level and rank not in hosts_of:
            level = [v for u in level for v in near.get(u, ()) if topology.is_transit(v) and v not in reached]
            reached.update(level)
            hosts = sorted(v for v in level if topology.vertex[v].kind in ("host", "memory"))
            if hosts:
                hosts_of[rank] = hosts[0]
    return hosts_of


# One server.
@dataclass(frozen=True)
class _DrawnBlock:
    places: dict[int, DrawnPlace]
    w: float
    h: float


def _server(topology: Topology, home: int, sockets: Mapping[int, int]) -> _DrawnBlock:
    members = [vertex for vertex in topology.vertices if vertex.server == home]
    inside = {vertex.id for vertex in members}
    ranks = sorted(vertex.id for vertex in members if not topology.is_transit(vertex.id))
    near: dict[int, list[int]] = {vertex.id: [] for vertex in members}
    fast: dict[int, list[int]] = {vertex.id: [] for vertex in members}
    for link in topology.links:
        if link.src in inside and link.dst in inside:
            near[link.src].append(link.dst)
            if link.kind in FAST_KINDS:
                fast[link.src].append(link.dst)
    bars = [v.id for v in members if v.kind == "switch" and any(rank in fast[v.id] for rank in ranks)]
    order = {rank: i for i, rank in enumerate(ranks)}
    meshed = any(abs(order[a] - order[b]) > 1 for a in ranks for b in fast[a] if b in order)
    if meshed:
        places = _torus(topology.name, ranks) or _circles(ranks, sockets)
        places |= _bar_row(bars, places)
    else:
        places = _rows(ranks, bars)
    _add_levels(places, [vertex for vertex in members if vertex.id not in places], near)
    left = min(place.x - place.w / 2 for place in places.values()) - MARGIN
    upper = min(place.y - place.h / 2 for place in places.values()) - MARGIN - HEAD
    right = max(place.x + place.w / 2 for place in places.values()) + MARGIN
    lower = max(place.y + place.h / 2 for place in places.values()) + MARGIN
    return _DrawnBlock({v: place.moved(-left, -upper) for v, place in places.items()}, right - left, lower - upper)


def _rows(ranks: Sequence[int], bars: Sequence[int]) -> dict[int, DrawnPlace]:
    """Ranks in rows above and below the switch that joins them; every second row is shifted to let links pass."""
    step = NODE_W + GAP
    per_row = len(ranks) if len(ranks) <= IN_ROW else ceil(len(ranks) / (2 * ceil(len(ranks) / 36)))
    rows = [ranks[i : i + per_row] for i in range(0, len(ranks), per_row)]
    above = ceil(len(rows) / 2)
    heights = [-ROW * (above - i) for i in range(above)] + [ROW * (i + 1) for i in range(len(rows) - above)]
    if not bars:
        heights = [ROW * i for i in range(len(rows))]
    places = {
        rank: DrawnPlace(i * step + (n % 2 if len(rows) > 2 else 0) * step / 2, heights[n])
        for n, row in enumerate(rows)
        for i, rank in enumerate(row)
    }
    width = max(place.x for place in places.values()) + NODE_W
    part = (width - (len(bars) - 1) * GAP) / max(1, len(bars))
    return places | {bar: DrawnPlace(i * (part + GAP) + (part - NODE_W) / 2, 0.0, part) for i, bar in enumerate(bars)}


def _circles(ranks: Sequence[int], sockets: Mapping[int, int]) -> dict[int, DrawnPlace]:
    """Ranks on one circle per socket, every second one mirrored, so that linked ranks face each other."""
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(sockets.get(rank, -1), []).append(rank)
    sizes = {len(group) for group in groups.values()}
    if len(groups) < 2 or len(sizes) > 1 or not 3 <= min(sizes) <= 8:
        groups = {0: list(ranks)}
    places: dict[int, DrawnPlace] = {}
    left = 0.0
    for number, group in enumerate(groups.values()):
        n, named = len(group), len(ranks) <= NAMED_ON_CIRCLE
        radius = max(84.0, n * (NODE_W + 2 * GAP if named else _DOT + 6) / (2 * pi))
        size = (NODE_W, NODE_H) if named else (_DOT, _DOT)
        for i, rank in enumerate(group):
            angle = -pi / 2 - pi / n + 2 * pi * i / n
            x = cos(angle) * radius * (1.15 if n > 4 else 1.0) * (-1 if number % 2 else 1)
            places[rank] = DrawnPlace(left + x, sin(angle) * radius, *size)
        left += 2 * radius + 1.6 * NODE_W
    return places


def _torus(name: str, ranks: Sequence[int]) -> dict[int, DrawnPlace] | None:
    """A grid for a topology named as a torus; with more than two sides, one grid below another."""
    sides = [int(side) for side in name.removeprefix("torus:").split("x")] if _TORUS.fullmatch(name) else []
    if not sides or prod(sides) != len(ranks):
        return None
    columns, step = sides[-1], NODE_W + 2.5 * GAP
    grid = columns * sides[-2]
    return {rank: DrawnPlace(i % columns * step, (i // columns + i // grid) * ROW) for i, rank in enumerate(ranks)}


def _bar_row(bars: Sequence[int], places: Mapping[int, DrawnPlace]) -> dict[int, DrawnPlace]:
    low = max(place.y for place in places.values()) + ROW
    centre = (min(p.x for p in places.values()) + max(p.x for p in places.values())) / 2
    step = 2 * NODE_W
    return {bar: DrawnPlace(centre + (i - (len(bars) - 1) / 2) * step, low, 1.6 * NODE_W) for i, bar in enumerate(bars)}


def _add_levels(places: dict[int, DrawnPlace], rest: Sequence[Vertex], near: Mapping[int, Sequence[int]]) -> None:
    """Add levels above the ranks: PCIe switches by their distance from ranks, processors, and NICs on top.

    If a rank has a switch of its own right above it, links from higher NICs would cross the switch. Then the NICs form
    the lowest level, between two ranks.
    """
    ranks = set(places)
    alone = any(v.kind == "switch" and len(ranks.intersection(near[v.id])) == 1 for v in rest)
    distance = _distances(list(places), near)
    kinds = {"nic": 0 if alone else 9, "switch": 1, "host": 2, "memory": 3}
    beside = NODE_W / 2 + GAP / 2 if alone else 0.0
    levels: dict[tuple[int, int], list[int]] = {}
    for vertex in rest:
        far = distance.get(vertex.id, 1) if vertex.kind == "switch" else 0
        levels.setdefault((kinds.get(vertex.kind, 1), far), []).append(vertex.id)
    height = min(place.y for place in places.values())
    middle = (min(p.x for p in places.values()) + max(p.x for p in places.values())) / 2
    for (kind, _), row in sorted(levels.items()):
        height -= ROW
        positions = {}
        for one in row:
            below = [places[other].x for other in near[one] if other in places]
            positions[one] = (sum(below) / len(below) if below else middle) + (0.0 if kind else beside)
        places.update((one, DrawnPlace(x, height)) for one, x in _spread(positions).items())


def _distances(starts: Sequence[int], near: Mapping[int, Sequence[int]]) -> dict[int, int]:
    steps = dict.fromkeys(starts, 0)
    level = list(starts)
    while level:
        following = []
        for u in level:
            for v in near[u]:
                if v not in steps:
                    steps[v] = steps[u] + 1
                    following.append(v)
        level = following
    return steps


def _spread(positions: Mapping[int, float]) -> dict[int, float]:
    """The desired positions, moved apart as far as boxes need, about their common centre."""
    order = sorted(positions, key=lambda vertex: (positions[vertex], vertex))
    placed: list[float] = []
    for vertex in order:
        placed.append(max(positions[vertex], placed[-1] + NODE_W + GAP / 2) if placed else positions[vertex])
    shift = sum(positions[vertex] - x for vertex, x in zip(order, placed, strict=True)) / len(order)
    return {vertex: x + shift for vertex, x in zip(order, placed, strict=True)}


# Links.
def _routes(
    topology: Topology,
    places: Mapping[int, DrawnPlace],
    rails: Mapping[int, tuple[DrawnPlace, ...]],
    servers: Iterable[Server],
) -> dict[tuple[int, int], tuple[Point, ...]]:
    inside: dict[int, list[DrawnPlace]] = {}
    for server in servers:
        if len(server.members) <= NAMED_ON_CIRCLE:
            inside[server.number] = [p for p in (places[v] for v in server.members) if p.w <= NODE_W]
    cables = {(x.src, x.dst) for x in cables_of(topology)} if len(inside) <= UNFOLDED else set()
    routes: dict[tuple[int, int], tuple[Point, ...]] = {}
    for link in topology.links:
        ends = (link.src, link.dst)
        back = routes.get((link.dst, link.src))
        if back is None:
            a, b = (_nearest(v, w, places, rails) for v, w in (ends, ends[::-1]))
            homes = inside if ends in cables else (topology.vertex[link.src].server,)
            near = [p for home in homes for p in inside.get(home, ())]
            others = [p for p in near if p not in (places[link.src], places[link.dst])]
            routes[ends] = _way(a, b, others)
        else:
            routes[ends] = (back[1], back[0], *back[2:])
    return {ends: _to_the_right(route, 1.9) if ends[::-1] in routes else route for ends, route in routes.items()}


def _nearest(
    vertex: int, other: int, places: Mapping[int, DrawnPlace], rails: Mapping[int, tuple[DrawnPlace, ...]]
) -> DrawnPlace:
    """The box of ``vertex``, or the part of its rail or bar right above or below ``other``."""
    place, end = places[vertex], places[other]
    if vertex in rails:
        above = [rail for rail in rails[vertex] if rail.y < end.y]
        place = above[-1] if above else rails[vertex][0]
    if place.w <= 1.6 * NODE_W or end.w > place.w:
        return place
    half = place.w / 2 - 6
    return DrawnPlace(min(max(end.x, place.x - half), place.x + half), place.y, 10.0, place.h)


def _way(a: DrawnPlace, b: DrawnPlace, others: Sequence[DrawnPlace]) -> tuple[Point, ...]:
    """A route from border to border, with the least bend that avoids ``others``."""
    middle = ((a.x + b.x) / 2, (a.y + b.y) / 2)
    length = hypot(b.x - a.x, b.y - a.y) or 1.0
    normal = ((b.y - a.y) / length, -(b.x - a.x) / length)
    for bend in _BENDS:
        control = (middle[0] + normal[0] * 2 * bend, middle[1] + normal[1] * 2 * bend)
        way = (a.towards(control), b.towards(control)) + ((control,) if bend else ())
        along = curve(way)
        points = [along(i / 16) for i in range(1, 16)]
        if not any(other.holds(point, 3.0) for other in others for point in points):
            return way
    return a.towards((b.x, b.y)), b.towards((a.x, a.y))


def _to_the_right(route: tuple[Point, ...], by: float) -> tuple[Point, ...]:
    (x1, y1), (x2, y2) = route[:2]
    length = hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = -(y2 - y1) / length * by, (x2 - x1) / length * by
    return tuple((x + dx, y + dy) for x, y in route)


def curve(route: tuple[Point, ...]) -> Callable[[float], Point]:
    """The point of a route at a fraction of its length, 0 to 1."""
    a, b = route[:2]
    control = route[2] if len(route) > 2 else ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)

    def at(part: float) -> Point:
        p, q, r = (1 - part) ** 2, 2 * part * (1 - part), part**2
        return p * a[0] + q * control[0] + r * b[0], p * a[1] + q * control[1] + r * b[1]

    return at


def hull_of(points: Sequence[Point]) -> list[Point]:
    """The convex hull (Andrew's monotone chain)."""
    halves = []
    for order in (sorted(points), sorted(points, reverse=True)):
        half: list[Point] = []
        for p in order:
            while len(half) > 1 and _turn(half[-2], half[-1], p) <= 0:
                half.pop()
            half.append(p)
        halves += half[:-1]
    return halves


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def inside(point: Point, hull: Sequence[Point]) -> bool:
    """True if the point is in a convex hull, or on it."""
    return all(_turn(a, b, point) >= 0 for a, b in zip(hull, [*hull[1:], hull[0]], strict=True))
