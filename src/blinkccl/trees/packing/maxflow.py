"""Maximum flow and minimum cut with integer capacities (Dinic 1970), the cut returned.

Every rate in this package rests on these integers; no float and no solver comes near them.
"""

from __future__ import annotations

from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc, FlowNetwork

#: More than any sum of capacities: those of measured links may have 15 digits, and rates scale them further.
INFINITE = 1 << 256
#: From so many edges on, reverse ones counted, handing them to native code costs less than it saves.
NATIVE_EDGES = 200


class FlowGraph:
    """A residual graph to flow, read, and reset; a flow is O(n² m) in theory, here a few passes over the arcs."""

    __slots__ = ("_adjacent", "_capacity", "_head", "_level", "_original")

    def __init__(self, n: int) -> None:
        self._adjacent: list[list[int]] = [[] for _ in range(n)]
        self._head: list[int] = []
        self._capacity: list[int] = []
        self._original: list[int] = []
        self._level: list[int] = []

    @classmethod
    def of(cls, network: FlowNetwork, extra: int = 0) -> FlowGraph:
        """The arcs of ``network`` (arc i of it is edge 2i here), plus ``extra`` vertices without arcs."""
        graph = cls(network.n + extra)
        for u, v, c in network.arcs:
            graph.add(u, v, c)
        return graph

    def add(self, u: int, v: int, capacity: int) -> int:
        """Add an arc; its edge number is returned (always even, the reverse is the next)."""
        number = len(self._head)
        self._head += (v, u)
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
        clock.look()
        if len(self._head) >= NATIVE_EDGES:
            from blinkccl.trees.packing import native_flows  # only here: small plans need no ctypes

            added = native_flows.max_flow(len(self._adjacent), self._head, self._capacity, source, sink, limit)
            if added is not None:
                return added
        total = 0
        while total < limit and self._levels(source, sink):
            cursor = [0] * len(self._adjacent)
            while total < limit:
                pushed = self._augment(source, sink, limit - total, cursor)
                if not pushed:
                    break
                total += pushed
        return total

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
                w = self._head[edge]
                if not seen[w] and self._capacity[edge ^ backward]:
                    seen[w] = True
                    stack.append(w)
        return [v for v, reached in enumerate(seen) if reached]

    def _levels(self, source: int, sink: int) -> bool:
        adjacent, head, capacity = self._adjacent, self._head, self._capacity
        level = [-1] * len(adjacent)
        level[source] = 0
        queue = [source]
        for u in queue:
            if u == sink:
                break
            next_level = level[u] + 1
            for edge in adjacent[u]:
                w = head[edge]
                if level[w] < 0 and capacity[edge]:
                    level[w] = next_level
                    queue.append(w)
        self._level = level
        return level[sink] >= 0

    def _augment(self, source: int, sink: int, limit: int, cursor: list[int]) -> int:
        adjacent, head, capacity, level = self._adjacent, self._head, self._capacity, self._level
        path: list[int] = []
        u = source
        while u != sink:
            edges = adjacent[u]
            i, end, deeper = cursor[u], len(edges), level[u] + 1
            while i < end and not (capacity[edges[i]] and level[head[edges[i]]] == deeper):
                i += 1
            cursor[u] = i
            if i < end:
                path.append(edges[i])
                u = head[edges[i]]
            elif path:
                u = head[path.pop() ^ 1]
                cursor[u] += 1
            else:
                return 0
        pushed = min(limit, min(capacity[edge] for edge in path))
        for edge in path:
            capacity[edge] -= pushed
            capacity[edge ^ 1] += pushed
        return pushed


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
    terminal cannot be reached, 0 and what can. Cost: one maximum flow per terminal, stopped at the least value so far.
    """
    if network.terminals * len(network.arcs) >= 4 * NATIVE_EDGES:  # a flow to each terminal, in one call
        from blinkccl.trees.packing import native_flows  # only here: small plans need no ctypes

        if native_flows.can_hold(sum(c for _, _, c in network.arcs)):
            return native_flows.least_flow(network, root)
    graph = FlowGraph.of(network)
    best, side = INFINITE, tuple(range(network.n))
    for sink in range(network.terminals):
        if sink != root:
            graph.reset()
            value = graph.max_flow(root, sink, best)
            if value < best:
                best, side = value, tuple(graph.source_side(root))
    return best, side
