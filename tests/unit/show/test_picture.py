"""Pictures against their subjects (links, cuts, trees), without overlaps."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from xml.etree import ElementTree

import pytest

from blinkccl.show import picture as pictures
from blinkccl.show.charts import Curve, curves_picture
from blinkccl.show.layout import DrawnPlace, curve, layout
from blinkccl.show.picture import (
    Subject,
    crossing,
    cut_sum,
    cut_words,
    folded,
    line_numbers,
    load_style,
    machine_picture,
    subject_of,
)
from blinkccl.show.shapes import (
    LOADS,
    PALETTE,
    Line,
    Rect,
    ShapeGroup,
    Text,
    svg,
    svg_file,
)
from blinkccl.show.tree_picture import share_picture
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.model import Topology, Vertex
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Dual
from support.pictures import flat, words_beyond
from support.planned import plan

MACHINES = [
    *CATALOG,
    "ring:8",
    "torus:4x4",
    "torus:2x3x4",
    "star:5",
    "clique:48",
    "random:9:seed=2:directed",
    "2x dgx-1v @ 40Gbps",
]
CLUSTERS = ["3x dgx-a100", "12x hgx-h100 @ 400Gbps"]
PLANS = [
    ("dgx-1v", "1,4,5,6", "allreduce"),
    ("dgx-1v", None, "allreduce"),
    ("dgx-1v", None, "broadcast"),
    ("dgx-1v", "0-3", "allgather"),
    ("oneway:6", None, "allreduce"),
    ("2x dgx-a100", None, "allgather"),
    ("2x dgx-1v @ 40Gbps", "0,1,2+0,3,4,5,6", "allreduce"),
    ("chain:4", None, "gather"),
]
SVG = "{http://www.w3.org/2000/svg}"


def groups(shapes, collected=None):
    collected = [] if collected is None else collected
    for shape in shapes:
        if isinstance(shape, ShapeGroup):
            collected.append(shape)
            groups(shape.items, collected)
    return collected


@pytest.mark.parametrize("spec", [*MACHINES, *CLUSTERS])
def test_every_link_and_every_vertex_is_drawn_once(spec):
    topology = parse_spec(spec)
    picture = machine_picture(topology)
    names = [group.name for group in groups(picture.shapes)]
    assert sorted(name for name in names if re.fullmatch(r"l\d+", name)) == sorted(
        f"l{i}" for i in range(len(topology.links))
    )
    rails = layout(topology).rails
    assert sorted(name for name in names if re.fullmatch(r"v\d+", name)) == sorted(
        f"v{v.id}" for v in topology.vertices if v.id not in rails
    )
    root = ElementTree.fromstring(svg_file(picture))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


def test_both_directions_of_very_many_links_share_a_line(monkeypatch):
    monkeypatch.setattr(pictures, "MOST_LINES", 10)
    topology = parse_spec("clique:4")
    number = line_numbers(topology)
    drawn = [group for group in groups(machine_picture(topology).shapes) if group.style == "way"]
    assert len(drawn) == len(set(number.values())) == 6
    assert {group.name for group in drawn} == {f"l{i}" for i in number.values()}
    assert all(number[u, v] == number[v, u] for u, v in number)


@pytest.mark.parametrize("spec", [*MACHINES, *CLUSTERS])
def test_a_link_runs_from_one_of_its_boxes_to_the_other(spec):
    topology = parse_spec(spec)
    placed = layout(topology)
    for link in topology.links:
        begin, end = placed.routes[link.src, link.dst][:2]
        for vertex, point in ((link.src, begin), (link.dst, end)):
            boxes = placed.rails.get(vertex, (placed.places[vertex],))
            assert any(box.holds(point, 2.5) for box in boxes), (spec, link)


@pytest.mark.parametrize("spec", [*MACHINES, "3x dgx-a100"])
def test_boxes_do_not_overlap_and_names_fit(spec):
    topology = parse_spec(spec)
    placed = layout(topology)
    boxes = {**placed.places, **{-1 - v: rail for v, rails in placed.rails.items() for rail in rails[1:]}}
    assert not [(a, b) for a, b in combinations(boxes, 2) if boxes[a].meets(boxes[b])]
    for server in placed.servers:
        assert all(inside(server.place, placed.places[vertex]) for vertex in server.members)
    assert not [1 for a, b in combinations(placed.servers, 2) if a.place.meets(b.place)]
    for node in groups(machine_picture(topology).shapes):
        if re.fullmatch(r"v\d+", node.name):
            box, *words = node.items
            assert all(word.width <= box.w + 8 for word in words), node


def inside(outer: DrawnPlace, inner: DrawnPlace) -> bool:
    return (
        outer.x - outer.w / 2 <= inner.x - inner.w / 2
        and inner.x + inner.w / 2 <= outer.x + outer.w / 2
        and outer.y - outer.h / 2 <= inner.y - inner.h / 2
        and inner.y + inner.h / 2 <= outer.y + outer.h / 2
    )


CABLED = ["4x dgx-spark @ cables=ring", "4x mac-studio @ cables=mesh"]


@pytest.mark.parametrize("spec", ["dgx-1v", "dgx-2", "cedar", "mist", *CABLED])
def test_links_avoid_other_boxes(spec):
    topology = parse_spec(spec)
    placed = layout(topology)
    for link in topology.links:
        if link.kind in ("nvlink", "smp", "net"):
            along = curve(placed.routes[link.src, link.dst])
            for vertex, place in placed.places.items():
                if vertex not in (link.src, link.dst) and place.w < 100:
                    assert not any(place.holds(along(i / 20)) for i in range(1, 20)), (link, vertex)


@pytest.mark.parametrize(("spec", "gpus", "name"), PLANS)
def test_the_links_of_the_proof_have_its_capacity(spec, gpus, name):
    forest = plan("optimal", spec, gpus, name)
    certificate = forest.certificate
    total = cut_sum(certificate, forest.topology)
    assert total == (certificate.value if isinstance(certificate, Dual) else certificate.capacity)
    arcs = crossing(certificate, forest.topology)
    assert arcs
    assert set(arcs) <= forest.topology.link.keys()
    assert cut_words(certificate, forest.topology) in svg(machine_picture(forest.topology, subject_of(forest))).replace(
        "&gt;", ">"
    )


def test_a_cut_is_that_of_the_plan_also_on_a_larger_machine():
    forest = plan("optimal", "dgx-1v", "1,4,5,6", "allreduce")
    drawn = svg(machine_picture(parse_spec("dgx-1v"), subject_of(forest)))
    assert "the bottleneck: 2 links between {1,5,6} and {4}, 50 GB/s each way" in drawn


def test_the_smaller_side_of_a_cut_is_framed():
    forest = plan("optimal", "12x dgx-a100", None, "broadcast")
    (proof,) = (
        group for group in groups(machine_picture(forest.topology, subject_of(forest)).shapes) if group.name == "cut"
    )
    (frame,) = proof.items
    server = layout(forest.topology).servers[0].place
    assert (frame.x + frame.w / 2, frame.y + frame.h / 2) == pytest.approx((server.x, server.y))


@pytest.mark.parametrize(("spec", "gpus", "name"), PLANS)
def test_the_arcs_of_a_drawn_tree_are_those_of_the_forest(spec, gpus, name):
    forest = plan("optimal", spec, gpus, name)
    for number, share in enumerate(forest.shares):
        picture = share_picture(forest, share, number)
        drawn = [group for group in groups(picture.shapes) if group.style == "arc"]
        heads = {"head-up": set(), "head-down": set()}
        for group in drawn:
            parent, *some = map(int, group.data["data-ends"].split())
            for line in group.items:
                heads[line.head] |= {(parent, child) for child in some}
        up, down = share.reduce, share.broadcast
        assert heads["head-up"] == {(path[-1], path[0]) for path in (up.edges if up else ())}
        assert heads["head-down"] == {(path[0], path[-1]) for path in (down.edges if down else ())}
        texts = [shape for shape in flat(picture.shapes) if isinstance(shape, Text)]
        boxes = [DrawnPlace(t.x, t.y, t.width, t.size) for t in texts]
        assert not any(a.meets(b) for a, b in combinations(boxes, 2))


def drawn_beyond(picture):
    return words_beyond(svg_file(folded(picture)))


@pytest.mark.parametrize("spec", [*MACHINES, *CLUSTERS])
def test_no_words_of_a_machine_reach_beyond_its_picture(spec):
    assert drawn_beyond(machine_picture(parse_spec(spec))) == []


@pytest.mark.parametrize(("spec", "gpus", "name"), [*PLANS, ("dgx-1v", "0,1,4", "allreduce")])
def test_no_words_of_a_plan_reach_beyond_its_pictures(spec, gpus, name):
    forest = plan("optimal", spec, gpus, name)
    for topology in (parse_spec(spec), forest.topology):
        assert drawn_beyond(machine_picture(topology, subject_of(forest))) == []
    for number, share in enumerate(forest.shares[:8]):
        assert drawn_beyond(share_picture(forest, share, number)) == []


def test_large_trees_are_listed_by_levels():
    forest = plan("optimal", "100x dgx-1v @ 100Gbps", None, "broadcast")
    words = [
        shape.words for shape in flat(share_picture(forest, forest.shares[0], 0).shapes) if isinstance(shape, Text)
    ]
    tree = forest.shares[0].broadcast
    first = [path for path in tree.edges if path[0] == tree.root]
    assert words[:5] == ["ranks by their hops from the root", "0", "1", "1", str(len(first))]


def test_colours_of_loads():
    assert [load_style(part) for part in (0, 0.01, 0.25, 0.5, 0.75, 0.9, 0.996, 1)] == [
        "idle", "load1", "load1", "load2", "load3", "load4", "full", "full",
    ]  # fmt: skip
    forest = plan("optimal", "chain:3", None, "broadcast")
    drawn = svg(machine_picture(forest.topology, subject_of(forest)))
    assert {style: drawn.count(f'"link {style}" d="M') for style in LOADS}["full"] >= 2


def test_links_of_others_are_faint_and_their_ends_dashed():
    topology = parse_spec("ring:4")
    drawn = svg(machine_picture(topology, Subject({0, 1}, {(0, 1), (1, 0)}, {(0, 1): 1.0})))
    assert drawn.count("link idle faint") == 6
    assert drawn.count("gpu away") == 2


def test_names_are_escaped():
    odd = Topology("<&>", 1.0, (Vertex(0, "gpu", 0, '"<gpu>"'), Vertex(1, "switch", 0, "<b>'\"")), ())
    root = ElementTree.fromstring(svg_file(machine_picture(odd)))
    assert root.find(f"{SVG}title").text == "<&>"
    assert "<b>'\"" in [text.text for text in root.iter(f"{SVG}text")]


def contrast(one: str, other: str) -> float:
    """Contrast of two colours (WCAG 2)."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [0, 1])
