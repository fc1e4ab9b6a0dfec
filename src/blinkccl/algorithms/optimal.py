"""The exact optimum of every collective on every topology, with its proof.

===========================  =======================================================================
broadcast, reduce            arborescences that fill a minimum cut (Edmonds 1973)
allgather, reduce_scatter    equal arborescences from every rank that fill the bottleneck ratio
allreduce                    undirected trees that fill a partition (Tutte, Nash-Williams 1961); on
                             directed links or with transit, pairs of in- and out-trees
gather, scatter, sendrecv    maximum flows taken apart into paths
alltoall                     a maximum concurrent flow
===========================  =======================================================================

Without transit vertices everything but alltoall is combinatorial and integral: weights are multiples of 1/p for
an optimum p/q. Trees are made shallow by local search; ``least-depth`` and ``fewest-trees`` search further.
With transit (switches, NICs, hosts) trees over ranks are priced by their cheapest unicast hops, which is exact
whether or not a switch is balanced; clusters of equal servers need only one rank's trees, rotated.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from blinkccl.algorithms import optimal_reduction, optimal_trees
from blinkccl.algorithms.bounds import all_pairs_flow, certificate_for, reverse_of
from blinkccl.algorithms.forests import Draft, forest_of
from blinkccl.algorithms.lanes import Lanes, lanes_of
from blinkccl.algorithms.registry import Request
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest
from blinkccl.packing.bottleneck import gather_rate
from blinkccl.packing.maxflow import max_flow
from blinkccl.packing.network import Network
from blinkccl.packing.oracles import Hops
from blinkccl.packing.paths import UnitPath, decompose


def plan(request: Request) -> Forest:
    """The optimal forest; ``rate == bound`` wherever the bound's proof is attained, which is stated there.

    Raises
    ------
    PackingError
        If the links do not connect the ranks.
    UnsupportedError
        If the objective is not served here: see :func:`optimal_trees.refuse_unproved`.
    """
    name = request.collective.name
    if name in FLOWS and request.objective != "shallow":
        raise UnsupportedError(f"--{request.objective} is for trees; {name} sends along paths of a maximum flow")
    return PLANS[name](request, lanes_of(request.network, request.ranks))


def hops_of(network: Network, path: tuple[int, ...]) -> Hops:
    """A path as hops from terminal to terminal."""
    stops = [i for i, v in enumerate(path) if v < network.terminals]
    return tuple(path[a : b + 1] for a, b in itertools.pairwise(stops))


def _path_drafts(
    network: Network, block: int | tuple[int, int] | None, weight: Fraction, ways: list[UnitPath]
) -> list[Draft]:
    total = sum(units for _, units in ways)
    return [Draft(block, weight * Fraction(units, total), way[0], None, hops_of(network, way)) for way, units in ways]


def _gather(request: Request, lanes: Lanes) -> Forest:
    return _spokes(request, lanes, lanes.network, inward=True)


def _scatter(request: Request, lanes: Lanes) -> Forest:
    return _spokes(request, lanes, reverse_of(lanes.network), inward=False)


def _spokes(request: Request, lanes: Lanes, network: Network, *, inward: bool) -> Forest:
    """Paths between the root and every other rank: found toward the root, turned round for scatter."""
    root, size = request.collective.root, request.collective.world_size
    assert root is not None
    rate, _, flow = gather_rate(network, root)
    ways = decompose(flow, {v: rate.numerator for v in range(size) if v != root}, root)
    drafts = []
    for v in range(size):
        paths = [(way if inward else way[::-1], units) for way, units in ways.get(v, [((root,), 1)])]
        drafts += _path_drafts(lanes.network, v, Fraction(1, size), paths)
    return _finished(request, lanes, drafts)


def _sendrecv(request: Request, lanes: Lanes) -> Forest:
    src, dst = request.collective.src, request.collective.dst
    assert src is not None
    assert dst is not None
    value, flow = max_flow(lanes.network, src, dst)
    ways = decompose(flow, {src: value}, dst)[src]
    return _finished(request, lanes, _path_drafts(lanes.network, None, Fraction(1), ways))


def _alltoall(request: Request, lanes: Lanes) -> Forest:
    size = request.collective.world_size
    flow = all_pairs_flow(lanes.network)
    drafts = []
    for s in range(size):
        for t in range(size):
            drafts += (
                _path_drafts(lanes.network, (s, t), Fraction(1, size), flow.paths[s, t])
                if s != t
                else [Draft((s, s), Fraction(1, size), s, None, ())]
            )
    return _finished(request, lanes, drafts)


def _finished(request: Request, lanes: Lanes, drafts: list[Draft]) -> Forest:
    certificate = certificate_for(request.collective, request.ranks, lanes.topology)
    return forest_of(request, lanes, "optimal", drafts, certificate)


#: Served by flows, not trees.
FLOWS = ("gather", "scatter", "alltoall", "sendrecv")
PLANS = {
    "broadcast": optimal_trees.broadcast,
    "reduce": optimal_trees.reduce,
    "allgather": optimal_trees.allgather,
    "reduce_scatter": optimal_trees.reduce_scatter,
    "allreduce": optimal_reduction.allreduce,
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _alltoall,
    "sendrecv": _sendrecv,
}
