"""The optimum of every collective on every topology, with its proof.

===========================  =======================================================================
broadcast, reduce            arborescences that fill a minimum cut (Edmonds 1973)
allgather, reduce_scatter    equal arborescences from every rank that fill the bottleneck ratio
allreduce                    undirected trees that fill a partition (Tutte, Nash-Williams 1961); with
                             transit an orientation of links; on one-way links what of each goes up
                             and what down; among few ranks with transit pairs of in- and out-trees
gather, scatter, sendrecv    maximum flows taken apart into paths
alltoall                     a maximum concurrent flow: one source per orbit of ranks that are alike
===========================  =======================================================================

Without transit vertices everything but alltoall is combinatorial and integral: weights are multiples of 1/p for
an optimum p/q, but for AllReduce among pairs that are joined alike, where every rank has a star of 1/N. Trees are made
shallow by local search; ``fewest-trees`` searches further.
With transit (switches, NICs, hosts) clusters of equal servers need only one rank's trees, rotated. Among more than
eight ranks that are not alike, switches that give out what they take in are split into links from rank to rank, where
weights are whole again (:mod:`~blinkccl.trees.packing.splitting`). Elsewhere trees over ranks are priced by their
cheapest unicast hops, which is exact whatever a switch does, with weights of up to dozens of digits. Where that cannot
be done, the default takes trees of equal weight within a hundredth of the bound, which is proved as ever, and from 65
ranks on the best of them; in an AllReduce also where exact trees are deeper, and from 17 ranks on wherever they are
found. Longer weights than 1/64 of a block are rounded, for a hundredth of the rate at most
(:mod:`~blinkccl.trees.algorithms.refine`). Where a plan of all to all is deep still, trees of fewer hops are
looked for (:mod:`~blinkccl.trees.algorithms.refine`); ``least-depth`` looks for the fewest. ``exact`` has the
optimum itself, however long that takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms import optimal_allreduce, optimal_trees
from blinkccl.trees.algorithms.bounds import all_pairs_flow, certificate_for, phases, reverse_of
from blinkccl.trees.algorithms.forests import Draft, forest_of
from blinkccl.trees.algorithms.optimal_allreduce import both_ways, up_and_down
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.algorithms.refine import LONGEST_WEIGHT, is_deep, least_rate, shallower, shortened
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.stars import one_hop
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing import equal_trees
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.maxflow import max_flow
from blinkccl.trees.packing.multiflow import UnitPath, decompose
from blinkccl.trees.packing.network import FlowNetwork, hops_along

#: Served by flows, not trees.
FLOWS = ("gather", "scatter", "alltoall", "sendrecv")
#: Of these a star at every rank has a share alike.
STARS = ("allreduce", "allgather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class PlanningJob:
    """A request and its links as the packing sees them."""

    request: Request
    view: RankNetwork

    @property
    def collective(self) -> str:
        return self.request.collective.name

    @property
    def has_trees(self) -> bool:
        return self.collective not in FLOWS

    def best_rate(self, objective: str) -> Forest:
        """The trees or flows of the collective."""
        return PLANS[self.collective](replace(self.request, objective=objective), self.view)


def plan(request: Request) -> Forest:
    """The optimal forest, with its bound and proof; ``rate == bound`` but for what this module's text says.

    Raises
    ------
    UnsupportedError
        If the objective is not served here: see :func:`optimal_trees.refuse_unproved`; if ``max_trees`` cannot be.
    """
    name = request.collective.name
    if name in FLOWS and request.objective not in ("shallow", "exact"):
        raise UnsupportedError(
            f"--objective {request.objective} is for trees; {name} sends along paths of a maximum flow"
        )
    if name in FLOWS and request.max_trees is not None:
        raise UnsupportedError(f"--max-trees is for trees; {name} sends along paths of a maximum flow")
    job = PlanningJob(request, rank_network_of(request.network, request.ranks))
    forest = _stars(job) or _trees_or_flows(job)
    for step in STEPS:
        forest = step(job, forest)
    return forest


def _stars(job: PlanningJob) -> Forest | None:
    """A star at every rank, where that reaches the bound: nothing is shallower or better balanced.

    So it is among two ranks, and in a group whose pairs are joined alike, directly or through a switch.
    """
    request = job.request
    servers = {request.topology.vertex[rank].server for rank in request.ranks}
    if job.collective not in STARS or request.objective == "fewest-trees" or len(servers) > 1:
        return None
    try:
        stars = one_hop(request)
    except UnsupportedError:
        return None
    proof = certificate_for(request.collective, request.ranks, request.network)
    return replace(stars, algorithm="optimal", certificate=proof) if stars.rate == proof.bound else None


def _trees_or_flows(job: PlanningJob) -> Forest:
    """The best rate; a search for the least depth begins with the default's trees through switches."""
    deep = job.request.objective == "least-depth" and not job.view.network.switchless
    return job.best_rate("shallow" if deep else job.request.objective)


