"""Maximum flow and minimum cut with integer capacities (Dinic 1970, in native code).

Every rate in this package depends on these integers, which are computed without floats and without a solver.
"""

from __future__ import annotations

from array import array

from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.native_flows import INFINITE
from blinkccl.trees.packing.network import Arc, FlowNetwork


class FlowGraph:
    """A residual graph. A flow costs O(n² m) in theory, and in practice a few passes over the arcs."""

    __slots__ = ("_adjacent", "_capacity", "_heads", "_original", "_tails")

    def __init__(self, n: int) -> None:
        self._adjacent: list[list[int]] = [[] for _ in range(n)]
        self._tails, self._heads = array("i"), array("i")
        self._capacity: list[int] = []
        self._original: list[int] = []

    @classmethod
    def of(cls, network: FlowNetwork, extra: int = 0) -> FlowGraph:
        """The graph of ``network``, with arc i as edge 2i, and ``extra`` vertices without arcs."""
        graph = cls(network.n + extra)
        for u, v, c in network.arcs:
            graph.add(u, v, c)
        return graph

    def add(self, u: int, v: int, capacity: int) -> int:
        """Add an arc and return its edge number, which is even; the next number is the reverse edge."""
        native_flows.refuse_wide((capacity,))
        number = len(self._capacity)
        self._tails.append(u)
        self._heads.append(v)
        self._capacity += (capacity, 0)
        self._original += (capacity, 0)
        self._adjacent[u].append(number)
        self._adjacent[v].append(number + 1)
        return number

    def set_capacity(self, edge: int, capacity: int) -> None:
        """Change an arc's capacity, effective from the next :meth:`reset`."""
        self._original[edge] = capacity

    def reset(self) -> None:
        """Remove all flow."""
        self._capacity = self._original.copy()

    def flow(self, edge: int) -> int:
        """The present flow on arc ``edge``."""
        return self._original[edge] - self._capacity[edge]

    def max_flow(self, source: int, sink: int, limit: int = INFINITE) -> int:
        """Add flow from ``source`` to ``sink`` until it is maximal, or at least ``limit``; return the added units."""
        arcs = native_flows.Arcs(len(self._adjacent), self._tails, self._heads)
        return native_flows.max_flow(arcs, self._capacity, source, sink, limit)

    def source_side(self, source: int) -> list[int]:
        """The inclusion-least minimum cut after :meth:`max_flow`: vertices that ``source`` still reaches, ascending."""
        return self._reach(source, 0)

    def sink_side(self, sink: int) -> list[int]:
        """The vertices that still reach ``sink``, ascending: the complement of the inclusion-greatest minimum cut."""
        return self._reach(sink, 1)

    def _reach(self, start: int, backward: int) -> list[int]:
        reached = [False] * len(self._adjacent)
        reached[start] = True
        stack = [start]
        while stack:
            for edge in self._adjacent[stack.pop()]:
                w = (self._tails if edge & 1 else self._heads)[edge >> 1]
                if not reached[w] and self._capacity[edge ^ backward]:
                    reached[w] = True
                    stack.append(w)
        return [v for v, inside in enumerate(reached) if inside]


def max_flow(network: FlowNetwork, source: int, sink: int) -> tuple[int, dict[Arc, int]]:
    """The value of a maximum flow, and its positive flows by arc."""
    graph = FlowGraph.of(network)
    value = graph.max_flow(source, sink)
    flows = ((u, v, graph.flow(2 * i)) for i, (u, v, _) in enumerate(network.arcs))
    return value, {(u, v): f for u, v, f in flows if f}


def min_cut(network: FlowNetwork, source: int, sink: int) -> tuple[int, tuple[int, ...]]:
    """The value of a minimum cut, and the source side of the least one."""
    graph = FlowGraph.of(network)
    return graph.max_flow(source, sink), tuple(graph.source_side(source))


def broadcast_rate(network: FlowNetwork, root: int) -> tuple[int, tuple[int, ...]]:
    """λ(root) = min over terminals t of maxflow(root → t), and the side of a cut that attains it.

    The rate is the optimum of one-to-all (Edmonds 1973) if every vertex is a terminal, and an upper bound with transit.
    If some terminal cannot be reached, the result is 0 and the reachable vertices. It is INFINITE without other
    terminals. Cost: one maximum flow per terminal, stopped at the least value so far.
    """
    return native_flows.least_flow(network, root)