def test_words_and_loads_can_be_seen(dark):
    colour = {name: pair[dark] for name, pair in PALETTE.items()}
    for words in ("ink", "soft", "cut", "up", "down"):
        assert contrast(colour[words], colour["paper"]) >= 4.5
    for box in ("gpu", "switch", "host", "nic", "panel"):
        assert contrast(colour["ink"], colour[box]) >= 7
    for mark in ("full", "load4", "load3", "nvlink", "net", "smp"):
        assert contrast(colour[mark], colour["panel"]) >= 3


# Charts.
def test_curves_leave_out_zeros_and_names_do_not_overlap():
    curves = [Curve(f"number {i}", [(1024, 0.0), (2048, 1.0 + i / 100), (4096, 2.0 + i / 100)]) for i in range(9)]
    picture = curves_picture("t", "GB/s", [*curves, Curve("nothing", [(1024, 0.0)])], ("bound", 3.0))
    names = [s for s in flat(picture.shapes) if isinstance(s, Text) and s.words.startswith("number")]
    assert len(names) == 9
    assert all(abs(a.y - b.y) >= 12 for a, b in combinations(names, 2))
    assert all(name.x + name.width <= picture.width + 1 for name in names)
    assert "nothing" not in picture.about


def test_curves_of_one_colour_differ_in_style():
    points = [(1024, 1.0), (2048, 2.0)]

    def looks(curves):
        lines = [s for s in flat(curves_picture("t", "GB/s", curves).shapes) if isinstance(s, Line)]
        return [s.style for s in lines if "curve" in s.style][::2]  # each with the mark beside its name

    many = looks([Curve(f"number {i}", points) for i in range(9)])
    assert len(set(many)) == 9
    pairs = looks([Curve("a", points), Curve("a, simulated", points, dashed=True), Curve("b", points)])
    assert pairs == ["s0 curve", "s0 curve dashed", "s1 curve"]


def test_an_axis_of_less_than_a_power_of_ten_has_more_numbers():
    picture = curves_picture("t", "GB/s", [Curve("one", [(1024, 30.0), (2048, 40.0)])])
    numbers = [s.words for s in flat(picture.shapes) if isinstance(s, Text) and s.anchor == "end"]
    assert {"30", "40"} <= set(numbers)


def test_one_size_is_a_point():
    picture = curves_picture("t", "GB/s", [Curve("one", [(1024, 2.0)])])
    assert any(isinstance(shape, Rect) for shape in flat(picture.shapes))


def test_long_fractions_are_percentages():
    forest = plan("optimal", "chain:2", None, "broadcast")
    share = replace(forest.shares[0], weight=Fraction(123456789, 987654321))
    assert share_picture(forest, share, 0).title == "share 1: 12.50% of the data"
