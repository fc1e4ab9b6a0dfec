"""Topologies by rule: their shapes, their limits, and their stability."""

import hashlib
from functools import reduce

import networkx as nx
import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import json_format
from blinkccl.topology.model import Topology
from blinkccl.topology.synthetic import FAMILIES, synthetic


def graph(topology: Topology) -> nx.DiGraph:
    return nx.DiGraph([(x.src, x.dst) for x in topology.links])


@pytest.mark.parametrize(
    ("spec", "ranks", "links"),
    [
        ("ring:8", 8, 16),
        ("ring:2", 2, 2),
        ("ring:3", 3, 6),
        ("oneway:6", 6, 6),
        ("chain:5", 5, 8),
        ("clique:4", 4, 12),
        ("star:5", 5, 10),
        ("torus:4x4", 16, 64),
        ("torus:2x4", 8, 24),
        ("torus:1x3", 3, 6),
        ("torus:2x2", 4, 8),
        ("torus:5", 5, 10),
        ("torus:2x3x4", 24, 120),
        ("torus:4x4x4", 64, 384),
        ("torus:2x2x2x2", 16, 64),
        ("hypercube:3", 8, 24),
        ("hypercube:1", 2, 2),
    ],
)
def test_sizes(spec: str, ranks: int, links: int) -> None:
    topology = synthetic(spec)
    assert (len(topology.ranks), len(topology.links)) == (ranks, links)
    assert topology.unit_gb_per_s == 25.0
    assert {x.capacity for x in topology.links} == {1}
    assert {(x.kind, x.provenance) for x in topology.links} == {("nvlink", "synthetic")}
    assert nx.is_strongly_connected(graph(topology))


@pytest.mark.parametrize("sides", [(5,), (3, 4), (2, 5), (3, 2, 4), (4, 3, 3), (2, 3, 2, 3)])
def test_a_torus_is_the_product_of_circles(sides: tuple[int, ...]) -> None:
    circles = [nx.cycle_graph(side) if side > 2 else nx.path_graph(side) for side in sides]
    product = reduce(nx.cartesian_product, circles)
    assert nx.is_isomorphic(graph(synthetic(f"torus:{'x'.join(map(str, sides))}")).to_undirected(), product)


@pytest.mark.parametrize("seed", range(30))
def test_random_topologies_are_connected_symmetric_and_small(seed: int) -> None:
    topology = synthetic(f"random:{3 + seed % 8}:seed={seed}")
    assert nx.is_strongly_connected(graph(topology))
    assert all(topology.link[x.dst, x.src].capacity == x.capacity for x in topology.links)
    assert all(1 <= x.gb_per_s / 25 <= 3 for x in topology.links)
    assert nx.is_strongly_connected(graph(synthetic(f"random:6:seed={seed}:directed")))


def test_the_same_text_always_gives_the_same_bytes() -> None:
    specs = ("random:12:seed=3", "random:7:seed=5:directed")
    text = "".join(json_format.write(synthetic(spec)) for spec in specs)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest.startswith("840a4fd129fa61db"), digest


def test_different_seeds_differ() -> None:
    assert synthetic("random:8:seed=1").links != synthetic("random:8:seed=2").links


@pytest.mark.parametrize(
    "spec",
    [
        "ring",
        "ring:",
        "ring:x",
        "ring:1",
        "ring:-3",
        "ring:99999999999",
        "ring:2000",
        "clique:300",
        "torus:",
        "torus:1",
        "torus:3x",
        "torus:1x1",
        "torus:2x0x2",
        "torus:11x11x11",
        "torus:1x1x1x1x1x1x1x1x1x1x2",
        "torus:999x999",
        "hypercube:0",
        "hypercube:40",
        "random:4:foo",
        "random:4:seed=",
        "random:4:seed=-1",
        "moebius:4",
        "",
        "ring:٣",
    ],
)
def test_bad_rules_are_refused_with_the_form(spec: str) -> None:
    with pytest.raises(TopologyError, match="expected"):
        synthetic(spec)


def test_every_family_shows_its_form() -> None:
    assert all(family.form.startswith(f"{name}:") and family.about for name, family in FAMILIES.items())
