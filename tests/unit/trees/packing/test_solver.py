"""Answers of HiGHS: statuses become results or our errors, and integers are recognised."""

import pytest

from blinkccl.errors import InternalError
from blinkccl.trees.packing.solver import GrowingProgram, Model, solve, solve_with_duals, whole


def test_a_linear_and_an_integer_program() -> None:
    model = Model([{0: 2}, {0: 2}], [None], [3], [-1.0, -1.0], [1, 1])
    values = solve(model)
    assert values is not None
    assert sum(values) == pytest.approx(1.5)
    integral = solve(Model(model.columns, model.lower, model.upper, model.cost, model.bound, integer=True))
    assert integral is not None
    assert sum(integral) == pytest.approx(1)


def test_infeasible_is_none_and_unbounded_is_an_internal_error() -> None:
    assert solve(Model([{0: 1}], [5], [5], [0.0], [2])) is None
    with pytest.raises(InternalError, match="HiGHS stopped with"):
        solve(Model([{0: 1}], [0], [None], [-1.0]))
    with pytest.raises(InternalError, match="HiGHS stopped with"):
        solve_with_duals(Model([{0: 1}], [5], [5], [0.0], [2]))


def test_duals_price_the_rows() -> None:
    values, duals = solve_with_duals(Model([{0: 1, 1: 1}], [None, None], [4, 9], [-1.0]))
    assert values == pytest.approx([4])
    assert duals == pytest.approx([-1, 0])


def test_a_program_grows_and_is_solved_again() -> None:
    """Maximise x, then x + 3y, with x + y ≤ 4 and y ≤ 1."""
    program = GrowingProgram()
    program.add_row(None, 4.0)
    program.add_row(None, 1.0)
    program.add_column(1.0, {0: 1.0})
    value, duals = program.maximise()
    assert (value, duals) == (pytest.approx(4), pytest.approx([-1, 0]))
    program.add_column(3.0, {0: 1.0, 1: 1.0})
    value, duals = program.maximise()
    assert (value, duals) == (pytest.approx(6), pytest.approx([-1, -2]))
    assert program.basis() == ([0, 1], [0, 1])
    program.add_column(1.0, {})
    with pytest.raises(InternalError, match="HiGHS stopped with"):
        program.maximise()


def test_integers_are_recognised_within_a_tolerance() -> None:
    assert whole([1.0000001, 2, -0.0]) == [1, 2, 0]
    assert whole([1.1]) is None
    assert whole([]) == []
