"""The page: one file with the same bytes each time, without requests, and without HTML from a file."""

import json
import re
from html.parser import HTMLParser

import pytest

from blinkccl.show.page import (
    Exhibit,
    Figure,
    Prose,
    Table,
    exhibit_document,
    exhibit_page,
    exhibit_picture,
)
from blinkccl.show.shapes import Picture, Rect
from blinkccl.show.show import of_plan, of_topology
from blinkccl.topology.spec import parse_spec
from support.planned import plan

EVIL = "</script><img src=x onerror=alert(1)>&\"'"


class Elements(HTMLParser):
    """Tags with their attributes, and a check that each is closed in order."""

    VOID = frozenset({"meta", "link", "input", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module", params=[("dgx-1v", "1,4,5,6"), ("2x dgx-a100", None), ("12x dgx-a100", None)])
def page(request):
    spec, gpus = request.param
    return exhibit_page(of_plan(plan("optimal", spec, gpus, "broadcast"), None))


def test_it_is_well_formed_and_ids_are_unique(page):
    elements = Elements(page)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {part for _, a in elements.found if a.get("aria-labelledby") for part in a["aria-labelledby"].split()}
    assert named <= set(ids)


def test_it_loads_nothing(page):
    for tag, attributes in Elements(page).found:
        assert tag not in ("iframe", "object", "embed", "img", "base")
        for name in ("src", "href", "action", "data", "poster", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value == "data:,", (tag, value)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", page)


def test_the_script_finds_all_its_elements(page):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    links = {int(number) for number in re.findall(r'<g id="l(\d+)"', page)}
    assert data["shares"]
    for share in data["shares"]:
        assert set(share["up"]) | set(share["down"]) <= links
    for share, begin, end, *crossed in data.get("moves", []):
        assert 0 <= share < len(data["shares"])
        assert 0 <= begin < end <= 10000
        assert crossed
        assert set(crossed) <= links
    assert page.count('class="card"') == len(data["shares"])


def test_same_input_same_bytes():
    forest = plan("optimal", "dgx-1v", "1,4,5,6", "allreduce")
    assert exhibit_page(of_plan(forest, None)) == exhibit_page(of_plan(forest, None))
    assert "$" not in exhibit_page(of_plan(forest, None)).replace("${", "")


def test_the_script_is_small():
    script = re.search(r"<script>\n(.*)</script>", exhibit_page(of_topology(parse_spec("ring:3"))), re.DOTALL)[1]
    assert len(script.splitlines()) <= 300


def test_texts_are_never_html():
    figure = Figure(Picture([Rect(0, 0, 1, 1, "gpu", title=EVIL)], 9, 9, EVIL, EVIL), EVIL, "chart")
    shown = Exhibit(
        EVIL,
        EVIL,
        [(EVIL, EVIL)],
        [figure, Table(EVIL, (EVIL,), [(EVIL,)], about=EVIL), Prose(EVIL, [EVIL])],
        lambda width: EVIL,
        [EVIL],
        {EVIL: EVIL},
    )
    page = exhibit_page(shown)
    tags = [tag for tag, _ in Elements(page).found]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert json.loads(re.search(r'id="data">(.*?)</script>', page)[1]) == {EVIL: EVIL}


def test_a_thousand_gpus_stay_below_five_megabytes():
    topology = parse_spec("128x dgx-a100 @ 200Gbps")
    assert len(exhibit_page(of_topology(topology))) < 5_000_000


def test_the_document_has_the_content_of_the_page():
    shown = Exhibit("plan", "title", [("Fastest", "5 GB/s.")], [Table("Times", ("a", "b"), [("x", "1")])], str)
    document = exhibit_document(shown)
    assert document["tables"] == [{"title": "Times", "header": ["a", "b"], "rows": [["x", "1"]]}]
    assert document["summary"] == [{"term": "Fastest", "said": "5 GB/s."}]


def test_one_picture_has_machine_and_trees():
    shown = of_plan(plan("optimal", "dgx-1v", "1,4,5,6", "allreduce"), None)
    picture = exhibit_picture(shown)
    assert picture.width > 500
    assert picture.height > 600
