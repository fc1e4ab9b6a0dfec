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
weights are whole again (:mod:`~blinkccl.packing.splitting`). Elsewhere trees over ranks are priced by their cheapest
unicast hops, which is exact whatever a switch does, with weights of up to dozens of digits. Where that cannot be done,
the default takes trees of equal weight within a hundredth of the bound, which is proved as ever, and from 65 ranks on
the best of them; in an AllReduce also where exact trees are deeper, and from 17 ranks on wherever they are found.
Longer weights than 1/64 of a block are rounded, for a hundredth of the rate at most
(:mod:`~blinkccl.algorithms.short_weights`). Where a plan of all to all is deep still, trees of fewer hops are looked
for (:mod:`~blinkccl.algorithms.shallower`); ``least-depth`` looks for the fewest. ``exact`` has the optimum itself,
however long that takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from blinkccl.algorithms import optimal_trees
from blinkccl.algorithms.across_servers import Groups
from blinkccl.algorithms.bounds import (
    SEARCHED,
    SOLVED,
    WHOLE_RATE,
    all_pairs_flow,
    allgather_bottleneck,
    certificate_for,
    half_of_allgather,
    halves_proof,
    most_equal,
    near_optimum,
    orientation,
    pairs_of_trees,
    partition_certificate,
    phases,
    price_certificate,
    reduce_broadcast_packing,
    reverse_of,
    singles_are_tight,
    tight_partition,
)
from blinkccl.algorithms.forests import Draft, backward, forest_of, normalised
from blinkccl.algorithms.optimal_trees import (
    FEW_COLUMNS,
    FEW_NODES,
    depth_of,
    every_root,
    link_classes,
    moved_trees,
    refuse_unproved,
    servers_of,
)
from blinkccl.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.shallower import shallower
from blinkccl.algorithms.short_weights import LONGEST_WEIGHT, least_rate, shortened
from blinkccl.algorithms.stars import one_hop
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest
from blinkccl.packing import clock, equal_trees
from blinkccl.packing.bottleneck import gather_rate
from blinkccl.packing.columns import Column
from blinkccl.packing.equal_trees import LOSS
from blinkccl.packing.flatten import flatten
from blinkccl.packing.integral import Arborescence
from blinkccl.packing.maxflow import max_flow
from blinkccl.packing.multiflow import UnitPath, decompose
from blinkccl.packing.multiplicities import MULTIPLES, rounded, whole_weights
from blinkccl.packing.network import Arc, FlowNetwork, Hops, breadth_first, hops_deep
from blinkccl.packing.oracles import column_of, loads_of
from blinkccl.packing.orientation import Orientation, pack_through_switches
from blinkccl.packing.phases import Pair, Phases
from blinkccl.packing.shallow import MOST_COLUMNS, choose, tree_columns
from blinkccl.packing.symmetry import symmetry_of
from blinkccl.packing.templates import layered_templates
from blinkccl.packing.undirected import TreePacking, merge_equal, pack_trees, recentred, undirected_widths


def plan(request: Request) -> Forest:
    """The optimal forest, with its bound and proof; ``rate == bound`` but for what this module's text says.

    Raises
    ------
    UnsupportedError
        If the objective is not served here: see :func:`optimal_trees.refuse_unproved`; if ``max_trees`` cannot be.
    """
    name = request.collective.name
    if name in FLOWS and request.objective not in ("shallow", "exact"):
        raise UnsupportedError(f"--{request.objective} is for trees; {name} sends along paths of a maximum flow")
    if name in FLOWS and request.max_trees is not None:
        raise UnsupportedError(f"--max-trees is for trees; {name} sends along paths of a maximum flow")
    view = rank_network_of(request.network, request.ranks)
    found = _stars(request) or PLANS[name](_begun(request, view), view)
    if request.objective in ("shallow", "least-depth") and name not in FLOWS:
        found = shallower(request, view, found)
    if request.max_trees is not None:
        found = _with_few_trees(request, found, request.max_trees)
    return _with_short_weights(request, found) if request.objective == "shallow" and name not in FLOWS else found


def _begun(request: Request, view: RankNetwork) -> Request:
    """What is asked of the plan that a search for the least depth begins with: through switches the default's."""
    begun = request.objective == "least-depth" and not view.network.switchless
    return replace(request, objective="shallow") if begun else request


