"""Why no trees through transit that combines are faster: prices of arcs, and sets that every tree enters and leaves.

Put prices on arcs, and weights on sets of joints that hold a terminal. What goes down a tree enters every set without
its root (``entered``), and what goes up leaves every one (``left``). If a hop from u to v, the cheapest way through
transit that only passes on, costs no less than the sets that it enters weigh together, nor than those that it leaves
do, then one unit of data costs no less than all sets weigh that its root is not in. What all capacity costs, over the
cost of the cheapest root that there may be, bounds the rate.

The best such bound is the dual of a program of flows, in which every terminal gets all data from the roots by a flow of
its own, and all these flows share what of an arc is for the way down; likewise up (ForestColl, arXiv 2402.06787). Its
columns are orbits of arcs, and of roots, so it is small; sets are added as maximum flows find them violated. The duals
become fractions, and prices are raised where rounding left them too low: so the bound holds whatever the solver says.

Flows may be faster than trees can be. Then a bound stays above what trees have, and both are true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import lcm

from blinkccl.errors import InternalError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.in_network import TreeTask, renumbered
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import Arc
from blinkccl.trees.packing.oracles import cheapest_hops

#: Rounds of the program; ten are many.
MOST_ROUNDS = 200
#: A set is violated by more than this part of the rate.
TOLERANCE = 1e-6
#: Flows are asked in whole numbers, parts of the largest capacity.
GRAIN = 1 << 30
#: Fractions of the program's numbers have denominators up to this.
LARGEST_DENOMINATOR = 5000
_DOWN, _UP = "down", "up"

#: Weights of sets of joints.
Sets = dict[frozenset[int], Fraction]


@dataclass(frozen=True)
class InNetworkProof:
    """All capacity costs ``value``, and one unit ``cost`` at least, which the weights of sets prove."""

    prices: dict[Arc, Fraction]
    entered: Sets
    left: Sets
    value: Fraction
    cost: Fraction

    @property
    def bound(self) -> Fraction:
        return self.value / self.cost


def in_network_proof(task: TreeTask) -> InNetworkProof:
    """The best bound by flows, or where that takes too many rounds one above it.

    Cost: a maximum flow per stage and orbit of terminals a round, and a linear program.
    """
    flows = _Flows(task)
    for _ in range(MOST_ROUNDS):
        clock.look()
        values, duals = flows.solved()
        if not flows.cut(values):
            break
    entered, left = flows.sets_of(duals)
    prices = _high_enough(task, flows.prices_of(duals), entered, left)
    value = sum((price * task.network.capacity[arc] for arc, price in prices.items()), Fraction(0))
    return InNetworkProof(prices, entered, left, value, _least_cost(task, entered, left))


def _least_cost(task: TreeTask, entered: Sets, left: Sets) -> Fraction:
    paid = {
        root: sum(
            (weight for sets in (entered, left) for some, weight in sets.items() if root not in some), Fraction(0)
        )
        for root in task.roots or task.joints
    }
    return sum(paid.values(), Fraction(0)) / len(paid) if task.roots else min(paid.values())


class _Flows:
    """The program: columns are orbits of arcs by stage, and of roots; rows are capacities, transit, and sets.

    Where the task is mirrored, an arc's part for the way up is that of its reverse for the way down.
    """

    def __init__(self, task: TreeTask) -> None:
        self.task = task
        self.stages = [_DOWN] * task.down + [_UP] * (task.up and not task.mirrored)
        reps = sorted(set(task.orbit.values()))
        self.number = {key: i for i, key in enumerate(product(self.stages, reps))}
        self.roots = [task.roots] if task.roots else task.orbits(task.joints)
        self.columns: list[dict[int, int]] = [{} for _ in range(len(self.number) + len(self.roots))]
        self.lower: list[int | None] = []
        self.upper: list[int | None] = []
        self.row_of: dict[Arc, int] = {}  # of an orbit's capacity
        for arc in reps:
            self._limit(arc)
        joints = frozenset(task.joints)
        for stage, (w, *_) in product(self.stages, task.orbits(v for v in range(task.network.n) if v not in joints)):
            entries = Counter(self.number[stage, task.orbit[u, v]] for u, v, _ in task.network.arcs if v == w)
            entries.subtract(self.number[stage, task.orbit[u, v]] for u, v, _ in task.network.arcs if u == w)
            self._row(entries, 0, 0)
        self.sets: dict[tuple[str, frozenset[int]], int] = {}
        self.terminals = [orbit[0] for orbit in task.orbits(range(task.network.terminals))]
        for stage, v in product(self.stages, self.terminals):
            if task.roots != (v,):
                self._add(stage, {v})

    def _row(self, entries: Mapping[int, int], lower: int | None, upper: int | None) -> None:
        for column, entry in entries.items():
            self.columns[column][len(self.lower)] = entry
        self.lower.append(lower)
        self.upper.append(upper)

    def _limit(self, arc: Arc) -> None:
        """The capacity of an orbit of arcs; mirrored, the same row is that of their reverses."""
        capacity = self.task.network.capacity[arc]
        if not self.task.mirrored:
            self.row_of[arc] = len(self.lower)
            self._row({self.number[stage, arc]: 1 for stage in self.stages}, None, capacity)
            return
        back = self.task.orbit[arc[1], arc[0]]
        if arc <= back:
            self.row_of[arc] = self.row_of[back] = len(self.lower)
            self._row(Counter(self.number[_DOWN, each] for each in (arc, back)), None, capacity)

    def _add(self, stage: str, inside: Iterable[int]) -> bool:
        """A set that gets, or gives, all that its own vertices are not the roots of; whether it is new."""
        held = frozenset(inside)
        if (stage, held) in self.sets:
            return False
        self.sets[stage, held] = len(self.lower)
        entries: Counter[int] = Counter()
        for u, v, _ in self.task.network.arcs:
            tail, head = (u, v) if stage == _DOWN else (v, u)
            if tail not in held and head in held:
                entries[self.number[stage, self.task.orbit[u, v]]] += 1
        for column, roots in enumerate(self.roots, len(self.number)):
            entries[column] = -sum(v not in held for v in roots)
        self._row(entries, 0, None)
        return True

    def solved(self) -> tuple[list[float], list[float]]:
        from blinkccl.trees.packing.solver import Model, solve_with_duals  # only here: it takes a while to load

        cost = [0.0] * len(self.number) + [-float(len(roots)) for roots in self.roots]
        return solve_with_duals(Model(self.columns, self.lower, self.upper, cost))

    def cut(self, values: list[float]) -> bool:
        """Add the sets that these values violate; whether there are any that are new."""
        network = self.task.network
        grain = GRAIN / max(c for _, _, c in network.arcs)
        given = {v: x for roots, x in zip(self.roots, values[len(self.number) :], strict=True) for v in roots}
        total, fresh = sum(given.values()), False
        for stage in self.stages:
            graph = FlowGraph(network.n + 1)
            for u, v, _ in network.arcs:
                flow = round(values[self.number[stage, self.task.orbit[u, v]]] * grain)
                graph.add(*((u, v) if stage == _DOWN else (v, u)), flow)
            for v, x in given.items():
                graph.add(network.n, v, round(x * grain))
            for terminal in self.terminals:
                graph.reset()
                if graph.max_flow(network.n, terminal) < total * grain * (1 - TOLERANCE):
                    fresh |= self._add(stage, set(range(network.n)) - set(graph.source_side(network.n)))
                    fresh |= self._add(stage, (v for v in graph.sink_side(terminal) if v < network.n))
        return fresh

    def sets_of(self, duals: list[float]) -> tuple[Sets, Sets]:
        """The weights of all images of the sets, without transit, in ascending order."""
        task = self.task
        found: dict[str, Sets] = {_DOWN: {}, _UP: {}}
        joints, among = frozenset(task.joints), len(task.moves) * (1 + task.mirrored)
        for (stage, held), row in self.sets.items():
            weight = _short(duals[row]) / among
            for move in task.moves if weight else ():
                image = frozenset(move[v] for v in held & joints)
                found[stage][image] = found[stage].get(image, Fraction(0)) + weight
        down, up = ({some: sets[some] for some in sorted(sets, key=sorted)} for sets in found.values())
        return down, (down if task.mirrored else up)

    def prices_of(self, duals: list[float]) -> dict[Arc, Fraction]:
        """A row's dual is the price of all arcs whose capacity it is."""
        arcs = Counter(self.row_of[of] for of in self.task.orbit.values())
        price = {row: _short(duals[row]) / arcs[row] for row in arcs}
        return {arc: price[self.row_of[of]] for arc, of in self.task.orbit.items()}


