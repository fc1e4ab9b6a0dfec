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

#: Granularities tried, as lanes per unit of weight: whole lanes, halves, thirds, …
GRAINS = (1, 2, 3, 4, 6, 8, 12, 24, 60)


def minimize_trees(candidates: Sequence[Column], capacity: Mapping[Arc, int], optimum: Fraction,
                   threshold: Fraction, node_limit: int = 300) -> list[tuple[Column, Fraction]] | None:
    """Few of ``candidates`` with weights that sum to at least (1 − threshold) · optimum.

    Returns
    -------
    None where no granularity in :data:`GRAINS` gets there with these candidates.

    Notes
    -----
    Deterministic: the integer programs are limited by branchings, not by time.
    """
    wanted = (1 - threshold) * optimum
    for grain in GRAINS:
        most = _solve(candidates, capacity, grain, None, node_limit)
        if most is None or Fraction(sum(most), grain) < wanted:
            continue
        fewer = _solve(candidates, capacity, grain, ceil(wanted * grain), node_limit)
        chosen = fewer if fewer is not None and sum(map(bool, fewer)) < sum(map(bool, most)) else most
        return [(c, Fraction(k, grain)) for c, k in zip(candidates, chosen, strict=True) if k]
    return None


def _solve(candidates: Sequence[Column], capacity: Mapping[Arc, int], grain: int, at_least: int | None,
           node_limit: int) -> list[int] | None:
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
        model = Model(columns, lower, [*upper, None, *(0 for _ in range(count))], [0.0] * count + [1.0] * count,
                      [grain] * count + [1] * count, integer=True)
    values = solve(model, node_limit)
    units = None if values is None else whole(values[:count])
    if units is None or any(sum(k * c.get(i, 0) for k, c in zip(units, columns, strict=False)) > upper[i]
                            for i in range(len(arcs))):
        return None
    return units
