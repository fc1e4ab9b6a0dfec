"""The optimum of every collective on every topology, with its proof.

- broadcast, reduce: arborescences that fill a minimum cut (Edmonds 1973);
- allgather, reduce_scatter: equal arborescences from every rank that fill the bottleneck ratio;
- allreduce: undirected trees that fill a partition (Tutte, Nash-Williams 1961); with transit an orientation of links,
  or for few ranks pairs of in- and out-trees; on one-way links a division of each link between up and down;
- gather, scatter, sendrecv: maximum flows decomposed into paths;
- alltoall: a maximum concurrent flow, with one source per orbit of equivalent ranks.

**Without transit.** Without transit vertices everything except alltoall is combinatorial and integral: weights are
multiples of 1/p for an optimum p/q. The exception is AllReduce among pairs with equal links, where every rank has a
star of 1/N. Trees are made shallow by local search; ``fewest-trees`` searches further.

**With transit.** With transit (switches, NICs, hosts), clusters of equal servers need only the trees of one rank,
rotated. For more than eight ranks without symmetry, switches with equal inbound and outbound capacity are split into
links from rank to rank, which gives integral weights again (:mod:`~blinkccl.trees.packing.splitting`). Otherwise trees
over ranks are priced by their cheapest unicast hops, which is exact for every kind of switch, with weights of up to
dozens of digits. If neither is feasible, the default is trees of equal weight within a hundredth of the bound, which is
still proved; from 65 ranks on it is the best such trees. An AllReduce also uses them if exact trees are deeper, and
from 17 ranks on whenever they are found.

**Weights and depth.** Weights with a denominator above 64 are rounded, at a cost of at most a hundredth of the rate. If
the plan of an all-to-all collective is still deep, trees with fewer hops are searched; ``least-depth`` searches for the
fewest (:mod:`~blinkccl.trees.algorithms.refine`). The trees of one root enter a server as rarely as rate and depth
permit. ``exact`` computes the optimum itself, without a limit on time.
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
from blinkccl.trees.algorithms.refine import (
    LONGEST_WEIGHT,
    inside_servers,
    is_deep,
    least_rate,
    shallower,
    shortened,
)
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.stars import nested_stars, one_hop
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing import equal_trees
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.maxflow import max_flow
from blinkccl.trees.packing.multiflow import UnitPath, decompose
from blinkccl.trees.packing.network import FlowNetwork, hops_along

#: Collectives planned by flows instead of trees.
FLOWS = ("gather", "scatter", "alltoall", "sendrecv")
#: Collectives for which a star at every rank has an equal share.
STARS = ("allreduce", "allgather", "reduce_scatter")
#: Ends of a rank in one step that generated code serves (``MAX_ENDS`` of :mod:`blinkccl.codegen.channels`).
MOST_BRANCHES = 32


@dataclass(frozen=True, slots=True)
class PlanningJob:
    """A request and its links as the network for packing."""

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
    """The optimal forest, with its bound and proof; ``rate == bound`` except as described in the module's text.

    Raises
    ------
    UnsupportedError
        If the objective (see :func:`optimal_trees.refuse_unproved`) or ``max_trees`` is not supported.
    """
    name = request.collective.name
    if name in FLOWS and request.objective not in ("shallow", "exact"):
        raise UnsupportedError(
            f"--objective {request.objective} is for trees, but {name} uses the paths of a maximum flow; leave it out"
        )
    if name in FLOWS and request.max_trees is not None:
        raise UnsupportedError(f"--max-trees is for trees, but {name} uses the paths of a maximum flow; leave it out")
    job = PlanningJob(request, rank_network_of(request.network, request.ranks))
    forest = _stars(job) or _trees_or_flows(job)
    for step in STEPS:
        forest = step(job, forest)
    return forest


def _stars(job: PlanningJob) -> Forest | None:
    """A star at every rank if it reaches the bound, as no plan is shallower or better balanced; else None.

    It does so for two ranks, and for a group in which all pairs have equal links, directly or through a switch. Where a
    star has more branches than generated code serves, stars of stars take its place if they reach the bound too.
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
    if stars.rate != proof.bound:
        return None
    branches = (len(request.ranks) - 1) * (1 + (job.collective == "allreduce"))
    nested = nested_stars(request, MOST_BRANCHES) if branches > MOST_BRANCHES else stars
    return replace(nested if nested.rate == proof.bound else stars, algorithm="optimal", certificate=proof)


def _trees_or_flows(job: PlanningJob) -> Forest:
    """The plan of the best rate; through switches, the search for the least depth begins with the default's trees."""
    deep = job.request.objective == "least-depth" and not job.view.network.switchless
    return job.best_rate("shallow" if deep else job.request.objective)


def _fewer_hops(job: PlanningJob, forest: Forest) -> Forest:
    searched = job.has_trees and job.request.objective in ("shallow", "least-depth")
    deep = searched and is_deep(job.request, job.view, forest)
    return shallower(job.request, job.view, forest) if deep else forest


def _few_trees(job: PlanningJob, forest: Forest) -> Forest:
    """The plan with at most ``max_trees`` trees per block: with the fewest trees if that suffices, else equal trees."""
    request, network, most = job.request, job.view.network, job.request.max_trees
    if most is None or forest.trees_per_block <= most:
        return forest
    # The search for fewest trees needs links that join ranks directly, and for an allreduce symmetric ones.
    if network.switchless and (network.symmetric or job.collective != "allreduce"):
        fewest = job.best_rate("fewest-trees")
        if fewest.trees_per_block <= most:
            return fewest
    return forest_of(request, job.view, "optimal", _few_drafts(job, forest, most), forest.certificate)


def _few_drafts(job: PlanningJob, best: Forest, most: int) -> Sequence[Draft]:
    """At most ``most`` trees of equal weight for each block, with a rate as near as possible to that of ``best``."""
    network = job.view.network
    if job.collective != "allreduce":
        return optimal_trees.few_drafts(job.request, job.view, most)
    if network.symmetric:
        return [both_ways(*tree) for tree in equal_trees.up_and_down(network, best.rate, most, {}).trees]
    split = phases(network)
    if split is None:
        raise UnsupportedError(
            "--max-trees of an allreduce through switches needs links with the same capacity in both directions; "
            "leave it out for an optimal plan"
        )
    _, trees, pairs = split.fastest(most)
    return up_and_down(pairs, trees)


def _short_weights(job: PlanningJob, forest: Forest) -> Forest:
    """The plan with denominators that chunks can represent: rounded weights, or equal trees within a hundredth."""
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


def _inside_servers(job: PlanningJob, forest: Forest) -> Forest:
    return inside_servers(job.request, forest) if job.has_trees else forest


#: Refinements of a plan of the best rate, in this order; each returns its argument if it does not apply.
STEPS = (_fewer_hops, _few_trees, _short_weights, _inside_servers)


# Optimal gather, scatter, AllToAll and sendrecv: maximum flows decomposed into paths.
def _path_drafts(
    network: FlowNetwork, block: int | tuple[int, int] | None, weight: Fraction, ways: list[UnitPath]
) -> list[Draft]:
    total = sum(units for _, units in ways)
    return [
        Draft(block, weight * Fraction(units, total), way[0], None, hops_along(network, way)) for way, units in ways
    ]


def _root_flows(request: Request, view: RankNetwork) -> Forest:
    """Paths between the root and every other rank, computed toward the root and reversed for scatter."""
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
