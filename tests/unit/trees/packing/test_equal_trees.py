"""Trees of equal weight: they span, have the stated loads, and come near the rate; refusals; the undirected optimum."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import PackingError, UnsupportedError, UsageError
from blinkccl.trees.algorithms import optimal_trees
from blinkccl.trees.algorithms.bounds import reduce_broadcast_packing, undirected_hops_packing
from blinkccl.trees.algorithms.optimal_trees import every_root
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.packing import equal_trees, native_flows
from blinkccl.trees.packing.bottleneck import allgather_rate
from blinkccl.trees.packing.columns import dual_bound
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import in_and_out_oracle
from support.planned import asked, digraph, plan, planned
from support.small_networks import both_ways


@st.composite
def symmetric_networks(draw: st.DrawFn) -> FlowNetwork:
    """Up to five terminals and two transit vertices, not always connected."""
    terminals = draw(st.integers(2, 5))
    n = terminals + draw(st.integers(0, 2))
    pairs = [(u, v) for u in range(n) for v in range(u)]
    widths = draw(st.lists(st.integers(0, 4), min_size=len(pairs), max_size=len(pairs)).filter(any))
    arcs = [(u, v, c) for (u, v), c in zip(pairs, widths, strict=True) if c]
    return FlowNetwork(n, terminals, tuple(sorted([*arcs, *((v, u, c) for u, v, c in arcs)])))


def depths(root: int, hops: Sequence[tuple[int, ...]], network: FlowNetwork) -> dict[int, int]:
    """Depth by terminal. Assertions check that the hops exist and form a tree."""
    depth = {root: 0}
    for hop in hops:
        assert hop[0] in depth
        assert hop[-1] not in depth
        assert all(v >= network.terminals for v in hop[1:-1])
        assert all(arc in network.capacity for arc in pairwise(hop))
        depth[hop[-1]] = depth[hop[0]] + 1
    assert set(depth) == set(range(network.terminals))
    return depth


def loads(equal: EqualTrees, both_ways: bool) -> Counter[Arc]:
    load: Counter[Arc] = Counter()
    for _, part, hops in equal.trees:
        for arc in (arc for hop in hops for arc in pairwise(hop)):
            load[arc] += part * equal.rate
            if both_ways:
                load[arc[::-1]] += part * equal.rate
    return load


@given(symmetric_networks(), st.integers(1, 6))
def test_from_every_root(network: FlowNetwork, most: int) -> None:
    try:
        rate, side = allgather_rate(network)
    except PackingError:
        return
    equal = equal_trees.from_roots(network, range(network.terminals), rate, most, side)
    assert 0 < equal.rate <= rate
    parts = Counter[int]()
    for root, part, hops in equal.trees:
        parts[root] += part
        depths(root, hops, network)
    assert parts == dict.fromkeys(range(network.terminals), 1)
    load = loads(equal, both_ways=False)
    assert max(load[arc] / c for arc, c in network.capacity.items()) == 1
    assert all(part.denominator <= most for _, part, _ in equal.trees)
    assert equal.depth == max(max(depths(root, hops, network).values()) for root, _, hops in equal.trees)


@given(symmetric_networks(), st.integers(1, 8))
def test_up_and_down(network: FlowNetwork, most: int) -> None:
    try:
        exact = undirected_hops_packing(network)
    except PackingError:
        return
    equal = equal_trees.up_and_down(network, exact.rate, most, exact.prices)
    assert 0 < equal.rate <= exact.rate
    assert sum(part for _, part, _ in equal.trees) == 1
    for root, _, hops in equal.trees:
        depths(root, hops, network)
    load = loads(equal, both_ways=True)
    assert max(load[arc] / c for arc, c in network.capacity.items()) == 1


@given(symmetric_networks())
def test_trees_used_twice_are_the_optimum_of_symmetric_links(network: FlowNetwork) -> None:
    try:
        packing = undirected_hops_packing(network)
    except PackingError:
        with pytest.raises(PackingError):
            reduce_broadcast_packing(network)
        return
    assert packing.rate == packing.bound == reduce_broadcast_packing(network).rate
    assert all(packing.prices.get((v, u)) == price for (u, v), price in packing.prices.items())
    assert dual_bound(network.capacity, [Fraction(1)], in_and_out_oracle(network), packing.prices) == packing.bound


def test_a_root_that_cannot_reach_all_has_no_trees() -> None:
    one_way = FlowNetwork(3, 3, ((0, 1, 1), (1, 2, 1)))
    assert equal_trees.from_roots(one_way, [0], Fraction(1), 1).rate == 1
    with pytest.raises(PackingError, match="cannot be reached"):
        equal_trees.from_roots(one_way, [1], Fraction(1), 1)


def test_numbers_of_trees_that_leave_links_unfilled_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three roots send into a pair over two ports: one tree per root cannot fill both equally, two trees can."""
    tried = []
    search = native_flows.equal_trees

    def counted(network: FlowNetwork, roots: Sequence[int], *rest: Any) -> Any:
        tried.append(len(roots) // network.terminals)
        return search(network, roots, *rest)

    monkeypatch.setattr(native_flows, "equal_trees", counted)
    pair = both_ways(6, {(0, 1): 100, (0, 5): 2, (1, 5): 2, (2, 5): 100, (3, 5): 100, (4, 5): 100})
    network = FlowNetwork(6, 5, pair.arcs)
    rate, side = allgather_rate(network)
    assert rate == Fraction(4, 3)
    equal = equal_trees.from_roots(network, range(5), rate, 8, side)
    assert tried == [2]
    assert equal.rate == rate


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize(
    ("spec", "gpus", "depth"),
    [
        ("4x dgx-a100 @ 200Gbps", "0-7+0-7+0-7+0-4", 3),
        ("4x dgx-1v @ 100Gbps", "0-7+0-2+1,4,5,6+0-4", 5),
        ("2x mi250", "0-7+0-15", 5),
    ],
)
def test_clusters_of_unequal_servers(spec: str, gpus: str, depth: int, collective: str) -> None:
    forest = plan("optimal", spec, gpus, collective)
    assert forest.rate >= forest.bound * Fraction(99, 100)
    assert forest.depth <= depth
    assert len(forest.shares) <= max(4 * len(forest.ranks), 64)
    assert max(share.weight.denominator for share in forest.shares) <= 64 * len(forest.ranks)


def test_exact_is_exact() -> None:
    near = plan("optimal", "4x hgx-h100", "0-7+0-6+0-5+0-4", "allreduce")
    exact = plan("optimal", "4x hgx-h100", "0-7+0-6+0-5+0-4", "allreduce", objective="exact")
    assert near.rate < near.bound == exact.rate == exact.bound
    assert len(near.shares) <= 64


@pytest.mark.parametrize(
    ("spec", "gpus", "collective"),
    [
        *(("dgx-1v", None, name) for name in ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce")),
        *(("dgx-a100", "0-5", name) for name in ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce")),
        ("2x mi250", None, "allgather"),
        ("2x mi250", None, "allreduce"),
    ],
)
def test_no_more_trees_than_asked_for(spec: str, gpus: str | None, collective: str) -> None:
    root = 0 if collective in ("broadcast", "reduce") else None
    ends = {} if root is None else {"root": root}
    rates = []
    for most in (1, 2, 4, 64):
        forest = plan("optimal", spec, gpus, collective, max_trees=most, **ends)
        blocks = Counter(share.block for share in forest.shares)
        assert max(blocks.values()) <= most
        rates.append(forest.rate)
    assert rates == sorted(rates)
    assert rates[-1] >= Fraction(3, 4) * forest.bound
    assert forest.optimal or spec == "2x mi250"


def test_few_trees_of_unequal_weight_go_before_equal_ones() -> None:
    forest = plan("optimal", "dgx-1v", None, "broadcast", root=0, max_trees=4)
    assert forest.optimal
    assert sorted(share.weight * 6 for share in forest.shares) == [1, 1, 2, 2]


def test_plans_without_a_choice_of_trees_refuse_the_option() -> None:
    with pytest.raises(UnsupportedError, match="maximum flow"):
        plan("optimal", "dgx-1v", None, "gather", root=0, max_trees=2)
    with pytest.raises(UnsupportedError, match="trees of other algorithms are fixed"):
        plan("ring", "dgx-1v", None, "allreduce", max_trees=2)
    one_way = digraph({(0, 2): 2, (2, 0): 1, (1, 2): 1, (2, 1): 2, (0, 1): 1}, 2, switches=1)
    with pytest.raises(UnsupportedError, match="the same capacity in both directions"):
        planned("optimal", asked(one_way, max_trees=1))
    with pytest.raises(UsageError, match="at least 1"):
        plan("optimal", "dgx-1v", None, "allreduce", max_trees=0)


@pytest.mark.parametrize("objective", ["least-depth", "fewest-trees", "exact"])
def test_only_the_default_objective_may_miss_a_hundredth(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stars lose half a hundredth: the narrow link out of rank 0 must carry its own block only once."""
    ports = [(v, 10, 199 if v == 0 else 200) for v in range(10)] + [(10, v, 200) for v in range(10)]
    network, groups = FlowNetwork(11, 10, tuple(sorted(ports))), (tuple(range(10)),)
    stars = [(root, Fraction(1), tuple((root, 10, v) for v in range(10) if v != root)) for root in range(10)]
    monkeypatch.setattr(equal_trees, "from_roots", lambda *_: EqualTrees(Fraction(199, 9), tuple(stars)))
    every_root.cache_clear()
    assert every_root(network, "shallow", groups).depth == 1
    if objective != "fewest-trees":
        assert every_root(network, objective, groups).depth > 1
    else:
        with pytest.raises(UnsupportedError, match=objective):
            every_root(network, objective, groups)
    every_root.cache_clear()


def test_a_broadcast_among_many_ranks_if_switches_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimal_trees, "SOLVED", 16)
    monkeypatch.setattr(optimal_trees, "_whole", lambda *_: ())
    optimal_trees.one_root.cache_clear()
    forest = plan("optimal", "2x mi250", None, "broadcast", root=3)
    optimal_trees.one_root.cache_clear()
    assert lcm(*(share.weight.denominator for share in forest.shares)) <= optimal_trees.MOST_FROM_ONE
    assert forest.rate >= forest.bound * Fraction(3, 4)


def test_flows_are_always_exact() -> None:
    assert plan("optimal", "dgx-1v", None, "gather", objective="exact").optimal


def test_hops_to_the_farthest() -> None:
    network = rank_network_of(asked("2x dgx-a100 @ 200Gbps", "allgather").network, tuple(range(16))).network
    assert network.hop_eccentricity(0) == 1
    chain = FlowNetwork(4, 3, ((0, 1, 1), (1, 3, 1), (3, 2, 1)))
    assert [chain.hop_eccentricity(v) for v in range(3)] == [2, 1, 0]
