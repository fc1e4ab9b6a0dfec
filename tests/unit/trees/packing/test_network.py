"""The input of packing problems: refused arguments and derived properties."""

from random import Random

import pytest

from blinkccl.errors import PackingError
from blinkccl.trees.packing.network import FlowNetwork
from support.small_networks import dgx_1v, one_way_ring, random_digraph


@pytest.mark.parametrize(
    ("n", "terminals", "arcs", "reason"),
    [
        (2, 0, (), "cannot have 0 terminals"),
        (2, 3, (), "cannot have 3 terminals"),
        (2, 2, ((0, 2, 1),), "not a pair of different vertices in 0 … 1"),
        (2, 2, ((-1, 1, 1),), "not a pair of different vertices"),
        (2, 2, ((1, 1, 1),), "not a pair of different vertices"),
        (2, 2, ((0, 1, 1), (0, 1, 2)), "given twice"),
        (2, 2, ((0, 1, 0),), "positive integer, got 0"),
        (2, 2, ((0, 1, -3),), "positive integer, got -3"),
        (2, 2, ((0, 1, float("nan")),), "positive integer, got nan"),
        (2, 2, ((0, 1, 1.5),), r"positive integer, got 1\.5"),
    ],
)
def test_bad_arguments_are_refused(n: int, terminals: int, arcs: tuple[tuple[int, int, int], ...], reason: str) -> None:
    with pytest.raises(PackingError, match=reason):
        FlowNetwork(n, terminals, arcs)


def test_a_network_derives_its_properties() -> None:
    ring = one_way_ring(4)
    assert not ring.symmetric
    assert ring.switchless
    assert ring.successors == ((1,), (2,), (3,), (0,))
    assert dgx_1v().symmetric
    star = FlowNetwork(3, 2, ((0, 2, 1), (2, 1, 1)))
    assert not star.switchless


def test_eccentricity() -> None:
    assert [one_way_ring(5).eccentricity(v) for v in range(5)] == [4] * 5
    assert dgx_1v().eccentricity(0) == 2
    assert FlowNetwork(3, 3, ((0, 1, 1), (1, 0, 1), (2, 0, 1))).eccentricity(0) == 3


def test_reversing_twice_is_the_identity_and_scaling_scales_every_cut() -> None:
    dice = Random(1)
    for _ in range(20):
        network = random_digraph(dice, 5)
        assert network.reversed().reversed() == network
        side = dice.sample(range(5), 2)
        others = [v for v in range(5) if v not in side]
        assert network.reversed().leaving(side) == network.leaving(others)
        assert network.scaled(7).leaving(side) == 7 * network.leaving(side)
