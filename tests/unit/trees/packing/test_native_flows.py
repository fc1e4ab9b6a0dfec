"""Native flows and packings with numbers above 64 bits, with signals, and without a library."""

from random import Random

import pytest

from blinkccl.errors import PackingError, UnsupportedError
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.integral import flatten, pack_arborescences
from blinkccl.trees.packing.maxflow import FlowGraph, broadcast_rate, max_flow, min_cut
from blinkccl.trees.packing.native_flows import INFINITE, LIMIT
from blinkccl.trees.packing.network import FlowNetwork
from support.small_networks import random_digraph

CLIQUE = FlowNetwork(5, 5, tuple((u, v, 4) for u in range(5) for v in range(5) if u != v))
#: Sums of capacities times this need more than 64 bits, and so do they alone.
WIDE = 3**50


@pytest.mark.parametrize("seed", range(20))
def test_wide_units_have_the_same_flows_cuts_and_trees(seed: int) -> None:
    network = random_digraph(Random(seed), 2 + seed % 6)
    wide = network.scaled(WIDE)
    rate, side = broadcast_rate(network, 0)
    assert broadcast_rate(wide, 0) == (rate * WIDE, side)
    value, flow = max_flow(network, 0, 1)
    assert max_flow(wide, 0, 1) == (value * WIDE, {arc: units * WIDE for arc, units in flow.items()})
    assert min_cut(wide, 0, 1) == (value * WIDE, min_cut(network, 0, 1)[1])
    every, side = allgather_rate(network)
    assert allgather_rate(wide) == (every * WIDE, side)
    trees, wide_trees = pack_arborescences(network, {0: rate}), pack_arborescences(wide, {0: rate * WIDE})
    assert [(tree.arcs, tree.multiplicity * WIDE) for tree in trees] == [(t.arcs, t.multiplicity) for t in wide_trees]
    flat = [tree.arcs for tree in flatten(network.capacity, trees)]
    assert [tree.arcs for tree in flatten(wide.capacity, wide_trees)] == flat


def test_units_of_more_than_123_bits_are_refused() -> None:
    with pytest.raises(PackingError, match="coarser unit"):
        allgather_rate(CLIQUE.scaled(LIMIT // 40))
    with pytest.raises(PackingError, match="coarser unit"):
        FlowGraph(2).add(0, 1, LIMIT)


def test_a_flow_without_a_finite_cut() -> None:
    graph = FlowGraph(2)
    edge = graph.add(0, 1, INFINITE)
    assert graph.max_flow(0, 1, limit=5) == graph.flow(edge) == 5
    assert graph.max_flow(0, 1) == INFINITE


def test_checks_of_signals_change_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = native_flows.pack(CLIQUE, dict.fromkeys(range(5), 4), few=False)
    looks: list[None] = []
    monkeypatch.setattr(native_flows.clock, "look", lambda: looks.append(None))
    monkeypatch.setattr(native_flows, "SLICE_S", 0.0)
    assert native_flows.pack(CLIQUE, dict.fromkeys(range(5), 4), few=False) == at_once
    assert len(looks) > 20


def test_without_the_library_a_plan_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinkccl.native.find_library", lambda *_: None)
    native_flows.load.cache_clear()
    with pytest.raises(UnsupportedError, match=r"lacks libblink_packing\.so"):
        broadcast_rate(CLIQUE, 0)
    native_flows.load.cache_clear()
