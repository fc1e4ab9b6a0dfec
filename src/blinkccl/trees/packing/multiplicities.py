"""Integer multiplicities for columns of any kind, instead of the large denominators of a basis.

The exact basis of a linear program has weights like 59339/10³³, but chunks need multiples of 1/p. An integer program
over the generated columns searches for such weights. It scales the optimum p/q first by q, then by 2q, 3q, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from blinkccl.trees.packing.columns import Column, ExactPacking, fits
from blinkccl.trees.packing.network import Arc
from blinkccl.trees.packing.solver import Entries, Model, UndecidedError, decide, solve, whole

#: Multiples of q to try.
MULTIPLES = (1, 2, 3)
#: Most columns in the integer program that rounds a packing, those of its basis first.
MOST_COLUMNS = 160


def rounded(
    packing: ExactPacking, capacity: Mapping[Arc, int], demand: Sequence[Fraction]
) -> list[tuple[Column, Fraction]]:
    """The packing with integer weights in its own or a finer scale if found, else unchanged."""
    basis = [column for column, _ in packing.columns]
    others = [column for column in packing.pool if column not in basis]
    columns = [*basis, *others[: max(0, MOST_COLUMNS - len(basis))]]
    return whole_weights(columns, capacity, demand, packing.rate) or list(packing.columns)


def whole_weights(
    columns: Sequence[Column],
    capacity: Mapping[Arc, int],
    demand: Sequence[Fraction],
    rate: Fraction,
    node_limit: int = 20,
    multiples: Sequence[int] = MULTIPLES,
) -> list[tuple[Column, Fraction]] | None:
    """Weights that reach ``rate`` and are multiples of 1/(k·q), with q its denominator and k the least found.

    None if no k in ``multiples`` has a solution. The weights are checked in integers before they are returned. After an
    undecided k, no larger one is tried: it has more choices, and none was ever decided.
    """
    for multiple in multiples if columns else ():
        scale = rate.denominator * multiple
        demanded = [d * rate * scale for d in demand]
        if any(units.denominator != 1 for units in demanded):
            continue
        try:
            units = whole_units(
                columns, {a: c * scale for a, c in capacity.items()}, [int(x) for x in demanded], node_limit
            )
        except UndecidedError:
            return None
        if units is not None:
            return [(column, Fraction(k, scale)) for column, k in units]
    return None


def whole_units(
    columns: Sequence[Column],
    capacity: Mapping[Arc, int],
    wanted: Sequence[int],
    node_limit: int,
    *,
    relaxed_first: bool = False,
) -> list[tuple[Column, int]] | None:
    """Columns with ``wanted`` integer units per group, or None. UndecidedError if ``node_limit`` does not suffice.

    ``relaxed_first`` solves the linear relaxation first, which is faster.
    """
    arcs = sorted(capacity)
    row = {arc: len(wanted) + i for i, arc in enumerate(arcs)}
    entries: list[Entries] = [{c.group: 1, **{row[arc]: load for arc, load in c.loads}} for c in columns]
    lower: list[int | None] = [*wanted, *(None for _ in arcs)]
    upper: list[int | None] = [*wanted, *(capacity[arc] for arc in arcs)]
    values = solve(Model(entries, lower, upper)) if relaxed_first else None
    if values is None and relaxed_first:
        return None
    if values is None or whole(values) is None:
        values = decide(Model(entries, lower, upper, integer=True), node_limit)
    units = None if values is None else whole(values)
    if units is None:
        return None
    chosen = [(column, k) for column, k in zip(columns, units, strict=True) if k]
    total = [0] * len(wanted)
    for column, k in chosen:
        total[column.group] += k
    return chosen if total == list(wanted) and fits(chosen, capacity) else None
