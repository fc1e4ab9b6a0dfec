"""Gather, scatter, AllToAll and a message at the optimum: maximum flows taken apart into paths."""

from __future__ import annotations

import itertools
from fractions import Fraction

from blinkccl.trees.algorithms.bounds import all_pairs_flow, certificate_for, reverse_of
from blinkccl.trees.algorithms.forests import Draft, forest_of
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.maxflow import max_flow
from blinkccl.trees.packing.multiflow import UnitPath, decompose
from blinkccl.trees.packing.network import FlowNetwork, Hops


def hops_of(network: FlowNetwork, path: tuple[int, ...]) -> Hops:
    """A path as hops from terminal to terminal."""
    stops = [i for i, v in enumerate(path) if v < network.terminals]
    return tuple(path[a : b + 1] for a, b in itertools.pairwise(stops))


def _path_drafts(
    network: FlowNetwork, block: int | tuple[int, int] | None, weight: Fraction, ways: list[UnitPath]
) -> list[Draft]:
    total = sum(units for _, units in ways)
    return [Draft(block, weight * Fraction(units, total), way[0], None, hops_of(network, way)) for way, units in ways]


def root_flows(request: Request, view: RankNetwork) -> Forest:
    """Paths between the root and every other rank: found toward the root, turned round for scatter."""
    root, size, inward = request.collective.root, request.collective.world_size, request.collective.name == "gather"
    assert root is not None
    rate, _, flow = gather_rate(view.network if inward else reverse_of(view.network), root)
    ways = decompose(flow, {v: rate.numerator for v in range(size) if v != root}, root)
    drafts = []
    for v in range(size):
        paths = [(way if inward else way[::-1], units) for way, units in ways.get(v, [((root,), 1)])]
        drafts += _path_drafts(view.network, v, Fraction(1, size), paths)
    return _finished(request, view, drafts)


def sendrecv(request: Request, view: RankNetwork) -> Forest:
    src, dst = request.collective.src, request.collective.dst
    assert src is not None
    assert dst is not None
    value, flow = max_flow(view.network, src, dst)
    ways = decompose(flow, {src: value}, dst)[src]
    return _finished(request, view, _path_drafts(view.network, None, Fraction(1), ways))


def alltoall(request: Request, view: RankNetwork) -> Forest:
    size, flow = request.collective.world_size, all_pairs_flow(view.network)
    drafts = []
    for s, t in itertools.product(range(size), repeat=2):
        drafts += _path_drafts(view.network, (s, t), Fraction(1, size), flow.paths(s, t) if s != t else [((s,), 1)])
    return _finished(request, view, drafts)


def _finished(request: Request, view: RankNetwork, drafts: list[Draft]) -> Forest:
    certificate = certificate_for(request.collective, request.ranks, view.topology)
    return forest_of(request, view, "optimal", drafts, certificate)
