"""AllReduce over one-way links without switches: the optimum, and integer trees near it.

Root r has x(r) trees up and as many down. The capacity c of a link is divided between the two phases: d for the way
down and c − d for the way up. Each phase is then a separate packing (Frank 1978). So the optimum R is that of a linear
program over the links and roots alone:

    max R = Σ x  with  0 ≤ d ≤ c,  d(links into X) ≥ R − x(X),  (c − d)(links out of X) ≥ R − x(X)

for every set X of ranks. Sets are added when maximum flows find them violated. This takes a few rounds, because mostly
single ranks are the bottleneck. The price of a link is the sum of the duals of the sets that it enters, or of those
that it leaves, the larger one. These prices prove R: a tree down enters every set without its root, and a tree up
leaves it. For k trees, each with 1/k of the data, the same program is solved in integers, with the number of trees that
a link can hold as its capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.bottleneck import short_cuts
from blinkccl.trees.packing.equal_trees import MOST_TRIED, divisible
from blinkccl.trees.packing.integral import Arborescence, flatten, pack_arborescences
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.solver import CutProgram, Model, UndecidedError, decide, solve_with_duals, whole

#: Largest denominator of the weights of sets.
LARGEST_DENOMINATOR = 10_000
#: Most branchings of the integer program.
NODE_LIMIT = 50

#: A root, a number of equal trees, the reversed arcs of the tree up to the root, and the arcs of the tree down.
Pair = tuple[int, int, tuple[Arc, ...], tuple[Arc, ...]]


class Phases:
    """The optimum of AllReduce on a network without transit. PackingError if a rank cannot reach another.

    ``prices`` of links prove ``bound``. ``tight`` is true if the bound is the optimum itself, up to rounding.
    """

    def __init__(self, network: FlowNetwork) -> None:
        self._network = network
        #: Arcs by set of ranks (ascending) and direction: those that leave it (True, up) or enter it (False, down).
        self._sets: dict[tuple[tuple[int, ...], bool], list[int]] = {}
        self._out: list[list[int]] = [[] for _ in range(network.n)]
        self._into: list[list[int]] = [[] for _ in range(network.n)]
        for i, (u, v, _) in enumerate(network.arcs):
            self._out[u].append(i)
            self._into[v].append(i)
        for v in range(network.n):
            self._add({v}, up=False)
            self._add({v}, up=True)
        capacities = [c for _, _, c in network.arcs]
        grain = CutProgram.GRAIN / max(capacities)
        settled = False
        for _ in range(CutProgram.MOST_ROUNDS):
            clock.look()
            values, duals = solve_with_duals(self._model(capacities, None), interior=True)
            part = 1 - CutProgram.TOLERANCE
            settled = not self._cut([c * grain for c in capacities], [x * grain for x in values], part)
            if settled:
                break
        self.prices, self.bound = self._proof([abs(dual) for dual in duals[1:]])
        self.tight = settled and self.bound <= values[-1] * (1 + CutProgram.TOLERANCE)

    def pairs(self, trees: int, limits: Sequence[int]) -> list[Pair] | None:
        """Pairs of trees, ``trees`` up and as many down, at most ``limits`` over each arc; None if not found."""
        network = self._network
        for _ in range(CutProgram.MOST_ROUNDS):
            clock.look()
            try:
                solution = decide(self._model(limits, trees), NODE_LIMIT)
            except UndecidedError:
                return None
            units = None if solution is None else whole(solution)
            if units is None:
                return None
            if not self._cut(limits, units, 1):
                break
        else:
            return None
        demand = {r: k for r, k in enumerate(units[len(limits) : -1]) if k}
        down = [(u, v, d) for (u, v, _), d in zip(network.arcs, units, strict=False)]
        up = [(v, u, most - d) for (u, v, d), most in zip(down, limits, strict=True)]
        return paired(*(_packed(network.n, arcs, demand) for arcs in (up, down)))

    def fastest(self, most: int) -> tuple[Fraction, int, list[Pair]]:
        """The fastest rate found with at most ``most`` equal trees in all, the number of trees, and the trees.

        For each number of trees, a bisection tries the rates at which some link is full.
        InternalError if not even one tree is found.
        """
        widths = [c for _, _, c in self._network.arcs]
        best: tuple[Fraction, int, list[Pair]] | None = None
        for trees in sorted(
            {*range(1, min(most, MOST_TRIED) + 1), *divisible(self._network, self.bound, most, self.prices)}
        ):
            full = {Fraction(trees * c, load) for c in widths for load in range(1, 2 * trees + 1)}
            rates = sorted(rate for rate in full if (best[0] if best else 0) < rate <= self.bound)
            low, high = 0, len(rates)  # rates before ``low`` are reached; those from ``high`` on are too fast
            while low < high:
                middle = (low + high) // 2 if best and best[1] == trees else low
                pairs = self.pairs(trees, [int(trees * c / rates[middle]) for c in widths])
                if pairs is None:
                    high = middle
                else:
                    best, low = (rates[middle], trees, pairs), middle + 1
        if best is None:
            raise InternalError(
                "no trees found, although one tree up and one down fit at half the rate of the narrowest link"
            )
        return best

    def _add(self, inside: Iterable[int], *, up: bool) -> bool:
        arcs, ranks = self._network.arcs, tuple(sorted(inside))
        if (ranks, up) in self._sets:
            return False
        within = frozenset(ranks)
        crossing = self._out if up else self._into
        if 2 * len(ranks) < self._network.n:
            boundary = [i for v in ranks for i in crossing[v] if arcs[i][up] not in within]
        else:
            turned = self._into if up else self._out
            beyond = (v for v in range(self._network.n) if v not in within)
            boundary = [i for v in beyond for i in turned[v] if arcs[i][not up] in within]
        self._sets[ranks, up] = boundary
        return True

    def _model(self, capacities: Sequence[int], trees: int | None) -> Model:
        """The program. Columns are d of every arc, x of every rank, and R, which is maximised or equals ``trees``."""
        network = self._network
        arcs, total = len(network.arcs), len(network.arcs) + network.n
        columns: list[dict[int, int]] = [{} for _ in range(total + 1)]
        lower: list[int | None] = [0]
        for x in range(arcs, total):
            columns[x][0] = 1
        columns[total][0] = -1
        for row, ((inside, up), crossing) in enumerate(self._sets.items(), start=1):
            for i in crossing:
                columns[i][row] = -1 if up else 1
            for r in inside:
                columns[arcs + r][row] = 1
            columns[total][row] = -1
            lower.append(-sum(capacities[i] for i in crossing) if up else 0)
        upper: list[int | None] = [0, *(None for _ in self._sets)]
        most = sum(capacities)
        bound = [*capacities, *(most for _ in range(network.n + 1))]
        if trees is None:
            return Model(columns, lower, upper, [0.0] * total + [-1.0], bound)
        columns[total][len(lower)] = 1
        return Model(columns, [*lower, trees], [*upper, trees], None, bound, integer=True)

    def _cut(self, capacities: Sequence[float], values: Sequence[float], part: float) -> bool:
        """Add the sets violated by these values, with x multiplied by ``part``; True if any of them is new."""
        network = self._network
        units = [round(x * part) for x in values[len(network.arcs) : -1]]
        fresh = False
        for up in (False, True):
            shares = (most - down if up else down for most, down in zip(capacities, values, strict=False))
            wide = [((v, u) if up else (u, v), round(x)) for (u, v, _), x in zip(network.arcs, shares, strict=False)]
            phase = FlowNetwork(network.n, network.n, tuple((*arc, c) for arc, c in wide if c > 0))
            for side in short_cuts(phase, units):
                fresh |= self._add(set(range(network.n)).difference(side), up=up)
        return fresh

    def _proof(self, duals: Sequence[float]) -> tuple[dict[Arc, Fraction], Fraction]:
        """Prices of links from the weights of sets, and the bound that they prove."""
        weights = [Fraction(dual).limit_denominator(LARGEST_DENOMINATOR) for dual in duals]
        scale = lcm(*(weight.denominator for weight in weights))
        network = self._network
        sums = [[0] * len(network.arcs), [0] * len(network.arcs)]
        without = [int(sum(weights) * scale)] * network.n  # weight of the sets without a rank: the cost of its trees
        for ((inside, up), crossing), weight in zip(self._sets.items(), weights, strict=True):
            units = int(weight * scale)
            for r in inside if units else ():
                without[r] -= units
            for i in crossing if units else ():
                sums[up][i] += units
        each = [max(pair) for pair in zip(*sums, strict=True)]
        prices = {(u, v): Fraction(units, scale) for (u, v, _), units in zip(network.arcs, each, strict=True) if units}
        worth = Fraction(sum(c * units for (_, _, c), units in zip(network.arcs, each, strict=True)))
        if not worth or min(without) <= 0:
            raise PackingError("some rank cannot be reached from another")
        return prices, worth / min(without)


def _packed(n: int, arcs: Iterable[tuple[int, int, int]], demand: dict[int, int]) -> dict[int, list[Arborescence]]:
    """Trees by root, largest multiplicity first."""
    network = FlowNetwork(n, n, tuple(sorted(arc for arc in arcs if arc[2])))
    by_root: dict[int, list[Arborescence]] = {}
    for tree in flatten(network.capacity, pack_arborescences(network, demand)):
        by_root.setdefault(tree.root, []).append(tree)
    return by_root


def paired(ups: dict[int, list[Arborescence]], downs: dict[int, list[Arborescence]]) -> list[Pair]:
    """Pairs of trees up and down with the same root, in their order; multiplicities are split where needed."""
    pairs: list[Pair] = []
    if ups.keys() != downs.keys():
        raise InternalError("the roots of trees up and trees down differ")
    for root, rising in ups.items():
        falling = list(downs[root])
        used = 0  # units of falling[0]
        for tree in rising:
            left = tree.multiplicity
            while left:
                units = min(left, falling[0].multiplicity - used)
                pairs.append((root, units, tree.arcs, falling[0].arcs))
                left, used = left - units, used + units
                if used == falling[0].multiplicity:
                    falling.pop(0)
                    used = 0
    return pairs
