"""Trees with in-network reduction and multicast, by column generation over orbits of a symmetry.

A *joint* is a terminal or a combining vertex (a switch with in-network reduction). A tree spans all terminals and may
use other joints. Its root is a joint. A hop from joint to joint may cross transit that only passes data on; joints may
serve as such transit too. A combining vertex in a tree sends once to the vertex above it, or once to each vertex below
it, and keeps nothing: it is a Steiner vertex. An AllReduce has an in-tree and an out-tree with the same root. Other
collectives have one of the two, with given roots.

A linear program over trees assigns the data to trees. The choice of Steiner vertices for a cheap tree is hard in
general, and easy here. By :mod:`~blinkccl.trees.packing.symmetry` all arcs of an orbit have one price, so only the
number of vertices of an orbit in a tree matters; none, one and all are tried. Spanning trees over them are pruned: a
leaf that is no terminal is removed. So these trees are a proposal. The bound comes from :func:`in_network_proof`, which
does not depend on trees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, pairwise, product
from math import lcm, prod

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing.columns import Column, ExactPacking, Oracle, Prices, pack_columns
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.network import (
    Arc,
    FlowNetwork,
    Hops,
    breadth_first,
    longest_way,
    rooted_at,
    turned,
)
from blinkccl.trees.packing.oracles import (
    cheapest_hops,
    column_of,
    in_and_out_oracle,
    out_tree_oracle,
    undirected_oracle,
)
from blinkccl.trees.packing.solver import CutProgram
from blinkccl.trees.packing.symmetry import Permutation, arc_orbits, folded, symmetry_of

#: Most choices of Steiner vertices per price. If there are more, each orbit alone and all but each orbit are tried.
MOST_CHOICES = 100


@dataclass(frozen=True)
class TreeTask:
    """The collective to pack: in-trees if ``up``, out-trees if ``down``. All ``roots`` have equal parts of the data.

    Without ``roots`` every joint may be a root of any part of the data. This is an AllReduce, with both stages.
    """

    network: FlowNetwork
    combining: tuple[int, ...]
    up: bool
    down: bool
    roots: tuple[int, ...] = ()

    @cached_property
    def joints(self) -> tuple[int, ...]:
        return (*range(self.network.terminals), *sorted(self.combining))

    @cached_property
    def moves(self) -> tuple[Permutation, ...]:
        """The symmetries of the network that map combining vertices to combining vertices and roots to roots."""
        classes = (frozenset(self.combining), frozenset(self.roots))
        moves = symmetry_of(self.network).moves
        return tuple(move for move in moves if all({move[v] for v in some} == some for some in classes))

    @cached_property
    def orbit(self) -> dict[Arc, Arc]:
        """The orbit of each arc, named by one of its arcs."""
        return arc_orbits(self.network, self.moves)

    def orbits(self, vertices: Iterable[int]) -> list[tuple[int, ...]]:
        """The orbits of ``vertices``, a set that the moves map onto itself."""
        return list(dict.fromkeys(tuple(sorted({move[v] for move in self.moves})) for v in vertices))

    @property
    def mirrored(self) -> bool:
        """True if every in-tree can be the reverse of the out-tree of the same root."""
        return self.up and self.down and self.network.symmetric


@dataclass(frozen=True)
class InNetworkTree:
    """Trees for the fraction ``weight`` of the data: hops ``up`` to ``root``, then ``down``, as the data moves."""

    weight: Fraction
    root: int
    up: Hops
    down: Hops


def in_network_trees(task: TreeTask, target: Fraction) -> tuple[Fraction, tuple[InNetworkTree, ...]]:
    """A rate, at best ``target``, and trees that reach it. ``target`` must be a proved bound.

    The rate is at least that of trees over terminals alone. PackingError if terminals are not connected. Cost: about
    ten rounds, each with a spanning tree per choice of Steiner vertices (and per root if links are not symmetric).
    """
    capacity = folded(task.network, task.orbit)
    groups = task.orbits(task.roots)
    parts = [part for some in _choices(task) if (part := _Part(task, some, [group[0] for group in groups])).is_joined()]
    if not parts:
        raise PackingError("some terminal cannot be reached")

    def oracle(prices: Prices) -> list[Column]:
        full = {arc: prices.get(of, 0) for arc, of in task.orbit.items()}
        columns = [_column(task, *tree) for part in parts for tree in part.cheapest(full)]
        return sorted(columns, key=_crossed)

    demand = [Fraction(len(group), len(task.roots)) for group in groups] or [Fraction(1)]
    packed = pack_columns(capacity, demand, oracle, target=target)
    weights: dict[tuple[int, Hops, Hops], Fraction] = defaultdict(Fraction)
    for column, weight in _one_alone(packed, capacity) or packed.columns:
        for image in _images(column, task.moves):
            weights[image] += weight / (packed.rate * len(task.moves))
    return packed.rate, tuple(InNetworkTree(weights[key], *key) for key in sorted(weights))


def _column(task: TreeTask, group: int, root: int, up: Hops, down: Hops) -> Column:
    loads = Counter(task.orbit[arc] for hop in (*up, *down) for arc in pairwise(hop))
    return column_of(group, loads, (root, up, down))


def _crossed(column: Column) -> int:
    return sum(load for _, load in column.loads)


def _one_alone(packed: ExactPacking, capacity: Mapping[Arc, int]) -> tuple[tuple[Column, Fraction], ...]:
    """The column, with the fewest crossings, whose images alone reach the rate, or ()."""
    if len({column.group for column, _ in packed.columns}) > 1:
        return ()
    alone = (
        (column, packed.rate)
        for column in sorted(packed.pool, key=_crossed)
        if all(packed.rate * load <= capacity[arc] for arc, load in column.loads)
    )
    return tuple(islice(alone, 1))


def _images(column: Column, moves: Sequence[Permutation]) -> Iterator[tuple[int, Hops, Hops]]:
    root, up, down = column.payload
    for move in moves:
        ahead, back = ([tuple(move[v] for v in hop) for hop in hops] for hops in (down, turned(up)))
        yield move[root], turned(breadth_first(move[root], back)), breadth_first(move[root], ahead)


def _choices(task: TreeTask) -> list[tuple[int, ...]]:
    """Sets of combining vertices to try: none, one or all of each orbit, up to :data:`MOST_CHOICES` sets."""
    orbits = task.orbits(task.combining)
    options = [list(dict.fromkeys(((), orbit[:1], orbit))) for orbit in orbits]
    if prod(map(len, options)) <= MOST_CHOICES:
        return [tuple(chain(*some)) for some in product(*options)]
    all_but = (tuple(v for v in task.combining if v not in orbit) for orbit in orbits)
    return list(dict.fromkeys([(), *orbits, *all_but, task.combining]))


class _Part:
    """Trees over the terminals and some combining vertices, which are numbered after the terminals."""

    def __init__(self, task: TreeTask, steiner: Sequence[int], roots: Sequence[int]) -> None:
        self.task, self.terminals, self.roots = task, task.network.terminals, roots
        self.network, self.old = renumbered(task.network, steiner)
        self.new = {old: new for new, old in enumerate(self.old)}
        self.oracle = self._oracle()

    def _oracle(self) -> Oracle:
        if self.task.mirrored:
            return undirected_oracle(self.network)
        if not self.roots:
            return in_and_out_oracle(self.network)
        return out_tree_oracle(self.network.reversed() if self.task.up else self.network, self.roots)

    def is_joined(self) -> bool:
        try:
            self.oracle({})
        except PackingError:
            return False
        return True

    def cheapest(self, prices: Prices) -> Iterator[tuple[int, int, Hops, Hops]]:
        """(group, root, in-tree, out-tree) of least price; only terminals are leaves."""
        priced = {(self.new[u], self.new[v]): price for (u, v), price in prices.items()}
        for group, root, up, down in self._spanning(priced):
            up, down = (tuple(tuple(self.old[v] for v in hop) for hop in hops) for hops in (up, down))
            yield group, self.old[root], up, down

    def _spanning(self, prices: Prices) -> Iterator[tuple[int, int, Hops, Hops]]:
        backwards = bool(self.roots) and self.task.up
        for column in self.oracle({(v, u): y for (u, v), y in prices.items()} if backwards else prices):
            if self.task.mirrored:
                hops = self._pruned(column.payload)
                way = longest_way(hops[0][0], hops)
                root = max(way[(len(way) - 1) // 2], way[len(way) // 2])
                down = rooted_at(root, hops)
                yield 0, root, turned(down), down
            elif not self.roots:
                root, up, down = column.payload
                yield 0, root, turned(self._pruned(turned(up))), self._pruned(down)
            else:
                hops = self._pruned(column.payload)
                ways = (turned(hops), ()) if backwards else ((), hops)
                yield column.group, self.roots[column.group], *ways

    def _pruned(self, hops: Hops) -> Hops:
        """The out-tree without leaves that are no terminals."""
        while True:
            inner = {hop[0] for hop in hops}
            fewer = tuple(hop for hop in hops if hop[-1] < self.terminals or hop[-1] in inner)
            if len(fewer) == len(hops):
                return hops
            hops = fewer


def renumbered(network: FlowNetwork, more: Sequence[int]) -> tuple[FlowNetwork, tuple[int, ...]]:
    """The network with the vertices ``more`` as additional terminals, and the old number of each vertex."""
    others = [v for v in range(network.terminals, network.n) if v not in more]
    old = (*range(network.terminals), *more, *others)
    new = {v: number for number, v in enumerate(old)}
    arcs = tuple(sorted((new[u], new[v], c) for u, v, c in network.arcs))
    return FlowNetwork(network.n, network.terminals + len(more), arcs), old


# Proof of the bound for trees with in-network reduction: prices of arcs, and sets that every tree enters and leaves.
#
# Arcs have prices, and sets of joints that hold a terminal have weights. Data on its way down enters every set without
# the root (``entered``), and data on its way up leaves every set without the root (``left``). A hop from u to v costs
# the cheapest path through passive transit. Every hop must cost at least the total weight of the sets that it enters,
# and at least that of the sets that it leaves. Then one unit of data costs at least the total weight of the sets
# without its root. The price of all capacity, over the cost for the cheapest possible root, bounds the rate.
#
# The best such bound is the dual of a program of flows. In it every terminal gets all data from the roots by its own
# flow. All these flows share the part of each arc that is reserved for the way down; likewise for the way up
# (ForestColl, arXiv 2402.06787). The program is small, because its columns are orbits of arcs and of roots. Sets are
# added when maximum flows find them violated. The duals become fractions, and prices are raised where rounding left
# them too low. So the bound does not depend on the solver's accuracy.
#
# Flows may be faster than all trees. Then the bound stays above the rate of the trees, and both are correct.
#: Largest denominator of the program's numbers as fractions.
LARGEST_DENOMINATOR = 5000
_DOWN, _UP = "down", "up"

#: Weights of sets of joints.
Sets = dict[frozenset[int], Fraction]


@dataclass(frozen=True)
class InNetworkProof:
    """Prices: all capacity costs ``value``, and the weights of sets prove that one unit costs at least ``cost``."""

    prices: dict[Arc, Fraction]
    entered: Sets
    left: Sets
    value: Fraction
    cost: Fraction

    @property
    def bound(self) -> Fraction:
        return self.value / self.cost


def in_network_proof(task: TreeTask) -> InNetworkProof:
    """The best bound by flows, or a higher one if the rounds do not suffice.

    Cost per round: a maximum flow per stage and orbit of terminals, and a linear program.
    """
    flows = _Flows(task)
    cost = [0.0] * len(flows.number) + [-float(len(roots)) for roots in flows.roots]
    for _ in range(flows.MOST_ROUNDS):
        values, duals = flows.solved(cost)
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


class _Flows(CutProgram):
    """The program of flows. Columns are orbits of arcs per stage, and of roots; rows are capacities, transit and sets.

    In a mirrored task, the part of an arc for the way up is the part of its reverse for the way down.
    """

    def __init__(self, task: TreeTask) -> None:
        self.task = task
        self.stages = [_DOWN] * task.down + [_UP] * (task.up and not task.mirrored)
        reps = sorted(set(task.orbit.values()))
        self.number = {key: i for i, key in enumerate(product(self.stages, reps))}
        self.roots = [task.roots] if task.roots else task.orbits(task.joints)
        super().__init__(len(self.number) + len(self.roots))
        self.row_of: dict[Arc, int] = {}  # orbit → row of its capacity
        for arc in reps:
            self._limit(arc)
        joints = frozenset(task.joints)
        for stage, (w, *_) in product(self.stages, task.orbits(v for v in range(task.network.n) if v not in joints)):
            entries = Counter(self.number[stage, task.orbit[u, v]] for u, v, _ in task.network.arcs if v == w)
            entries.subtract(self.number[stage, task.orbit[u, v]] for u, v, _ in task.network.arcs if u == w)
            self.row(entries, 0, 0)
        self.sets: dict[tuple[str, frozenset[int]], int] = {}
        self.terminals = [orbit[0] for orbit in task.orbits(range(task.network.terminals))]
        for stage, v in product(self.stages, self.terminals):
            if task.roots != (v,):
                self._add(stage, {v})

    def _limit(self, arc: Arc) -> None:
        """Add the capacity row of an orbit of arcs. In a mirrored task the reversed arcs share this row."""
        capacity = self.task.network.capacity[arc]
        if not self.task.mirrored:
            self.row_of[arc] = self.row({self.number[stage, arc]: 1 for stage in self.stages}, None, capacity)
            return
        back = self.task.orbit[arc[1], arc[0]]
        if arc <= back:
            shared = Counter(self.number[_DOWN, each] for each in (arc, back))
            self.row_of[arc] = self.row_of[back] = self.row(shared, None, capacity)

    def _add(self, stage: str, inside: Iterable[int]) -> bool:
        """Add the row of a set, which must receive (or send) all data of roots outside it; False if it is not new."""
        held = frozenset(inside)
        if (stage, held) in self.sets:
            return False
        entries: Counter[int] = Counter()
        for u, v, _ in self.task.network.arcs:
            tail, head = (u, v) if stage == _DOWN else (v, u)
            if tail not in held and head in held:
                entries[self.number[stage, self.task.orbit[u, v]]] += 1
        for column, roots in enumerate(self.roots, len(self.number)):
            entries[column] = -sum(v not in held for v in roots)
        self.sets[stage, held] = self.row(entries, 0, None)
        return True

    def cut(self, values: list[float]) -> bool:
        """Add the sets violated by these values; True if any of them is new."""
        network = self.task.network
        grain = self.GRAIN / max(c for _, _, c in network.arcs)
        supply = {v: x for roots, x in zip(self.roots, values[len(self.number) :], strict=True) for v in roots}
        total, fresh = sum(supply.values()), False
        for stage in self.stages:
            graph = FlowGraph(network.n + 1)
            for u, v, _ in network.arcs:
                flow = round(values[self.number[stage, self.task.orbit[u, v]]] * grain)
                graph.add(*((u, v) if stage == _DOWN else (v, u)), flow)
            for v, x in supply.items():
                graph.add(network.n, v, round(x * grain))
            for terminal in self.terminals:
                graph.reset()
                if graph.max_flow(network.n, terminal) < total * grain * (1 - self.TOLERANCE):
                    fresh |= self._add(stage, set(range(network.n)) - set(graph.source_side(network.n)))
                    fresh |= self._add(stage, (v for v in graph.sink_side(terminal) if v < network.n))
        return fresh

    def sets_of(self, duals: list[float]) -> tuple[Sets, Sets]:
        """The weights of all images of the sets, restricted to joints, in ascending order."""
        task = self.task
        by_stage: dict[str, Sets] = {_DOWN: {}, _UP: {}}
        joints, among = frozenset(task.joints), len(task.moves) * (1 + task.mirrored)
        for (stage, held), row in self.sets.items():
            weight = _short(duals[row]) / among
            for move in task.moves if weight else ():
                image = frozenset(move[v] for v in held & joints)
                by_stage[stage][image] = by_stage[stage].get(image, Fraction(0)) + weight
        down, up = ({some: sets[some] for some in sorted(sets, key=sorted)} for sets in by_stage.values())
        return down, (down if task.mirrored else up)

    def prices_of(self, duals: list[float]) -> dict[Arc, Fraction]:
        """Prices of arcs: the dual of a capacity row, divided among the arcs of its row."""
        arcs = Counter(self.row_of[of] for of in self.task.orbit.values())
        price = {row: _short(duals[row]) / arcs[row] for row in arcs}
        return {arc: price[self.row_of[of]] for arc, of in self.task.orbit.items()}


def _short(number: float) -> Fraction:
    return Fraction(abs(number)).limit_denominator(LARGEST_DENOMINATOR)


def _high_enough(task: TreeTask, prices: Mapping[Arc, Fraction], entered: Sets, left: Sets) -> dict[Arc, Fraction]:
    """``prices``, raised until every hop costs at least the sets that it enters, and those that it leaves."""
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
            raise InternalError(
                f"the hop {old[i]} → {old[j]} has price 0, but enters or leaves a set of positive weight"
            )
        times = max(times, Fraction(toll, row[j])) if toll else times
    return {arc: times * price / scale for arc, price in whole.items() if price}


class _Tolls:
    """The least valid price of a hop, in 1/``scale``: the larger weight of sets that it enters or leaves."""

    def __init__(self, entered: Sets, left: Sets, scale: int) -> None:
        self.families: list[dict[int, dict[int, int]]] = []  # weight → vertex → bits: its sets of that weight
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
