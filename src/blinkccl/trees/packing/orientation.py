"""AllReduce through switches on links that are alike both ways: the optimum, and trees in whole numbers.

Every tree is used up and down, so a link is full both ways when it is full one way and the trees' arcs, seen from any
one root, share its width between its two directions. The optimum λ is that of a linear program over the arcs alone:

    max λ  with  x(u→v) + x(v→u) ≤ c(u, v),   in = out at every switch,   x(arcs into X) ≥ λ

for every set X that holds a terminal and not the root. Sets are added as maximum flows find them violated: one to ten
rounds. With balanced switches trees of that many units then exist in x (:mod:`~blinkccl.trees.packing.splitting`);
without switches it is the orientation of :func:`~blinkccl.trees.packing.undirected.direct`. The program's duals are
prices of links that prove λ. Nothing of it is believed: x and prices are taken as fractions, and checked exactly.
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

#: Fractions of the linear program's numbers have denominators up to this.
LARGEST_DENOMINATOR = 1000
#: And a common one of at most 64 bits, so that units of links times it can be packed.
LARGEST_COMMON = 1 << 64


@dataclass(frozen=True)
class Orientation:
    """One direction of every tree from terminal 0: ``rate`` × ``scale`` units reach every terminal in ``network``.

    ``network`` has the links' capacities × ``scale``, shared out between their two directions. ``prices`` of arcs, the
    same both ways, prove that no AllReduce has a higher rate.
    """

    rate: Fraction
    scale: int
    network: FlowNetwork
    prices: dict[Arc, Fraction]


def orientation_of(network: FlowNetwork) -> Orientation | None:
    """The optimum of AllReduce on a symmetric network; None where the program's numbers are no short fractions."""
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
    found = Orientation(
        rate, scale, FlowNetwork(network.n, network.terminals, arcs), {a: y for a, y in prices.items() if y}
    )
    return found if _within(network, found) and _proved(network, found) else None


def _within(network: FlowNetwork, found: Orientation) -> bool:
    used = found.network.capacity
    return all(used.get((u, v), 0) + used.get((v, u), 0) <= c * found.scale for u, v, c in network.arcs)


def _proved(network: FlowNetwork, found: Orientation) -> bool:
    try:
        return dual_bound(network.capacity, [Fraction(1)], undirected_oracle(network), found.prices) == found.rate
    except InternalError:  # prices that cost nothing
        return False


class _Orienting(CutProgram):
    """Columns are the arcs and λ; rows the links, the switches, and the sets found so far."""

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
        """Add the sets that these values violate; whether there are any that are new."""
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
        """The links' duals, the same both ways."""
        return {arc: -y for (u, v), y in zip(self.links, duals, strict=False) for arc in ((u, v), (v, u))}


def pack_through_switches(found: Orientation) -> list[tuple[Fraction, Hops]] | None:
    """Trees over the terminals and the part of all data that each has, to be used up and down: ``found.rate`` in all.

    None where so many pairs of links must be looked at that the switches are not taken out.
    """
    units = int(found.rate * found.scale)
    direct = without_transit(found.network, {0: units})
    if direct is None:
        return None
    ways: dict[Arc, list[tuple[Hop, int]]] = {}
    for (u, v), given in direct.ways.items():
        ways.setdefault((min(u, v), max(u, v)), []).extend((hop if u < v else hop[::-1], k) for hop, k in given)
    widths = {edge: sum(k for _, k in given) for edge, given in ways.items()}
    flat = flatten(widths, pack_arborescences(direct.network, {0: units}), undirected=True)
    edges = [replace(tree, arcs=tuple(sorted((min(arc), max(arc)) for arc in tree.arcs))) for tree in flat]
    either_way = Direct(direct.network, {edge: tuple(given) for edge, given in ways.items()})
    parts: dict[Hops, int] = {}
    for _, times, hops in either_way.unfolded(edges):
        parts[hops] = parts.get(hops, 0) + times
    return [
        (Fraction(times, units), hops) for hops, times in sorted(parts.items(), key=lambda tree: (-tree[1], tree[0]))
    ]
