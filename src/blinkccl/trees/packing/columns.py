"""Exact fractional packing by column generation, for every structure with a pricing oracle.

The problem: maximise X such that for every group g the columns of g have total weight demand_g · X, and all columns
together load no arc above its capacity. A column is a tree (or a pair of trees, or a bundle of paths) with its integer
load per arc. An *oracle* finds the cheapest column of each group under given prices.

By duality any prices y ≥ 0 prove  X ≤ Σ c·y / Σ_g demand_g · cheapest_g(y). So prices alone are a certificate, which
the oracle can check again. HiGHS finds the basis; the basis is solved in Fractions.
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

#: The oracle's own data of a column: the trees.
Payload = Any
Prices = Mapping[Arc, Any]
REDUCED_COST_TOLERANCE = 1e-7
MOST_ROUNDS = 2000


@dataclass(frozen=True, slots=True)
class Column:
    """A tree or bundle of a ``group``. ``loads`` are (arc, number of crossings), with ascending arcs."""

    group: int
    loads: tuple[tuple[Arc, int], ...]
    payload: Payload

    def cost(self, prices: Prices) -> Any:
        """Σ load × price."""
        return sum(prices.get(arc, 0) * load for arc, load in self.loads)


#: Prices → columns, with the cheapest of every group among them. Fractions as prices give an exact answer.
Oracle = Callable[[Prices], list[Column]]


@dataclass(frozen=True, slots=True)
class ExactPacking:
    """Columns with positive weights, their rate X, and prices that prove ``bound``.

    ``pool`` holds candidates for other solutions of this rate. ``prices`` is empty if the rate is the caller's bound.
    """

    rate: Fraction
    columns: tuple[tuple[Column, Fraction], ...]
    pool: tuple[Column, ...]
    prices: dict[Arc, Fraction]
    bound: Fraction


def dual_bound(
    capacity: Mapping[Arc, int], demand: Sequence[Fraction], oracle: Oracle, prices: Mapping[Arc, Any]
) -> Fraction:
    """Σ c·y / Σ_g demand_g · cheapest_g(y), exactly. InternalError if the denominator is not positive."""
    columns = oracle(prices)
    cheapest = _cheapest(columns, [column.cost(prices) for column in columns])
    cost = sum((d * cheapest[g] for g, d in enumerate(demand)), Fraction(0))
    if cost <= 0:
        raise InternalError("the prices prove no bound: every group has a column that costs nothing")
    return sum((capacity[arc] * price for arc, price in prices.items()), Fraction(0)) / cost


def _cheapest(columns: Sequence[Column], costs: Sequence[Fraction]) -> dict[int, Fraction]:
    """The least cost of the columns of each group."""
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
    """The exact optimum by column generation; the weights of group g sum to demand_g × X.

    The oracle must be exact for Fractions. ``seeds`` are columns to start with; they are preferred if they suffice.
    ``target`` is a proved upper bound. Generation stops when it is reached (LP values above it are rounding errors).
    The prices at that point are not returned, because other columns may be cheaper. InternalError if HiGHS fails, or
    its final basis is no feasible solution in exact arithmetic.
    """
    master = _Master(capacity, demand)
    for column in seeds:
        master.add(column)
    if target is not None and len({column.group for column in seeds}) == len(demand):
        packing = _at_target(master, target)
        if packing is not None:
            return packing
    for column in oracle(dict.fromkeys(capacity, 1)):
        master.add(column)
    for _ in range(MOST_ROUNDS):
        clock.look()
        packing = None if target is None else _at_target(master, target)
        if packing is not None:
            return packing
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
    # At an optimum only the cheapest columns of a group can have positive weight (complementary slackness).
    costs = [column.cost(exact_prices) for column in master.columns]
    least = _cheapest(master.columns, costs)
    pool = tuple(c for c, cost in zip(master.columns, costs, strict=True) if cost == least[c.group])
    return ExactPacking(rate, columns, pool, exact_prices, bound)


#: Smaller weights are rounding errors.
LEAST_WEIGHT = 1e-9
#: A search ends if its columns, taken as the cheapest, would prove a rate below this fraction of the accepted one.
HOPELESS = 0.95


def best_mix(
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    oracle: Oracle,
    target: Fraction,
    near: Fraction,
    rounds: int = MOST_ROUNDS,
) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]] | None:
    """A rate X of at least ``near``, and few columns of ``oracle`` that reach it.

    The oracle's columns need not be the cheapest, so the result proves no bound. ``target`` is a proved upper bound.
    None in three cases: ``rounds`` give no such rate, the offered columns show that none will, or the solution does not
    fit exactly because capacities differ by too much for the solver.
    """
    master = _Master(capacity, demand)
    # Every link costs the same in full, so that narrow links are used less from the start.
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
    """Upper limit of the cost of a column that can improve the mix; ``worth`` is the dual of its group."""
    return worth - REDUCED_COST_TOLERANCE * max(1.0, worth)


def _at_target(master: _Master, target: Fraction) -> ExactPacking | None:
    """The optimum over the present columns if it equals the target, or None."""
    if master.optimum()[0] < float(target) * (1 - 1e-9):
        return None
    rate, columns = master.exact_primal()
    return ExactPacking(rate, columns, tuple(master.columns), {}, target) if rate == target else None


#: The largest capacity given to HiGHS. Larger ones are scaled down to it, because its tolerances are absolute.
LARGEST_CAPACITY = 1000


class _Master:
    """The restricted master problem. Column 0 is X, followed by the columns; rows are the arcs, then the groups.

    HiGHS gets capacities divided by ``_unit``, which also divides X. The basis and its prices do not depend on that.
    """

    def __init__(self, capacity: Mapping[Arc, int], demand: Sequence[Fraction]) -> None:
        self.arcs = sorted(capacity)
        self.row = {arc: i for i, arc in enumerate(self.arcs)}
        self.capacity, self.demand = capacity, list(demand)
        self.columns: list[Column] = []
        self._keys: set[tuple[int, tuple[tuple[Arc, int], ...]]] = set()
        self._unit = max(1.0, max(capacity.values()) / LARGEST_CAPACITY)
        self._program = GrowingProgram()
        for arc in self.arcs:
            self._program.add_row(None, capacity[arc] / self._unit)
        for _ in self.demand:
            self._program.add_row(0.0, 0.0)
        self._program.add_column(1.0, {len(self.arcs) + g: -float(d) for g, d in enumerate(self.demand)})

    def add(self, column: Column) -> bool:
        """Add a column; False if it was added before."""
        if (column.group, column.loads) in self._keys:
            return False
        self._keys.add((column.group, column.loads))
        self.columns.append(column)
        entries = {self.row[arc]: float(load) for arc, load in column.loads}
        self._program.add_column(0.0, {**entries, len(self.arcs) + column.group: 1.0})
        return True

    def optimum(self) -> tuple[float, dict[Arc, float], list[float]]:
        """X, the prices of arcs (≥ 0), and the dual of each group: the worth of its columns."""
        value, dual = self._program.maximise()
        prices = {arc: max(0.0, -dual[i]) for i, arc in enumerate(self.arcs)}
        worth = [abs(dual[len(self.arcs) + g]) for g in range(len(self.demand))]
        return value * self._unit, prices, worth

    def weights(self) -> list[float]:
        """Weights of the columns at the last optimum, divided by ``_unit``."""
        return self._program.values()[1:]

    def leave_out(self, least: float) -> None:
        """Remove columns, those of least weight first, while X stays at least ``least``."""
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
        """The basic solution. InternalError if it is not feasible."""
        rate, chosen = self.basic_solution()
        check_loads(chosen, self.capacity, self.demand, rate)
        return rate, chosen

    def basic_solution(self) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]]:
        """The solution of the basis in Fractions, not checked."""
        columns, rows = self._basis()
        right = [Fraction(self.capacity[self.arcs[i]]) if i < len(self.arcs) else Fraction(0) for i in rows]
        values = solve_exactly(self._matrix(columns, rows), right)
        weights = dict(zip(columns, values, strict=True))
        rate = weights.pop(-1, Fraction(0))
        return rate, tuple((self.columns[j], w) for j, w in sorted(weights.items()) if w)

    def exact_dual(self) -> dict[Arc, Fraction]:
        """Prices of the tight arcs in Fractions. Negative ones come from rounding only, and become zero."""
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
    """Raise InternalError if :func:`load_fault` finds a fault."""
    fault = load_fault(chosen, capacity, demand, rate)
    if fault is not None:
        raise InternalError(fault)


def load_fault(
    chosen: Sequence[tuple[Column, Fraction]],
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    rate: Fraction,
) -> str | None:
    """A fault of weights, of demands of groups, or of loads above a capacity; None if there is no fault."""
    total = [Fraction(0)] * len(demand)
    for column, weight in chosen:
        if weight < 0:
            return "a basic solution has a negative weight"
        total[column.group] += weight
    if any(got != d * rate for got, d in zip(total, demand, strict=True)):
        return "the weights of a group's columns do not sum to its demand"
    return None if fits(chosen, capacity) else "a basic solution overloads an arc"


def fits(chosen: Iterable[tuple[Column, Any]], capacity: Mapping[Arc, int], scale: int = 1) -> bool:
    """True if columns with these weights load no arc above its capacity × ``scale``."""
    load: dict[Arc, Any] = {}
    for column, weight in chosen:
        for arc, times in column.loads:
            load[arc] = load.get(arc, 0) + weight * times
    return all(used <= capacity[arc] * scale for arc, used in load.items())


def solve_exactly(matrix: list[dict[int, Fraction]], right: list[Fraction]) -> list[Fraction]:
    """The solution of a square sparse system by Gaussian elimination in Fractions. InternalError if it is singular."""
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