def _short(number: float) -> Fraction:
    return Fraction(abs(number)).limit_denominator(LARGEST_DENOMINATOR)


def _high_enough(task: TreeTask, prices: Mapping[Arc, Fraction], entered: Sets, left: Sets) -> dict[Arc, Fraction]:
    """``prices``, raised where a hop costs less than what the sets weigh that it enters, or leaves."""
    scale = lcm(*(price.denominator for price in prices.values()))
    scale = lcm(scale, *(weight.denominator for sets in (entered, left) for weight in sets.values()))
    tolls = _Tolls(entered, left, scale)
    whole, joints = {arc: int(price * scale) for arc, price in prices.items()}, frozenset(task.joints)
    for u, v in whole:
        if u in joints and v in joints:
            whole[u, v] = max(whole[u, v], tolls.of(u, v))
    network, old = renumbered(task.network, sorted(task.combining))
    new = {v: number for number, v in enumerate(old)}
    costs, _ = cheapest_hops(network, {(new[u], new[v]): price for (u, v), price in whole.items()})
    times = Fraction(1)
    for (i, row), j in product(enumerate(costs), range(len(costs))):
        toll = 0 if row[j] is None else tolls.of(old[i], old[j])
        if toll and not row[j]:
            raise InternalError(f"the hop {old[i]} → {old[j]} is free, though it enters a set or leaves one")
        times = max(times, Fraction(toll, row[j])) if toll else times
    return {arc: times * price / scale for arc, price in whole.items() if price}


class _Tolls:
    """What the sets that a hop enters, or those that it leaves, weigh together, whichever is more; in 1/``scale``."""

    def __init__(self, entered: Sets, left: Sets, scale: int) -> None:
        self.families: list[dict[int, dict[int, int]]] = []  # weight → vertex → the sets of that weight it is in, bits
        for sets in (entered, left):
            bits: dict[int, dict[int, int]] = {}
            for number, (some, weight) in enumerate(sets.items()):
                holds = bits.setdefault(int(weight * scale), {})
                for v in some:
                    holds[v] = holds.get(v, 0) | 1 << number
            self.families.append(bits)

    def of(self, u: int, v: int) -> int:
        into, out = self.families
        return max(
            sum(weight * (at.get(v, 0) & ~at.get(u, 0)).bit_count() for weight, at in into.items()),
            sum(weight * (at.get(u, 0) & ~at.get(v, 0)).bit_count() for weight, at in out.items()),
        )
