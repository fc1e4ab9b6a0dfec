"""Conversion between topologies (vertex ids) and packing networks (rank positions and dense indexes).

Transit vertices with exactly two neighbours (a NIC between a GPU and the network, a bridge with one GPU) are
contracted: a chain of links is one arc with the least capacity of the chain. Packing uses the small graph; trees, cuts,
partitions and prices are translated back to the real vertices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Path
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.native_flows import INFINITE
from blinkccl.trees.packing.network import Arc, FlowNetwork


@dataclass(frozen=True)
class RankNetwork:
    """``network`` vertex i is ``ids[i]``; terminals are the ranks in order; ``chain[arc]`` is its real path."""

    topology: Topology
    network: FlowNetwork
    ids: tuple[int, ...]
    chain: dict[Arc, Path]

    def path(self, hop: Iterable[int]) -> Path:
        """The path of vertex ids of a hop in network vertices."""
        stops = tuple(hop)
        path = [self.ids[stops[0]]]
        for arc in itertools.pairwise(stops):
            path.extend(self.chain[arc][1:])
        return tuple(path)

    def side(self, side: Iterable[int]) -> tuple[int, ...]:
        """One side of a cut in vertex ids, with contracted vertices placed for the least capacity (a minimum cut)."""
        inside = frozenset(self.ids[v] for v in side)
        if len(self.ids) == len(self.topology.vertices):
            return tuple(sorted(inside))
        index = {v.id: i for i, v in enumerate(self.topology.vertices)}
        source, sink = len(index), len(index) + 1
        graph = FlowGraph(len(index) + 2)
        for link in self.topology.links:
            graph.add(index[link.src], index[link.dst], link.capacity)
        for vertex in self.ids:
            if vertex in inside:
                graph.add(source, index[vertex], INFINITE)
            else:
                graph.add(index[vertex], sink, INFINITE)
        graph.max_flow(source, sink)
        held = frozenset(graph.source_side(source))
        return tuple(sorted(vertex for vertex, i in index.items() if i in held))

    def blocks(self, blocks: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
        """A partition in vertex ids; a chain between blocks is cut at its narrowest link."""
        home = {self.ids[v]: i for i, block in enumerate(blocks) for v in block}
        for chain in self.chain.values():
            at = self._narrowest(chain)
            for position, vertex in enumerate(chain[1:-1], start=1):
                home.setdefault(vertex, home[chain[0] if position <= at else chain[-1]])
        for link in self.topology.links:  # a vertex outside all chains joins the block of a neighbour
            home.setdefault(link.src, home.get(link.dst, 0))
            home.setdefault(link.dst, home[link.src])
        members: dict[int, list[int]] = {}
        for vertex in sorted(home):
            members.setdefault(home[vertex], []).append(vertex)
        return tuple(sorted(tuple(block) for block in members.values()))

    def prices(self, prices: Mapping[Arc, Fraction | int]) -> dict[Arc, Fraction]:
        """Prices of arcs as prices of links, each on the narrowest link of its chain."""
        real = {}
        for arc, price in prices.items():
            chain = self.chain[arc]
            at = self._narrowest(chain)
            real[chain[at], chain[at + 1]] = Fraction(price)
        return real

    def _narrowest(self, chain: Path) -> int:
        widths = [self.topology.link[arc].capacity for arc in itertools.pairwise(chain)]
        return widths.index(min(widths))


class ByIdentity:
    """A topology as a cache key, compared by identity, since hashing hundreds of links per look-up is slow."""

    __slots__ = ("topology",)

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def __hash__(self) -> int:
        return id(self.topology)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.topology is other.topology


def rank_network_of(topology: Topology, ranks: tuple[int, ...], fixed: frozenset[int] = frozenset()) -> RankNetwork:
    """The packing network for these ranks; all other vertices are transit, and ``fixed`` ones are not contracted."""
    return _rank_network_of(ByIdentity(topology), ranks, fixed)


@lru_cache(maxsize=64)
def _rank_network_of(key: ByIdentity, ranks: tuple[int, ...], uncontracted: frozenset[int]) -> RankNetwork:
    topology = key.topology
    capacity = {arc: link.capacity for arc, link in topology.link.items()}
    chains: dict[Arc, Path] = {arc: arc for arc in capacity}
    transit = [v.id for v in topology.vertices if v.id not in frozenset(ranks)]
    for vertex in sorted(transit):
        if vertex not in uncontracted and _contract(vertex, capacity, chains):
            transit.remove(vertex)
    ids = (*ranks, *sorted(transit))
    index = {vertex: i for i, vertex in enumerate(ids)}
    arcs = tuple(sorted((index[u], index[v], c) for (u, v), c in capacity.items()))
    network = FlowNetwork(len(ids), len(ranks), arcs)
    return RankNetwork(topology, network, ids, {(index[u], index[v]): path for (u, v), path in chains.items()})


def _contract(vertex: int, capacity: dict[Arc, int], chains: dict[Arc, Path]) -> bool:
    """Replace a transit vertex with two neighbours by direct arcs, unless the neighbours are joined already."""
    ends = sorted({u for u, v in capacity if v == vertex} | {v for u, v in capacity if u == vertex})
    if len(ends) != 2 or any((a, b) in capacity for a, b in (ends, ends[::-1])):
        return False
    for a, b in (ends, ends[::-1]):
        if (a, vertex) in capacity and (vertex, b) in capacity:
            capacity[a, b] = min(capacity[a, vertex], capacity[vertex, b])
            chains[a, b] = chains[a, vertex] + chains[vertex, b][1:]
    for end in ends:
        for arc in ((end, vertex), (vertex, end)):
            capacity.pop(arc, None)
            chains.pop(arc, None)
    return True
