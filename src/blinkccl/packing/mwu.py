"""Packing by multiplicative weights: Blink's TreeGen (§3.2), with a guarantee that is checked while it runs.

Garg and Könemann (1998) as in the paper's reference: every arc has a length, at first 1/c; the cheapest column
is taken until its narrowest arc is full, and the lengths of its arcs grow by (1 + ε·used/c). The lengths are
prices, so they bound the optimum; the columns taken so far, scaled to fit, are a packing. We stop when the
packing is at least (1 − ε) of the bound, which theory promises after O(m ln m / ε²) iterations and practice
gives much sooner. The paper states no ε for its "181 trees"; the number of trees is not bounded, the rate is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import log

from blinkccl.errors import InternalError, UsageError
from blinkccl.packing.columns import Column, Oracle
from blinkccl.packing.network import Arc


@dataclass(frozen=True, slots=True)
class ApproximatePacking:
    """Columns with weights that fit exactly; ``rate`` their sum, ``bound`` what the prices prove (a float)."""

    rate: Fraction
    bound: float
    columns: tuple[tuple[Column, Fraction], ...]
    iterations: int


def pack_multiplicative(capacity: Mapping[Arc, int], oracle: Oracle, epsilon: Fraction) -> ApproximatePacking:
    """A packing of one group of columns of rate at least (1 − ε) of the optimum.

    Parameters
    ----------
    capacity
        Per arc.
    oracle
        Of a single group; of the columns it returns the cheapest is taken.
    epsilon
        Between 0 and 1, exclusive.

    Raises
    ------
    UsageError
        If ``epsilon`` is out of range.
    InternalError
        If the guarantee is not reached within twice the theoretical number of iterations.
    """
    if not 0 < epsilon < 1:
        raise UsageError(f"epsilon must lie between 0 and 1, got {epsilon}")
    step = float(epsilon) / 2
    scale = _fine_enough(capacity, oracle)
    capacity = {arc: c * scale for arc, c in capacity.items()}
    length = {arc: 1.0 / c for arc, c in capacity.items()}
    used = dict.fromkeys(capacity, 0)
    taken: dict[tuple[tuple[Arc, int], ...], tuple[Column, int]] = {}
    total, bound = 0, float("inf")
    arcs = len(capacity)
    limit = 1000 + int(16 * arcs * log(arcs + 2) / step**2)
    for iteration in range(1, limit + 1):
        column = min(oracle(length), key=lambda candidate: float(candidate.cost(length)))
        bound = min(bound, sum(capacity[arc] * x for arc, x in length.items()) / float(column.cost(length)))
        amount = max(1, min(capacity[arc] // load for arc, load in column.loads))
        previous = taken.get(column.loads, (column, 0))[1]
        taken[column.loads] = (column, previous + amount)
        total += amount
        for arc, load in column.loads:
            used[arc] += amount * load
            length[arc] *= 1 + step * amount * load / capacity[arc]
        crowding = max(Fraction(used[arc], capacity[arc]) for arc, _ in column.loads)
        if total >= (1 - float(epsilon)) * bound * float(crowding):
            crowding = max(Fraction(u, capacity[arc]) for arc, u in used.items())
            if total / crowding >= (1 - float(epsilon)) * bound:
                columns = tuple((c, Fraction(k, scale) / crowding) for c, k in taken.values())
                return ApproximatePacking(total / crowding / scale, bound / scale, columns, iteration)
        _rescale(length)
    raise InternalError(f"multiplicative weights did not reach 1 − {epsilon} in {limit} iterations")


def _fine_enough(capacity: Mapping[Arc, int], oracle: Oracle) -> int:
    """A scale at which a column of many crossings per arc still fits in whole units; 1 for plain trees."""
    heaviest = max(load for column in oracle(dict.fromkeys(capacity, 1.0)) for _, load in column.loads)
    return 1 if heaviest <= 2 else 4 * heaviest


def _rescale(length: dict[Arc, float]) -> None:
    """Lengths only matter up to a factor: keep them in the range of floats."""
    top = max(length.values())
    if top > 1e200:
        for arc in length:
            length[arc] = max(length[arc] / top, 1e-250)