def _with_short_weights(request: Request, best: Forest) -> Forest:
    """``best`` with weights that chunks can have, or as many equal trees, as far as that costs a hundredth; else it."""
    if clock.left_s() <= 0:
        return best  # complete but for this: a deadline has no time for it
    found = shortened(best)
    if found.longest_weight <= LONGEST_WEIGHT or request.max_trees is not None:
        return found
    view = rank_network_of(request.network, request.ranks)
    try:
        drafts = _few_drafts(request, view, best, LONGEST_WEIGHT)
    except UnsupportedError:
        return best
    equal = forest_of(request, view, "optimal", drafts, best.certificate)
    return equal if equal.longest_weight <= LONGEST_WEIGHT and equal.rate >= least_rate(best) else best


def _with_few_trees(request: Request, best: Forest, most: int) -> Forest:
    """``best`` if it has few enough trees for each block, else the plan of fewest trees, else equal trees."""
    view = rank_network_of(request.network, request.ranks)
    if best.trees_per_block <= most:
        return best
    # A search for fewest trees is there where links join ranks directly, of an allreduce both ways alike.
    if view.network.switchless and (view.network.symmetric or request.collective.name != "allreduce"):
        fewest = PLANS[request.collective.name](replace(request, objective="fewest-trees"), view)
        if fewest.trees_per_block <= most:
            return fewest
    return forest_of(request, view, "optimal", _few_drafts(request, view, best, most), best.certificate)


def _stars(request: Request) -> Forest | None:
    """A star at every rank, where that reaches the bound: nothing is shallower or better balanced.

    So it is among two ranks, and in a group whose pairs are joined alike, directly or through a switch.
    """
    servers = {request.topology.vertex[rank].server for rank in request.ranks}
    if request.collective.name not in STARS or request.objective == "fewest-trees" or len(servers) > 1:
        return None
    try:
        found = one_hop(request)
    except UnsupportedError:
        return None
    proof = certificate_for(request.collective, request.ranks, request.network)
    return replace(found, algorithm="optimal", certificate=proof) if found.rate == proof.bound else None


def _few_drafts(request: Request, view: RankNetwork, best: Forest, most: int) -> Sequence[Draft]:
    """At most ``most`` trees of equal weight for each block, as near to the rate of ``best`` as they come."""
    if request.collective.name != "allreduce":
        drafts = optimal_trees.few_drafts(request, view, most)
    elif view.network.symmetric:
        found = equal_trees.up_and_down(view.network, best.rate, most, {})
        drafts = None if found is None else [both_ways(root, part, hops) for root, part, hops in found.trees]
    else:
        split = phases(view.network)
        if split is None:
            raise UnsupportedError(
                "--max-trees of an allreduce through switches needs links that are as wide one way as the other"
            )
        _, trees, pairs = split.fastest(most)
        drafts = _up_and_down(pairs, trees)
    if drafts is None:
        from blinkccl.native import absent  # only here: it loads ctypes, which no other plan needs

        raise UnsupportedError(f"--max-trees needs native code: {absent('libblink_packing.so')}")
    return drafts


def hops_of(network: FlowNetwork, path: tuple[int, ...]) -> Hops:
    """A path as hops from terminal to terminal."""
    stops = [i for i, v in enumerate(path) if v < network.terminals]
    return tuple(path[a : b + 1] for a, b in itertools.pairwise(stops))


def _path_drafts(
    network: FlowNetwork, block: int | tuple[int, int] | None, weight: Fraction, ways: list[UnitPath]
) -> list[Draft]:
    total = sum(units for _, units in ways)
    return [Draft(block, weight * Fraction(units, total), way[0], None, hops_of(network, way)) for way, units in ways]


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


# AllReduce at the optimum: up a tree and down again, the two phases sharing the links. Symmetric links without
# transit: undirected spanning trees, each rooted at its centre, as many as a partition allows. With transit the
# AllGather's trees, used up and down, often reach the bound at once; else an orientation has it, and trees in whole
# numbers. Anything else: pairs of an in-tree and an out-tree with one root, priced together, which is exact for one-way
# links, for few ranks with transit, and where several roots beat one (a one-way ring of six: 3/5).


def allreduce(request: Request, view: RankNetwork) -> Forest:
    """Shares that go up a tree to its root and down a tree from it."""
    network = view.network
    if network.switchless and network.symmetric:
        turned = _turned_trees(network, request.objective)
        if turned is not None:
            return forest_of(request, view, "optimal", turned, partition_certificate(view, tight_partition(network)))
        packing = undirected_packing(network, request.objective)
        total = sum(tree.multiplicity for tree in packing.trees)
        drafts = [
            Draft(None, weight, root, backward(hops), hops) for root, weight, hops in normalised(packing.trees, total)
        ]
        return forest_of(request, view, "optimal", drafts, partition_certificate(view, packing.blocks))
    drafts, prices, bound = _through_transit(network, request.objective, servers_of(view))
    refuse_unproved(request.objective, network.terminals)
    return forest_of(request, view, "optimal", drafts, price_certificate(view, prices, bound))


