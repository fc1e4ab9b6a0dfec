"""What holds of packings on any network: they fit, they span, and no more would fit."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.packing.bottleneck import allgather_rate, gather_rate
from blinkccl.packing.columns import check_loads, pack_columns
from blinkccl.packing.flatten import flatten
from blinkccl.packing.integral import Arborescence, pack_arborescences
from blinkccl.packing.maxflow import broadcast_rate
from blinkccl.packing.mwu import pack_multiplicative
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.oracles import out_tree_oracle, paths_oracle, up_and_down_oracle
from blinkccl.packing.undirected import crossing, pack_trees, strength, undirected_widths
from support.examples import examples

ordinary = examples(150)
ONE = [Fraction(1)]


def permuted(draw: st.DrawFn, n: int) -> list[int]:
    return draw(st.permutations(range(n)))


@st.composite
def digraphs(draw: st.DrawFn, most: int = 6) -> Network:
    """Strongly connected and switchless: a cycle through all vertices, and any further arcs."""
    n = draw(st.integers(2, most))
    order = permuted(draw, n)
    widths = st.integers(1, draw(st.sampled_from([1, 4, 10**6])))
    arcs = {(u, v): draw(widths) for u, v in zip(order, order[1:] + order[:1], strict=True)}
    further = [arc for arc in itertools.permutations(range(n), 2) if arc not in arcs]
    if further:
        arcs |= {arc: draw(widths) for arc in draw(st.lists(st.sampled_from(further), unique=True))}
    return Network(n, n, tuple((u, v, c) for (u, v), c in sorted(arcs.items())))


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> Network:
    """Connected, switchless and symmetric: a tree, and any further edges."""
    n = draw(st.integers(2, most))
    order = permuted(draw, n)
    widths = st.integers(1, draw(st.sampled_from([1, 4, 10**6])))
    edges = {frozenset((order[i], order[draw(st.integers(0, i - 1))])) for i in range(1, n)}
    edges |= {frozenset(pair) for pair in draw(st.lists(st.sampled_from(list(itertools.combinations(range(n), 2)))))}
    width = {tuple(sorted(edge)): draw(widths) for edge in sorted(edges, key=sorted)}
    arcs = [(u, v, c) for (u, v), c in width.items()] + [(v, u, c) for (u, v), c in width.items()]
    return Network(n, n, tuple(sorted(arcs)))


@st.composite
def switched(draw: st.DrawFn) -> Network:
    """Terminals on one or two switches, capacities as they come."""
    terminals, switches = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    pairs = [(v, terminals + draw(st.integers(0, switches - 1))) for v in range(terminals)]
    pairs += [(terminals, terminals + 1)] * (switches == 2)
    arcs: dict[Arc, int] = {}
    for u, v in pairs:
        arcs[u, v], arcs[v, u] = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return Network(terminals + switches, terminals, tuple((u, v, c) for (u, v), c in sorted(arcs.items())))


def assert_packed(network: Network, trees: list[Arborescence], demand: dict[int, int]) -> None:
    used: dict[Arc, int] = {}
    count = dict.fromkeys(demand, 0)
    for tree in trees:
        reached = {tree.root}
        for u, v in tree.arcs:
            assert u in reached
            assert v not in reached
            reached.add(v)
            used[u, v] = used.get((u, v), 0) + tree.multiplicity
        assert reached == set(range(network.n))
        count[tree.root] += tree.multiplicity
    assert count == demand
    assert all(units <= network.capacity.get(arc, 0) for arc, units in used.items())


@ordinary
@given(digraphs() | graphs(), st.data())
def test_a_minimum_cut_is_filled_with_whole_trees(network: Network, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, network.n - 1))
    rate, side = broadcast_rate(network, root)
    assert rate == network.leaving(side)
    trees = pack_arborescences(network, {root: rate})
    assert_packed(network, trees, {root: rate})
    assert_packed(network, flatten(network.capacity, trees), {root: rate})


@ordinary
@given(digraphs(most=5) | graphs(most=5))
def test_the_bottleneck_is_filled_from_every_root(network: Network) -> None:
    rate, side = allgather_rate(network)
    assert rate == Fraction(network.leaving(side), len(side))
    scaled = network.scaled(rate.denominator)
    demand = dict.fromkeys(range(network.n), rate.numerator)
    assert_packed(scaled, pack_arborescences(scaled, demand), demand)


@ordinary
@given(graphs())
def test_a_partition_is_filled_with_undirected_trees(network: Network) -> None:
    packing = pack_trees(network)
    widths = undirected_widths(network)
    assert packing.rate == Fraction(crossing(widths, packing.blocks), len(packing.blocks) - 1)
    used: dict[Arc, int] = {}
    for tree in packing.trees:
        assert {v for arc in tree.arcs for v in arc} == set(range(network.n))
        for u, v in tree.arcs:
            used[min(u, v), max(u, v)] = used.get((min(u, v), max(u, v)), 0) + tree.multiplicity
    assert all(units <= widths[edge] * packing.scale for edge, units in used.items())
    assert sum(tree.multiplicity for tree in packing.trees) == packing.rate * packing.scale


@ordinary
@given(digraphs() | graphs() | switched(), st.integers(2, 9))
def test_rates_scale_with_the_capacities(network: Network, factor: int) -> None:
    scaled = network.scaled(factor)
    assert broadcast_rate(scaled, 0)[0] == factor * broadcast_rate(network, 0)[0]
    assert allgather_rate(scaled)[0] == factor * allgather_rate(network)[0]
    assert gather_rate(scaled, 0)[0] == factor * gather_rate(network, 0)[0]


@ordinary
@given(digraphs() | graphs() | switched(), st.data())
def test_rates_do_not_depend_on_numbers(network: Network, data: st.DataObject) -> None:
    new = data.draw(st.permutations(range(network.terminals)))
    new = [*new, *range(network.terminals, network.n)]
    moved = Network(network.n, network.terminals, tuple((new[u], new[v], c) for u, v, c in network.arcs))
    assert broadcast_rate(moved, new[0])[0] == broadcast_rate(network, 0)[0]
    assert allgather_rate(moved)[0] == allgather_rate(network)[0]
    assert gather_rate(moved, new[0])[0] == gather_rate(network, 0)[0]
    if network.switchless and network.symmetric:
        assert strength(network.n, undirected_widths(moved))[0] == strength(network.n, undirected_widths(network))[0]


@examples(60)
@given(digraphs() | switched())
def test_columns_reach_what_prices_prove_and_no_cut_is_below(network: Network) -> None:
    roots = list(range(network.terminals))
    packing = pack_columns(network.capacity, ONE * len(roots), out_tree_oracle(network, roots))
    check_loads(packing.columns, network.capacity, ONE * len(roots), packing.rate)
    assert packing.rate == packing.bound <= allgather_rate(network)[0]
    if network.switchless or network.balanced:
        assert packing.rate == allgather_rate(network)[0]
    gathered = pack_columns(network.capacity, ONE, paths_oracle(network, 0))
    assert gathered.rate == gathered.bound == gather_rate(network, 0)[0]


@examples(60)
@given(graphs(), st.fractions(Fraction(1, 20), Fraction(3, 4), max_denominator=20))
def test_multiplicative_weights_keep_their_promise(network: Network, epsilon: Fraction) -> None:
    optimum, _ = strength(network.n, undirected_widths(network))
    packing = pack_multiplicative(network.capacity, up_and_down_oracle(network, 0), epsilon)
    check_loads(packing.columns, network.capacity, ONE, packing.rate)
    assert (1 - epsilon) * optimum * (1 - Fraction(1, 10**9)) <= packing.rate <= optimum
