"""All-to-all: the greatest equal flow between all ordered pairs of terminals at once.

This is a linear program over flows aggregated by source (N·|arcs| variables instead of N²·|arcs|). Symmetry shrinks it
to one source per orbit of terminals, and one capacity per orbit of arcs. A ring, a torus, a hypercube or equal servers
need one source for any number of ranks. The flow of any other source follows by its move
(:mod:`~blinkccl.trees.packing.symmetry`).

Several commodities have no integrality theorem, so the numbers come from the LP. Its prices are rounded, and their
bound is computed exactly. Its flows are rounded up to units of a pair's flow, within which a maximum flow from each
source is integral. The most loaded arc then gives the rate. It is the optimum itself if the numbers of the program are
fractions with small denominators. Otherwise it is within a hundredth of the optimum, if some number of units allows it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, lcm
from typing import NamedTuple

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import Arc, FlowNetwork, followed
from blinkccl.trees.packing.oracles import cheapest_ways
from blinkccl.trees.packing.solver import Entries, Model, solve, solve_with_duals
from blinkccl.trees.packing.symmetry import Symmetry, arc_orbits, symmetry_of

#: Most columns of the linear program, which then takes up to twenty seconds.
MOST_COLUMNS = 40_000
#: Most units of a pair's flow for a solution with the optimum itself.
LARGEST_DENOMINATOR = 5000
#: Units of a pair's flow to try otherwise, and the sufficient fraction of the bound.
UNITS = (64, 128, 256, 512, 1024, 2048, 4096)
NEAR = Fraction(99, 100)
#: Tolerance above an integer number of units in the solver's solution.
ROUNDING = 1e-4
#: Cost of an arc into transit; an arc to a terminal, which stores and forwards, costs 1.
TRANSIT = 1 / 16
#: Prices with a larger common denominator are too long for a plan.
LARGEST_COMMON = 10**60


@dataclass(frozen=True)
class Multiflow:
    """Flows of ``rate`` per ordered pair of terminals, and prices that prove ``bound``.

    ``templates`` are the paths from the terminals of ``symmetry.roots``; those of a pair carry ``units`` in total.
    """

    rate: Fraction
    bound: Fraction
    prices: dict[Arc, Fraction]
    units: int
    templates: Mapping[Arc, list[UnitPath]]
    symmetry: Symmetry

    def paths(self, source: int, sink: int) -> list[UnitPath]:
        """The paths from one terminal to another, with their units."""
        root, move = self.symmetry.home[source]
        ways = self.templates[root, self._back[move][sink]]
        return [(tuple(move[v] for v in way), units) for way, units in ways]

    @cached_property
    def _back(self) -> dict[Sequence[int], dict[int, int]]:
        return {move: {image: v for v, image in enumerate(move)} for move in self.symmetry.moves}


def all_to_all(network: FlowNetwork) -> Multiflow:
    """The maximum concurrent flow of equal demands between all terminals. PackingError if they are not connected.

    Cost: the program, and a maximum flow from each root per tried number of units.
    """
    for within in (network, network.reversed()):
        if any(t not in cheapest_ways(within, {}, 0)[0] for t in range(network.terminals)):
            raise PackingError("some terminal cannot reach another")
    folded = _Folded(network)
    solvable = folded.columns <= MOST_COLUMNS
    flows = folded.fullest() if solvable else near_flows(network, folded.symmetry.roots, folded.orbit, folded.times)
    bound, prices = folded.proof([flows.prices] if solvable else [flows.prices, *folded.narrowest()], 1 / flows.busy)
    clock.bounded(bound * network.terminals)
    shortest = folded.shortest(bound) if solvable else None
    whole = folded.in_units(shortest or flows.by_root, bound, flows.busy)
    templates: dict[Arc, list[UnitPath]] = {}
    for root, flow in zip(folded.symmetry.roots, whole.by_root, strict=True):
        supply = {t: whole.units for t in range(network.terminals) if t != root}
        for sink, ways in decompose({(v, u): f for (u, v), f in flow.items()}, supply, root).items():
            templates[root, sink] = [(way[::-1], width) for way, width in ways]
    return Multiflow(whole.rate, bound, prices, whole.units, templates, folded.symmetry)


def price_bound(network: FlowNetwork, prices: Mapping[Arc, Fraction], roots: Sequence[int], moves: int) -> Fraction:
    """A bound on the rate of equal all-to-all flows: Σ c·y / Σ of the distance under y over ordered pairs.

    Prices must be invariant under the symmetry, so each of ``roots`` counts ``moves`` times.
    """
    # Sums of fractions are slow, so prices are scaled to integers.
    scale = lcm(*(price.denominator for price in prices.values()))
    whole = {arc: int(price * scale) for arc, price in prices.items()}
    cost = 0
    for root in roots:
        distance, _ = cheapest_ways(network, whole, root)
        cost += moves * sum(distance[t][0] for t in range(network.terminals))
    if cost <= 0:
        raise InternalError("the prices prove no bound: all pairs have distance 0")
    return Fraction(sum(network.capacity[arc] * price for arc, price in whole.items()), cost)


class WholeFlows(NamedTuple):
    """Integer flows of ``units`` from each root to every other terminal, and their ``rate`` per pair."""

    rate: Fraction
    units: int
    by_root: list[dict[Arc, int]]


class _Folded:
    """The program with one source per orbit of terminals, and one capacity per orbit of arcs.

    A unit on one arc of orbit o becomes ``times[o]`` units on each arc of o when all moves are applied.
    """

    def __init__(self, network: FlowNetwork) -> None:
        self.network, self.symmetry = network, symmetry_of(network)
        self.arcs = [(u, v) for u, v, _ in network.arcs]
        self.orbit = arc_orbits(network, self.symmetry.moves)
        self.row = {name: i for i, name in enumerate(sorted(set(self.orbit.values())))}
        size = Counter(self.orbit.values())
        self.times = {name: len(self.symmetry.moves) // size[name] for name in self.row}

    def fullest(self) -> NearFlows:
        """The flows that keep the most loaded arc busy for the least time, and the prices that prove it.

        The unit of time is that of one unit on the widest arc, because tolerances of solvers are absolute.
        """
        widest = max(self.network.capacity.values())
        busy = {row: -self.network.capacity[name] / widest for name, row in self.row.items()}
        model = self._model([busy], [0.0] * len(self.row), [0.0] * self.columns + [1.0])
        values, duals = solve_with_duals(model)
        price = {name: max(0.0, -duals[row]) * self.times[name] for name, row in self.row.items()}
        prices = {arc: price[self.orbit[arc]] for arc in self.arcs}
        return NearFlows(values[-1] / widest, self._by_root(values), prices)

    def shortest(self, bound: Fraction) -> list[dict[Arc, float]] | None:
        """Flows of this rate with the fewest hops, then the fewest arcs; None if there are none."""
        room = [float(self.network.capacity[name] / bound) for name in self.row]
        hops = [1.0 if v < self.network.terminals else TRANSIT for _, v in self.arcs]
        values = solve(self._model([], room, hops * len(self.symmetry.roots)))
        return None if values is None else self._by_root(values)

    def _by_root(self, values: Sequence[float]) -> list[dict[Arc, float]]:
        """The flow of each root by arc, in units of a pair's flow."""
        count = len(self.arcs)
        return [dict(zip(self.arcs, values[i * count :], strict=False)) for i in range(len(self.symmetry.roots))]

    @property
    def columns(self) -> int:
        """Number of variables: a flow per root and arc."""
        return len(self.symmetry.roots) * len(self.arcs)

    def _model(self, more: list[Entries], room: list[float], cost: list[float]) -> Model:
        """The program. Its rows are orbits of arcs, at most ``room``, then the net inflow per root and vertex."""
        network, first = self.network, len(self.row)
        columns: list[Entries] = []
        lower: list[float | None] = [None] * first
        for i, root in enumerate(self.symmetry.roots):
            for u, v in self.arcs:
                name = self.orbit[u, v]
                column: dict[int, float] = {self.row[name]: self.times[name]}
                if u != root:
                    column[first + i * network.n + u] = -1
                if v != root:
                    column[first + i * network.n + v] = 1
                columns.append(column)
            # The other rows determine the outflow of a root, so its own row stays empty.
            lower += [int(v < network.terminals and v != root) for v in range(network.n)]
        return Model([*columns, *more], lower, [*room, *lower[first:]], cost)

    def narrowest(self) -> Iterator[dict[Arc, float]]:
        """Price 1 on the arcs out of the terminal with least capacity out; then on those into the one with least in."""
        for end in (0, 1):
            width = dict.fromkeys(self.symmetry.roots, 0)
            for u, v, c in self.network.arcs:
                if (u, v)[end] in width:
                    width[(u, v)[end]] += c
            narrow = min(width, key=width.__getitem__)
            orbit = {move[narrow] for move in self.symmetry.moves}
            yield {arc: float(arc[end] in orbit) for arc in self.arcs}

    def proof(self, offered: Sequence[Mapping[Arc, float]], rate: float) -> tuple[Fraction, dict[Arc, Fraction]]:
        """The least bound that roundings of the offered prices prove, and these prices."""
        best: tuple[Fraction, dict[Arc, Fraction]] | None = None
        for rounded in itertools.chain.from_iterable(map(_roundings, offered)):
            prices = {arc: y for arc, y in rounded.items() if y > 0}
            try:
                bound = price_bound(self.network, prices, self.symmetry.roots, len(self.symmetry.moves))
            except InternalError:
                continue  # all essential prices were rounded to 0
            if best is None or bound < best[0]:
                best = bound, prices
            if float(bound) - rate <= 1e-9 * rate:
                break
        assert best is not None
        return best

    def in_units(self, flows: list[dict[Arc, float]], bound: Fraction, busy: float) -> WholeFlows:
        """Integer flows close to ``flows``, with the bound as rate, or near it in few units, or the fastest."""
        for units in (*_least_whole(flows, Fraction(1)), *_least_whole(flows, bound)):
            exact = self._whole(flows, units)
            if exact.rate == bound:
                return exact
        tried: list[WholeFlows] = []
        for units in UNITS:
            tried.append(self._whole(flows, units))
            if tried[-1].rate >= float(NEAR) * min(float(bound), 1 / busy):
                break
        return max(tried, key=lambda whole: whole.rate)

    def _whole(self, flows: list[dict[Arc, float]], units: int) -> WholeFlows:
        by_root = [_rounded(self.network, root, x, units) for root, x in zip(self.symmetry.roots, flows, strict=True)]
        load = dict.fromkeys(self.row, 0)
        for flow in by_root:
            for arc, used in flow.items():
                load[self.orbit[arc]] += used * self.times[self.orbit[arc]]
        capacity = self.network.capacity
        return WholeFlows(
            min(Fraction(capacity[name] * units, used) for name, used in load.items() if used), units, by_root
        )