def _turned_trees(network: FlowNetwork, objective: str) -> list[Draft] | None:
    """Templates used up and down, where they fill the partition into single ranks; None elsewhere.

    So it is in rings, tori, hypercubes and cliques. Few ranks are left to the search for undirected trees, of which
    fewer are enough.
    """
    if network.n <= SEARCHED or objective == "fewest-trees" or not singles_are_tight(network):
        return None
    rate = allgather_bottleneck(network)[0]
    templates = layered_templates(network, symmetry_of(network), rate)
    if templates is None:
        return None
    trees = moved_trees(templates, symmetry_of(network), rate)
    return [Draft(None, part / network.n, root, backward(hops), hops) for root, part, hops in trees]


def _through_transit(
    network: FlowNetwork, objective: str, groups: Groups
) -> tuple[list[Draft], Mapping[Arc, Fraction | int], Fraction]:
    """Drafts, prices, and the bound that these prove."""
    proof = halves_proof(network)
    if proof is not None:
        clock.bounded(proof.bound)
        return _two_halves(network, groups), proof.prices, proof.bound
    oriented = orientation(network) if network.terminals <= SOLVED or objective == "exact" else None
    if oriented is not None:
        clock.bounded(oriented.rate)
        drafts = _oriented(network, objective, oriented)
        if drafts is not None:
            return drafts, oriented.prices, oriented.rate
    near = near_optimum(network) if objective == "shallow" else None
    if near is not None:
        narrow, equal = near
        return [both_ways(*tree) for tree in equal.trees], narrow.prices, narrow.bound
    split = phases(network)
    if split is not None:
        clock.bounded(split.bound)
        drafts = _in_two_phases(network, split, objective)
        if drafts is not None:
            return drafts, split.prices, split.bound
    pairs = pairs_of_trees(network)
    if network.symmetric and pairs.bound == half_of_allgather(network):
        return _two_halves(network, groups), pairs.prices, pairs.bound
    drafts = _equal_trees(network, pairs.rate, pairs.prices) if objective == "shallow" else None
    if drafts is not None:
        return drafts, pairs.prices, pairs.bound
    if network.symmetric and network.terminals > SEARCHED:
        twice = rounded(pairs, network.capacity, [Fraction(1)])
        return [both_ways(0, w / pairs.rate, column.payload) for column, w in twice], pairs.prices, pairs.bound
    drafts = []
    weights = whole_weights(_class_pairs(network), network.capacity, [Fraction(1)], pairs.rate)
    for column, weight in weights or rounded(pairs, network.capacity, [Fraction(1)]):
        root, up, down = column.payload
        up_tree = backward(breadth_first(root, backward(up)))
        drafts.append(Draft(None, weight / pairs.rate, root, up_tree, breadth_first(root, down)))
    return drafts, pairs.prices, pairs.bound


#: Trees of an AllReduce over one-way links, at most, unless the optimum needs more.
MOST_ONE_WAY = 256


def _in_two_phases(network: FlowNetwork, found: Phases, objective: str) -> list[Draft] | None:
    """Whole trees up and down over one-way links: at the optimum, in the default near it where that takes fewer."""
    bound = found.bound
    asked = [(bound.numerator * k, [c * bound.denominator * k for _, _, c in network.arcs]) for k in MULTIPLES]
    if objective == "shallow":
        near = bound * (1 - LOSS)
        counts = equal_trees.divisible(network, bound, MOST_ONE_WAY, found.prices)
        few = [(trees, [int(trees * c / near) for _, _, c in network.arcs]) for trees in counts]
        short = [each for each in asked if each[0] <= LONGEST_WEIGHT]
        asked = [*short, *few, *asked[len(short) :]]
    for trees, limits in asked:
        pairs = found.pairs(trees, limits)
        if pairs is not None:
            return _up_and_down(pairs, trees)
    return None


def _up_and_down(pairs: Sequence[Pair], trees: int) -> list[Draft]:
    """Each of so many equal trees up, turned round as they are, and down again."""
    return [
        Draft(None, Fraction(units, trees), root, backward(breadth_first(root, up)), breadth_first(root, down))
        for root, units, up, down in pairs
    ]


