"""A plan by a deadline: the default's where it is found in time, else the best forest that is known by then.

Most of the time is for the search; a part is kept back for what is cheap: a bound by cuts or by narrow links, and trees
of the fewest hops, which are a forest on any links. Where the search is ended, its best trees so far are taken instead.
Where it has none, equal trees are looked for: one, then four times as many each time, as long as there is time. The
cheap bound may prove less than the search would have, so that the gap may look larger than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from time import monotonic

from blinkccl.algorithms.bounds import (
    allgather_bottleneck,
    broadcast_cut,
    certificate_for,
    cut_certificate,
    narrow_proof,
    partition_certificate,
    price_certificate,
    reverse_of,
)
from blinkccl.algorithms.forests import Draft, backward, forest_of
from blinkccl.algorithms.optimal import plan
from blinkccl.algorithms.optimal_allreduce import both_ways
from blinkccl.algorithms.optimal_flows import hops_of
from blinkccl.algorithms.optimal_trees import MOST_PER_ROOT
from blinkccl.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.algorithms.registry import Request
from blinkccl.errors import TimeUpError
from blinkccl.forest.model import Certificate, Forest
from blinkccl.packing import clock, equal_trees
from blinkccl.packing.clock import Clock
from blinkccl.packing.equal_trees import EqualTrees
from blinkccl.packing.network import FlowNetwork, Hop, Hops, breadth_first
from blinkccl.packing.oracles import shortest_paths_to

#: Seconds that a simple forest takes: to begin with, and for each hop of its trees.
_BEGIN_S, _HOP_S = 0.05, 8e-6
#: The part of the time that is kept back at least: others may keep this machine busy.
_KEPT_BACK = 0.15
#: Collectives whose trees go one way.
ONE_WAY = ("broadcast", "reduce", "allgather", "reduce_scatter")
#: Trees of an AllReduce or a broadcast, at most.
_MOST_TREES = 64
#: Seconds that a hop of equal trees takes to find; and how many trees are few.
_FOUND_S, _FEW_TREES = 6e-5, 16


@dataclass(frozen=True)
class Ended:
    """``forest`` is the best that was known when the ``seconds`` were over, or ``complete``: that of no deadline."""

    forest: Forest
    seconds: float
    complete: bool


def plan_within(request: Request, seconds: float, listener: Callable[[Clock], None] | None = None) -> Ended:
    """The plan of a request after so many seconds; ``listener`` hears what is known by then.

    Raises
    ------
    TimeUpError
        If not even trees of the fewest hops and their bound are found in that time.
    """
    began = monotonic()
    search = Clock(seconds - min(seconds / 2, max(seconds * _KEPT_BACK, _kept_back_s(request))), listener)
    try:
        with search.running():
            return Ended(plan(request), seconds, complete=True)
    except TimeUpError:
        pass
    # A step that does not look at the clock may have taken all of the time: better a plan that is late by a little.
    left_s = max(began + seconds - monotonic(), min(seconds / 4, _kept_back_s(request)))
    try:
        with Clock(left_s).running():
            return Ended(_simple(request, search.best), seconds, complete=False)
    except TimeUpError:
        known = "no bound either" if search.bound is None else f"a bound of {_gb_per_s(request, search.bound)}"
        raise TimeUpError(
            f"{request.collective.name} among {len(request.ranks)} ranks of {request.topology.name} has no plan after "
            f"{seconds:g} s, {known}; some plan needs about {max(2 * seconds, 3 * simple_s(request)):.2g} s: give more"
        ) from None


def simple_s(request: Request) -> float:
    """Seconds for a simple forest, by its hops: those of a tree, or of a tree or a path for every rank."""
    return _forest_s(request, 1 if request.collective.root is not None else len(request.ranks))


def _forest_s(request: Request, trees: int) -> float:
    return _BEGIN_S + _HOP_S * trees * len(request.ranks)


def _kept_back_s(request: Request) -> float:
    """Seconds for equal trees and their forest: one from each root, or so many that they share out the links of one."""
    every = request.collective.name in ONE_WAY and request.collective.root is None
    return simple_s(request) + _FOUND_S * len(request.ranks) * (len(request.ranks) if every else _FEW_TREES)


def _gb_per_s(request: Request, rate: Fraction) -> str:
    return f"{float(rate) * request.network.unit_gb_per_s:.4g} GB/s"


def _simple(request: Request, best: EqualTrees | None) -> Forest:
    """The best trees of a search, or trees of the fewest hops, with a bound that is found at once."""
    view = rank_network_of(request.network, request.ranks)
    proof = _quick_proof(request, view)
    found = None if best is None else _of_trees(request, view.network, best)
    drafts = found or _few_trees(request, view.network, proof.bound) or _fewest_hops(request, view)
    return forest_of(request, view, "optimal", drafts, proof)


def _few_trees(request: Request, network: FlowNetwork, bound: Fraction) -> list[Draft] | None:
    """The best of one equal tree, 4, 16, … from each root, as many as time and their forest allow; None of none."""
    one_way, best, reached, count = request.collective.name in ONE_WAY, None, Fraction(0), 1
    if not one_way and request.collective.name != "allreduce":
        return None
    every = one_way and request.collective.root is None
    most = MOST_PER_ROOT if every else _MOST_TREES
    while count <= most and reached < 1 - equal_trees.LOSS:
        left_s = clock.left_s() - _forest_s(request, count * (len(request.ranks) if every else 1))
        try:
            with Clock(left_s).running():
                clock.look()
                found = _out_trees(request, network, count) if one_way else _both_ways(request, network, bound, count)
        except TimeUpError:
            break
        if found is None:
            break
        if found[0] > reached:
            reached, best = found
        count *= 4
    return best


def _out_trees(request: Request, network: FlowNetwork, count: int) -> tuple[Fraction, list[Draft]] | None:
    """``count`` equal trees from each root, and what part of the rate they reach."""
    root, within = request.collective.root, reverse_of(network) if request.collective.reduces else network
    roots = range(network.terminals) if root is None else [root]
    rate = Fraction(allgather_bottleneck(within)[0] if root is None else broadcast_cut(within, root)[0])
    found = equal_trees.weighed(within, [r for r in roots for _ in range(count)], count, rate)
    return None if found is None else (found.rate / rate, _of_trees(request, within, found))


def _both_ways(
    request: Request, network: FlowNetwork, bound: Fraction, count: int
) -> tuple[Fraction, list[Draft]] | None:
    """``count`` equal trees in all, used up and down or, where links are not symmetric, one each way; and as above."""
    roots = equal_trees.spread(network, count)
    if network.symmetric:
        found = equal_trees.weighed(network, roots, count, bound, both_ways=True)
        return None if found is None else (found.rate / bound, _of_trees(request, network, found))
    down = equal_trees.weighed(network, roots, count, 2 * bound)
    up = equal_trees.weighed(network.reversed(), roots, count, 2 * bound)
    if down is None or up is None:
        return None
    trees = zip(_one_by_one(down, count), _one_by_one(up, count), strict=True)
    drafts = [Draft(None, Fraction(1, count), root, backward(above), below) for (root, below), (_, above) in trees]
    return min(down.rate, up.rate) / (2 * bound), drafts


def _one_by_one(found: EqualTrees, count: int) -> list[tuple[int, Hops]]:
    """Its ``count`` trees in the order of their roots."""
    trees = [(root, breadth_first(root, hops)) for root, part, hops in found.trees for _ in range(int(part * count))]
    return sorted(trees, key=lambda tree: tree[0])


def _quick_proof(request: Request, view: RankNetwork) -> Certificate:
    """The best of the bounds that take no search."""
    network, name = view.network, request.collective.name
    if name not in ("allreduce", "alltoall"):
        return certificate_for(request.collective, request.ranks, request.network)
    singles = [tuple(v for v in range(network.n) if v != rank) for rank in range(network.terminals)]
    sides = [min(singles, key=network.leaving), allgather_bottleneck(network)[1]]
    proofs: list[Certificate] = [cut_certificate(request.collective, view, side) for side in sides]
    if name == "allreduce" and network.symmetric:
        if network.switchless:
            proofs.append(partition_certificate(view, tuple((v,) for v in range(network.n))))
        else:
            narrow = narrow_proof(network)
            proofs.append(price_certificate(view, narrow.prices, narrow.bound))
    return min(proofs, key=lambda proof: proof.bound)


def _of_trees(request: Request, network: FlowNetwork, best: EqualTrees) -> list[Draft]:
    """Trees that a search kept: of an AllReduce each goes up and down."""
    total = sum((part for _, part, _ in best.trees), Fraction(0))
    if request.collective.name == "allreduce":
        return [both_ways(root, part / total, hops) for root, part, hops in best.trees]
    trees = ((root, part / total, breadth_first(root, hops)) for root, part, hops in best.trees)
    return _one_way(request, trees)


def _one_way(request: Request, trees: Iterable[tuple[int, Fraction, Hops]]) -> list[Draft]:
    """Out-trees of a broadcast or an AllGather; of their mirror images, which were packed in the reversed network."""
    up, rooted = request.collective.reduces, request.collective.root is not None
    return [
        Draft(None if rooted else root, part, root, backward(hops) if up else None, None if up else hops)
        for root, part, hops in trees
    ]


def _fewest_hops(request: Request, view: RankNetwork) -> list[Draft]:
    """A tree of the fewest hops from each root, or a path of the fewest links for each block."""
    network, collective = view.network, request.collective
    size = network.terminals
    turned = reverse_of(network)
    if collective.name == "allreduce":
        roots = range(0, size, -(-size // _MOST_TREES))
        part = Fraction(1, len(roots))
        return [Draft(None, part, r, backward(_tree(turned, r)), _tree(network, r)) for r in roots]
    if collective.name in ONE_WAY:
        tree_roots = range(size) if collective.root is None else [collective.root]
        within = turned if collective.reduces else network
        return _one_way(request, ((r, Fraction(1, len(tree_roots)), _tree(within, r)) for r in tree_roots))
    return _paths(request, network, turned)


def _paths(request: Request, network: FlowNetwork, turned: FlowNetwork) -> list[Draft]:
    collective, size = request.collective, network.terminals
    part = Fraction(1, size)
    if collective.name == "sendrecv":
        assert collective.src is not None
        assert collective.dst is not None
        way = shortest_paths_to(network, collective.dst, {})[collective.src]
        return [Draft(None, Fraction(1), collective.src, None, hops_of(network, way))]
    if collective.name == "alltoall":
        still = [Draft((v, v), part, v, None, ()) for v in range(size)]
        moved = [
            Draft((s, t), part, s, None, hops_of(network, way))
            for t in range(size)
            for s, way in shortest_paths_to(network, t, {}).items()
        ]
        return [*still, *moved]
    root, inward = collective.root, collective.name == "gather"
    assert root is not None
    ways = shortest_paths_to(network if inward else turned, root, {})
    drafts = [Draft(root, part, root, None, ())]
    for v, way in ways.items():
        sent = way if inward else way[::-1]
        drafts.append(Draft(v, part, sent[0], None, hops_of(network, sent)))
    return drafts


def _tree(network: FlowNetwork, root: int) -> Hops:
    """An out-tree of the fewest hops; transit passes on for one hop."""
    before: dict[int, int] = {root: root}
    hops: list[Hop] = []
    level = [root]
    while level:
        beyond: list[int] = []
        for u in level:  # which transit joins while it is looked at
            for v in network.successors[u]:
                if v in before:
                    continue
                before[v] = u
                if v >= network.terminals:
                    level.append(v)
                    continue
                beyond.append(v)
                hop = [v, u]
                while hop[-1] >= network.terminals:
                    hop.append(before[hop[-1]])
                hops.append(tuple(reversed(hop)))
        level = beyond
    return tuple(hops)
