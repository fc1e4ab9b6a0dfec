"""One-to-all and all-to-all trees at the optimum: broadcast, reduce, AllGather, ReduceScatter.

Reduce and ReduceScatter are broadcast and AllGather on the reversed network, with every hop reversed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms.across_servers import Groups, across_servers, owners
from blinkccl.trees.algorithms.bounds import (
    SEARCHED,
    SOLVED,
    WHOLE_RATE,
    allgather_bottleneck,
    broadcast_cut,
    cut_certificate,
    price_certificate,
    rest,
    reverse_of,
    tree_packing,
)
from blinkccl.trees.algorithms.forests import Draft, forest_of, tree_drafts
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.refine import LONGEST_WEIGHT
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import by_server
from blinkccl.trees.forest.model import Certificate, Forest
from blinkccl.trees.packing import clock, equal_trees
from blinkccl.trees.packing.columns import Column
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.integral import Arborescence, flatten, merged, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.multiplicities import rounded, whole_weights
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hops, OutTree, breadth_first, hops_deep
from blinkccl.trees.packing.oracles import cheapest_hops, column_of, loads_of
from blinkccl.trees.packing.shallow import few_trees, fewest_arborescences, least_deep
from blinkccl.trees.packing.splitting import without_transit
from blinkccl.trees.packing.symmetry import Symmetry, symmetry_of
from blinkccl.trees.packing.templates import (
    layered_templates,
    pack_templates,
    rotated,
    symmetric_hops,
)
from blinkccl.trees.packing.two_trees import two_trees

#: The most orbits for which templates are faster than whole trees.
FEW_ORBITS = 4
#: The most equal trees per root that are tried; twice as many for few ranks.
MOST_PER_ROOT = 8
#: The most equal trees from one root among many ranks, where exact trees take hours.
MOST_FROM_ONE = 128
#: The loss of rate for fewer hops if no trees reach the bound; two GB200 NVL72 have 18 hops instead of 82.
FOR_HOPS = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class Packed:
    """Out-trees with weights that sum to 1 per root, and the proof: one side of a cut, or prices with their bound."""

    trees: tuple[OutTree, ...]
    side: tuple[int, ...] | None
    prices: Mapping[Arc, Fraction] | None = None
    bound: Fraction = Fraction(0)

    @property
    def depth(self) -> int:
        """The most hops from a root to a terminal."""
        return max(hops_deep(root, hops) for root, _, hops in self.trees)

    @property
    def longest_weight(self) -> int:
        """The largest denominator of a tree's part of its root's data."""
        return max(part.denominator for _, part, _ in self.trees)


def one_to_all(request: Request, view: RankNetwork) -> Forest:
    """Broadcast: out-trees from the root; reduce: in-trees to it."""
    root, up = request.collective.root, request.collective.reduces
    assert root is not None
    packed = one_root(reverse_of(view.network) if up else view.network, root, request.objective, servers_of(view))
    return _finished(request, view, packed)


def all_to_all(request: Request, view: RankNetwork) -> Forest:
    """AllGather: out-trees from every rank with its block; ReduceScatter: in-trees to every rank."""
    network = reverse_of(view.network) if request.collective.reduces else view.network
    return _finished(request, view, every_root(network, request.objective, servers_of(view)))


def _finished(request: Request, view: RankNetwork, packed: Packed) -> Forest:
    proof = _proof(request, view, packed, up=request.collective.reduces)
    return forest_of(request, view, "optimal", tree_drafts(request, packed.trees), proof)


def few_drafts(request: Request, view: RankNetwork, most: int) -> list[Draft]:
    """Drafts of broadcast and AllGather, or of their mirror images, with at most ``most`` trees per root.

    The trees are equal. From every rank, unequal trees are also tried and used if they are faster.
    """
    network = reverse_of(view.network) if request.collective.reduces else view.network
    root = request.collective.root
    roots = range(network.terminals) if root is None else [root]
    rate, side = allgather_bottleneck(network) if root is None else broadcast_cut(network, root)
    few = equal_trees.from_roots(network, roots, Fraction(rate), most, side)
    if root is None:
        least = request.objective == "least-depth"
        few = few_trees(network, Fraction(rate), most, few.rate, least_depth=least) or few
    return tree_drafts(request, ((r, part, breadth_first(r, hops)) for r, part, hops in few.trees))


def _proof(request: Request, view: RankNetwork, packed: Packed, *, up: bool) -> Certificate:
    """The packing's proof as a certificate; ``up`` if it was packed in the reversed network."""
    if packed.side is not None:
        side = rest(view.network, packed.side) if up else packed.side
        return cut_certificate(request.collective, view, side)
    assert packed.prices is not None
    prices = {(v, u) if up else (u, v): y for (u, v), y in packed.prices.items()}
    return price_certificate(view, prices, packed.bound)


