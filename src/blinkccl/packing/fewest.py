"""The fewest arborescences that fill a cut: depth-first search over trees of decreasing multiplicity.

Every tree enters each vertex by exactly one arc, so at least as many trees are needed as arcs it takes to bring
the demand into any vertex (or out of the root). The search tries that number, then one more, and so on; after
each tree the max-flow of what is left decides whether the remaining demand still fits. For the broadcast of a
full DGX-1V it finds 4 trees (multiplicities 2, 2, 1, 1) where the paper's 0/1 program needs 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.packing.integral import Arborescence, canonical_arcs
from blinkccl.packing.maxflow import FlowGraph
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.shallow import Effort, EffortSpentError, out_trees

#: Trees looked at before the search gives up: a limit of work, so the answer is reproducible.
MOST_TREES = 30_000
#: Up to this many vertices; as a tree costs a flow to each vertex, fewer are looked at in larger networks.
FULL_BUDGET_VERTICES = 8
#: Steps of the enumeration per tree of the budget, dead ends included.
STEPS_PER_TREE = 20


class _Search:
    def __init__(self, n: int, root: int, budget: int) -> None:
        self.n, self.root, self._budget = n, root, Effort(budget)
        self._steps = Effort(STEPS_PER_TREE * budget)
        self._sinks = [v for v in range(n) if v != root]

    def fill(self, capacity: dict[Arc, int], demand: int, trees: int, largest: int) -> list[Arborescence] | None:
        """At most ``trees`` trees of multiplicity ≤ ``largest`` that make up ``demand``; None if there are none."""
        if demand == 0:
            return []
        if demand > trees * largest or fewest_bound(self.n, self.root, capacity, demand) > trees:
            return None
        for multiplicity in range(min(largest, demand), (demand - 1) // trees, -1):
            for arcs in self._trees(capacity, multiplicity):
                left = {arc: c - multiplicity if arc in arcs else c for arc, c in capacity.items()}
                if self._fits(left, demand - multiplicity):
                    rest = self.fill(left, demand - multiplicity, trees - 1, multiplicity)
                    if rest is not None:
                        return [
                            Arborescence(self.root, multiplicity, canonical_arcs(self.root, tuple(arcs))),
                            *rest,
                        ]
        return None

    def _trees(self, capacity: dict[Arc, int], multiplicity: int) -> Iterator[frozenset[Arc]]:
        wide = tuple((u, v, c) for (u, v), c in sorted(capacity.items()) if c >= multiplicity)
        for arcs in out_trees(Network(self.n, self.n, wide), self.root, self.n - 1, self._steps):
            self._budget.spend()
            yield frozenset(arcs)

    def _fits(self, capacity: dict[Arc, int], demand: int) -> bool:
        """Whether ``demand`` still flows to every vertex; the one that failed last is asked first."""
        graph = FlowGraph(self.n)
        for (u, v), c in capacity.items():
            if c:
                graph.add(u, v, c)
        for place, sink in enumerate(self._sinks):
            graph.reset()
            if graph.max_flow(self.root, sink, demand) < demand:
                self._sinks.insert(0, self._sinks.pop(place))
                return False
        return True


def fewest_bound(n: int, root: int, capacity: dict[Arc, int], demand: int) -> int:
    """How many trees are needed at least: the arcs it takes to bring ``demand`` into the worst vertex."""
    entering: list[list[int]] = [[] for _ in range(n)]
    leaving: list[int] = []
    for (u, v), c in capacity.items():
        entering[v].append(c)
        if u == root:
            leaving.append(c)
    return max(_needed(widths, demand) for v, widths in enumerate([*entering, leaving]) if v != root)


def _needed(widths: list[int], demand: int) -> int:
    total = count = 0
    for width in sorted(widths, reverse=True):
        if total >= demand:
            break
        total += width
        count += 1
    return count if total >= demand else len(widths) + demand


def fewest_arborescences(
    network: Network, root: int, demand: int, known: list[Arborescence], budget: int | None = None
) -> tuple[list[Arborescence], bool]:
    """As few arborescences as the search finds, and whether fewer are proved impossible.

    Parameters
    ----------
    known
        A packing to beat.
    budget
        Trees that the search may look at; by default :data:`MOST_TREES`, less in large networks.

    Returns
    -------
    trees, proved
        ``proved`` holds among whole multiplicities of ``network``'s units.
    """
    least = fewest_bound(network.n, root, network.capacity, demand)
    if budget is None:
        budget = MOST_TREES * FULL_BUDGET_VERTICES**2 // max(FULL_BUDGET_VERTICES, network.n) ** 2
    search = _Search(network.n, root, budget)
    try:
        for trees in range(least, len(known)):
            found = search.fill(dict(network.capacity), demand, trees, max(network.capacity.values()))
            if found is not None:
                return found, True
    except EffortSpentError:
        return known, len(known) == least
    return known, True
