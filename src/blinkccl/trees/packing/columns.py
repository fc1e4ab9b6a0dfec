"""Exact fractional packing by column generation: any structure that an oracle can price.

The problem: maximise X such that for every group g the columns of g have total weight demand_g · X, and all
columns together load each arc within its capacity. A column is one tree (or one pair of trees, or a bundle of
paths) with its integer load per arc. An *oracle* finds each group's cheapest column under given prices.

By duality any prices y ≥ 0 prove  X ≤ Σ c·y / Σ_g demand_g · cheapest_g(y), so prices alone are a
certificate that anyone can re-check with the oracle. HiGHS finds the basis; the basis is solved in Fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinkccl.errors import InternalError
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc
from blinkccl.trees.packing.solver import GrowingProgram

#: Anything the oracle wants to remember of a column (the trees).
Payload = Any
Prices = Mapping[Arc, Any]
REDUCED_COST_TOLERANCE = 1e-7
MOST_ROUNDS = 2000


@dataclass(frozen=True, slots=True)
class Column:
    """``loads`` are (arc, times crossed) with ascending arcs."""

    group: int
    loads: tuple[tuple[Arc, int], ...]
    payload: Payload

    def cost(self, prices: Prices) -> Any:
        """Σ load × price."""
        return sum(prices.get(arc, 0) * load for arc, load in self.loads)


#: Prices → columns, the cheapest of every group among them (floats in, or Fractions for an exact answer).
Oracle = Callable[[Prices], list[Column]]


@dataclass(frozen=True, slots=True)
class ExactPacking:
    """Columns with positive weights, the rate X they reach, and prices that prove ``bound``.

    ``pool`` holds every column that was met. No prices where the rate is the caller's own proved bound.
    """

    rate: Fraction
    columns: tuple[tuple[Column, Fraction], ...]
    pool: tuple[Column, ...]
    prices: dict[Arc, Fraction]
    bound: Fraction


def dual_bound(
    capacity: Mapping[Arc, int], demand: Sequence[Fraction], oracle: Oracle, prices: Mapping[Arc, Any]
) -> Fraction:
    """Σ c·y / Σ_g demand_g · cheapest_g(y), exactly; InternalError if these prices make some column free."""
    columns = oracle(prices)
    cheapest = _cheapest(columns, [column.cost(prices) for column in columns])
    cost = sum((d * cheapest[g] for g, d in enumerate(demand)), Fraction(0))
    if cost <= 0:
        raise InternalError("prices that cost nothing prove nothing")
    return sum((capacity[arc] * price for arc, price in prices.items()), Fraction(0)) / cost


def _cheapest(columns: Sequence[Column], costs: Sequence[Fraction]) -> dict[int, Fraction]:
    """The least cost of a column of each group."""
    least: dict[int, Fraction] = {}
    for column, cost in zip(columns, costs, strict=True):
        least[column.group] = min(cost, least.get(column.group, cost))
    return least


def pack_columns(
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    oracle: Oracle,
    seeds: Sequence[Column] = (),
    target: Fraction | None = None,
) -> ExactPacking:
    """The exact optimum by column generation; the groups' weights are demand × X.

    The oracle prices exactly when given Fractions. ``seeds`` are columns to start with, preferred where they suffice.
    ``target`` is a proved upper bound: generation stops on reaching it (LP values above it are rounding), and the
    prices at that point, which other columns may still undercut, are not returned. InternalError if HiGHS fails, or its
    final basis is no feasible solution in exact arithmetic.
    """
    master = _Master(capacity, demand)
    for column in seeds:
        master.add(column)
    if target is not None and len({column.group for column in seeds}) == len(demand):
        found = _at_target(master, target)
        if found is not None:
            return found
    for column in oracle(dict.fromkeys(capacity, 1)):
        master.add(column)
    for _ in range(MOST_ROUNDS):
        clock.look()
        found = None if target is None else _at_target(master, target)
        if found is not None:
            return found
        _, prices, worth = master.optimum()
        fresh = [
            column
            for column in oracle(prices)
            if column.cost(prices) < _undercut(worth[column.group]) and master.add(column)
        ]
        if not fresh:
            break
    rate, columns = master.exact_primal()
    exact_prices = master.exact_dual()
    bound = dual_bound(capacity, demand, oracle, exact_prices)
    # Only the cheapest columns of a group can have a weight at the optimum (complementary slackness).
    costs = [column.cost(exact_prices) for column in master.columns]
    least = _cheapest(master.columns, costs)
    pool = tuple(c for c, cost in zip(master.columns, costs, strict=True) if cost == least[c.group])
    return ExactPacking(rate, columns, pool, exact_prices, bound)


#: Less than this is no weight, but rounding.
LEAST_WEIGHT = 1e-9
#: A search ends where its own columns, if they were the cheapest, would prove that less than this of it is reached.
HOPELESS = 0.95


def best_mix(
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    oracle: Oracle,
    target: Fraction,
    near: Fraction,
    rounds: int = MOST_ROUNDS,
) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]] | None:
    """X of at least ``near``, and the columns that reach it, of those that ``oracle`` offers: few of them.

    The oracle's columns need not be the cheapest, so nothing is proved of others; ``target`` is a proved upper bound.
    None where nothing near is found in so many ``rounds``, what is offered shows that nothing will be, or capacities
    differ by so much that what rounding finds does not fit exactly.
    """
    master = _Master(capacity, demand)
    # All of one link costs what all of another does: so narrow ones are spared from the beginning.
    for column in oracle({arc: 1 / width for arc, width in capacity.items()}):
        master.add(column)
    if len({column.group for column in master.columns}) < len(demand):
        return None
    value = 0.0
    for _ in range(rounds):
        clock.look()
        value, prices, worth = master.optimum()
        if value >= float(target) * (1 - 1e-9):
            break
        offered = oracle(prices)
        costs = [column.cost(prices) for column in offered]
        least = _cheapest(offered, costs)
        cost = sum(float(d) * least[group] for group, d in enumerate(demand))
        reachable = sum(capacity[arc] * price for arc, price in prices.items()) / cost if cost > 0 else math.inf
        if reachable < float(near) * HOPELESS:
            return None
        fresh = [
            column
            for column, cost in zip(offered, costs, strict=True)
            if cost < _undercut(worth[column.group]) and master.add(column)
        ]
        if not fresh:
            break
    if value < float(near):
        return None
    few = _Master(capacity, demand)
    for column, weight in zip(master.columns, master.weights(), strict=True):
        if weight > LEAST_WEIGHT:
            few.add(column)
    few.leave_out(float(near))
    rate, chosen = few.basic_solution()
    return None if load_fault(chosen, few.capacity, few.demand, rate) else (rate, chosen)


def _undercut(worth: float) -> float:
    """A mix may gain by a column that costs less, where its group's are worth so much."""
    return worth - REDUCED_COST_TOLERANCE * max(1.0, worth)


