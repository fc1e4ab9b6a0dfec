"""Integral packings: as many trees as a cut allows, arc-disjoint, each spanning everything."""

from random import Random

import pytest

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing.integral import Arborescence, canonical_arcs, merged, pack_arborescences
from blinkccl.trees.packing.network import FlowNetwork
from support.small_networks import (
    assert_packing,
    dgx_1v,
    one_way_ring,
    random_digraph,
    random_switched,
    subsets,
)


def test_few_gives_fewer_trees_on_a_dgx_1v() -> None:
    """14 trees serve the AllGather of a DGX-1V at 48/7."""
    scaled, demand = dgx_1v().scaled(7), dict.fromkeys(range(8), 6)
    few = pack_arborescences(scaled, demand, few=True)
    assert len(few) <= 14 < len(pack_arborescences(scaled, demand))


def test_equal_trees_are_merged_by_root_and_largest_first() -> None:
    trees = [Arborescence(1, 2, ((1, 0),)), Arborescence(0, 1, ((0, 1),)), Arborescence(1, 3, ((1, 0),))]
    assert merged(trees) == [Arborescence(0, 1, ((0, 1),)), Arborescence(1, 5, ((1, 0),))]


@pytest.mark.parametrize("seed", range(40))
def test_a_demand_fits_if_enough_capacity_enters_every_set(seed: int) -> None:
    """Frank's condition is necessary and sufficient: Σ {p(r): r ∉ X} ≤ capacity into X, for every X."""
    dice = Random(seed)
    n = dice.randint(2, 5)
    network = random_digraph(dice, n, density=0.6)
    demand = {r: dice.randint(0, 2) for r in range(n)}
    fits = all(
        sum(p for r, p in demand.items() if r not in inside) <= network.reversed().leaving(inside)
        for inside in subsets(n)
    )
    if fits:
        assert_packing(network, pack_arborescences(network, demand), demand)
    else:
        with pytest.raises(PackingError, match="too little capacity enters"):
            pack_arborescences(network, demand)


def test_no_demand_gives_no_trees() -> None:
    assert pack_arborescences(one_way_ring(3), {0: 0}) == []


def test_transit_is_refused() -> None:
    network = random_switched(Random(1), 3, 1, balanced=True)
    with pytest.raises(PackingError, match="without transit"):
        pack_arborescences(network, {0: 1})


def test_a_vertex_that_nothing_enters_is_a_packing_error() -> None:
    with pytest.raises(PackingError, match="do not fit"):
        pack_arborescences(FlowNetwork(3, 3, ((0, 1, 1), (1, 0, 1))), {0: 1})


def test_the_order_of_arcs_does_not_matter() -> None:
    network = dgx_1v()
    shuffled = list(network.arcs)
    Random(5).shuffle(shuffled)
    demand = {2: 6}
    assert pack_arborescences(network, demand) == pack_arborescences(FlowNetwork(8, 8, tuple(shuffled)), demand)


def test_canonical_arcs_are_breadth_first() -> None:
    assert canonical_arcs(1, ((0, 3), (2, 4), (1, 2), (1, 0))) == ((1, 0), (1, 2), (0, 3), (2, 4))
    for wrong in (((1, 2), (2, 1)), ((0, 3),), ((1, 2), (1, 3), (4, 5))):
        with pytest.raises(InternalError, match="no tree"):
            canonical_arcs(1, wrong)
