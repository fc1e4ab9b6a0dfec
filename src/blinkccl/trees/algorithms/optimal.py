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
(:mod:`~blinkccl.trees.algorithms.short_weights`). Where a plan of all to all is deep still, trees of fewer hops are
looked for (:mod:`~blinkccl.trees.algorithms.shallower`); ``least-depth`` looks for the fewest. ``exact`` has the
optimum itself, however long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from blinkccl.errors import InternalError, UnsupportedError
from blinkccl.trees.algorithms import optimal_allreduce, optimal_flows, optimal_trees
from blinkccl.trees.algorithms.bounds import certificate_for, phases
from blinkccl.trees.algorithms.forests import Draft, forest_of
from blinkccl.trees.algorithms.optimal_allreduce import both_ways, up_and_down
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shallower import is_deep, shallower
from blinkccl.trees.algorithms.short_weights import LONGEST_WEIGHT, least_rate, shortened
from blinkccl.trees.algorithms.stars import one_hop
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing import equal_trees

#: Served by flows, not trees.
FLOWS = ("gather", "scatter", "alltoall", "sendrecv")
#: Of these a star at every rank has a share alike.
STARS = ("allreduce", "allgather", "reduce_scatter")
PLANS = {
    "broadcast": optimal_trees.one_to_all,
    "reduce": optimal_trees.one_to_all,
    "allgather": optimal_trees.all_to_all,
    "reduce_scatter": optimal_trees.all_to_all,
    "allreduce": optimal_allreduce.allreduce,
    "gather": optimal_flows.root_flows,
    "scatter": optimal_flows.root_flows,
    "alltoall": optimal_flows.alltoall,
    "sendrecv": optimal_flows.sendrecv,
}


@dataclass(frozen=True, slots=True)
class PlanningJob:
    """A request and its links as the packing sees them."""

    request: Request
    view: RankNetwork

    @property
    def collective(self) -> str:
        return self.request.collective.name

    @property
    def objective(self) -> str:
        return self.request.objective

    @property
    def has_trees(self) -> bool:
        return self.collective not in FLOWS


@dataclass(frozen=True, slots=True)
class PlanningStage:
    """A step of planning. Where it ``accepts`` a job and the forest so far, ``apply`` makes the next forest of these.

    None is the forest of a job that no stage has planned yet; a stage that finds nothing better returns what it got.
    """

    accepts: Callable[[PlanningJob, Forest | None], bool]
    apply: Callable[[PlanningJob, Forest | None], Forest | None]


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
    forest: Forest | None = None
    for stage in STAGES:
        if stage.accepts(job, forest):
            forest = stage.apply(job, forest)
    if forest is None:
        raise InternalError(f"no stage has planned {name}")
    return forest


def _may_be_stars(job: PlanningJob, forest: Forest | None) -> bool:
    servers = {job.request.topology.vertex[rank].server for rank in job.request.ranks}
    return job.collective in STARS and job.objective != "fewest-trees" and len(servers) == 1


def _stars(job: PlanningJob, forest: Forest | None) -> Forest | None:
    """A star at every rank, where that reaches the bound: nothing is shallower or better balanced.

    So it is among two ranks, and in a group whose pairs are joined alike, directly or through a switch.
    """
    request = job.request
    try:
        stars = one_hop(request)
    except UnsupportedError:
        return None
    proof = certificate_for(request.collective, request.ranks, request.network)
    return replace(stars, algorithm="optimal", certificate=proof) if stars.rate == proof.bound else None


def _is_unplanned(job: PlanningJob, forest: Forest | None) -> bool:
    return forest is None


def _best_rate(job: PlanningJob, forest: Forest | None) -> Forest:
    """The trees or flows of the collective; a search for the least depth begins with the default's through switches."""
    deep = job.objective == "least-depth" and not job.view.network.switchless
    return PLANS[job.collective](replace(job.request, objective="shallow") if deep else job.request, job.view)


def _is_deep(job: PlanningJob, forest: Forest | None) -> bool:
    assert forest is not None
    return job.has_trees and job.objective in ("shallow", "least-depth") and is_deep(job.request, job.view, forest)


def _fewer_hops(job: PlanningJob, forest: Forest | None) -> Forest:
    assert forest is not None
    return shallower(job.request, job.view, forest)


def _has_too_many_trees(job: PlanningJob, forest: Forest | None) -> bool:
    assert forest is not None
    return job.request.max_trees is not None and forest.trees_per_block > job.request.max_trees


def _few_trees(job: PlanningJob, forest: Forest | None) -> Forest:
    """The plan of fewest trees where that has few enough, else equal trees."""
    assert forest is not None
    request, network, most = job.request, job.view.network, job.request.max_trees
    assert most is not None
    # A search for fewest trees is there where links join ranks directly, of an allreduce both ways alike.
    if network.switchless and (network.symmetric or job.collective != "allreduce"):
        fewest = PLANS[job.collective](replace(request, objective="fewest-trees"), job.view)
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


def _has_long_weights(job: PlanningJob, forest: Forest | None) -> bool:
    """True if chunks cannot have the weights."""
    assert forest is not None
    return job.has_trees and job.objective == "shallow" and forest.longest_weight > LONGEST_WEIGHT


def _short_weights(job: PlanningJob, forest: Forest | None) -> Forest:
    """The same trees with shorter weights, or as many equal trees, as far as that costs a hundredth; else as it was."""
    assert forest is not None
    short = shortened(forest)
    if short.longest_weight <= LONGEST_WEIGHT or job.request.max_trees is not None:
        return short
    try:
        drafts = _few_drafts(job, forest, LONGEST_WEIGHT)
    except UnsupportedError:
        return forest
    equal = forest_of(job.request, job.view, "optimal", drafts, forest.certificate)
    return equal if equal.longest_weight <= LONGEST_WEIGHT and equal.rate >= least_rate(forest) else forest


#: All of planning, in its order.
STAGES = (
    PlanningStage(_may_be_stars, _stars),
    PlanningStage(_is_unplanned, _best_rate),
    PlanningStage(_is_deep, _fewer_hops),
    PlanningStage(_has_too_many_trees, _few_trees),
    PlanningStage(_has_long_weights, _short_weights),
)