def _oriented(network: FlowNetwork, objective: str, found: Orientation) -> list[Draft] | None:
    """Exact trees, or equal ones near the optimum: these at once among many ranks, else where they are shallower.

    None where neither are found.
    """
    equal = _equal_trees(network, found.rate, found.prices) if objective == "shallow" else None
    if equal is not None and network.terminals > SEARCHED:
        return equal
    trees = pack_through_switches(found)
    exact = None if trees is None else [both_ways(0, part, hops) for part, hops in trees]
    return min((each for each in (exact, equal) if each is not None), key=_radius, default=None)


def _radius(drafts: list[Draft]) -> int:
    return max(hops_deep(draft.root, draft.down or ()) for draft in drafts)


def _equal_trees(network: FlowNetwork, rate: Fraction, prices: Mapping[Arc, Fraction]) -> list[Draft] | None:
    """At most :func:`~bounds.most_equal` trees with the same weight, up and down, within a hundredth of ``rate``."""
    if not network.symmetric or network.terminals <= WHOLE_RATE:
        return None
    found = equal_trees.up_and_down(network, rate, most_equal(network), prices)
    if found is None or not (found.near(rate) or network.terminals > SOLVED):
        return None
    return [both_ways(root, part, hops) for root, part, hops in found.trees]


def both_ways(root: int, part: Fraction, hops: Hops) -> Draft:
    """The tree up and down, from its centre."""
    ways = {(hop[0], hop[-1]): hop for hop in hops}
    ways |= {(v, u): hop[::-1] for (u, v), hop in ways.items()}
    tree = recentred(Arborescence(root, 1, tuple((hop[0], hop[-1]) for hop in hops)))
    down = breadth_first(tree.root, [ways[arc] for arc in tree.arcs])
    return Draft(None, part, tree.root, backward(down), down)


def _class_pairs(network: FlowNetwork) -> list[Column]:
    """Pairs of an in- and an out-tree of each link class at its own optimum; none where there are no two."""
    classes = link_classes(network)
    if classes is None or not classes[0].symmetric:
        return []
    inner, outer = classes
    direct = [(tree.root, backward(tree.arcs), tree.arcs) for tree in undirected_packing(inner, "shallow").trees]
    around = rounded(reduce_broadcast_packing(outer), outer.capacity, [Fraction(1)])
    return [
        *(column_of(0, loads_of(up + down), (root, up, down)) for root, up, down in direct),
        *(c for c, _ in around),
    ]


def _two_halves(network: FlowNetwork, groups: Groups) -> list[Draft]:
    """The AllGather's trees, each used up and down: half of the AllGather's rate on symmetric links."""
    packed = every_root(network, "shallow", groups)
    return [Draft(None, weight / network.terminals, root, backward(hops), hops) for root, weight, hops in packed.trees]


@lru_cache(maxsize=64)
def undirected_packing(network: FlowNetwork, objective: str) -> TreePacking:
    """A maximum packing of undirected trees: shallow, shallowest or fewest; among many ranks within a hundredth."""
    if objective == "fewest-trees":
        return pack_trees(network, few=True)
    packing = pack_trees(network, loss=LOSS if objective == "shallow" and network.n > SOLVED else Fraction(0))
    capacity = {edge: width * packing.scale for edge, width in undirected_widths(network).items()}
    trees = merge_equal(map(recentred, flatten(capacity, packing.trees, undirected=True)))
    trees = _shallower(network, capacity, trees, thorough=objective == "least-depth")
    return TreePacking(packing.rate, packing.scale, packing.blocks, tuple(trees))


def _shallower(
    network: FlowNetwork, capacity: Mapping[Arc, int], trees: list[Arborescence], *, thorough: bool
) -> list[Arborescence]:
    radius = min(map(network.eccentricity, range(network.n)))
    demand = {0: sum(tree.multiplicity for tree in trees)}
    for levels in range(radius, max(depth_of(tree) for tree in trees)):
        most = MOST_COLUMNS if thorough else FEW_COLUMNS
        columns = tree_columns(network, range(network.n), levels, undirected=True, most=most)
        if columns is None:
            break
        found = choose(columns, capacity, demand, undirected=True, node_limit=2000 if thorough else FEW_NODES)
        if found is not None:
            return merge_equal(found)
    return trees


#: Of these a star at every rank has a share alike.
STARS = ("allreduce", "allgather", "reduce_scatter")
#: Served by flows, not trees.
FLOWS = ("gather", "scatter", "alltoall", "sendrecv")
PLANS = {
    "broadcast": optimal_trees.one_to_all,
    "reduce": optimal_trees.one_to_all,
    "allgather": optimal_trees.all_to_all,
    "reduce_scatter": optimal_trees.all_to_all,
    "allreduce": allreduce,
    "gather": _root_flows,
    "scatter": _root_flows,
    "alltoall": _alltoall,
    "sendrecv": _sendrecv,
}
