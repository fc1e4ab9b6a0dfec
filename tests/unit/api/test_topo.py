"""``blinkccl.topo`` and networkx graphs."""

import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import blinkccl
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.json_format import parse, write
from blinkccl.topology.spec import parse_spec

#: Two GPUs with reads slower than writes.
SLOW_READS = """{"schema_version": 2, "name": "pair", "unit_gb_per_s": 2.6,
 "vertices": [{"id": 0, "kind": "gpu"}, {"id": 3, "kind": "gpu"}],
 "links": [{"src": 0, "dst": 3, "capacity": 20, "kind": "pcie", "read_capacity": 1},
           {"src": 3, "dst": 0, "capacity": 20, "kind": "pcie"}]}"""


def test_a_topology_prints_like_the_command_line(blink: Any) -> None:
    topo = blinkccl.topo("dgx-1v")
    assert f"{topo}\n" == blink("topo", "dgx-1v").out
    assert repr(topo) == "<Topo dgx-1v: 8 ranks, 58 links>"
    assert topo._repr_svg_().startswith("<svg")


def test_all_forms_of_a_topology_are_accepted(tmp_path: Path) -> None:
    topo = blinkccl.topo("ring:4")
    (tmp_path / "ring").write_text(write(topo.topology))
    for spec in (topo, topo.topology, tmp_path / "ring", str(tmp_path / "ring"), topo.to_networkx()):
        assert blinkccl.plan("allreduce", spec).rate == blinkccl.plan("allreduce", "ring:4").rate


@pytest.mark.parametrize("spec", ["dgx-1v", "mist", "2x dgx-a100", "random:6:directed", "hgx-h100"])
def test_a_graph_and_back_is_the_same_topology(spec: str) -> None:
    topology = parse_spec(spec)
    again = blinkccl.topo(blinkccl.topo(topology).to_networkx()).topology
    assert again.vertices == topology.vertices
    assert (again.link, again.unit_gb_per_s, again.name) == (topology.link, topology.unit_gb_per_s, topology.name)


def test_reads_keep_their_rate() -> None:
    topology = parse(SLOW_READS)
    graph = blinkccl.topo(topology).to_networkx()
    assert graph.edges[0, 3]["read_gb_per_s"] == 2.6
    assert blinkccl.topo(graph).topology.link == topology.link


def test_a_graph_of_ones_own() -> None:
    graph = nx.Graph([("a", "b", {"gb_per_s": 12.5, "color": "red"}), ("b", "c", {"gb_per_s": 25})])
    topo = blinkccl.topo(graph)
    assert [(x.src, x.dst, x.gb_per_s, x.kind) for x in topo.links] == [
        (0, 1, 12.5, "nvlink"),
        (1, 0, 12.5, "nvlink"),
        (1, 2, 25.0, "nvlink"),
        (2, 1, 25.0, "nvlink"),
    ]
    assert [vertex.name for vertex in topo.vertices] == ["a", "b", "c"]
    assert blinkccl.plan("broadcast", graph).rate.algbw_gb_per_s == 12.5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"edge 0 → 1: expected gb_per_s, a positive number of GB/s, got None"),
        ({"gb_per_s": "25"}, "got '25'"),
        ({"gb_per_s": 0}, "got 0"),
        ({"gb_per_s": float("inf")}, "got inf"),
        ({"gb_per_s": True}, "got True"),
        ({"gb_per_s": 25, "kind": "rope"}, "unknown kind 'rope'"),
        ({"gb_per_s": 25, "kind": 3}, r"Expected `str`, got `int`"),
    ],
)
def test_bad_edges(data: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=f"graph: .*{message}"):
        blinkccl.topo(nx.DiGraph([(0, 1, data)]))


def test_bad_graphs() -> None:
    with pytest.raises(TopologyError, match="there are no ranks"):
        blinkccl.topo(nx.Graph())
    with pytest.raises(TopologyError, match="given twice; sum parallel links"):
        blinkccl.topo(nx.MultiDiGraph([(0, 1, {"gb_per_s": 25})] * 2))
    with pytest.raises(TopologyError, match="joins a vertex to itself"):
        blinkccl.topo(nx.DiGraph([(0, 0, {"gb_per_s": 25})]))


def test_without_networkx_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'blink-ccl\[networkx\]'"):
        blinkccl.topo("ring:4").to_networkx()
