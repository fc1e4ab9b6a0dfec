"""Texts and pictures of topologies and plans."""

from dataclasses import replace
from fractions import Fraction

import pytest

from blinkccl.show.plan_text import CLAIM, bottleneck, plan_text
from blinkccl.show.text import columns, count, gb_per_s_text, ids, painter, plain, rate_text, unit_name
from blinkccl.show.topology_text import topology_text
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.model import Topology, Vertex
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Dual
from support.planned import plan


def _plan(spec, name="allreduce"):
    return plan("optimal", spec, None, name)


@pytest.mark.parametrize("spec", [*CATALOG, "2x dgx-1v @ 40Gbps", "3x dgx-a100", "random:9:seed=2:directed", "star:5"])
def test_every_topology_has_a_text(spec):
    text = topology_text(parse_spec(spec))
    assert text.startswith(spec)
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_colour_changes_only_the_look():
    topology = parse_spec("dgx-1v")
    coloured = topology_text(topology, painter(True))
    assert "\x1b[" in coloured
    bare = coloured
    while "\x1b[" in bare:
        start = bare.index("\x1b[")
        bare = bare[:start] + bare[bare.index("m", start) + 1 :]
    assert [line.rstrip() for line in bare.splitlines()] == topology_text(topology, plain).splitlines()


def test_a_gpu_without_links_is_noted():
    alone = Topology("alone", 1.0, (Vertex(0, "gpu"), Vertex(1, "gpu")), ())
    assert "no link at 0,1" in topology_text(alone)


@pytest.mark.parametrize(
    ("spec", "name", "words"),
    [
        ("dgx-1v", "broadcast", "and all of the data must cross them: at most 6"),
        ("dgx-1v", "allgather", "of the data must cross them: at most"),
        ("dgx-1v", "allreduce", "every element must cross between parts"),
        ("oneway:6", "allreduce", "give each lane of these links a price"),
    ],
)
def test_every_kind_of_certificate_has_words(spec, name, words):
    text = plan_text(_plan(spec, name))
    assert CLAIM in text
    assert words in text


def test_a_bound_that_is_not_reached_is_stated():
    forest = plan("ring", "dgx-1v", "0-3", "allreduce")
    assert not forest.optimal
    text = plan_text(forest)
    assert CLAIM not in text
    assert "; this plan is slower:" in text
    assert "88.9% of the bound" in text


def test_a_plan_below_the_bound_never_shows_100_percent() -> None:
    """Two DGX A100, with fractions of 46 parts: 99.988 % of the bound, which rounds to 100.0."""
    forest = plan("optimal", "2x dgx-a100", None, "allgather")
    assert not forest.optimal
    assert "99.98% of the bound" in plan_text(forest)


@pytest.mark.parametrize(
    ("spec", "name", "without_switch"),
    [
        ("hgx-h100", "allreduce", True),
        ("hgx-h100", "reduce_scatter", True),
        ("hgx-h100", "allgather", False),
        ("dgx-a100", "allreduce", False),
        ("dgx-1v", "allreduce", False),
    ],
)
def test_the_bound_is_marked_as_without_reduction_in_the_switch(spec, name, without_switch):
    """Its 450 GB/s of busbw are no more than NVLS reaches without sending all data to GPUs and back."""
    (line,) = (one for one in plan_text(_plan(spec, name)).splitlines() if one.startswith("bound "))
    assert line.endswith("optimal, without reduction in the switch" if without_switch else "optimal")


def test_long_plans_are_cut_with_a_remark():
    text = plan_text(_plan("clique:12", "alltoall"))
    assert "… and 116 more (all of them: --json)" in text
    assert "… and 92 more links with the same or less load" in text


def test_equal_stars_share_a_line():
    forest = _plan("dgx-a100")
    text = plan_text(forest)
    assert text.count("slice ") == 1
    assert "  and 7 more stars of the same weight, with roots 1-7\n" in text
    assert "across  8 = NVSwitch\n" in text


def test_the_first_trees_are_drawn_and_the_others_counted(monkeypatch):
    forest = _plan("dgx-1v")
    assert plan_text(forest).count("slice ") == 13
    monkeypatch.setattr("blinkccl.show.plan_text.SHARES_SHOWN", 2)
    assert plan_text(forest).count("slice ") == 2
    assert "… and 11 more" in plan_text(forest)


def test_a_full_link_shows_as_full():
    forest = _plan("ring:4")
    full = sum(1 for arc, load in forest.link_load.items() if load == forest.topology.link[arc].capacity)
    assert f"8 of 8 links used, {full} full" in plan_text(forest)


def test_bottlenecks_in_a_few_words():
    assert bottleneck(_plan("chain:4", "broadcast").certificate) == "out of {0}"
    assert bottleneck(_plan("chain:3").certificate) == "{0,1} | {2}"
    prices = tuple((i, i + 1, Fraction(1)) for i in range(4))
    assert bottleneck(Dual(prices, Fraction(4), Fraction(1))) == "0→1, 1→2 and 2 more"
    assert bottleneck(Dual(prices[:1], Fraction(1), Fraction(1))) == "0→1"


def test_units():
    lanes = parse_spec("ring:4")
    assert unit_name(lanes) == "lane"
    assert unit_name(parse_spec("dgx-1v")) == "unit"
    assert unit_name(replace(lanes, unit_gb_per_s=12.5)) == "unit"
    assert rate_text(Fraction(24, 7), lanes) == "24/7 lanes = 85.71 GB/s"
    assert rate_text(Fraction(1), lanes) == "1 lane = 25 GB/s"
    assert gb_per_s_text(12345.6) == "12346 GB/s"
    assert (count(1, "share"), count(2, "switch"), count(0, "link")) == ("1 share", "2 switches", "0 links")
    assert ids((1, 4, 5, 6, 2, 3)) == "1,4-6,2,3"


def test_columns():
    assert columns(("a", "bb"), [("x", "1"), ("yyy", "22")], left=(0,)) == ["a    bb", "x     1", "yyy  22"]


@pytest.mark.parametrize(
    ("stated", "line"), [("", "assumed an NVLink lane 25 GB/s: blink topo"), (" @ nvlink=25GB/s", "")]
)
def test_a_plan_names_the_assumed_rates_of_its_links(tmp_path, stated, line):
    """NVLink's alone: no PCIe link is in the plan."""
    path = tmp_path / "node.txt"
    path.write_text("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n")
    text = plan_text(_plan(f"{path}{stated}"))
    assert [one[: len(line)] for one in text.splitlines() if one.startswith("assumed")] == ([line] if line else [])
