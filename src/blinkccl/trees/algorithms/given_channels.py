"""The channels of an NCCL graph file as a forest, which can be checked and timed like any plan.

Rings become shares as in :mod:`blinkccl.trees.algorithms.ring`. A chain of NCCL's tree leads up to its first GPU, and
down again. Channels are equal, as in NCCL. The rate is computed from the links, not read from the file.

If NVLink does not join two neighbours, NCCL uses the memory of another GPU of the job (NVB). No hop of a plan leads
through a rank, so the forest has an extra vertex for that memory. It shares the GPU's links in proportion to channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.topology.model import Topology, Vertex
from blinkccl.topology.nccl_graph import RING, TREE, ChannelGraph, dev_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.ring import SERVED, Ring, on_rings
from blinkccl.trees.algorithms.shapes import (
    Paths,
    chain_down,
    chain_up,
    cyclic,
    forest_on,
    require_collective,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Share

Arc = tuple[int, int]


def forest_of(graphs: Iterable[ChannelGraph], machine: Topology, collective: str = "allreduce") -> Forest:
    """The rings of a graph file, or its chains if it has no rings, on the links of ``machine``.

    Ranks are its GPUs by index; a root is the first. UsageError if the machine lacks a GPU. UnsupportedError if the
    file has neither rings nor chains or covers one of several servers, or if a channel has a path that no plan can use.
    """
    by_id = {graph.id: graph for graph in graphs if graph.orders}
    graph = by_id.get(RING, by_id.get(TREE))
    if graph is None:
        raise UnsupportedError("the graph file has neither rings (id 0) nor trees (id 1); give one with either")
    if graph.across:
        raise UnsupportedError("the graph file describes one of several servers; give that of a job on one server")
    vertex = _vertices(graph, machine)
    ranks = tuple(vertex.values())
    if collective not in COLLECTIVES:
        raise UsageError(f"unknown collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
    root = 0 if "root" in COLLECTIVES[collective].parameters else None
    if graph.id == TREE and collective != "allreduce":
        raise UnsupportedError(f"NCCL has trees for allreduce, not for {collective}; give a graph file with rings")
    request = Request(machine, Collective(collective, len(ranks), root), ranks)
    require_collective(request, "ring", SERVED, "a graph file holds nothing else")
    orders = Counter(_turned(tuple(vertex[dev] for dev in order), graph.id == RING) for order in graph.orders)
    network, paths = _links(request, graph, list(orders))
    if graph.id == RING:
        rings = [Ring(order, Fraction(times)) for order, times in sorted(orders.items())]
        return on_rings(request, "nccl-graph", network, rings)
    shares = [
        Share(
            Fraction(times, len(graph.orders)),
            i,
            None,
            order[0],
            chain_up(paths, order[::-1]),
            chain_down(paths, order),
        )
        for i, (order, times) in enumerate(sorted(orders.items()))
    ]
    return forest_on(request, "nccl-graph", network, shares)


def _vertices(graph: ChannelGraph, machine: Topology) -> dict[int, int]:
    """The machine's vertex of each GPU of the file, by ``dev``."""
    if len(graph.gpus) < 2:
        raise UnsupportedError("the graph file has one GPU; expected at least two")
    if len({machine.vertex[rank].server for rank in machine.ranks}) > 1:
        raise UsageError(f"{machine.name} has several servers, a graph file describes one; give that server's topology")
    ranks = {dev_of(machine, rank): rank for rank in machine.ranks}
    missing = [dev for dev in graph.gpus if dev not in ranks]
    if missing:
        raise UsageError(f"the graph file names GPU {missing[0]}, but {machine.name} has {len(machine.ranks)} GPUs")
    return {dev: ranks[dev] for dev in graph.gpus}


def _turned(order: tuple[int, ...], ring: bool) -> tuple[int, ...]:
    """The order from the lowest GPU if it is a ring, so that equal rings compare equal."""
    return cyclic(order, min(order)) if ring else order


def _links(request: Request, graph: ChannelGraph, orders: Sequence[tuple[int, ...]]) -> tuple[Topology, Paths]:
    """The links with a path for every hop, in both directions for trees: the fast ones if possible, else all."""
    hops = [pair for order in orders for pair in pairwise((*order, *order[:1]) if graph.id == RING else order)]
    if graph.id == TREE:
        hops += [(v, u) for u, v in hops]
    lacking = hops[0]
    for links in ("fast",) if graph.kind in ("NVL", "NVB") else ("fast", "pcie", "all"):
        try:
            network = replace(request, links=links).network
        except TopologyError:
            continue
        paths = transit_paths(network, request.ranks)
        if graph.kind == "NVB":
            network = _through_gpus(network, request.ranks, hops)
            paths = transit_paths(network, request.ranks)
        without = [hop for hop in hops if hop not in paths]
        if not without:
            return network, paths
        lacking = without[0]
    raise UnsupportedError(
        f"the channel from GPU {lacking[0]} to {lacking[1]} ({graph.kind}) has no path on {request.topology.name}; "
        "give the topology of the machine on which NCCL wrote the file"
    )


def _through_gpus(network: Topology, ranks: tuple[int, ...], hops: Sequence[Arc]) -> Topology:
    """The links with an extra vertex for each of ``hops`` without a link, as a part of the GPU between its ends.

    Hops share a link equally, so capacities are multiplied by a number that the number of hops divides.
    """
    uses: dict[Arc, Counter[int | None]] = {}
    parts: list[Vertex] = []
    ends: dict[int, Arc] = {}
    first = 1 + max(vertex.id for vertex in network.vertices)
    for src, dst in dict.fromkeys(hops):
        times = hops.count((src, dst))
        by = None if (src, dst) in network.link else _between(network, ranks, src, dst)
        if by is None:
            uses.setdefault((src, dst), Counter())[None] += times
            continue
        part = first + len(parts)
        parts.append(replace(network.vertex[by], id=part, name=f"{network.vertex[by].label} between", part_of=by))
        ends[part] = src, dst
        for arc in ((src, by), (by, dst)):
            uses.setdefault(arc, Counter())[part] += times
    if not parts:
        return network
    finer = lcm(*(shared.total() for arc, shared in uses.items() if arc in network.link))
    links = []
    for link in network.links:
        shared = uses.get((link.src, link.dst), Counter({None: 1}))
        for at, times in shared.items():
            capacity, gb_per_s = link.capacity * finer * times // shared.total(), link.gb_per_s * times / shared.total()
            src, dst = link.src, link.dst
            if at is not None:
                src, dst = (src, at) if src == ends[at][0] else (at, dst)
            links.append(replace(link, src=src, dst=dst, capacity=capacity, gb_per_s=gb_per_s))
    unit = network.unit_gb_per_s / finer
    return replace(network, unit_gb_per_s=unit, vertices=(*network.vertices, *parts), links=tuple(links))


def _between(network: Topology, ranks: tuple[int, ...], src: int, dst: int) -> int | None:
    """The GPU between ``src`` and ``dst`` in NCCL: on the fastest path, of equal ones with the fastest last link."""
    last = {link.src: link.capacity for link in network.links if link.dst == dst and link.src in ranks}
    beside = sorted(last, key=lambda rank: (-last[rank], rank))
    rate_through = {
        rank: min(network.link[src, rank].capacity, network.link[rank, dst].capacity)
        for rank in beside
        if (src, rank) in network.link
    }
    return max(rate_through, key=lambda rank: rate_through[rank], default=None)
