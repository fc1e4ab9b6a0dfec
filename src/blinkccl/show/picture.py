"""A machine as a picture: places, links with a width by rate and a colour by load, and the cut of a proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import hypot

from blinkccl.show.layout import (
    GAP,
    HEAD,
    MARGIN,
    NODE_W,
    RAIL_H,
    DrawnPlace,
    PictureLayout,
    Point,
    Server,
    curve,
    hull_of,
    inside,
    layout,
)
from blinkccl.show.shapes import KIND_STYLES, Line, Picture, Rect, Shape, ShapeGroup, Text
from blinkccl.show.text import count, gb_per_s_text, ids
from blinkccl.topology.model import RANK_KINDS, Link, Topology, Vertex
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Forest, Partition

Arc = tuple[int, int]
#: Loads above this part of a link's rate are shown as full, since measured and simulated loads are never exact.
_FULL = 0.995
_THIN, _THICK = 1.4, 2.2
_LABEL = 9
#: Limit on boxes for the ranks of a folded server.
_DOTTED = 16
#: Limit on prices that are printed.
MOST_PRICES = 12
#: Above this number of links, both directions share a line without words, to limit the size of the page.
MOST_LINES = 20_000
_KINDS = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "chip to chip",
    "shm": "shared memory",
    "pcie": "PCIe",
    "smp": "bus between processors",
    "net": "network",
}
_LOADS = (
    ("idle", "unused"),
    ("load1", "to 25 %"),
    ("load2", "to 50 %"),
    ("load3", "to 75 %"),
    ("load4", "less than full"),
    ("full", "full"),
)


@dataclass(frozen=True)
class Subject:
    """The subject drawn on a machine.

    ``ranks``: those of the job, None for all. ``links``: those that belong to the subject, None for all; other links
    of the machine are faint. ``load``: the used part of each link's rate, None for a picture of kinds of links.
    ``proof``: a certificate, and the topology of its links.
    """

    ranks: Collection[int] | None = None
    links: Collection[Arc] | None = None
    load: Mapping[Arc, float] | None = None
    proof: tuple[Certificate, Topology] | None = None


def subject_of(forest: Forest) -> Subject:
    """The links, loads and proof of a plan."""
    link = forest.topology.link
    load = {arc: float(load / link[arc].capacity) for arc, load in forest.link_load.items() if arc in link}
    return Subject(frozenset(forest.ranks), link.keys(), load, (forest.certificate, forest.topology))


def machine_picture(
    topology: Topology,
    subject: Subject | None = None,
    *,
    title: str = "",
    about: str = "",
    sockets: Mapping[int, int] | None = None,
    prefix: str = "",
) -> Picture:
    """The machine with all its links, each direction with the id ``l<number>`` by :func:`line_numbers`.

    With many servers, each is folded: its contents are a group ``inside``, which is hidden until a script shows it, or
    removed by :func:`folded`. ``prefix`` goes before all ids, for a second picture on one page.
    """
    subject = subject or Subject()
    placed = layout(topology, sockets)
    scale = max(1.0, placed.width / 1500) if placed.folded else 1.0
    painter = _Painter(topology, subject, placed, scale, prefix)
    shapes: list[Shape] = [*painter.rails()]
    if placed.folded:
        shapes.append(
            ShapeGroup([bundle for server in placed.servers for bundle in painter.bundles(server)], style="links")
        )
        shapes += [painter.folded_server(server) for server in placed.servers]
    else:
        shapes += [painter.server(server) for server in placed.servers]
        shapes += [painter.links(range(len(topology.links))), *painter.vertices(topology.vertices)]
    shapes += painter.proof()
    legend, height, width = painter.legend(placed.height)
    return Picture(
        [*shapes, *legend],
        max(placed.width, width),
        height,
        title or topology.name,
        about
        or f"{topology.name}: {count(len(topology.ranks), 'rank')}, {count(len(topology.links), 'directed link')}",
    )


def line_numbers(topology: Topology) -> dict[Arc, int]:
    """The number of the line for each link: its own, or in a machine with very many links the line of its pair."""
    number = {(link.src, link.dst): i for i, link in enumerate(topology.links)}
    if len(number) <= MOST_LINES:
        return number
    return {(u, v): number.get((min(u, v), max(u, v)), i) for (u, v), i in number.items()}


def folded(picture: Picture) -> Picture:
    """A picture without the contents of folded servers, for output without zoom."""
    return replace(picture, shapes=[_folded(shape) for shape in picture.shapes])


def _folded(shape: Shape) -> Shape:
    if not isinstance(shape, ShapeGroup):
        return shape
    return replace(shape, items=[_folded(item) for item in shape.items if getattr(item, "style", "") != "inside"])


def name_of(vertex: Vertex) -> str:
    """GPU7 or CPU3, as typed for ``--gpus``; other vertices by their own name."""
    return f"{vertex.kind.upper()}{vertex.id}" if vertex.kind in RANK_KINDS else vertex.label


def _short_name(vertex: Vertex) -> str:
    """A name without the name of the server, whose box contains the vertex."""
    return name_of(vertex).partition("/")[2] or name_of(vertex)


def load_style(part: float) -> str:
    """The style of a link with ``part`` of its rate in use."""
    if part <= 0:
        return "idle"
    return "full" if part > _FULL else f"load{min(4, 1 + int(part * 4 - 1e-9))}"


def crossing(certificate: Certificate, topology: Topology) -> list[Arc]:
    """The links of the proof: those that leave the side, lie between the parts, or have a price."""
    match certificate:
        case Cut():
            side = set(certificate.side)
            return [(x.src, x.dst) for x in topology.links if x.src in side and x.dst not in side]
        case Partition():
            home = {vertex: i for i, block in enumerate(certificate.blocks) for vertex in block}
            return [(x.src, x.dst) for x in topology.links if home.get(x.src) != home.get(x.dst)]
        case Dual():
            return [(u, v) for u, v, _ in certificate.prices]


def cut_sum(certificate: Certificate, topology: Topology) -> Fraction:
    """Capacity of the crossing links (of a partition: each way), in units of capacity, or at their prices."""
    if isinstance(certificate, Dual):
        return sum((topology.link[u, v].capacity * price for u, v, price in certificate.prices), Fraction(0))
    total = sum((Fraction(topology.link[arc].capacity) for arc in crossing(certificate, topology)), Fraction(0))
    return total / 2 if isinstance(certificate, Partition) else total


def cut_words(certificate: Certificate, topology: Topology) -> str:
    """The bottleneck in words: its links, their ends, their total rate."""
    arcs = crossing(certificate, topology)
    total = gb_per_s_text(float(cut_sum(certificate, topology)) * topology.unit_gb_per_s)
    match certificate:
        case Cut():
            inside = [v for v in topology.ranks if v in set(certificate.side)]
            others = [v for v in topology.ranks if v not in set(certificate.side)]
            way = f"out of {_set(inside)}" if len(inside) <= len(others) else f"into {_set(others)}"
            return f"{_links(len(arcs))} {way}, {total} together"
        case Partition():
            pairs = len({frozenset(arc) for arc in arcs})
            blocks = [_set([v for v in block if not topology.is_transit(v)]) for block in certificate.blocks]
            if len(blocks) > 4:
                return f"the {_links(pairs)} between {len(blocks)} parts of the machine, {total} each way together"
            return f"{_links(pairs)} between {', '.join(blocks[:-1])} and {blocks[-1]}, {total} each way"
        case Dual():
            if len(arcs) > 2:
                return f"{len(arcs)} links that hold it up together, each with a price in the proof"
            named = [f"{topology.vertex[u].label} → {topology.vertex[v].label}" for u, v in arcs]
            rates = [gb_per_s_text(topology.link[arc].gb_per_s) for arc in arcs]
            return " and ".join(f"the link {name}, {rate}" for name, rate in zip(named, rates, strict=True))


def _links(number: int) -> str:
    return "the one link" if number == 1 else f"{number} links"


def _set(vertices: Sequence[int]) -> str:
    shown = ids(sorted(vertices))
    return f"{{{shown}}}" if len(shown) <= 40 else f"{{{shown[:37]}…}}"


class _Painter:
    """One picture under construction."""

    def __init__(self, topology: Topology, subject: Subject, placed: PictureLayout, scale: float, prefix: str) -> None:
        self.topology, self.subject, self.placed = topology, subject, placed
        self.scale, self.prefix = scale, prefix
        self.rail_scale = min(scale, 2.2)  # The limit of the space.
        self.fastest = max((link.gb_per_s for link in topology.links), default=1.0)
        self.number = line_numbers(topology)
        self.paired = len(topology.links) > MOST_LINES
        self.of_server: dict[int, list[int]] = {}
        for i, link in enumerate(topology.links):
            for home in dict.fromkeys((topology.vertex[link.src].server, topology.vertex[link.dst].server)):
                self.of_server.setdefault(home, []).append(i)

    # Vertices.
    def rails(self) -> list[Shape]:
        shapes: list[Shape] = []
        for vertex, rails in self.placed.rails.items():
            what = self.topology.vertex[vertex]
            height = rails[0].h * self.rail_scale
            for i, rail in enumerate(rails):
                box = Rect(rail.x - rail.w / 2, rail.y - height / 2, rail.w, height, what.kind, 5.0, self.scale)
                label = [self._words(rail, name_of(what))] if i == 0 or self.placed.folded else []
                shapes.append(ShapeGroup([box, *label], style="rail", title=f"{what.label} ({what.kind})"))
        return shapes

    def server(self, server: Server) -> Shape:
        p = server.place
        box = Rect(p.x - p.w / 2, p.y - p.h / 2, p.w, p.h, "server", 10.0)
        name = f"server {server.number}" if len(self.placed.servers) > 1 else self.topology.name
        words = Text(p.x - p.w / 2 + MARGIN - 4, p.y - p.h / 2 + HEAD - 6, name, "soft", 12.0, "start")
        words = replace(words, x=self._beside_links(words, server))
        return ShapeGroup([box, words], f"{self.prefix}server{server.number}")

    def _beside_links(self, words: Text, server: Server) -> float:
        """The leftmost place for a server's name that no link to the network crosses."""
        crossed, inside = [], set(server.members)
        for i in self.of_server.get(server.number, ()):
            link = self.topology.links[i]
            (x, y), (u, v) = self.placed.routes[link.src, link.dst][:2]
            if not inside.issuperset((link.src, link.dst)) and y != v:
                crossed.append(x + (u - x) * (words.y - 4 - y) / (v - y))
        left = words.x
        for x in sorted(crossed):
            if left - 6 < x < left + words.width + 6:
                left = x + 8
        right = server.place.x + server.place.w / 2
        return left if left + words.width < right else words.x

    def folded_server(self, server: Server) -> Shape:
        """A box with the server's name and GPUs; its contents are a group that a script shows."""
        p = server.place
        size = min(p.h / 3.2, 24.0 * self.scale)
        box = Rect(p.x - p.w / 2, p.y - p.h / 2, p.w, p.h, "server", 10.0, self.scale)
        ranks = ids(server.ranks)
        own = f"GPU {ranks}" if len(ranks) < 14 else count(len(server.ranks), "GPU")
        words = [
            Text(p.x, p.y, f"server {server.number}", "text", size),
            Text(p.x, p.y + size * 1.1, own, "soft", size * 0.8),
        ]
        dots = self._dots(p, len(server.ranks), size)
        groups: list[Shape] = [box, *words, *dots]
        numbers = self.of_server.get(server.number, [])
        vertices = [self.topology.vertex[v] for v in server.members]
        groups.append(ShapeGroup([self.links(numbers), *self.vertices(vertices)], style="inside"))
        title = f"server {server.number}: {count(len(server.ranks), 'GPU')} ({ranks})"
        return ShapeGroup(groups, f"{self.prefix}server{server.number}", "unit", title)

    def _dots(self, place: DrawnPlace, ranks: int, size: float) -> list[Shape]:
        """A small box for each rank, below the words; none for many ranks, or without room."""
        step = min(size, place.w / (ranks + 2))
        left, top = place.x - ranks * step / 2, place.y + size * 1.65
        if ranks > _DOTTED or top + step > place.y + place.h / 2:
            return []
        return [Rect(left + (i + 0.15) * step, top, 0.7 * step, 0.7 * step, "gpu", step / 8) for i in range(ranks)]

    def vertices(self, vertices: Sequence[Vertex]) -> list[Shape]:
        return [self._node(vertex) for vertex in vertices if vertex.id not in self.placed.rails]

    def _node(self, vertex: Vertex) -> Shape:
        p, ranks = self.placed.places[vertex.id], self.subject.ranks
        away = ranks is not None and vertex.kind in RANK_KINDS and vertex.id not in ranks
        style = f"{vertex.kind} away" if away else vertex.kind
        box = Rect(p.x - p.w / 2, p.y - p.h / 2, p.w, p.h, style, min(7.0, p.h / 2))
        words = [] if p.w < NODE_W else [self._words(p, _short_name(vertex), "soft" if away else "text")]
        title = f"{name_of(vertex)} ({vertex.label}, {vertex.kind}{', not in this job' if away else ''})"
        return ShapeGroup([box, *words], f"{self.prefix}v{vertex.id}", "node", title)

    def _words(self, place: DrawnPlace, words: str, style: str = "text") -> Text:
        rail = place.h == RAIL_H and self.placed.folded
        size = min(12.0 * self.scale, 0.7 * RAIL_H * self.rail_scale) if rail else 12.0
        most = max(_LABEL, int(place.w / 8))
        shown = words if len(words) <= most else f"{words[: most - 1]}…"
        return Text(place.x, place.y + size * 0.35, shown, style, size)

    # Links.
    def links(self, numbers: Sequence[int]) -> Shape:
        """One group, so that a script can make all links faint at once."""
        links = [(i, self.topology.links[i]) for i in numbers]
        return ShapeGroup([self._link(i, x) for i, x in links if self.number[x.src, x.dst] == i], style="links")

    def _link(self, number: int, link: Link) -> Shape:
        arc = (link.src, link.dst)
        width = _THIN + _THICK * link.gb_per_s / self.fastest
        route = self.placed.routes[arc]
        style = self._style(link)
        alone = (link.dst, link.src) not in self.number
        line = Line(route, f"link {style}", width, len(route) > 2, f"tip {style}" if alone else "")
        return ShapeGroup([line], f"{self.prefix}l{number}", "way", "" if self.paired else self._title(link))

    def _style(self, link: Link) -> str:
        arc, subject = (link.src, link.dst), self.subject
        if subject.links is not None and arc not in subject.links:
            return "idle faint"
        if subject.load is None:
            return KIND_STYLES[link.kind]
        return load_style(max(subject.load.get(one, 0.0) for one in ((arc, arc[::-1]) if self.paired else (arc,))))

    def _title(self, link: Link) -> str:
        ends = f"{name_of(self.topology.vertex[link.src])} → {name_of(self.topology.vertex[link.dst])}"
        load = self.subject.load
        full = f", {load.get((link.src, link.dst), 0.0):.0%} full" if load is not None else ""
        return f"{ends}: {gb_per_s_text(link.gb_per_s)} {_KINDS[link.kind]}{full}"

    def bundles(self, server: Server) -> list[Shape]:
        """The links between a folded server and the network."""
        inside = set(server.members)
        return [*self._bundle(server, inside, True), *self._bundle(server, inside, False)]

    def _bundle(self, server: Server, inside: set[int], leaving: bool) -> list[Shape]:
        """A server's links to or from the network as one line, with the load of the fullest."""
        own = [self.topology.links[i] for i in self.of_server.get(server.number, ())]
        ends = [((x.src, x.dst) if leaving else (x.dst, x.src), x) for x in own]
        links = [x for (near, far), x in ends if near in inside and far not in inside]
        if not links:
            return []
        p, side = server.place, 14.0 * self.scale / 2 * (1 if leaving else -1)
        rail = max((r.y for rails in self.placed.rails.values() for r in rails if r.y < p.y), default=p.y - p.h)
        width = 9.0 * self.scale / 2
        low, high = (p.x + side, p.y - p.h / 2), (p.x + side, rail + RAIL_H / 2 * self.rail_scale)
        load = self.subject.load
        part = 0.0 if load is None else max(load.get((x.src, x.dst), 0.0) for x in links)
        style = KIND_STYLES[links[0].kind] if load is None else load_style(part)
        total = gb_per_s_text(sum(x.gb_per_s for x in links))
        way = "to" if leaving else "from"
        title = f"server {server.number} {way} the network: {_links(len(links))}, {total}"
        data = {"data-links": " ".join(str(self.number[x.src, x.dst]) for x in links)}
        line = Line((low, high) if leaving else (high, low), f"link {style}", width)
        return [
            ShapeGroup([line], f"{self.prefix}b{server.number}{'o' if leaving else 'i'}", "way bundle", title, data)
        ]

    # The proof.
    def proof(self) -> list[Shape]:
        if self.subject.proof is None:
            return []
        certificate, network = self.subject.proof
        marks: list[Shape] = []
        arcs = crossing(certificate, network)
        few = len(arcs) <= MOST_PRICES if isinstance(certificate, Dual) else len(arcs) < len(network.links)
        if few and not self.placed.folded:
            marks = [self._mark(arc) for arc in arcs if arc in self.placed.routes]
        if isinstance(certificate, Dual):
            if few and len(arcs) > 1 and not self.placed.folded:
                marks += [self._price(u, v, price) for u, v, price in certificate.prices]
        else:
            marks += self._outlines(_blocks(certificate, network))
        return [ShapeGroup(marks, f"{self.prefix}cut", "proof", f"the bottleneck: {cut_words(certificate, network)}")]

    def _mark(self, arc: Arc) -> Shape:
        """A stroke across the middle of a link."""
        along = curve(self.placed.routes[arc])
        (x, y), (x1, y1), (x2, y2) = along(0.5), along(0.48), along(0.52)
        length = hypot(x2 - x1, y2 - y1) or 1.0
        dx, dy = -(y2 - y1) / length * 6, (x2 - x1) / length * 6
        return Line(((x - dx, y - dy), (x + dx, y + dy)), "cutmark", 2.2)

    def _price(self, u: int, v: int, price: Fraction) -> Shape:
        x, y = curve(self.placed.routes[u, v])(0.5)
        return Text(x + 10, y + 4, f"×{price}", "cuttext", 11.0, "start")

    def _outlines(self, blocks: Sequence[Sequence[int]]) -> list[Shape]:
        """Outlines of all parts; of two, only the smaller."""
        few = blocks if len(blocks) > 2 else [min(blocks, key=len)]
        return [shape for block in few for shape in self._outline(set(block))]

    def _outline(self, block: set[int]) -> list[Shape]:
        whole = [server.place for server in self.placed.servers if block.issuperset(server.members)]
        covered = {v for s in self.placed.servers if block.issuperset(s.members) for v in s.members}
        if self.placed.folded:
            whole = [s.place for s in self.placed.servers if block.intersection(s.members)]
            return [_frame(place, GAP * 0.7, 2.4 * self.scale) for place in whole]
        rest = sorted(block - covered - self.placed.rails.keys())
        boxes = [self.placed.places[v] for v in rest]
        frames: list[Shape] = [_frame(place, 5.0, 2.0) for place in whole]
        if not boxes:
            return frames
        hull = hull_of([corner for box in boxes for corner in _corners(box, 9.0)])
        strangers = [p for v, p in self.placed.places.items() if v not in block and v not in self.placed.rails]
        if len(boxes) == 1 or any(inside((p.x, p.y), hull) for p in strangers):
            return frames + [_frame(box, 6.0, 2.0) for box in boxes]
        return [*frames, Line(tuple(hull), "cut", 2.0, closed=True)]

    # The legend.
    def legend(self, top: float) -> tuple[list[Shape], float, float]:
        """Lines that explain colours and marks, the lower end of the picture, and their width."""
        size = 12.0 if self.scale == 1.0 else 16.0 * self.scale  # Clusters are displayed at a smaller scale.
        if self.subject.load is None:
            kinds = list(dict.fromkeys(link.kind for link in self.topology.links))
            entries = [(KIND_STYLES[kind], f"{_KINDS[kind]} {self._rates(kind)}") for kind in kinds]
        else:
            entries = [(style, words) for style, words in _LOADS]
        shapes: list[Shape] = []
        x, y = 14.0 * self.scale, top + 2 * size
        limit = max(self.placed.width, 560.0)
        title = "links, as wide as they are fast:" if self.subject.load is None else "links by their load:"
        words = Text(x, y, title, "soft", size, "start")
        shapes.append(words)
        x += words.width + size
        for style, entry in entries:
            text = Text(x + 2.4 * size, y, entry, "text", size, "start")
            if x + 2.4 * size + text.width > limit:
                x, y = 14.0 * self.scale, y + 1.7 * size
                text = Text(x + 2.4 * size, y, entry, "text", size, "start")
            shapes.append(Line(((x, y - size * 0.33), (x + 2 * size, y - size * 0.33)), f"link {style}", 0.33 * size))
            shapes.append(text)
            x += 2.4 * size + text.width + 1.4 * size
        if self.subject.proof is not None:
            y += 1.8 * size
            bottleneck = f"the bottleneck: {cut_words(*self.subject.proof)}"
            indent = 14.0 * self.scale + 2.4 * size
            mark = Line(
                ((14.0 * self.scale, y - size * 0.33), (14.0 * self.scale + 2 * size, y - size * 0.33)),
                "cut",
                0.17 * size,
            )
            shapes.append(mark)
            lines = _wrapped(bottleneck, limit - indent, size)
            shapes += [Text(indent, y + i * 1.4 * size, line, "cuttext", size, "start") for i, line in enumerate(lines)]
            y += (len(lines) - 1) * 1.4 * size
        return shapes, y + size, max(shape.right for shape in shapes if isinstance(shape, Text)) + size

    def _rates(self, kind: str) -> str:
        rates = sorted({link.gb_per_s for link in self.topology.links if link.kind == kind})
        return gb_per_s_text(rates[0]) if len(rates) == 1 else f"{rates[0]:g} to {gb_per_s_text(rates[-1])}"


def _wrapped(words: str, width: float, size: float) -> list[str]:
    """Lines of at most ``width``, as far as possible."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and Text(0, 0, longer, "cuttext", size).width > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _blocks(certificate: Cut | Partition, topology: Topology) -> Sequence[Sequence[int]]:
    if isinstance(certificate, Partition):
        return certificate.blocks
    side = set(certificate.side)
    return certificate.side, [vertex.id for vertex in topology.vertices if vertex.id not in side]


def _frame(place: DrawnPlace, margin: float, width: float) -> Shape:
    w, h = place.w + 2 * margin, place.h + 2 * margin
    return Rect(place.x - w / 2, place.y - h / 2, w, h, "cut", 12.0, width)


def _corners(place: DrawnPlace, margin: float) -> list[Point]:
    w, h = place.w / 2 + margin, place.h / 2 + margin
    return [(place.x + i * w, place.y + j * h) for i in (-1, 1) for j in (-1, 1)]