def _roundings(prices: Mapping[Arc, float]) -> Iterator[dict[Arc, Fraction]]:
    """Prices as fractions of the largest one: each with its own small denominator, then all with the same."""
    top = max(prices.values())
    prices = {arc: y / top for arc, y in prices.items()}
    for denominator in (1, 2, 3, 4, 6, 12, 60, 120, 840):
        short = {arc: Fraction(y).limit_denominator(denominator) for arc, y in prices.items()}
        if lcm(*(y.denominator for y in short.values())) <= LARGEST_COMMON:
            yield short
    for denominator in (5040, 10**6):
        yield {arc: Fraction(round(y * denominator), denominator) for arc, y in prices.items()}


def _least_whole(flows: list[dict[Arc, float]], whole: Fraction) -> Iterator[int]:
    """The least multiple of ``whole`` that is an integer and makes all ``flows`` integers, if the factor is small."""
    scale = whole.denominator
    for x in dict.fromkeys(x for flow in flows for x in flow.values()):
        scale = lcm(scale, Fraction(x * float(whole)).limit_denominator(LARGEST_DENOMINATOR).denominator)
        if scale > LARGEST_DENOMINATOR:
            return
    yield int(whole * scale)


def _rounded(network: FlowNetwork, root: int, flow: Mapping[Arc, float], units: int) -> dict[Arc, int]:
    """An integer flow of ``units`` to every terminal, at most ``flow`` rounded up on each arc."""
    graph, total = FlowGraph(network.n + 1), units * (network.terminals - 1)
    edges = {(u, v): graph.add(u, v, ceil(x * units - ROUNDING)) for (u, v), x in flow.items() if x * units > ROUNDING}
    for t in range(network.terminals):
        if t != root:
            graph.add(t, network.n, units)
    if graph.max_flow(root, network.n) < total:
        raise InternalError(f"the flow from {root} is not conserved")
    return {arc: graph.flow(edge) for arc, edge in edges.items() if graph.flow(edge)}


