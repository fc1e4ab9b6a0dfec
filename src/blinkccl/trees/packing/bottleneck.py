"""Bottleneck ratios: the rate at which every terminal can send the same amount to all others, or to one.

    1/x* = max over vertex sets S that miss a terminal of |S ∩ terminals| / cap⁺(S)

is the optimum of AllGather per root (arXiv 2402.06787, theorem 1), attained if transit is balanced. Newton's method
with immediate update (Dinkelbach) computes it: maximum flows test a rate, and the first violated cut gives the next,
smaller rate. All comparisons are of integers, without a solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from blinkccl.errors import PackingError
from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import Arc, FlowNetwork


def allgather_rate(network: FlowNetwork) -> tuple[Fraction, tuple[int, ...]]:
    """x*, the rate per root at which all terminals can send to all, and the set S that limits it.

    x* = cap⁺(S) / |S ∩ terminals|. For ReduceScatter use the reversed network; data must *enter* its S in the original
    one. PackingError if some terminal cannot reach another. Cost: N + k maximum flows for k updates, in practice 0–3.
    """
    if network.terminals < 2:
        raise PackingError("a bottleneck needs at least two terminals")
    rate, side = _first_cut(network)
    sink = 0
    while True:
        violated = native_flows.first_unreached(network, rate.denominator, [rate.numerator] * network.terminals, sink)
        if violated is None:
            return rate, side
        sink, side = violated
        rate = Fraction(network.leaving(side), sum(v < network.terminals for v in side))
        if rate == 0:
            raise PackingError(f"terminals {_named(network, side)} cannot reach the others")


def short_cuts(network: FlowNetwork, units: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The source side of a violated cut for each terminal that cannot receive ``units[r]`` from all r at once."""
    sink = 0
    while sink < network.terminals:
        violated = native_flows.first_unreached(network, 1, units, sink)
        if violated is None or violated[0] < sink:  # the call tests all terminals in turn, also those before ``sink``
            return
        yield violated[1]
        sink = violated[0] + 1


def _first_cut(network: FlowNetwork) -> tuple[Fraction, tuple[int, ...]]:
    """The tightest cut among those that separate one terminal from all other vertices."""
    entering = [0] * network.n
    for _, v, c in network.arcs:
        entering[v] += c
    least = min(range(network.terminals), key=lambda v: (entering[v], v))
    if entering[least] == 0:
        raise PackingError(f"no capacity enters terminal {least}")
    side = tuple(v for v in range(network.n) if v != least)
    return Fraction(entering[least], network.terminals - 1), side


def _named(network: FlowNetwork, side: tuple[int, ...]) -> str:
    return ", ".join(str(v) for v in side if v < network.terminals)


def gather_rate(network: FlowNetwork, root: int) -> tuple[Fraction, tuple[int, ...], dict[Arc, int]]:
    """The rate at which every terminal can send to ``root`` at once, its cut S, and a flow that does it.

    The rate is cap⁺(S) / |S ∩ terminals| = p/q in lowest terms. The flow, on the network scaled by q, carries p units
    from every other terminal to ``root``. For a scatter use the reversed network. There is one commodity, so the cut
    bound is attained, with or without balanced transit. PackingError if a terminal cannot reach ``root``. Cost: k + 1
    flows.
    """
    others = [v for v in range(network.terminals) if v != root]
    if not others:
        raise PackingError("a gather needs at least two terminals")
    side = tuple(v for v in range(network.n) if v != root)
    rate = Fraction(network.leaving(side), len(others))
    while True:
        if rate == 0:
            raise PackingError(f"terminals {_named(network, side)} cannot reach {root}")
        graph = FlowGraph(network.n + 1)
        for u, v, c in network.arcs:
            graph.add(u, v, c * rate.denominator)
        for v in others:
            graph.add(network.n, v, rate.numerator)
        if graph.max_flow(network.n, root) == rate.numerator * len(others):
            flow = {(u, v): graph.flow(2 * i) for i, (u, v, _) in enumerate(network.arcs) if graph.flow(2 * i) > 0}
            return rate, side, flow
        side = tuple(v for v in graph.source_side(network.n) if v < network.n)
        rate = Fraction(network.leaving(side), sum(v < network.terminals for v in side))
