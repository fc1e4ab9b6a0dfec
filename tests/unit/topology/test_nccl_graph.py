"""NCCL's graph files, read and written."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology import nccl_graph
from blinkccl.topology.nccl_graph import ChannelGraph

SAMPLE = Path(nccl_graph.__file__).parent / "fixtures" / "rings.nccl-graph.xml"
HEAD = '<graph id="{id}" pattern="4" nchannels="{n}" speedintra="{speed}" typeintra="{kind}">'


def file(channels: str, number: str = "0", n: str = "1", speed: str = "20", kind: str = "NVL") -> str:
    head = HEAD.format(id=number, n=n, speed=speed, kind=kind)
    return f'<graphs version="1">{head}{channels}</graph></graphs>'


def channel(*devs: object) -> str:
    return "<channel>" + "".join(f'<gpu dev="{dev}"/>' for dev in devs) + "</channel>"


def test_the_sample_is_read() -> None:
    text = SAMPLE.read_text()
    (graph,) = nccl_graph.parse(text, "sample")
    assert (graph.id, graph.orders, graph.gb_per_s, graph.kind) == (0, ((0, 1, 2, 3),), 20, "NVL")


@settings(max_examples=30)
@given(data=st.data(), ranks=st.integers(2, 10), channels=st.integers(1, 32))
def test_written_graphs_read_back(data, ranks, channels) -> None:
    orders = tuple(tuple(data.draw(st.permutations(range(ranks)))) for _ in range(channels))
    kind = data.draw(st.sampled_from(nccl_graph.WRITTEN_KINDS))
    graph = ChannelGraph(0, nccl_graph.RING_PATTERN, orders, data.draw(st.integers(1, 200)) / 4, kind)
    text = nccl_graph.write([graph], ["a remark -- with what no comment may hold -->"])
    (graph,) = nccl_graph.parse(text, "written")
    assert (graph.id, graph.pattern, graph.orders, graph.gb_per_s, graph.kind, graph.across) == (
        *(graph.id, graph.pattern, graph.orders, graph.gb_per_s, graph.kind),
        False,
    )


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (ChannelGraph(0, 4, ((0, 1),) * 33, 20, "NVL"), "33 channels"),
        (ChannelGraph(0, 4, ((0, 10),), 20, "NVL"), "hexadecimal"),
        (ChannelGraph(0, 4, ((0, 1),), 20, "C2C"), "type C2C"),
        (ChannelGraph(0, 4, ((0, 1),), 20, "NVL", across=True), "network cards"),
    ],
)
def test_graphs_that_nccl_would_misread_are_not_written(graph, reason) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        nccl_graph.write([graph])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (file(channel(0, 1), n="2"), "nchannels=2, but contains 1"),
        (file(channel(0, 1) * 2, n="1"), "nchannels=1, but contains 2"),
        (file(channel(0, 0)), "each once"),
        (file(channel()), "must name GPUs"),
        (file(channel(0, 1) + channel(0, 2), n="2"), "GPUs differ"),
        (file(channel(0, "-1")), "index of a GPU"),
        (file(channel(0, "9" * 5000)), "index of a GPU"),
        (file(channel(0, 1), number="x"), "id is 'x'"),
        (file(channel(0, 1), n="9" * 5000), "whole number"),
        (file(channel(0, 1), speed="inf"), "speedintra"),
        (file(channel(0, 1), speed="9999999"), "speedintra"),
        (file(channel(0, 1), kind="&#155;31m"), "typeintra"),
        (file(channel(0, 1)).replace("<graphs", '<graphs x="1"').replace('"1">', '"2">', 1), "well-formed|version"),
        ('<!DOCTYPE graphs [<!ENTITY a "b">]>' + file(channel(0, 1)), "document type"),
        (file(channel(0, 1)).replace("</graphs>", HEAD.format(id=0, n=0, speed=1, kind="NVL") + "</graph></graphs>"),
         "several graphs have the id 0"),
    ],
)  # fmt: skip
def test_graphs_that_nccl_cannot_have_written_are_refused(text, reason) -> None:
    with pytest.raises(TopologyError, match=reason):
        nccl_graph.parse(text, "given")


def test_every_truncation_is_refused_with_a_line() -> None:
    text = SAMPLE.read_text().strip()
    for end in range(0, len(text), 7):
        with pytest.raises(TopologyError, match=r"line|no XML element"):
            nccl_graph.parse(text[:end], "cut")


def test_letters_make_a_graph_hexadecimal() -> None:
    (graph,) = nccl_graph.parse(file(channel(*"0123456789abcdef", "10")), "given")
    assert graph.orders == (tuple(range(17)),)
    (graph,) = nccl_graph.parse(file(channel(*range(16))), "given")
    assert graph.orders == (tuple(range(16)),)