# Decomposition of a flow into paths.
#: The vertices of a path, and its units.
UnitPath = tuple[tuple[int, ...], int]


def decompose(flow: Mapping[Arc, int], supply: Mapping[int, int], sink: int) -> dict[int, list[UnitPath]]:
    """Paths of ``supply[v]`` units from each ``v`` to ``sink`` within ``flow``: shortest ones, so without cycles."""
    left = {arc: units for arc, units in flow.items() if units > 0}
    successors: dict[int, list[int]] = {}
    for u, v in sorted(left):
        successors.setdefault(u, []).append(v)
    return {source: _paths_from(source, units, sink, left, successors) for source, units in sorted(supply.items())}


def _paths_from(
    source: int, units: int, sink: int, left: dict[Arc, int], successors: dict[int, list[int]]
) -> list[UnitPath]:
    paths: list[UnitPath] = []
    while units > 0:
        path = _shortest(source, sink, left, successors)
        width = min([units, *(left[arc] for arc in itertools.pairwise(path))])
        for arc in itertools.pairwise(path):
            left[arc] -= width
        units -= width
        paths.append((path, width))
    return paths


def _shortest(source: int, sink: int, left: Mapping[Arc, int], successors: Mapping[int, list[int]]) -> tuple[int, ...]:
    parent: dict[int, int] = {source: source}
    queue = [source]
    for u in queue:
        if u == sink:
            break
        for v in successors.get(u, ()):
            if v not in parent and left[u, v] > 0:
                parent[v] = u
                queue.append(v)
    if sink not in parent:
        raise InternalError(f"the flow from {source} to {sink} is not conserved")
    return tuple(reversed(followed(parent, sink, source)))


