"""AllReduce through switches on symmetric links: the optimum, and trees with integer multiplicities.

Every tree is used both up and down, so it loads both directions of a link equally. Seen from any one root, the arcs of
the trees divide the width of a link between its two directions. The optimum λ is that of a linear program over the arcs
alone:

    max λ  with  x(u→v) + x(v→u) ≤ c(u, v),   in = out at every switch,   x(arcs into X) ≥ λ

for every set X that holds a terminal and not the root. Sets are added when maximum flows find them violated, in one to
ten rounds. With balanced switches, trees of that many units then exist in x (:mod:`~blinkccl.trees.packing.splitting`).
Without switches, x is the orientation of :func:`~blinkccl.trees.packing.undirected.direct`. The duals of the program
are prices of links that prove λ. No float of the solver is trusted: x and prices become fractions and are checked
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from blinkccl.errors import InternalError
from blinkccl.trees.packing.columns import dual_bound
from blinkccl.trees.packing.integral import flatten, pack_arborescences
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops
from blinkccl.trees.packing.oracles import undirected_oracle
from blinkccl.trees.packing.solver import CutProgram
from blinkccl.trees.packing.splitting import Direct, without_transit

#: Largest denominator of the linear program's numbers as fractions.
LARGEST_DENOMINATOR = 1000
#: Largest common denominator. Link units multiplied by it can still be packed.
LARGEST_COMMON = 1 << 64


@dataclass(frozen=True)
class Orientation:
    """A direction for every tree from terminal 0: ``rate`` × ``scale`` units reach every terminal in ``network``.

    ``network`` has the capacities of links × ``scale``, divided between their two directions. ``prices`` of arcs, equal
    in both directions, prove that no AllReduce has a higher rate.
    """

    rate: Fraction
    scale: int
    network: FlowNetwork
    prices: dict[Arc, Fraction]


def orientation_of(network: FlowNetwork) -> Orientation | None:
    """The optimum of AllReduce on a symmetric network; None if the program's numbers are no short fractions."""
    program = _Orienting(network)
    cost = [0.0] * len(network.arcs) + [-1.0]
    for _ in range(program.MOST_ROUNDS):
        values, duals = program.solved(cost)
        if not program.cut(values):
            break
    else:
        return None
    short = [Fraction(value).limit_denominator(LARGEST_DENOMINATOR) for value in values]
    rate, scale = short[-1], lcm(*(value.denominator for value in short))
    if scale > LARGEST_COMMON:
        return None
    arcs = tuple((u, v, int(x * scale)) for (u, v, _), x in zip(network.arcs, short, strict=False) if x > 0)
    prices = {arc: Fraction(y).limit_denominator(LARGEST_DENOMINATOR) for arc, y in program.prices(duals).items()}
    orientation = Orientation(
        rate, scale, FlowNetwork(network.n, network.terminals, arcs), {a: y for a, y in prices.items() if y}
    )
    return orientation if _within(network, orientation) and _proved(network, orientation) else None


def _within(network: FlowNetwork, orientation: Orientation) -> bool:
    used = orientation.network.capacity
    return all(used.get((u, v), 0) + used.get((v, u), 0) <= c * orientation.scale for u, v, c in network.arcs)


def _proved(network: FlowNetwork, orientation: Orientation) -> bool:
    try:
        bound = dual_bound(network.capacity, [Fraction(1)], undirected_oracle(network), orientation.prices)
        return bound == orientation.rate
    except InternalError:  # the prices prove no bound
        return False


class _Orienting(CutProgram):
    """The linear program. Columns are the arcs and λ; rows are the links, the switches and the violated sets so far."""

    def __init__(self, network: FlowNetwork) -> None:
        super().__init__(len(network.arcs) + 1)
        self.network = network
        number = {(u, v): i for i, (u, v, _) in enumerate(network.arcs)}
        self.links = [(u, v) for u, v, _ in network.arcs if u < v]
        for u, v in self.links:
            self.row({number[u, v]: 1, number[v, u]: 1}, None, network.capacity[u, v])
        for w in range(network.terminals, network.n):
            into = {number[arc]: 1 for arc in number if arc[1] == w}
            self.row(into | {number[arc]: -1 for arc in number if arc[0] == w}, 0, 0)
        self.sets: set[frozenset[int]] = set()
        self._add({v for v in range(network.n) if v})
        for v in range(1, network.terminals):
            self._add({v})

    def _add(self, inside: Iterable[int]) -> bool:
        held = frozenset(inside)
        if held in self.sets:
            return False
        self.sets.add(held)
        entering = {i: 1 for i, (u, v, _) in enumerate(self.network.arcs) if u not in held and v in held}
        self.row(entering | {len(self.columns) - 1: -1}, 0, None)
        return True

    def cut(self, values: list[float]) -> bool:
        """Add the sets violated by these values; True if any of them is new."""
        network, *_, rate = self.network, *values
        grain = self.GRAIN / max(c for _, _, c in network.arcs)
        graph = FlowGraph(network.n)
        for (u, v, _), x in zip(network.arcs, values, strict=False):
            if x > 0:
                graph.add(u, v, round(x * grain))
        fresh = False
        for terminal in range(1, network.terminals):
            graph.reset()
            if graph.max_flow(0, terminal) < rate * grain * (1 - self.TOLERANCE):
                nearest = set(range(network.n)) - set(graph.source_side(0))
                fresh |= self._add(nearest) | self._add(graph.sink_side(terminal))
        return fresh

    def prices(self, duals: list[float]) -> dict[Arc, float]:
        """The duals of links, equal in both directions."""
        return {arc: -y for (u, v), y in zip(self.links, duals, strict=False) for arc in ((u, v), (v, u))}


def pack_through_switches(orientation: Orientation) -> list[tuple[Fraction, Hops]] | None:
    """Trees over the terminals, used up and down, each with its fraction of the data; their rate is the optimum.

    None if removing the switches would need tests of too many pairs of links.
    """
    units = int(orientation.rate * orientation.scale)
    direct = without_transit(orientation.network, {0: units})
    if direct is None:
        return None
    ways: dict[Arc, list[tuple[Hop, int]]] = {}
    for (u, v), hops_of in direct.ways.items():
        ways.setdefault((min(u, v), max(u, v)), []).extend((hop if u < v else hop[::-1], k) for hop, k in hops_of)
    widths = {edge: sum(k for _, k in hops_of) for edge, hops_of in ways.items()}
    flat = flatten(widths, pack_arborescences(direct.network, {0: units}), undirected=True)
    edges = [replace(tree, arcs=tuple(sorted((min(arc), max(arc)) for arc in tree.arcs))) for tree in flat]
    either_way = Direct(direct.network, {edge: tuple(hops_of) for edge, hops_of in ways.items()})
    parts: dict[Hops, int] = {}
    for _, times, hops in either_way.unfolded(edges):
        parts[hops] = parts.get(hops, 0) + times
    return [
        (Fraction(times, units), hops) for hops, times in sorted(parts.items(), key=lambda tree: (-tree[1], tree[0]))
    ]