@lru_cache(maxsize=512)
def one_root(network: FlowNetwork, root: int, objective: str, groups: Groups) -> Packed:
    """Out-trees from ``root`` at the optimal rate; ``groups`` are the terminals by server."""
    rate, side = broadcast_cut(network, root)
    clock.bounded(Fraction(rate))
    if network.switchless:
        return Packed(_whole(network, {root: rate}, objective), side)
    for seeds in familiar_trees(network, root, groups, fewest=objective == "fewest-trees"):
        multiples = (1, 2, 3, network.terminals - 1)  # N − 1 for two-hop stars, one through each other rank
        weights = whole_weights(seeds, network.capacity, [Fraction(1)], Fraction(rate), multiples=multiples)
        if weights is not None:
            refuse_unproved(objective, len(weights))
            return Packed(_weighted(root, weights, Fraction(rate)), side)
    refuse_unproved(objective, network.terminals)
    laid = across_servers(network, root, groups, rate, MOST_FROM_ONE) if network.terminals > SOLVED else None
    if laid is not None:
        clock.reached(laid.rate / rate)
        if laid.rate == rate and _equal(laid, side).longest_weight <= 2 * MOST_FROM_ONE:
            return _equal(laid, side)
    whole = _whole(network, {root: rate}, objective) if network.terminals > WHOLE_RATE else ()
    if whole:
        return Packed(whole, side)
    if network.terminals > SOLVED and objective != "exact":
        equal = equal_trees.from_roots(network, [root], Fraction(rate), MOST_FROM_ONE, side)
        return _equal(worth_its_hops([equal] if laid is None else [equal, laid]), side)
    packing = tree_packing(network, (root,))
    weights = whole_weights(_class_trees(network, root), network.capacity, [Fraction(1)], packing.rate)
    weights = weights or rounded(packing, network.capacity, [Fraction(1)])
    out = _weighted(root, weights, packing.rate)
    return Packed(out, side) if packing.rate == rate else Packed(out, None, packing.prices, packing.bound)


def link_classes(network: FlowNetwork) -> tuple[FlowNetwork, FlowNetwork] | None:
    """The direct links between terminals and the links through transit; None unless each class joins all terminals.

    If the optima of both classes sum to that of all links, separate trees are far fewer than those of one program over
    both classes: 9 instead of 31 for a broadcast over the NVLink and PCIe of a DGX-1V.
    """
    direct = tuple(arc for arc in network.arcs if max(arc[:2]) < network.terminals)
    others = tuple(arc for arc in network.arcs if max(arc[:2]) >= network.terminals)
    if not direct or not others:
        return None
    inner, outer = (
        FlowNetwork(network.terminals, network.terminals, direct),
        FlowNetwork(network.n, network.terminals, others),
    )
    return (inner, outer) if broadcast_rate(inner, 0)[0] and broadcast_rate(outer, 0)[0] else None


def _class_trees(network: FlowNetwork, root: int) -> list[Column]:
    """The out-trees of each link class at its own optimum; [] without two link classes."""
    classes = link_classes(network)
    if classes is None or not all(broadcast_rate(one, root)[0] for one in classes):
        return []
    inner, outer = classes
    direct = _chosen(inner, {root: broadcast_rate(inner, root)[0]}, "shallow")
    around = rounded(tree_packing(outer, (root,)), outer.capacity, [Fraction(1)])
    return [*(column_of(0, loads_of(tree.arcs), tree.arcs) for tree in direct), *(column for column, _ in around)]


