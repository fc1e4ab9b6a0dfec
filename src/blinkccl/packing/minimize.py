"""Few trees instead of many: Blink's integer program (§3.2.1, Eq 4–7), relaxed until it is good enough.

Of the candidates that multiplicative weights left, choose weights in {0, 1} (a lane each) of the greatest sum;
while that is below (1 − threshold) of the optimum, allow halves, thirds, … (the paper: "iteratively relax").
Then, at the granularity found, take as few trees as the threshold allows. The paper's strict "<" in Eq 5 would
leave every cut unfilled; it is "≤" here. Its "minimum of 6 trees" for a DGX-1V is the minimum for 0/1 weights:
with larger weights 4 suffice (see :mod:`blinkccl.packing.fewest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil

from blinkccl.packing.columns import Column
from blinkccl.packing.network import Arc
from blinkccl.packing.solver import Entries, Model, solve, whole

#: Granularities tried, as parts of a lane per unit of weight: whole lanes, halves, thirds, …
FINEST = 24
#: Integer programs tried before the relaxation is rounded instead.
MOST_ATTEMPTS = 3
#: Rounding down the relaxation, when no integer program gets there.
ROUNDINGS = (24, 60, 120, 240, 960, 5040)
#: Candidates handed to an integer program: those that the relaxation uses, then the first ones given.
MOST_CANDIDATES = 100


def minimize_trees(
    candidates: Sequence[Column],
    capacity: Mapping[Arc, int],
    optimum: Fraction,
    threshold: Fraction,
    node_limit: int = 60,
) -> list[tuple[Column, Fraction]] | None:
    """Few of ``candidates`` (most promising first) with weights that sum to at least (1 − threshold) · optimum.

    Returns
    -------
    None where even the relaxation does not get there with these candidates.

    Notes
    -----
    Deterministic: the integer programs are limited by branchings, not by time.
    """
    wanted = (1 - threshold) * optimum
    relaxed = _relaxed(candidates, capacity)
    if sum(relaxed) < float(wanted):
        return None
    shortlist = sorted(range(len(candidates)), key=lambda j: (relaxed[j] < 1e-9, j))[:MOST_CANDIDATES]
    short = [candidates[j] for j in sorted(shortlist)]
    grains = [g for g in range(1, FINEST + 1) if Fraction(int(optimum * g), g) >= wanted]
    for grain in grains[:MOST_ATTEMPTS]:
        units = _few(short, capacity, grain, ceil(wanted * grain), node_limit)
        if units is not None:
            return [(c, Fraction(k, grain)) for c, k in zip(short, units, strict=True) if k]
    for grain in ROUNDINGS:
        units = [int(x * grain + 1e-7) for x in relaxed]
        if Fraction(sum(units), grain) >= wanted and _fits(candidates, capacity, units, grain):
            return [(c, Fraction(k, grain)) for c, k in zip(candidates, units, strict=True) if k]
    return None


def _few(
    candidates: Sequence[Column], capacity: Mapping[Arc, int], grain: int, wanted: int, node_limit: int
) -> list[int] | None:
    """The most units in total; then, where units may pile up on a tree, fewer trees for at least ``wanted``."""
    most = _solve(candidates, capacity, grain, None, node_limit)
    if most is None or sum(most) < wanted:
        return None
    if grain == 1:
        return most
    fewer = _solve(candidates, capacity, grain, wanted, node_limit)
    return fewer if fewer is not None and sum(map(bool, fewer)) < sum(map(bool, most)) else most


def _relaxed(candidates: Sequence[Column], capacity: Mapping[Arc, int]) -> list[float]:
    """Weights that may be any fraction: the end of the paper's relaxation."""
    row = {arc: i for i, arc in enumerate(sorted(capacity))}
    columns: list[Entries] = [{row[arc]: load for arc, load in c.loads} for c in candidates]
    return solve(Model(columns, [None] * len(row), [capacity[arc] for arc in row], [-1.0] * len(columns))) or []


def _fits(candidates: Sequence[Column], capacity: Mapping[Arc, int], units: Sequence[int], grain: int) -> bool:
    used = dict.fromkeys(capacity, 0)
    for column, k in zip(candidates, units, strict=True):
        for arc, load in column.loads:
            used[arc] += k * load
    return all(used[arc] <= c * grain for arc, c in capacity.items())


def _solve(
    candidates: Sequence[Column],
    capacity: Mapping[Arc, int],
    grain: int,
    at_least: int | None,
    node_limit: int,
) -> list[int] | None:
    """Units per candidate: the most in total or, given ``at_least`` units, the fewest different trees."""
    arcs = sorted(capacity)
    row = {arc: i for i, arc in enumerate(arcs)}
    columns: list[Entries] = [{row[arc]: load for arc, load in c.loads} for c in candidates]
    count, upper = len(columns), [capacity[arc] * grain for arc in arcs]
    if at_least is None:
        model = Model(columns, [None] * len(arcs), upper, [-1.0] * count, [grain] * count, integer=True)
    else:
        total, link = len(arcs), len(arcs) + 1
        columns = [{**column, total: 1, link + j: 1} for j, column in enumerate(columns)]
        columns += [{link + j: -grain} for j in range(count)]
        lower: list[int | None] = [*(None for _ in arcs), at_least, *(None for _ in range(count))]
        model = Model(
            columns,
            lower,
            [*upper, None, *(0 for _ in range(count))],
            [0.0] * count + [1.0] * count,
            [grain] * count + [1] * count,
            integer=True,
        )
    values = solve(model, node_limit)
    units = None if values is None else whole(values[:count])
    return units if units is not None and _fits(candidates, capacity, units, grain) else None
