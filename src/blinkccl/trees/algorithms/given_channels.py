"""The channels of an NCCL graph file as a forest: what NCCL chose, to be checked and timed like any plan.

A ring is what :mod:`blinkccl.trees.algorithms.ring` makes of one; a chain of NCCL's tree goes up to its first GPU, and
down again. Channels are equal, as in NCCL. The rate is what the links hold, not what NCCL wrote.

Where NVLink does not join two neighbours, NCCL goes through the memory of another GPU of the job (NVB). No hop of a
plan leads through a rank; so that memory is a vertex of its own here, a part of the GPU, and has of the GPU's links
what channels through it take beside those that end there.
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
    """The rings of a graph file, or its chains where it has none, on the links of ``machine``.

    Ranks are its GPUs by index; a root is the first. UsageError where the machine lacks a GPU, UnsupportedError where
    the file has neither rings nor chains, is of one of several servers, or a channel takes a path that no plan can.
    """
    by_id = {graph.id: graph for graph in graphs if graph.orders}
    graph = by_id.get(RING, by_id.get(TREE))
    if graph is None:
        raise UnsupportedError("the graph file has neither rings (id 0) nor trees (id 1)")
    if graph.across:
        raise UnsupportedError("the graph file is of one of several servers, and says nothing of the others")
    vertex = _vertices(graph, machine)
    ranks = tuple(vertex.values())
    if collective not in COLLECTIVES:
        raise UsageError(f"{collective!r} is not one of {', '.join(COLLECTIVES)}")
    root = 0 if "root" in COLLECTIVES[collective].parameters else None
    if graph.id == TREE and collective != "allreduce":
        raise UnsupportedError(f"NCCL has trees for allreduce, not for {collective}")
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
    """The GPUs of the file, by ``dev``, as the machine numbers them."""
    if len(graph.gpus) < 2:
        raise UnsupportedError("the graph file has one GPU, which moves nothing")
    if len({machine.vertex[rank].server for rank in machine.ranks}) > 1:
        raise UsageError(f"{machine.name} has several servers, and a graph file is of one: give that server's topology")
    known = {dev_of(machine, rank): rank for rank in machine.ranks}
    missing = [dev for dev in graph.gpus if dev not in known]
    if missing:
        raise UsageError(f"the graph file names GPU {missing[0]}, and {machine.name} has {len(machine.ranks)} GPUs")
    return {dev: known[dev] for dev in graph.gpus}


def _turned(order: tuple[int, ...], ring: bool) -> tuple[int, ...]:
    """A ring begins anywhere, so equal ones are made to look so."""
    return cyclic(order, min(order)) if ring else order


def _links(request: Request, graph: ChannelGraph, orders: Sequence[tuple[int, ...]]) -> tuple[Topology, Paths]:
    """The links that hold every hop both ways where it needs them: the fast ones if they do, else all."""
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
        f"the channel from GPU {lacking[0]} to {lacking[1]} ({graph.kind}) has no path on {request.topology.name}"
    )


def _through_gpus(network: Topology, ranks: tuple[int, ...], hops: Sequence[Arc]) -> Topology:
    """The links with a part of a GPU for each of ``hops`` that no link holds, between the two links on its way.

    A link is shared in proportion to the hops that take it, so its capacity becomes several times what divides it.
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
    finer = lcm(*(taken.total() for arc, taken in uses.items() if arc in network.link))
    links = []
    for link in network.links:
        taken = uses.get((link.src, link.dst), Counter({None: 1}))
        for at, times in taken.items():
            capacity, gb_per_s = link.capacity * finer * times // taken.total(), link.gb_per_s * times / taken.total()
            src, dst = link.src, link.dst
            if at is not None:
                src, dst = (src, at) if src == ends[at][0] else (at, dst)
            links.append(replace(link, src=src, dst=dst, capacity=capacity, gb_per_s=gb_per_s))
    unit = network.unit_gb_per_s / finer
    return replace(network, unit_gb_per_s=unit, vertices=(*network.vertices, *parts), links=tuple(links))


def _between(network: Topology, ranks: tuple[int, ...], src: int, dst: int) -> int | None:
    """The GPU of the job through which NCCL goes: by the fastest way, of such by the fastest last link."""
    last = {link.src: link.capacity for link in network.links if link.dst == dst and link.src in ranks}
    beside = sorted(last, key=lambda rank: (-last[rank], rank))
    ways = {
        rank: min(network.link[src, rank].capacity, network.link[rank, dst].capacity)
        for rank in beside
        if (src, rank) in network.link
    }
    return max(ways, key=lambda rank: ways[rank], default=None)
