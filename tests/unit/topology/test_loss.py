"""Topologies after a loss."""

from fractions import Fraction

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology.catalog import machine
from blinkccl.topology.loss import parse_pairs, slowed, without


def test_a_link_is_lost_in_both_directions_and_nothing_else() -> None:
    whole = machine("dgx-1v")
    left = without(whole, [(3, 0), (1, 2)])
    assert set(whole.link) - set(left.link) == {(0, 3), (3, 0), (1, 2), (2, 1)}
    assert left.vertices == whole.vertices
    assert left.name == "dgx-1v without 3-0,1-2"


def test_a_vertex_goes_with_its_links() -> None:
    whole = machine("dgx-2")
    left = without(whole, vertices=[5])
    assert set(whole.vertex) - set(left.vertex) == {5}
    assert all(5 not in ends for ends in left.link)
    assert len(left.links) == len(whole.links) - sum(5 in ends for ends in whole.link)


def test_without_losses_the_topology_is_equal() -> None:
    assert without(machine("dgx-1v")) == machine("dgx-1v")


def test_a_slow_link_keeps_all_rates_exact() -> None:
    whole = machine("dgx-1v")
    slow = slowed(whole, [(0, 3)], Fraction(1, 10))
    for ends, link in slow.link.items():
        part = Fraction(1, 10) if set(ends) == {0, 3} else 1
        assert link.gb_per_s == pytest.approx(float(whole.link[ends].gb_per_s * part))
        assert link.capacity * slow.unit_gb_per_s == pytest.approx(link.gb_per_s)


@pytest.mark.parametrize("text", ["", "0", "0-", "-3", "0-3-4", "a-b", "0-3;1-2", "9" * 5000 + "-2", "٣-0"])
def test_bad_links_to_lose_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="is no link; expected two vertices like 0-3"):
        parse_pairs(text, "--without")


def test_links_to_lose_are_read() -> None:
    assert parse_pairs("0-3, 16-4", "--without") == ((0, 3), (16, 4))
    assert parse_pairs("GPU0-gpu3", "--without") == ((0, 3),)


def test_unknown_links_and_vertices_cannot_be_lost() -> None:
    whole = machine("dgx-1v")
    with pytest.raises(TopologyError, match="dgx-1v has no link 0-5; 0 has links to 1-4"):
        without(whole, [(0, 5)])
    with pytest.raises(TopologyError, match=r"dgx-1v has no link 99-0$"):
        slowed(whole, [(99, 0)], Fraction(1, 2))
    with pytest.raises(TopologyError, match="has no vertex 99"):
        without(whole, vertices=[99])