def _at_target(master: _Master, target: Fraction) -> ExactPacking | None:
    """The optimum over the columns so far, if it is the target."""
    if master.optimum()[0] < float(target) * (1 - 1e-9):
        return None
    rate, columns = master.exact_primal()
    return ExactPacking(rate, columns, tuple(master.columns), {}, target) if rate == target else None


#: Capacities up to this are given to HiGHS as they are; larger ones shrunk to it, as its tolerances are absolute.
LARGEST_CAPACITY = 1000


class _Master:
    """The restricted master: column 0 is X, then the columns; rows are the arcs, then the groups.

    HiGHS sees capacities, and with them X, divided by ``unit``; a basis and its prices do not depend on that.
    """

    def __init__(self, capacity: Mapping[Arc, int], demand: Sequence[Fraction]) -> None:
        self.arcs = sorted(capacity)
        self.row = {arc: i for i, arc in enumerate(self.arcs)}
        self.capacity, self.demand = capacity, list(demand)
        self.columns: list[Column] = []
        self._seen: set[tuple[int, tuple[tuple[Arc, int], ...]]] = set()
        self._unit = max(1.0, max(capacity.values()) / LARGEST_CAPACITY)
        self._program = GrowingProgram()
        for arc in self.arcs:
            self._program.add_row(None, capacity[arc] / self._unit)
        for _ in self.demand:
            self._program.add_row(0.0, 0.0)
        self._program.add_column(1.0, {len(self.arcs) + g: -float(d) for g, d in enumerate(self.demand)})

    def add(self, column: Column) -> bool:
        """Add a column unless it is there."""
        if (column.group, column.loads) in self._seen:
            return False
        self._seen.add((column.group, column.loads))
        self.columns.append(column)
        entries = {self.row[arc]: float(load) for arc, load in column.loads}
        self._program.add_column(0.0, {**entries, len(self.arcs) + column.group: 1.0})
        return True

    def optimum(self) -> tuple[float, dict[Arc, float], list[float]]:
        """X, the arcs' prices (≥ 0), and what each group's columns are worth."""
        value, dual = self._program.maximise()
        prices = {arc: max(0.0, -dual[i]) for i, arc in enumerate(self.arcs)}
        worth = [abs(dual[len(self.arcs) + g]) for g in range(len(self.demand))]
        return value * self._unit, prices, worth

    def weights(self) -> list[float]:
        """The columns' weights at the last optimum, in HiGHS's unit."""
        return self._program.values()[1:]

    def leave_out(self, least: float) -> None:
        """Leaves columns out, those of least weight first, for as long as X stays at ``least``."""
        self.optimum()
        tried: set[int] = set()
        while len(tried) < len(self.columns):
            weights = self.weights()
            for j, weight in enumerate(weights):
                if weight <= LEAST_WEIGHT and j not in tried:
                    tried.add(j)
                    self._program.forbid(j + 1)
            left = [(weight, j) for j, weight in enumerate(weights) if j not in tried]
            if left:
                lightest = min(left)[1]
                tried.add(lightest)
                self._program.forbid(lightest + 1)
                if self.optimum()[0] < least:
                    self._program.allow(lightest + 1)
                    self.optimum()

    def _basis(self) -> tuple[list[int], list[int]]:
        """Indexes of basic columns (−1 is X) and of tight rows."""
        columns, rows = self._program.basis()
        return [j - 1 for j in columns], rows

    def _matrix(self, columns: list[int], rows: list[int]) -> list[dict[int, Fraction]]:
        """Per tight row: position of a basic column → coefficient."""
        place = {row: i for i, row in enumerate(rows)}
        matrix: list[dict[int, Fraction]] = [{} for _ in rows]
        for position, j in enumerate(columns):
            entries = (
                [(len(self.arcs) + g, -d) for g, d in enumerate(self.demand)]
                if j < 0
                else [(self.row[arc], Fraction(load)) for arc, load in self.columns[j].loads]
                + [(len(self.arcs) + self.columns[j].group, Fraction(1))]
            )
            for row, value in entries:
                if row in place:
                    matrix[place[row]][position] = value
        return matrix

    def exact_primal(self) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]]:
        """The basic solution; InternalError where it is none."""
        rate, chosen = self.basic_solution()
        check_loads(chosen, self.capacity, self.demand, rate)
        return rate, chosen

    def basic_solution(self) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]]:
        """The basis in Fractions, not checked."""
        columns, rows = self._basis()
        right = [Fraction(self.capacity[self.arcs[i]]) if i < len(self.arcs) else Fraction(0) for i in rows]
        values = solve_exactly(self._matrix(columns, rows), right)
        weights = dict(zip(columns, values, strict=True))
        rate = weights.pop(-1, Fraction(0))
        return rate, tuple((self.columns[j], w) for j, w in sorted(weights.items()) if w)

    def exact_dual(self) -> dict[Arc, Fraction]:
        """Prices of the tight arcs in Fractions (negative ones, which only rounding makes, become zero)."""
        columns, rows = self._basis()
        matrix = self._matrix(columns, rows)
        transposed: list[dict[int, Fraction]] = [{} for _ in columns]
        for i, entries in enumerate(matrix):
            for position, value in entries.items():
                transposed[position][i] = value
        values = solve_exactly(transposed, [Fraction(1) if j < 0 else Fraction(0) for j in columns])
        prices = {self.arcs[row]: y for row, y in zip(rows, values, strict=True) if row < len(self.arcs)}
        sign = -1 if sum(prices.values(), Fraction(0)) < 0 else 1
        return {arc: sign * y for arc, y in prices.items() if sign * y > 0}


