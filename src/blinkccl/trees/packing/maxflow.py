"""Maximum flow and minimum cut with integer capacities (Dinic 1970, in native code), the cut returned.

Every rate in this package rests on these integers; no float and no solver comes near them.
"""

from __future__ import annotations

from array import array

from blinkccl.trees.packing import native_flows
from blinkccl.trees.packing.native_flows import INFINITE
from blinkccl.trees.packing.network import Arc, FlowNetwork


class FlowGraph:
    """A residual graph to flow, read, and reset; a flow is O(n² m) in theory, here a few passes over the arcs."""

    __slots__ = ("_adjacent", "_capacity", "_heads", "_original", "_tails")

    def __init__(self, n: int) -> None:
        self._adjacent: list[list[int]] = [[] for _ in range(n)]
        self._tails, self._heads = array("i"), array("i")
        self._capacity: list[int] = []
        self._original: list[int] = []

    @classmethod
    def of(cls, network: FlowNetwork, extra: int = 0) -> FlowGraph:
        """The arcs of ``network`` (arc i of it is edge 2i here), plus ``extra`` vertices without arcs."""
        graph = cls(network.n + extra)
        for u, v, c in network.arcs:
            graph.add(u, v, c)
        return graph

    def add(self, u: int, v: int, capacity: int) -> int:
        """Add an arc; its edge number is returned (always even, the reverse is the next)."""
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
        """Change an arc's capacity; takes effect at the next :meth:`reset`."""
        self._original[edge] = capacity

    def reset(self) -> None:
        """Take all flow out."""
        self._capacity = self._original.copy()

    def flow(self, edge: int) -> int:
        """Flow on arc ``edge`` now."""
        return self._original[edge] - self._capacity[edge]

    def max_flow(self, source: int, sink: int, limit: int = INFINITE) -> int:
        """Add flow from ``source`` to ``sink`` until it is maximal, or at least ``limit``; how much was added."""
        arcs = native_flows.Arcs(len(self._adjacent), self._tails, self._heads)
        return native_flows.max_flow(arcs, self._capacity, source, sink, limit)

    def source_side(self, source: int) -> list[int]:
        """The inclusion-least minimum cut after :meth:`max_flow`: what ``source`` still reaches, ascending."""
        return self._reach(source, 0)

    def sink_side(self, sink: int) -> list[int]:
        """What still reaches ``sink``: the complement of the inclusion-greatest minimum cut, ascending."""
        return self._reach(sink, 1)

    def _reach(self, start: int, backward: int) -> list[int]:
        seen = [False] * len(self._adjacent)
        seen[start] = True
        stack = [start]
        while stack:
            for edge in self._adjacent[stack.pop()]:
                w = (self._tails if edge & 1 else self._heads)[edge >> 1]
                if not seen[w] and self._capacity[edge ^ backward]:
                    seen[w] = True
                    stack.append(w)
        return [v for v, reached in enumerate(seen) if reached]


def max_flow(network: FlowNetwork, source: int, sink: int) -> tuple[int, dict[Arc, int]]:
    """The value of a maximum flow, and the flow on each arc that has any."""
    graph = FlowGraph.of(network)
    value = graph.max_flow(source, sink)
    flows = ((u, v, graph.flow(2 * i)) for i, (u, v, _) in enumerate(network.arcs))
    return value, {(u, v): f for u, v, f in flows if f}


def min_cut(network: FlowNetwork, source: int, sink: int) -> tuple[int, tuple[int, ...]]:
    """The value of a minimum cut, and its side that holds ``source`` (the least one)."""
    graph = FlowGraph.of(network)
    return graph.max_flow(source, sink), tuple(graph.source_side(source))


def broadcast_rate(network: FlowNetwork, root: int) -> tuple[int, tuple[int, ...]]:
    """λ(root) = min over terminals t of maxflow(root → t), and the side of a cut that attains it.

    The optimum of one-to-all (Edmonds 1973) when every vertex is a terminal; an upper bound with transit. Where some
    terminal cannot be reached, 0 and what can; INFINITE where there is no other. Cost: one maximum flow per terminal,
    stopped at the least value so far.
    """
    return native_flows.least_flow(network, root)
