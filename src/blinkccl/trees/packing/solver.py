"""The only caller of HiGHS: linear and integer programs over columns, with statuses as our errors.

Every result is checked again in integers or Fractions before use. HiGHS always runs on one thread: an instance with
another thread count than an earlier one in the same process may silently answer "Not Set".

HiGHS and NumPy are loaded at first use, because most plans are combinatorial and should not wait 0.1 s for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from time import perf_counter
from typing import Any

from blinkccl.errors import InternalError, TimeUpError
from blinkccl.trees.packing import clock

#: A column's entries: row → coefficient.
Entries = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Model:
    """Minimise cost·x subject to lower ≤ Ax ≤ upper, 0 ≤ x ≤ bound; ``None`` is unbounded."""

    columns: Sequence[Entries]
    lower: Sequence[float | None]
    upper: Sequence[float | None]
    cost: Sequence[float] | None = None
    bound: Sequence[int] | None = None
    integer: bool = False


class CutProgram:
    """A minimisation program that gains rows, mostly for sets of vertices that a solution violates."""

    #: Most rounds of solving and adding rows; ten are already many.
    MOST_ROUNDS = 200
    #: A set counts as violated if more than this fraction of its required inflow is missing.
    TOLERANCE = 1e-6
    #: Units of the largest capacity, for flows in integers.
    GRAIN = 1 << 30

    def __init__(self, columns: int) -> None:
        self.columns: list[dict[int, int]] = [{} for _ in range(columns)]
        self.lower: list[int | None] = []
        self.upper: list[int | None] = []

    def row(self, entries: Mapping[int, int], lower: int | None, upper: int | None) -> int:
        """Add a row lower ≤ … ≤ upper with entries by column; return its number."""
        for column, entry in entries.items():
            self.columns[column][len(self.lower)] = entry
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def solved(self, cost: Sequence[float]) -> tuple[list[float], list[float]]:
        """Solve: values of columns and duals of rows."""
        return solve_with_duals(Model(self.columns, self.lower, self.upper, cost))


#: Seconds reserved for loading HiGHS, which takes 0.2 s of a core, and longer on a busy one.
LOADING_S = 0.5
_loading_s: list[float] = []


def loading_seconds() -> float:
    """Seconds that this process spent on loading HiGHS and NumPy, which is not part of solving."""
    return sum(_loading_s)


@cache
def _libraries() -> tuple[Any, Any]:
    """The modules highspy and numpy. TimeUpError if too little time is left, because imports cannot be interrupted."""
    if clock.left_s() < LOADING_S:
        raise TimeUpError("the search has no time left to load HiGHS")
    began = perf_counter()
    import highspy
    import numpy

    _loading_s.append(perf_counter() - began)
    return highspy, numpy


def _new_highs() -> Any:
    """A silent single-threaded HiGHS."""
    highs = _libraries()[0].Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    return highs


def _run(highs: Any) -> None:
    """Solve within the time left for the surrounding search. TimeUpError if that is not enough."""
    clock.look()
    left_s = clock.left_s()
    if left_s < inf:
        # The limit of HiGHS counts the seconds of all runs of an instance.
        highs.setOptionValue("time_limit", highs.getRunTime() + left_s)
    highs.run()
    if highs.getModelStatus().name == "kTimeLimit":
        raise TimeUpError("the search has no time left")


class UndecidedError(Exception):
    """An integer program reached its limit of branchings without a solution and without a proof that none exists."""


def solve(model: Model, node_limit: int = 2000) -> list[float] | None:
    """A solution, or None if none exists or none was found within ``node_limit`` branchings."""
    try:
        return decide(model, node_limit)
    except UndecidedError:
        return None


def decide(model: Model, node_limit: int) -> list[float] | None:
    """A solution, or None if none exists. UndecidedError if ``node_limit`` branchings do not decide."""
    highs = _new_highs()
    highs.setOptionValue("mip_max_nodes", node_limit)
    highs.passModel(_lowered(model))
    _run(highs)
    outcome = _outcome(highs)
    if outcome is None:
        raise _stopped(highs)
    values = list(highs.getSolution().col_value)
    feasible = _libraries()[0].kSolutionStatusFeasible
    if outcome == "stopped" and highs.getInfo().primal_solution_status != feasible:
        raise UndecidedError
    return values if outcome != "infeasible" and len(values) == len(model.columns) else None


def solve_with_duals(model: Model, *, interior: bool = False) -> tuple[list[float], list[float]]:
    """Values of columns and duals of rows at an optimum of a linear program, which must have one.

    ``interior`` selects the interior-point method, which is faster if many vertices are optimal.
    """
    highs = _new_highs()
    if interior:
        highs.setOptionValue("solver", "ipm")
    highs.passModel(_lowered(model))
    _run(highs)
    if _outcome(highs) != "solved":
        raise _stopped(highs)
    solution = highs.getSolution()
    return list(solution.col_value), list(solution.row_dual)


def _stopped(highs: Any) -> InternalError:
    return InternalError(f"HiGHS stopped with {highs.modelStatusToString(highs.getModelStatus())!r}")


class GrowingProgram:
    """A maximisation program that gains columns and is solved again from its last basis."""

    def __init__(self) -> None:
        self._highspy, self._numpy = _libraries()
        self._highs = _new_highs()

    def add_row(self, lower: float | None, upper: float) -> None:
        """Add a row lower ≤ … ≤ upper without entries; None is unbounded."""
        low = -self._highspy.kHighsInf if lower is None else lower
        self._highs.addRow(low, upper, 0, self._array([], int), self._array([], float))

    def add_column(self, gain: float, entries: Mapping[int, float]) -> None:
        """Add a column x ≥ 0 with ``gain`` · x in the objective and its entries by row."""
        rows, values = self._array(list(entries), int), self._array(list(entries.values()), float)
        self._highs.addCol(-gain, 0.0, self._highspy.kHighsInf, len(entries), rows, values)

    def forbid(self, column: int) -> None:
        """Fix a column at 0."""
        self._highs.changeColBounds(column, 0.0, 0.0)

    def allow(self, column: int) -> None:
        """Allow positive values of a column again."""
        self._highs.changeColBounds(column, 0.0, self._highspy.kHighsInf)

    def values(self) -> list[float]:
        """Values of columns at the last optimum."""
        return list(self._highs.getSolution().col_value)

    def _array(self, values: list[Any], kind: type) -> Any:
        return self._numpy.array(values, dtype=self._numpy.int32 if kind is int else self._numpy.float64)

    def maximise(self) -> tuple[float, list[float]]:
        """The optimum and the duals of rows (≤ 0 for a tight upper bound)."""
        _run(self._highs)
        if _outcome(self._highs) != "solved":
            raise _stopped(self._highs)
        return -self._highs.getObjectiveValue(), list(self._highs.getSolution().row_dual)

    def basis(self) -> tuple[list[int], list[int]]:
        """Indexes of the basic columns and of the tight rows, equal in number."""
        basis, basic = self._highs.getBasis(), self._highspy.HighsBasisStatus.kBasic
        columns = [j for j, status in enumerate(basis.col_status) if status == basic]
        return columns, [i for i, status in enumerate(basis.row_status) if status != basic]


def _outcome(highs: Any) -> str | None:
    return OUTCOME.get(highs.getModelStatus().name)


#: Every expected status; all others are internal errors.
OUTCOME = {
    "kOptimal": "solved",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",
    "kSolutionLimit": "stopped",
    "kIterationLimit": "stopped",
    "kUnknown": "stopped",
    "kModelEmpty": "solved",
}


def _lowered(model: Model) -> Any:
    highspy, np = _libraries()
    lp = highspy.HighsLp()
    count = len(model.columns)
    lp.num_col_, lp.num_row_ = count, len(model.lower)
    lp.col_cost_ = np.array(model.cost if model.cost is not None else [0.0] * count, dtype=float)
    lp.col_lower_ = np.zeros(count)
    lp.col_upper_ = np.array(model.bound if model.bound is not None else [highspy.kHighsInf] * count, dtype=float)
    lp.row_lower_ = np.array([-highspy.kHighsInf if x is None else x for x in model.lower], dtype=float)
    lp.row_upper_ = np.array([highspy.kHighsInf if x is None else x for x in model.upper], dtype=float)
    start: list[int] = [0]
    rows: list[int] = []
    values: list[float] = []
    for column in model.columns:
        rows += column.keys()
        values += column.values()
        start.append(len(rows))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.array(start, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(rows, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(values, dtype=np.float64)
    if model.integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * count
    return lp


def whole(values: Sequence[float], tolerance: float = 1e-6) -> list[int] | None:
    """The values rounded to integers if all are within ``tolerance`` of one, else None."""
    rounded = [round(x) for x in values]
    return rounded if all(abs(x - r) <= tolerance for x, r in zip(values, rounded, strict=True)) else None
