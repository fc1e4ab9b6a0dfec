"""Native flows and packings against Python's own: the same values, cuts and trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import PackingError
from blinkccl.trees.packing import bottleneck, flatten, integral, maxflow, native_flows, splitting
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.integral import Arborescence, pack_arborescences
from blinkccl.trees.packing.maxflow import INFINITE, FlowGraph, broadcast_rate
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.splitting import all_reach
from support.native_code import needs_native_code

pytestmark = needs_native_code


@pytest.fixture(autouse=True, scope="module")
def native_code_for_the_smallest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (bottleneck, flatten, integral, maxflow, splitting):
            patch.setattr(module, "NATIVE_EDGES", 0)
        yield


@contextmanager
def without_native_code() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_flows, "load", lambda: None)
        yield


@st.composite
def networks(draw: st.DrawFn, transit: int = 0, largest: int = 9) -> FlowNetwork:
    terminals = draw(st.integers(2, 7))
    n = terminals + draw(st.integers(0, transit))
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    widths = draw(st.lists(st.integers(0, largest), min_size=len(pairs), max_size=len(pairs)))
    return FlowNetwork(n, terminals, tuple((u, v, c) for (u, v), c in zip(pairs, widths, strict=True) if c))


@given(networks(transit=2), st.integers(0, 40))
def test_a_flow_its_residual_and_its_cuts(network: FlowNetwork, limit: int) -> None:
    natively = FlowGraph.of(network)
    added = natively.max_flow(0, 1, limit or INFINITE)
    graph = FlowGraph.of(network)
    with without_native_code():
        assert graph.max_flow(0, 1, limit or INFINITE) == added
    left = [0] * network.n  # what stays at each vertex
    for i, (u, v, c) in enumerate(network.arcs):
        assert 0 <= natively.flow(2 * i) <= c
        left[u] -= natively.flow(2 * i)
        left[v] += natively.flow(2 * i)
    assert left == [-added, added, *[0] * (network.n - 2)]
    if not limit:  # the least and the greatest minimum cut are the same for every maximum flow
        assert natively.source_side(0) == graph.source_side(0)
        assert natively.sink_side(1) == graph.sink_side(1)


@given(networks(transit=2))
def test_the_allgather_rate_and_its_cut(network: FlowNetwork) -> None:
    try:
        found = allgather_rate(network)
    except PackingError as error:
        with without_native_code(), pytest.raises(PackingError, match=str(error)):
            allgather_rate(network)
        return
    with without_native_code():
        assert allgather_rate(network) == found


@given(networks(transit=2), st.integers(0, 1))
def test_the_broadcast_rate_and_its_cut(network: FlowNetwork, root: int) -> None:
    found = broadcast_rate(network, root)
    with without_native_code():
        assert broadcast_rate(network, root) == found


@given(networks(transit=2), st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_whether_all_that_is_joined_reaches_all(network: FlowNetwork, joined: list[int]) -> None:
    demand = joined[: network.terminals]
    found = all_reach(network, demand)
    with without_native_code():
        assert all_reach(network, demand) == found


@given(networks(largest=3), st.booleans(), st.integers(0, 1))
def test_the_same_trees_and_the_same_refusals(network: FlowNetwork, few: bool, beyond: int) -> None:
    try:
        rate, _ = allgather_rate(network)
    except PackingError:
        return
    demand = {v: rate.numerator + beyond * (v == 0) for v in range(network.n)}
    scaled = network.scaled(rate.denominator)
    try:
        found = pack_arborescences(scaled, demand, few=few)
    except PackingError as error:
        assert beyond
        with without_native_code(), pytest.raises(PackingError, match=str(error)):
            pack_arborescences(scaled, demand, few=few)
        return
    with without_native_code():
        assert pack_arborescences(scaled, demand, few=few) == found


@given(st.randoms(use_true_random=False), st.integers(2, 9), st.booleans())
def test_the_same_trees_made_shallower(dice: Random, n: int, both_ways: bool) -> None:
    trees = []
    for _ in range(dice.randint(1, 8)):
        order = dice.sample(range(n), n)
        arcs = tuple((order[dice.randrange(max(0, i - 3), i)], order[i]) for i in range(1, n))  # deep
        trees.append(Arborescence(order[0], dice.randint(1, 2), arcs))
    capacity: Counter[Arc] = Counter()
    for units, pairs in [*((t.multiplicity, t.arcs) for t in trees), (1, [tuple(dice.sample(range(n), 2))])]:
        for u, v in pairs:
            capacity[(min(u, v), max(u, v)) if both_ways else (u, v)] += units
    found = flatten.flatten(capacity, trees, undirected=both_ways)
    with without_native_code():
        assert flatten.flatten(capacity, trees, undirected=both_ways) == found


def test_numbers_of_more_than_59_bits_are_pythons() -> None:
    wide = 3**60
    ring = FlowNetwork(3, 3, tuple((u, v, wide) for u in range(3) for v in range(3) if u != v))
    assert not native_flows.can_hold(6 * wide)
    assert allgather_rate(ring)[0] == wide
    assert sum(tree.multiplicity for tree in pack_arborescences(ring, dict.fromkeys(range(3), wide))) == 3 * wide
    graph = FlowGraph.of(ring.scaled(1))
    assert graph.max_flow(0, 1) == 2 * wide


def test_a_flow_without_a_finite_cut_is_pythons() -> None:
    graph = FlowGraph(2)
    graph.add(0, 1, INFINITE)
    assert graph.max_flow(0, 1) == INFINITE


def test_looks_at_signals_change_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    clique = FlowNetwork(5, 5, tuple((u, v, 4) for u in range(5) for v in range(5) if u != v))
    at_once = native_flows.pack(clique, dict.fromkeys(range(5), 4), few=False)
    looks = 0

    class Looked:
        def __getattr__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "blink_packer_run"
            return getattr(library, name)

    library = native_flows.load()
    monkeypatch.setattr(native_flows, "load", Looked)
    monkeypatch.setattr(native_flows, "SLICE_S", 0.0)
    assert native_flows.pack(clique, dict.fromkeys(range(5), 4), few=False) == at_once
    assert looks > 20