def refuse_unproved(objective: str, trees: int) -> None:
    """Refuse the fewest trees through switches, except for a single tree of a familiar shape."""
    if objective == "fewest-trees" and trees > 1:
        raise UnsupportedError(
            "--objective fewest-trees needs a topology without switches (for allreduce also symmetric links); use "
            "--max-trees N for at most N trees of equal weight, or leave both out for an optimal plan"
        )


def _weighted(root: int, weights: list[tuple[Column, Fraction]], rate: Fraction) -> tuple[OutTree, ...]:
    return tuple((root, w / rate, breadth_first(root, column.payload)) for column, w in weights)


@lru_cache(maxsize=64)
def every_root(network: FlowNetwork, objective: str, groups: Groups) -> Packed:
    """Out-trees from every terminal at the optimal equal rate; ``groups`` are the terminals by server."""
    rate, side = allgather_bottleneck(network)
    clock.bounded(rate * network.terminals)
    if not network.switchless:
        packed = _every_with_transit(network, rate, side, objective, groups)
        refuse_unproved(objective, network.terminals)
        return packed
    layered = None if objective == "fewest-trees" else layered_templates(network, symmetry_of(network), rate)
    if layered is not None:
        return Packed(moved_trees(layered, symmetry_of(network), rate), side)
    return Packed(_whole(network.scaled(rate.denominator), _alike(network, rate), objective), side)


def _alike(network: FlowNetwork, rate: Fraction) -> dict[int, int]:
    return dict.fromkeys(range(network.terminals), rate.numerator)


def moved_trees(templates: Sequence[OutTree], symmetry: Symmetry, rate: Fraction) -> tuple[OutTree, ...]:
    """The trees of all terminals: the templates under every move of the symmetry, with hops level by level."""
    ordered = [(root, weight / rate, breadth_first(root, tree)) for root, weight, tree in templates]
    trees = [(move[root], part, rotated(tree, move)) for root, part, tree in ordered for move in symmetry.moves]
    return tuple(sorted(trees, key=lambda tree: (tree[0], -tree[1])))


def _every_with_transit(
    network: FlowNetwork, rate: Fraction, side: tuple[int, ...], objective: str, groups: Groups
) -> Packed:
    """Templates of few ranks or whole trees without switches, by depth, denominator, then number of trees.

    If there are neither, equal trees (see :func:`_preferred`), or columns.
    """
    symmetry, roots = symmetry_of(network), tuple(range(network.terminals))
    shallow = max(map(network.hop_eccentricity, symmetry.roots)) + equal_trees.SPARE_LEVELS
    alike = len(symmetry.moves) > 1 and (len(symmetry.roots) <= FEW_ORBITS or network.terminals > SOLVED)
    moved = _from_templates(network, rate, side, groups) if alike else None
    # Denominators up to twice the limit are rounded with almost no loss of rate.
    if moved is not None and moved.longest_weight <= 2 * LONGEST_WEIGHT and moved.depth <= shallow:
        return moved
    exact = [] if moved is None else [moved]
    if network.terminals > WHOLE_RATE and (network.terminals <= SOLVED or objective == "exact"):
        whole = _whole(network.scaled(rate.denominator), _alike(network, rate), objective)
        exact += [Packed(whole, side)] if whole else []
    best = min(exact, key=lambda p: (p.depth, p.longest_weight > LONGEST_WEIGHT, len(p.trees)), default=None)
    if best is not None:
        return best
    if objective == "shallow":
        equal = equal_trees.from_roots(network, roots, rate, _most_equal(network), side)
        if _preferred(network, rate, equal):
            return _equal(equal, side)
    if len(symmetry.moves) > 1:
        return _from_templates(network, rate, side, groups)
    packing = tree_packing(network, roots)
    weights = rounded(packing, network.capacity, [Fraction(1)] * len(roots))
    out = tuple(
        sorted(
            ((column.group, w / packing.rate, breadth_first(column.group, column.payload)) for column, w in weights),
            key=lambda t: (t[0], -t[1], t[2]),
        )
    )
    if packing.rate == rate:
        return Packed(out, side)
    return Packed(out, None, packing.prices, packing.bound * len(roots))


def worth_its_hops(candidates: Sequence[EqualTrees]) -> EqualTrees:
    """The fastest candidate, or the shallowest if it loses at most :data:`FOR_HOPS` of the rate."""
    fastest, shallowest = max(candidates, key=lambda each: each.rate), min(candidates, key=lambda each: each.depth)
    return shallowest if shallowest.rate >= fastest.rate * (1 - FOR_HOPS) else fastest


