"""Packings of the optimal rate whose trees are no deeper than they must be.

Every out-tree up to a depth is a column; an integer program picks whole multiplicities in the scaled network.
Enumeration is for small networks only (hundreds or thousands of columns); where there are more, or the integer
program gives up, the caller keeps the packing it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from blinkccl.packing.integral import Arborescence, canonical_arcs
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.solver import Entries, Model, solve, whole

#: More columns than this are not enumerated.
MOST_COLUMNS = 6000


def eccentricity(network: Network, root: int) -> int:
    """Hops from ``root`` to the farthest vertex that it reaches, all vertices counted."""
    distance = {root: 0}
    queue = [root]
    for u in queue:
        for v in network.successors[u]:
            if v not in distance:
                distance[v] = distance[u] + 1
                queue.append(v)
    return max(distance.values())


def out_trees(network: Network, root: int, depth: int) -> Iterator[tuple[Arc, ...]]:
    """Every spanning out-tree of a switchless network from ``root`` with at most ``depth`` levels, each once."""
    yield from _extended(network, depth, [root], frozenset([root]), ())


def _extended(
    network: Network, levels: int, last: list[int], reached: frozenset[int], arcs: tuple[Arc, ...]
) -> Iterator[tuple[Arc, ...]]:
    if len(reached) == network.n:
        yield arcs
        return
    if levels == 0:
        return
    parents: dict[int, list[int]] = {}
    for u in last:
        for v in network.successors[u]:
            if v not in reached:
                parents.setdefault(v, []).append(u)
    if levels == 1 and len(parents) + len(reached) < network.n:
        return
    heads = sorted(parents)
    skip = [] if levels == 1 else [None]
    for choice in product(*[[*parents[v], *skip] for v in heads]):
        fresh = tuple((u, v) for u, v in zip(choice, heads, strict=True) if u is not None)
        if fresh:
            grown = [v for _, v in fresh]
            yield from _extended(network, levels - 1, grown, reached.union(grown), arcs + fresh)


def rooted_columns(network: Network, demand: Mapping[int, int], depth: int) -> list[tuple[int, tuple[Arc, ...]]] | None:
    """(root, arcs) of every out-tree of this depth from every root in demand; None if there are too many."""
    columns: list[tuple[int, tuple[Arc, ...]]] = []
    for root in sorted(demand):
        for arcs in out_trees(network, root, depth):
            columns.append((root, arcs))
            if len(columns) > MOST_COLUMNS:
                return None
    return columns


def undirected_columns(network: Network, depth: int) -> list[tuple[int, tuple[Arc, ...]]] | None:
    """Every undirected spanning tree within ``depth`` of some centre, once, as an out-tree from a centre."""
    found: dict[tuple[Arc, ...], tuple[int, tuple[Arc, ...]]] = {}
    for root in range(network.n):
        for arcs in out_trees(network, root, depth):
            key = tuple(sorted((min(arc), max(arc)) for arc in arcs))
            found.setdefault(key, (root, arcs))
            if len(found) > MOST_COLUMNS:
                return None
    return list(found.values())


def choose(
    columns: Sequence[tuple[int, tuple[Arc, ...]]],
    capacity: Mapping[Arc, int],
    demand: Mapping[int, int],
    *,
    undirected: bool = False,
    fewest: bool = False,
    node_limit: int = 200,
) -> list[Arborescence] | None:
    """Whole multiplicities for ``columns`` that meet ``demand`` per root within ``capacity``; None if not found.

    Parameters
    ----------
    undirected
        ``capacity`` is per undirected edge (u < v), and ``demand`` has one entry for all roots together.
    fewest
        Minimise the number of different trees (one more 0/1 variable per column; slow).
    node_limit
        Branchings that the integer program may take: a limit of work, so the answer is reproducible.
    """
    if not columns:
        return None
    arcs, roots = sorted(capacity), sorted(demand)
    row = {arc: len(roots) + i for i, arc in enumerate(arcs)}
    group = {root: i for i, root in enumerate(roots)}
    entries: list[Entries] = []
    for root, tree in columns:
        edges = [(min(a), max(a)) for a in tree] if undirected else tree
        entries.append({group.get(root, 0): 1, **{row[arc]: 1 for arc in edges}})
    lower: list[int | None] = [*(demand[r] for r in roots), *(None for _ in arcs)]
    upper: list[int | None] = [*(demand[r] for r in roots), *(capacity[arc] for arc in arcs)]
    model = Model(entries, lower, upper)
    relaxed = solve(model)
    if relaxed is None:
        return None
    if fewest:
        model = _counting(model, max(demand.values()))
        values = solve(
            Model(model.columns, model.lower, model.upper, model.cost, model.bound, integer=True), node_limit
        )
    elif (values := relaxed) is not None and whole(values) is None:
        values = solve(Model(entries, lower, upper, integer=True), node_limit)
    multiplicities = None if values is None else whole(values[: len(columns)])
    if multiplicities is None:
        return None
    return [
        Arborescence(root, k, canonical_arcs(root, tree))
        for (root, tree), k in zip(columns, multiplicities, strict=True)
        if k
    ]


def _counting(model: Model, most: int) -> Model:
    """The model with a 0/1 variable per column that is 1 where the column is used, minimising their sum."""
    count, rows = len(model.columns), len(model.lower)
    columns: list[Entries] = [{**column, rows + j: 1} for j, column in enumerate(model.columns)]
    columns += [{rows + j: -most} for j in range(count)]
    return Model(
        columns,
        [*model.lower, *(None for _ in range(count))],
        [*model.upper, *(0 for _ in range(count))],
        [0.0] * count + [1.0] * count,
        [most] * count + [1] * count,
    )