def check_loads(
    chosen: Sequence[tuple[Column, Fraction]],
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    rate: Fraction,
) -> None:
    """Raise InternalError where :func:`load_fault` finds one."""
    fault = load_fault(chosen, capacity, demand, rate)
    if fault is not None:
        raise InternalError(fault)


def load_fault(
    chosen: Sequence[tuple[Column, Fraction]],
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    rate: Fraction,
) -> str | None:
    """A sentence unless weights are positive, groups get their demand, and no arc is overfull."""
    total = [Fraction(0)] * len(demand)
    for column, weight in chosen:
        if weight < 0:
            return "a basic solution has a negative weight"
        total[column.group] += weight
    if any(got != d * rate for got, d in zip(total, demand, strict=True)):
        return "a group's columns do not sum to its demand"
    return None if fits(chosen, capacity) else "a basic solution overloads an arc"


def fits(chosen: Iterable[tuple[Column, Any]], capacity: Mapping[Arc, int], scale: int = 1) -> bool:
    """Whether columns with these weights load no arc over its capacity × ``scale``."""
    load: dict[Arc, Any] = {}
    for column, weight in chosen:
        for arc, times in column.loads:
            load[arc] = load.get(arc, 0) + weight * times
    return all(used <= capacity[arc] * scale for arc, used in load.items())