def _fewer_hops(job: PlanningJob, forest: Forest) -> Forest:
    searched = job.has_trees and job.request.objective in ("shallow", "least-depth")
    deep = searched and is_deep(job.request, job.view, forest)
    return shallower(job.request, job.view, forest) if deep else forest


def _few_trees(job: PlanningJob, forest: Forest) -> Forest:
    """Where there are too many trees, the plan of fewest where that has few enough, else equal trees."""
    request, network, most = job.request, job.view.network, job.request.max_trees
    if most is None or forest.trees_per_block <= most:
        return forest
    # A search for fewest trees is there where links join ranks directly, of an allreduce both ways alike.
    if network.switchless and (network.symmetric or job.collective != "allreduce"):
        fewest = job.best_rate("fewest-trees")
        if fewest.trees_per_block <= most:
            return fewest
    return forest_of(request, job.view, "optimal", _few_drafts(job, forest, most), forest.certificate)


def _few_drafts(job: PlanningJob, best: Forest, most: int) -> Sequence[Draft]:
    """At most ``most`` trees of equal weight for each block, as near to the rate of ``best`` as they come."""
    network = job.view.network
    if job.collective != "allreduce":
        return optimal_trees.few_drafts(job.request, job.view, most)
    if network.symmetric:
        return [both_ways(*tree) for tree in equal_trees.up_and_down(network, best.rate, most, {}).trees]
    split = phases(network)
    if split is None:
        raise UnsupportedError(
            "--max-trees of an allreduce through switches needs links that are as wide one way as the other"
        )
    _, trees, pairs = split.fastest(most)
    return up_and_down(pairs, trees)


def _short_weights(job: PlanningJob, forest: Forest) -> Forest:
    """Where chunks cannot have the weights, shorter ones, or as many equal trees, as far as that costs a hundredth."""
    if not job.has_trees or job.request.objective != "shallow" or forest.longest_weight <= LONGEST_WEIGHT:
        return forest
    short = shortened(forest)
    if short.longest_weight <= LONGEST_WEIGHT or job.request.max_trees is not None:
        return short
    try:
        drafts = _few_drafts(job, forest, LONGEST_WEIGHT)
    except UnsupportedError:
        return forest
    equal = forest_of(job.request, job.view, "optimal", drafts, forest.certificate)
    return equal if equal.longest_weight <= LONGEST_WEIGHT and equal.rate >= least_rate(forest) else forest


#: What is made of a plan of the best rate, in this order; each returns what it got where it does not apply.
STEPS = (_fewer_hops, _few_trees, _short_weights)


# Gather, scatter, AllToAll and a message at the optimum: maximum flows taken apart into paths.
def _path_drafts(
    network: FlowNetwork, block: int | tuple[int, int] | None, weight: Fraction, ways: list[UnitPath]
) -> list[Draft]:
    total = sum(units for _, units in ways)
    return [
        Draft(block, weight * Fraction(units, total), way[0], None, hops_along(network, way)) for way, units in ways
    ]


def _root_flows(request: Request, view: RankNetwork) -> Forest:
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


def _sendrecv(request: Request, view: RankNetwork) -> Forest:
    src, dst = request.collective.src, request.collective.dst
    assert src is not None
    assert dst is not None
    value, flow = max_flow(view.network, src, dst)
    ways = decompose(flow, {src: value}, dst)[src]
    return _finished(request, view, _path_drafts(view.network, None, Fraction(1), ways))


def _alltoall(request: Request, view: RankNetwork) -> Forest:
    size, flow = request.collective.world_size, all_pairs_flow(view.network)
    drafts = []
    for s, t in itertools.product(range(size), repeat=2):
        drafts += _path_drafts(view.network, (s, t), Fraction(1, size), flow.paths(s, t) if s != t else [((s,), 1)])
    return _finished(request, view, drafts)


def _finished(request: Request, view: RankNetwork, drafts: list[Draft]) -> Forest:
    certificate = certificate_for(request.collective, request.ranks, view.topology)
    return forest_of(request, view, "optimal", drafts, certificate)


PLANS = {
    "broadcast": optimal_trees.one_to_all,
    "reduce": optimal_trees.one_to_all,
    "allgather": optimal_trees.all_to_all,
    "reduce_scatter": optimal_trees.all_to_all,
    "allreduce": optimal_allreduce.allreduce,
    "gather": _root_flows,
    "scatter": _root_flows,
    "alltoall": _alltoall,
    "sendrecv": _sendrecv,
}