# All-to-all near the optimum, among many terminals without symmetry, for which a linear program would take hours.
#
# Prices of arcs grow with their load (Garg and Könemann 1998, Fleischer 2000). In each round every source sends a unit
# to every terminal along the cheapest paths; later ones avoid arcs that have become expensive. The mean of a stage's
# rounds is a flow. A stage begins with the prices of the stage before, which are already higher on narrow arcs. The
# prices also prove the distance of the flow from the optimum.
#: Growth of the price of the most loaded arc per round of a stage, and the stage's fraction of all rounds.
STAGES = ((0.5, 0.05), (0.1, 0.15), (0.03, 0.3), (0.01, 0.5))
#: Most and fewest rounds of these stages; most arcs visited in all rounds, half a minute of a core.
MOST_ROUNDS, LEAST_ROUNDS, MOST_ARCS = 240, 20, 30_000_000
#: The sufficient fraction of the bound proved by the prices. Integer units later lose up to a hundredth.
NEAR_ENOUGH = 0.965


@dataclass(frozen=True, slots=True)
class NearFlows:
    """Flows of a unit from each root to every terminal, by arc; ``busy`` is the time of the most loaded arc."""

    busy: float
    by_root: list[dict[Arc, float]]
    prices: dict[Arc, float]


def near_flows(
    network: FlowNetwork, roots: Sequence[int], orbit: Mapping[Arc, Arc], times: Mapping[Arc, int]
) -> NearFlows:
    """Flows from one root per orbit. A unit on an arc of orbit o counts as ``times[o]`` units on all arcs of o.

    Prices are equal within an orbit. If :data:`STAGES` do not come near, longer stages like the last one follow.
    Cost: a Dijkstra run per root and round.
    """
    market = _Market(network, roots, orbit, times)
    left = MOST_ARCS // (len(roots) * len(network.arcs))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, left))
    stages = [market.stage(growth, max(1, round(part * rounds))) for growth, part in STAGES]
    while True:
        best, left = min(stages, key=lambda flows: flows.busy), left - rounds
        if market.busy >= NEAR_ENOUGH * best.busy or left < rounds:
            return best
        rounds = min(2 * rounds, left)
        stages.append(market.stage(STAGES[-1][0], rounds))