def _equal(packing: EqualTrees, side: tuple[int, ...]) -> Packed:
    return Packed(tuple((root, part, breadth_first(root, hops)) for root, part, hops in packing.trees), side)


def _most_equal(network: FlowNetwork) -> int:
    return max(MOST_PER_ROOT, min(2 * MOST_PER_ROOT, 256 // network.terminals))


def _preferred(network: FlowNetwork, rate: Fraction, equal: EqualTrees) -> bool:
    """True if equal trees are good enough: at the full rate for few ranks, near it for more, at any rate for many."""
    if network.terminals <= WHOLE_RATE:
        return equal.rate == rate
    return equal.near(rate) or network.terminals > SOLVED


def _from_templates(network: FlowNetwork, rate: Fraction, side: tuple[int, ...], groups: Groups) -> Packed:
    """Templates of the best rate."""
    symmetry = symmetry_of(network)
    moving = pack_templates(network, symmetry, rate, _familiar_templates(network, symmetry, groups))
    out = moved_trees(moving.templates, symmetry, moving.rate)
    if moving.rate == rate:
        return Packed(out, side)
    return Packed(out, None, moving.prices, moving.bound * network.terminals)


def _whole(network: FlowNetwork, demand: dict[int, int], objective: str) -> tuple[OutTree, ...]:
    """Whole trees, ``demand[r]`` of them from each root r; no cut of the network may be below the demand.

    () if switches cannot be replaced by links: see :mod:`~blinkccl.trees.packing.splitting`.
    """
    if network.switchless:
        return tuple(
            (t.root, Fraction(t.multiplicity, demand[t.root]), t.arcs) for t in _chosen(network, demand, objective)
        )
    direct = without_transit(network, demand)
    if direct is None:
        return ()
    units: Counter[tuple[int, Hops]] = Counter()
    for root, times, hops in direct.unfolded(_chosen(direct.network, demand, objective)):
        units[root, breadth_first(root, hops)] += times
    trees = ((root, Fraction(times, demand[root]), hops) for (root, hops), times in units.items())
    return tuple(sorted(trees, key=lambda tree: (tree[0], -tree[1])))


def _chosen(network: FlowNetwork, demand: dict[int, int], objective: str) -> list[Arborescence]:
    """The packing for the objective; all objectives have the same rate."""
    if objective == "fewest-trees":
        few = pack_arborescences(network, demand, few=True)
        if len(demand) > 1:
            return few
        ((root, rate),) = demand.items()
        return fewest_arborescences(network, root, rate, few)[0]
    flat = merged(flatten(network.capacity, pack_arborescences(network, demand)))
    if len(demand) == 1 and objective != "least-depth":
        return flat  # rarely deep, and does not need to load the solver
    return least_deep(network, network.capacity, demand, flat, thorough=objective == "least-depth")


def servers_of(view: RankNetwork) -> Groups:
    """The network's terminals by server, in the order of the ranks."""
    ranks = view.ids[: view.network.terminals]
    return tuple(tuple(ranks.index(rank) for rank in group) for group in by_server(view.topology, ranks))


# Familiar broadcast trees, which are optimal on common machines and are tried before any search. Behind one switch they
# are the star; N−1 two-hop stars (root → i → all others), which use every port fully at depth 2; two complementary
# trees; a chain. On several servers each share enters a server at one rank and spreads from it; between servers it uses
# a star, two complementary trees or a chain. A list of shapes is optimal if whole multiples of them fill the minimum
# cut, which an integer program of a few columns decides.
def familiar_trees(network: FlowNetwork, root: int, groups: Groups, *, fewest: bool = False) -> Iterator[list[Column]]:
    """Lists of out-trees from ``root`` that may fill the cut together, shallow ones first (``fewest``: single trees).

    Shapes that need a missing hop are left out, and so is the chain if a search may find shallower trees.
    """
    cost, hop = cheapest_hops(network, {})
    order = [root, *(v for v in range(network.terminals) if v != root)]
    shapes = [[_star(order), *_two_hops(order)], list(two_trees(order))]
    if fewest or network.terminals > SEARCHED:
        shapes.append([_chain(order)])
    several = _over_servers(network, root, groups) if len(groups) > 1 else []
    for candidates in [*several, *shapes[::-1]] if fewest else [*shapes[:1], *several, *shapes[1:]]:
        trees = [tree for tree in candidates if all(cost[u][v] is not None for u, v in tree)]
        if trees:
            walked = [tuple(hop(u, v) for u, v in tree) for tree in trees]
            yield [column_of(0, loads_of(hops), hops) for hops in walked]


def _familiar_templates(network: FlowNetwork, symmetry: Symmetry, groups: Groups) -> Iterator[tuple[int, Hops]]:
    """The star, and the trees that enter every other server once, directly from the root's server."""
    cost, hop = symmetric_hops(network, symmetry, {})
    for root in symmetry.roots:
        several = _over_servers(network, root, groups)[0] if len(groups) > 1 else []
        for tree in [*several, _star([root, *(v for v in range(network.terminals) if v != root)])]:
            if tree and all(cost[u][v] is not None for u, v in tree):
                yield root, tuple(hop(u, v) for u, v in tree)


def _star(order: Sequence[int]) -> tuple[Arc, ...]:
    return tuple((order[0], v) for v in order[1:])


def _two_hops(order: Sequence[int]) -> list[tuple[Arc, ...]]:
    return [((order[0], i), *((i, v) for v in order[1:] if v != i)) for i in order[1:]]


def _chain(order: Sequence[int]) -> tuple[Arc, ...]:
    return tuple(pairwise(order))


def _over_servers(network: FlowNetwork, root: int, groups: Groups) -> list[list[tuple[Arc, ...]]]:
    """Trees by their shape between servers, one for every rank at which a share may enter a server."""
    cost, _ = cheapest_hops(_inside(network, groups), {})
    home = next(group for group in groups if root in group)
    order = [home, *(group for group in groups if group != home)]
    positions = list(range(len(order)))
    result = []
    for crossings in ([_star(positions)], list(two_trees(positions)), [_chain(positions)]):
        trees = []
        for crossing in crossings:
            for entry in range(max(map(len, order))):
                trees += _entering(cost, root, order, crossing, entry)
        result.append(trees)
    return result


def _inside(network: FlowNetwork, groups: Groups) -> FlowNetwork:
    """The network without transit between servers."""
    owner = owners(network, groups)
    return FlowNetwork(network.n, network.terminals, tuple(arc for arc in network.arcs if set(arc[:2]) <= owner.keys()))


def _entering(
    cost: list[list[int | None]], root: int, order: Sequence[tuple[int, ...]], crossing: Sequence[Arc], entry: int
) -> list[tuple[Arc, ...]]:
    """Trees that enter every server at its ``entry``-th rank; several trees if that rank is the root itself."""
    gateways = [group[entry % len(group)] for group in order]
    across = tuple((gateways[a], gateways[b]) for a, b in crossing)
    away: list[Arc] = []
    for group, gateway in zip(order[1:], gateways[1:], strict=True):
        spread = _spread(cost, group, gateway)
        if spread is None:
            return []
        away += spread
    trees = []
    for middle in order[0] if gateways[0] == root else [gateways[0]]:
        spread = _spread(cost, order[0], middle)
        if spread is not None:
            trees.append((*_rooted(spread, root), *across, *away))
    return trees


def _spread(cost: list[list[int | None]], group: Sequence[int], gateway: int) -> list[Arc] | None:
    """A tree of shortest paths from ``gateway`` inside one server; None if it does not reach all ranks."""
    parent: dict[int, int] = {}
    reached = [gateway]
    for u in reached:
        fresh = [v for v in group if v not in reached and cost[u][v] is not None]
        parent.update(dict.fromkeys(fresh, u))
        reached.extend(fresh)
    return [(parent[v], v) for v in reached[1:]] if len(reached) == len(group) else None


def _rooted(tree: Sequence[Arc], root: int) -> list[Arc]:
    """The same undirected tree, directed away from ``root``."""
    parent = {v: u for u, v in tree}
    turned = set()
    v = root
    while v in parent:
        turned.add((parent[v], v))
        v = parent[v]
    return [(b, a) if (a, b) in turned else (a, b) for a, b in tree]
