"""Packings of the optimal rate whose trees are no deeper than they must be.

Every out-tree up to a depth is a column; an integer program picks whole multiplicities in the scaled network.
Enumeration is for small networks only (hundreds or thousands of columns); where there are more, or the integer
program gives up, the caller keeps the packing it has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from blinkccl.packing.integral import Arborescence, canonical_arcs
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.solver import Entries, Model, solve, whole

#: More columns than this are not enumerated.
MOST_COLUMNS = 6000
#: Nor is a search for them continued that has looked at this many choices, dead ends included.
MOST_STEPS = 200_000


class EffortSpentError(Exception):
    """An enumeration has taken all the steps that it may."""


class Effort:
    """A limit of work: steps instead of time, so that answers are reproducible."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self) -> None:
        """Take one step, or raise EffortSpentError."""
        self._left -= 1
        if self._left < 0:
            raise EffortSpentError


def out_trees(network: Network, root: int, depth: int, effort: Effort | None = None) -> Iterator[tuple[Arc, ...]]:
    """Every spanning out-tree of a switchless network from ``root`` with at most ``depth`` levels, each once.

    Raises
    ------
    EffortSpentError
        When ``effort`` is spent before the last tree.
    """
    yield from _extended(network, effort or Effort(sys.maxsize), depth, [root], frozenset([root]), ())


def _can_finish(network: Network, levels: int, last: list[int], reached: frozenset[int]) -> bool:
    """Whether every vertex that is not reached lies within ``levels`` of the last level."""
    seen, level = set(reached), last
    for _ in range(levels):
        beyond = []
        for u in level:
            for v in network.successors[u]:
                if v not in seen:
                    seen.add(v)
                    beyond.append(v)
        level = beyond
    return len(seen) == network.n


def _extended(
    network: Network, effort: Effort, levels: int, last: list[int], reached: frozenset[int], arcs: tuple[Arc, ...]
) -> Iterator[tuple[Arc, ...]]:
    if len(reached) == network.n:
        yield arcs
        return
    if not _can_finish(network, levels, last, reached):
        return
    parents: dict[int, list[int]] = {}
    for u in last:
        for v in network.successors[u]:
            if v not in reached:
                parents.setdefault(v, []).append(u)
    heads = sorted(parents)
    skip = [] if levels == 1 else [None]
    for choice in product(*[[*parents[v], *skip] for v in heads]):
        effort.spend()
        fresh = tuple((u, v) for u, v in zip(choice, heads, strict=True) if u is not None)
        if fresh:
            grown = [v for _, v in fresh]
            yield from _extended(network, effort, levels - 1, grown, reached.union(grown), arcs + fresh)


def rooted_columns(network: Network, demand: Mapping[int, int], depth: int) -> list[tuple[int, tuple[Arc, ...]]] | None:
    """(root, arcs) of every out-tree of this depth from every root in demand; None if there are too many."""
    columns: list[tuple[int, tuple[Arc, ...]]] = []
    effort = Effort(MOST_STEPS)
    try:
        for root in sorted(demand):
            for arcs in out_trees(network, root, depth, effort):
                columns.append((root, arcs))
                if len(columns) > MOST_COLUMNS:
                    return None
    except EffortSpentError:
        return None
    return columns


def undirected_columns(network: Network, depth: int) -> list[tuple[int, tuple[Arc, ...]]] | None:
    """Every undirected spanning tree within ``depth`` of some centre, once, as an out-tree from a centre.

    None if there are too many.
    """
    found: dict[tuple[Arc, ...], tuple[int, tuple[Arc, ...]]] = {}
    effort = Effort(MOST_STEPS)
    try:
        for root in range(network.n):
            for arcs in out_trees(network, root, depth, effort):
                key = tuple(sorted((min(arc), max(arc)) for arc in arcs))
                found.setdefault(key, (root, arcs))
                if len(found) > MOST_COLUMNS:
                    return None
    except EffortSpentError:
        return None
    return list(found.values())


def choose(
    columns: Sequence[tuple[int, tuple[Arc, ...]]],
    capacity: Mapping[Arc, int],
    demand: Mapping[int, int],
    *,
    undirected: bool = False,
    node_limit: int = 200,
) -> list[Arborescence] | None:
    """Whole multiplicities for ``columns`` that meet ``demand`` per root within ``capacity``; None if not found.

    Parameters
    ----------
    undirected
        ``capacity`` is per undirected edge (u < v), and ``demand`` has one entry for all roots together.
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
    values: list[float] | None = relaxed
    if whole(relaxed) is None:
        values = solve(Model(entries, lower, upper, integer=True), node_limit)
    multiplicities = None if values is None else whole(values[: len(columns)])
    if multiplicities is None:
        return None
    return [
        Arborescence(root, k, canonical_arcs(root, tree))
        for (root, tree), k in zip(columns, multiplicities, strict=True)
        if k
    ]