class _Market:
    """Prices of orbits, and the best proved lower bound so far of the time ``busy`` of the most loaded arc."""

    def __init__(
        self, network: FlowNetwork, roots: Sequence[int], orbit: Mapping[Arc, Arc], times: Mapping[Arc, int]
    ) -> None:
        self.network, self.roots, self.orbit = network, roots, orbit
        self.room = {name: network.capacity[name] / times[name] for name in times}
        self.price = {name: 1 / room for name, room in self.room.items()}
        self.busy = 0.0

    def stage(self, growth: float, rounds: int) -> NearFlows:
        """The mean flow of ``rounds`` rounds, and their mean prices."""
        flows: list[dict[Arc, float]] = [{} for _ in self.roots]
        mean = dict.fromkeys(self.room, 0.0)
        for _ in range(rounds):
            paid = sum(self._send(root, flow, growth) for root, flow in zip(self.roots, flows, strict=True))
            worth = sum(room * self.price[name] for name, room in self.room.items())
            self.busy = max(self.busy, paid / worth)
            for name, price in self.price.items():
                self.price[name] = max(price / worth, 1e-30)
                mean[name] += price / worth
        load = dict.fromkeys(self.room, 0.0)
        for flow in flows:
            for arc, units in flow.items():
                load[self.orbit[arc]] += units / rounds
        return NearFlows(
            max(load[name] / room for name, room in self.room.items()),
            [{arc: units / rounds for arc, units in flow.items()} for flow in flows],
            {arc: mean[name] for arc, name in self.orbit.items()},
        )

    def _send(self, root: int, flow: dict[Arc, float], growth: float) -> float:
        """Add to ``flow`` a unit to every terminal along a tree of cheapest paths, and return its cost."""
        prices = {arc: self.price[name] for arc, name in self.orbit.items()}
        distance, parent = cheapest_ways(self.network, prices, root)
        below = {v: int(v < self.network.terminals) for v in distance}
        for v in sorted(parent, key=distance.__getitem__, reverse=True):
            if below[v]:
                u = parent[v]
                below[u] += below[v]
                flow[u, v] = flow.get((u, v), 0.0) + below[v]
                if self.busy:  # the first round only measures
                    name = self.orbit[u, v]
                    self.price[name] *= 1 + growth * below[v] / (self.room[name] * self.busy)
        return float(sum(cost for v, (cost, _) in distance.items() if v < self.network.terminals))
