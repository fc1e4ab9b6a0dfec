"""Faults that the model refuses, and the unit chosen by the assembly."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import assembly
from blinkccl.topology.assembly import Assembly, exact_unit
from blinkccl.topology.model import Link, Topology, Vertex, common_unit

PAIR = (Vertex(0, "gpu"), Vertex(1, "gpu"))
LINK = Link(0, 1, 1, "nvlink", 25.0, "declared")


def one_link(**changes: Any) -> Topology:
    return Topology("pair", 25.0, PAIR, (replace(LINK, **changes),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity must be a positive integer, got 0"),
        ({"capacity": -1}, "got -1"),
        ({"capacity": float("nan")}, "got nan"),
        ({"capacity": 1.0}, r"got 1\.0"),
        ({"capacity": True}, "got True"),
        ({"kind": "string"}, "unknown kind 'string'"),
        ({"gb_per_s": float("nan")}, "gb_per_s must be a positive number"),
        ({"gb_per_s": -1.0}, "gb_per_s must be"),
        ({"gb_per_s": float("inf")}, "gb_per_s must be"),
    ],
)
def test_bad_links(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        one_link(**changes)


@pytest.mark.parametrize("unit", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_units(unit: float) -> None:
    with pytest.raises(TopologyError, match="unit_gb_per_s must be a positive number"):
        Topology("x", unit, PAIR, ())


def test_bad_vertices_and_doubled_links() -> None:
    with pytest.raises(TopologyError, match="given twice"):
        Topology("x", 25.0, PAIR, (LINK, LINK))
    with pytest.raises(TopologyError, match="not unique"):
        Topology("x", 25.0, (PAIR[0], PAIR[0]), ())
    with pytest.raises(TopologyError, match="unknown kind 'tpu'"):
        Topology("x", 25.0, (Vertex(0, "tpu"),), ())
    with pytest.raises(TopologyError, match="ids must not be negative"):
        Topology("x", 25.0, (Vertex(-1, "gpu"),), ())


def test_the_unit_divides_every_rate() -> None:
    assert common_unit([Fraction(25), Fraction(12), Fraction(45, 2)]) == Fraction(1, 2)
    assert common_unit([]) == 1
    box = Assembly("box", "declared")
    one, other, third = box.add_many("gpu", 3, "GPU")
    box.join(one, other, Fraction(50), "nvlink")
    box.join(other, third, Fraction(75), "nvlink")
    topology = box.finish()
    assert (topology.unit_gb_per_s, topology.link[0, 1].capacity, topology.link[1, 2].capacity) == (25.0, 2, 3)


def test_rates_of_parallel_links_are_summed_and_kinds_do_not_mix() -> None:
    box = Assembly("box", "declared")
    a, b = box.add_many("gpu", 2, "GPU")
    box.join(a, b, 25, "nvlink")
    box.join(a, b, 25, "nvlink")
    assert box.finish().link[0, 1].gb_per_s == 50.0
    with pytest.raises(TopologyError, match="joined by nvlink and by pcie"):
        box.join(a, b, 12, "pcie")
    with pytest.raises(TopologyError, match="rate must be positive"):
        box.arc(a, b, -1, "nvlink")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "MAX_VERTICES", 2)
    monkeypatch.setattr(assembly, "MAX_LINKS", 1)
    box = Assembly("box", "declared")
    a, b = box.add_many("gpu", 2, "GPU")
    with pytest.raises(TopologyError, match="more than 2 vertices"):
        box.add("gpu")
    with pytest.raises(TopologyError, match="more than 1 links"):
        box.join(a, b, 1, "nvlink")


def test_the_unit_is_an_exact_decimal() -> None:
    assert exact_unit(Topology("x", 0.1, PAIR, ())) == Fraction(1, 10)
    assert exact_unit(Topology("x", 1e-7, PAIR, ())) == Fraction(1, 10**7)


def test_equality_ignores_notes() -> None:
    assert one_link().noted("a") == one_link()
    assert one_link().noted("a", "b").notes == ("a", "b")
