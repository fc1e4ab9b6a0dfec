"""AllReduce at the optimum: trees that are used up and down.

Both phases share the links. The methods are:

- symmetric links without transit: undirected spanning trees, each rooted at its centre, as many as a partition allows;
- with transit: the AllGather's trees, used up and down, if they reach the bound, else whole trees of an orientation;
- otherwise: pairs of an in-tree and an out-tree with one root, priced together. This is exact for one-way links, for
  few ranks with transit, and if several roots are better than one (a one-way ring of six: 3/5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from blinkccl.trees.algorithms.across_servers import Groups
from blinkccl.trees.algorithms.bounds import (
    SEARCHED,
    SOLVED,
    WHOLE_RATE,
    allgather_bottleneck,
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
    singles_are_tight,
    tight_partition,
)
from blinkccl.trees.algorithms.forests import Draft, forest_of, normalised, tree_drafts
from blinkccl.trees.algorithms.optimal_trees import (
    every_root,
    link_classes,
    moved_trees,
    refuse_unproved,
    servers_of,
)
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.refine import LONGEST_WEIGHT
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing import clock, equal_trees
from blinkccl.trees.packing.columns import Column
from blinkccl.trees.packing.equal_trees import LOSS
from blinkccl.trees.packing.integral import Arborescence, flatten
from blinkccl.trees.packing.multiplicities import MULTIPLES, rounded, whole_weights
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hops, OutTree, breadth_first, hops_deep, turned
from blinkccl.trees.packing.oracles import column_of, loads_of
from blinkccl.trees.packing.orientation import Orientation, pack_through_switches
from blinkccl.trees.packing.phases import Pair, Phases
from blinkccl.trees.packing.shallow import least_deep
from blinkccl.trees.packing.symmetry import symmetry_of
from blinkccl.trees.packing.templates import layered_templates
from blinkccl.trees.packing.undirected import TreePacking, merge_equal, pack_trees, recentred, undirected_widths


def allreduce(request: Request, view: RankNetwork) -> Forest:
    """The forest of shares that lead up a tree to its root and down a tree from it."""
    network = view.network
    if network.switchless and network.symmetric:
        trees = _moved_trees(network, request.objective)
        if trees is not None:
            proof = partition_certificate(view, tight_partition(network))
            return forest_of(request, view, "optimal", tree_drafts(request, trees), proof)
        packing = undirected_packing(network, request.objective)
        total = sum(tree.multiplicity for tree in packing.trees)
        drafts = tree_drafts(request, normalised(packing.trees, total))
        return forest_of(request, view, "optimal", drafts, partition_certificate(view, packing.blocks))
    drafts, prices, bound = _through_transit(network, request.objective, servers_of(view))
    refuse_unproved(request.objective, network.terminals)
    return forest_of(request, view, "optimal", drafts, price_certificate(view, prices, bound))


def _moved_trees(network: FlowNetwork, objective: str) -> list[OutTree] | None:
    """Templates used up and down, if they fill the partition into single ranks; else None.

    They do so in rings, tori, hypercubes and cliques. For few ranks it returns None, since the search for undirected
    trees needs fewer trees.
    """
    if network.n <= SEARCHED or objective == "fewest-trees" or not singles_are_tight(network):
        return None
    rate = allgather_bottleneck(network)[0]
    templates = layered_templates(network, symmetry_of(network), rate)
    if templates is None:
        return None
    trees = moved_trees(templates, symmetry_of(network), rate)
    return [(root, part / network.n, hops) for root, part, hops in trees]


def _through_transit(
    network: FlowNetwork, objective: str, groups: Groups
) -> tuple[list[Draft], Mapping[Arc, Fraction | int], Fraction]:
    """Drafts, prices, and the bound that the prices prove."""
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
        up_tree = turned(breadth_first(root, turned(up)))
        drafts.append(Draft(None, weight / pairs.rate, root, up_tree, breadth_first(root, down)))
    return drafts, pairs.prices, pairs.bound


#: The most trees of an AllReduce over one-way links, unless the optimum needs more.
MOST_ONE_WAY = 256


def _in_two_phases(network: FlowNetwork, split: Phases, objective: str) -> list[Draft] | None:
    """Whole trees up and down over one-way links: optimal, or for the default near the optimum with fewer trees."""
    bound = split.bound
    sizes = [(bound.numerator * k, [c * bound.denominator * k for _, _, c in network.arcs]) for k in MULTIPLES]
    if objective == "shallow":
        near = bound * (1 - LOSS)
        counts = equal_trees.divisible(network, bound, MOST_ONE_WAY, split.prices)
        few = [(trees, [int(trees * c / near) for _, _, c in network.arcs]) for trees in counts]
        short = [each for each in sizes if each[0] <= LONGEST_WEIGHT]
        sizes = [*short, *few, *sizes[len(short) :]]
    for trees, limits in sizes:
        pairs = split.pairs(trees, limits)
        if pairs is not None:
            return up_and_down(pairs, trees)
    return None


def up_and_down(pairs: Sequence[Pair], trees: int) -> list[Draft]:
    """Drafts of ``trees`` equal trees; each pair has an up-tree, in reverse direction, and a down-tree."""
    return [
        Draft(None, Fraction(units, trees), root, turned(breadth_first(root, up)), breadth_first(root, down))
        for root, units, up, down in pairs
    ]


def _oriented(network: FlowNetwork, objective: str, oriented: Orientation) -> list[Draft] | None:
    """Exact trees, or equal trees near the optimum: for many ranks if they exist, else if they are shallower.

    None if there are neither.
    """
    equal = _equal_trees(network, oriented.rate, oriented.prices) if objective == "shallow" else None
    if equal is not None and network.terminals > SEARCHED:
        return equal
    trees = pack_through_switches(oriented)
    exact = None if trees is None else [both_ways(0, part, hops) for part, hops in trees]
    return min((each for each in (exact, equal) if each is not None), key=_radius, default=None)


def _radius(drafts: list[Draft]) -> int:
    return max(hops_deep(draft.root, draft.down or ()) for draft in drafts)


def _equal_trees(network: FlowNetwork, rate: Fraction, prices: Mapping[Arc, Fraction]) -> list[Draft] | None:
    """At most :func:`~bounds.most_equal` trees of the same weight, up and down, within a hundredth of ``rate``."""
    if not network.symmetric or network.terminals <= WHOLE_RATE:
        return None
    packing = equal_trees.up_and_down(network, rate, most_equal(network), prices)
    if not (packing.near(rate) or network.terminals > SOLVED):
        return None
    return [both_ways(root, part, hops) for root, part, hops in packing.trees]


def both_ways(root: int, part: Fraction, hops: Hops) -> Draft:
    """The draft that uses a tree up and down, with the root at its centre."""
    ways = {(hop[0], hop[-1]): hop for hop in hops}
    ways |= {(v, u): hop[::-1] for (u, v), hop in ways.items()}
    tree = recentred(Arborescence(root, 1, tuple((hop[0], hop[-1]) for hop in hops)))
    down = breadth_first(tree.root, [ways[arc] for arc in tree.arcs])
    return Draft(None, part, tree.root, turned(down), down)


def _class_pairs(network: FlowNetwork) -> list[Column]:
    """Pairs of an in- and an out-tree of each link class at its own optimum; [] without two link classes."""
    classes = link_classes(network)
    if classes is None or not classes[0].symmetric:
        return []
    inner, outer = classes
    direct = [(tree.root, turned(tree.arcs), tree.arcs) for tree in undirected_packing(inner, "shallow").trees]
    around = rounded(reduce_broadcast_packing(outer), outer.capacity, [Fraction(1)])
    return [
        *(column_of(0, loads_of(up + down), (root, up, down)) for root, up, down in direct),
        *(c for c, _ in around),
    ]


def _two_halves(network: FlowNetwork, groups: Groups) -> list[Draft]:
    """The AllGather's trees, each used up and down, with half of the AllGather's rate on symmetric links."""
    packed = every_root(network, "shallow", groups)
    return [Draft(None, weight / network.terminals, root, turned(hops), hops) for root, weight, hops in packed.trees]


@lru_cache(maxsize=64)
def undirected_packing(network: FlowNetwork, objective: str) -> TreePacking:
    """A maximum packing of undirected trees: shallow, shallowest or fewest; for many ranks within a hundredth."""
    if objective == "fewest-trees":
        return pack_trees(network, few=True)
    packing = pack_trees(network, loss=LOSS if objective == "shallow" and network.n > SOLVED else Fraction(0))
    capacity = {edge: width * packing.scale for edge, width in undirected_widths(network).items()}
    trees = merge_equal(map(recentred, flatten(capacity, packing.trees, undirected=True)))
    demand, thorough = {0: sum(tree.multiplicity for tree in trees)}, objective == "least-depth"
    trees = least_deep(network, capacity, demand, trees, thorough=thorough, undirected=True)
    return TreePacking(packing.rate, packing.scale, packing.blocks, tuple(merge_equal(trees)))