def solve_exactly(matrix: list[dict[int, Fraction]], right: list[Fraction]) -> list[Fraction]:
    """The solution of a square sparse system by Gaussian elimination in Fractions; InternalError if it is singular."""
    size = len(right)
    rows = [dict(row) for row in matrix]
    right = list(right)
    if len(rows) != size:
        raise InternalError("the basis is not square")
    pivots: list[tuple[int, int]] = []
    open_rows = set(range(size))
    while open_rows:
        clock.look()
        pivot = min(open_rows, key=lambda i: (len(rows[i]), i))
        if not rows[pivot]:
            raise InternalError("the basis is singular")
        column = min(rows[pivot])
        open_rows.discard(pivot)
        _eliminate(rows, right, pivot, column, sorted(open_rows))
        pivots.append((pivot, column))
    values = [Fraction(0)] * size
    for pivot, column in reversed(pivots):
        rest = sum((x * values[j] for j, x in rows[pivot].items() if j != column), Fraction(0))
        values[column] = (right[pivot] - rest) / rows[pivot][column]
    return values


def _eliminate(
    rows: list[dict[int, Fraction]], right: list[Fraction], pivot: int, column: int, others: list[int]
) -> None:
    source = rows[pivot]
    for i in others:
        target = rows[i]
        if column in target:
            factor = target.pop(column) / source[column]
            for j, x in source.items():
                if j != column:
                    value = target.get(j, Fraction(0)) - factor * x
                    if value:
                        target[j] = value
                    else:
                        target.pop(j, None)
            right[i] -= factor * right[pivot]
