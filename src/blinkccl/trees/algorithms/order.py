"""Plans that sum every element in one order, for every message size, chunk size, share and engine.

Shares of a plan use different up-trees, and different trees round differently. The share of an element depends on the
message size, so its bits do too. In these plans all shares reduce the same nested groups of ranks
(:class:`~blinkccl.trees.packing.nested_groups.NestedGroup`), each with other heads; down-trees are free. If all pairs
of ranks have equal links, the plan has a star at every rank and loses no rate. The *price* of an order is the ratio of
the bound to the rate.

The order is searched for the best rate of AllReduce. Reduce and ReduceScatter on the same links have the same order,
and send their sums from the root to the destination. The rate of one nested group is exact. The search does not prove
that no other group has a higher rate, unless :func:`order_bound` is reached. Servers whose ranks are joined in pairs
are reduced one after another, with a tree for every position in a server. This needs a rate within 2 % of the bound, or
half of it above 16 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from blinkccl.collectives.spec import Collective
from blinkccl.errors import InternalError, UnsupportedError
from blinkccl.trees.algorithms import optimal
from blinkccl.trees.algorithms.bounds import SEARCHED, SOLVED, certificate_for
from blinkccl.trees.algorithms.forests import Draft, forest_of
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.refine import shortened
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import Paths, by_server, forest_on, transit_paths
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, to_ids
from blinkccl.trees.forest.order import departure, order_of
from blinkccl.trees.packing.multiplicities import rounded
from blinkccl.trees.packing.nested_groups import (
    NestedGroup,
    best_group,
    clique_groups,
    group_of_tree,
    pack_group,
    wide_groups,
)
from blinkccl.trees.packing.network import FlowNetwork, breadth_first

#: The number of packings that the search solves; one takes milliseconds for 8 ranks, and seconds for 64.
TRIES, TRIES_OF_MANY = 400, 20
#: The most up-trees of the free optimum whose groups are starting points; one above 16 ranks.
MOST_STARTS = 16
#: The most in-trees over wide links that are starting points.
MOST_WIDE = 4
#: The part of the bound that is sufficient for :func:`_one_after_another`, up to 16 ranks and above.
ALIKE, ALIKE_AMONG_MANY = Fraction(49, 50), Fraction(1, 2)


def plan(request: Request) -> Forest:
    """The plan of ``request`` with one order, which the forest states; without a reduction, the free optimum.

    Raises
    ------
    UnsupportedError
        For another objective or ``max_trees``. More than 64 ranks are supported only if all pairs of ranks of a server
        are joined.
    """
    if request.objective != "shallow" or request.max_trees is not None:
        raise UnsupportedError("--deterministic order selects its own trees: leave out --objective and --max-trees")
    free = replace(request, deterministic=None)
    if not request.collective.reduces:
        return replace(optimal.plan(free), order="")
    allreduce = replace(free, collective=Collective("allreduce", len(request.ranks)))
    group, forest = _group_for(allreduce)
    if request.collective != allreduce.collective:
        best = optimal.plan(free)
        fits = order_of(best) is not None and group == _group_of(best, best.shares[0])
        candidate = best if fits else _one_after_another(request, group)
        forest = candidate if candidate is not None and (fits or _enough(candidate)) else None
    return stated(forest or _packed(request, group))


def stated(forest: Forest) -> Forest:
    """The forest with its order; an UnsupportedError names a share that departs if there are several orders."""
    if forest.combining:
        raise UnsupportedError("a switch does not guarantee the order of its sums: leave --deterministic out")
    order = order_of(forest)
    if order is None:
        raise UnsupportedError(
            f"{forest.algorithm} sums elements in several orders: {departure(forest)}; use --deterministic order with "
            "--algo optimal, one_hop, flat or one_shot"
        )
    return replace(forest, order=order)


@lru_cache(maxsize=8)  # all collectives and roots of a job need the same one
def _group_for(request: Request) -> tuple[NestedGroup, Forest | None]:
    """The order of all reductions on these links, and the plan of the AllReduce ``request`` if it is known."""
    free = optimal.plan(request)
    if order_of(free) is not None:
        return _group_of(free, free.shares[0]), free
    place = free.position
    servers = [tuple(sorted(place[rank] for rank in each)) for each in by_server(request.topology, request.ranks)]
    chain = _chain([NestedGroup(server) for server in servers])
    candidate = _one_after_another(request, chain)
    if candidate is not None and _enough(candidate):
        return chain, candidate
    if len(request.ranks) > SOLVED:
        raise UnsupportedError(
            f"--deterministic order allows at most {SOLVED} ranks if some of a server are more than one hop apart, got "
            f"{len(request.ranks)}; use fewer ranks, or leave it out"
        )
    view = rank_network_of(request.network, request.ranks)
    count = len(request.ranks)
    few = count <= SEARCHED
    starts = [NestedGroup(tuple(range(count))), chain]
    for most in (2, 3, 4, 8):
        starts.append(clique_groups(view.network, most))
        if len(servers) > 1:
            starts.append(_chain([clique_groups(view.network, most, server) for server in servers]))
    wide = wide_groups(view.network, MOST_WIDE)
    starts = [*starts, *wide] if few else [*wide, *starts]  # with few tries the best starting points come first
    starts += [_group_of(free, share) for share in free.shares[: MOST_STARTS if few else 1]]
    tries = TRIES if few else max(TRIES_OF_MANY, TRIES * SEARCHED**4 // count**4)
    proved = order_bound(view.network)
    bound = free.bound if proved is None else min(free.bound, Fraction(proved))
    return best_group(view.network, starts, bound, tries)[0], None


def _chain(groups: Sequence[NestedGroup]) -> NestedGroup:
    """The nested group with each group below the next one."""
    chain = groups[0]
    for group in groups[1:]:
        chain = replace(group, below=tuple(sorted([*group.below, chain])))
    return chain


def _enough(forest: Forest) -> bool:
    """True if the rate is high enough to skip the search."""
    many = len(forest.ranks) > SEARCHED
    return forest.rate >= (ALIKE_AMONG_MANY if many else ALIKE) * forest.bound


def _group_of(forest: Forest, share: Share) -> NestedGroup:
    """The nested groups of a share's up-tree, by positions."""
    place = forest.position
    edges = () if share.reduce is None else share.reduce.edges
    return group_of_tree(place[share.root], tuple((place[path[0]], place[path[-1]]) for path in edges))


def _one_after_another(request: Request, group: NestedGroup) -> Forest | None:
    """The forest of the chain of servers ``group`` with every i-th member as head; None if hops are missing."""
    servers = [tuple(request.ranks[v] for v in each.members) for each in group.upward()]
    if any(len(each.below) > 1 for each in group.upward()):
        return None
    paths = transit_paths(request.network, request.ranks)
    shares: list[Share] = []
    for item in request.collective.items():
        target = request.ranks[item.destinations[0][0]] if len(item.destinations) == 1 else None
        numbers = range(max(map(len, servers)))
        if len(request.collective.items()) > 1 and target is not None:
            numbers = range(at := _place_in(servers, target), at + 1)
        for number in numbers:
            heads = [server[number % len(server)] for server in servers]
            up = _joined(paths, [*_inward(servers, heads)])
            pairs = [(v, u) for u, v in _inward(servers, heads)][::-1]
            if target is not None:
                pairs = [] if target == heads[-1] else [(heads[-1], target)]
            down = _joined(paths, pairs)
            if up is None or down is None:
                return None
            root = heads[-1]
            weight = item.weight / len(numbers)
            onward = Tree(root, down) if down else None
            shares.append(Share(weight, len(shares), to_ids(item.block, request.ranks), root, Tree(root, up), onward))
    return forest_on(request, "order", request.network, shares)


def _place_in(servers: Sequence[Sequence[int]], target: int) -> int:
    """The position of ``target``, the rank of a block, in its server."""
    return next(i for server in servers for i, rank in enumerate(server) if rank == target)


def _inward(servers: Sequence[Sequence[int]], heads: Sequence[int]) -> list[tuple[int, int]]:
    """The sender and receiver of every message: members send to their head, each head to the next."""
    pairs: list[tuple[int, int]] = []
    for number, (server, head) in enumerate(zip(servers, heads, strict=True)):
        pairs += [(rank, head) for rank in server if rank != head]
        pairs += [(heads[number - 1], head)] if number else []
    return pairs


def _joined(paths: Paths, pairs: Sequence[tuple[int, int]]) -> tuple[Path, ...] | None:
    """The paths of these pairs; None if a pair has no path."""
    return tuple(paths[pair] for pair in pairs) if all(pair in paths for pair in pairs) else None


def _packed(request: Request, group: NestedGroup) -> Forest:
    """The forest of the trees of ``group`` with the highest rate."""
    view = rank_network_of(request.network, request.ranks)
    items = request.collective.items()
    targets = [item.destinations[0][0] if len(item.destinations) == 1 else None for item in items]
    certificate = certificate_for(request.collective, request.ranks, request.network)
    packing = pack_group(view.network, group, targets, certificate.bound)
    if packing is None:
        raise InternalError(f"{group} has no tree on {request.network.name}")
    drafts = []
    for column, weight in rounded(packing, view.network.capacity, [Fraction(1, len(targets))] * len(targets)):
        root, up, onward = column.payload
        down = breadth_first(root, onward) if onward else None
        drafts.append(Draft(items[column.group].block, weight / packing.rate, root, up, down))
    return shortened(forest_of(request, view, "order", drafts, certificate))


# An upper bound by cuts on the rate of every order of summation, if links join all terminals directly.
#
# For any set of terminals A and any order, consider the lowest group (:mod:`~blinkccl.trees.packing.nested_groups`)
# with operands on both sides of A. The head of a group receives from all other members of the group. Every member that
# is a head in some tree does so, so the heads of a group are a *clique* with links in both directions.
# If all members of the group are on one side, an operand on the other side is a group below. Its data goes from the
# clique of its heads to the clique of this group's heads. If members are on both sides, every head receives from all
# members on the other side. So the largest capacity across A between two cliques bounds the rate of every order, and
# the A with the smallest such capacity gives the tightest bound.
#: The most cliques of a network; with more there is no bound.
MOST_CLIQUES = 500

_Clique = frozenset[int]


def order_bound(network: FlowNetwork) -> int | None:
    """An upper bound on the rate of every group; None with transit vertices, or with too many cliques.

    The sets are single terminals, and components of links above some width. Cost: pairs of cliques per set.
    """
    cliques = _cliques(network)
    if network.n != network.terminals or cliques is None:
        return None
    return min((_across(network, side, cliques) for side in _sides(network)), default=None)


def _cliques(network: FlowNetwork) -> list[_Clique] | None:
    near = [{v for v in network.successors[u] if (v, u) in network.capacity} for u in range(network.n)]
    cliques = [frozenset({v}) for v in range(network.n)]
    for clique in cliques:
        for v in range(max(clique) + 1, network.n):
            if clique <= near[v]:
                cliques.append(clique | {v})
        if len(cliques) > MOST_CLIQUES:
            return None
    return cliques


def _sides(network: FlowNetwork) -> Iterator[_Clique]:
    """Single terminals, and the components of links of at least each width."""
    all_terminals = frozenset(range(network.n))
    sides = {all_terminals}
    for width in [None, *sorted(set(network.capacity.values()))]:
        unassigned = dict.fromkeys(range(network.n))
        while unassigned:
            side = [next(iter(unassigned))]
            del unassigned[side[0]]
            for u in side:
                fresh = [v for v in unassigned if width is not None and _widest(network, u, v) >= width]
                side += fresh
                for v in fresh:
                    del unassigned[v]
            if frozenset(side) not in sides:
                sides.add(frozenset(side))
                yield frozenset(side)


def _widest(network: FlowNetwork, u: int, v: int) -> int:
    return max(network.capacity.get((u, v), 0), network.capacity.get((v, u), 0))


def _across(network: FlowNetwork, side: _Clique, cliques: Sequence[_Clique]) -> int:
    """The largest capacity across ``side``, between two cliques or among the heads of a group on both sides."""
    inside = [clique for clique in cliques if clique <= side]
    outside = [clique for clique in cliques if not clique & side]
    ways = [max(_between(network, a, b), _between(network, b, a)) for a in inside for b in outside]
    mixed = [clique for clique in cliques if clique & side and not clique <= side]
    return max([*ways, *(_among(network, clique, side) for clique in mixed)], default=0)


def _between(network: FlowNetwork, senders: _Clique, receivers: _Clique) -> int:
    return sum(network.capacity.get((u, v), 0) for u in senders for v in receivers)


def _among(network: FlowNetwork, heads: _Clique, side: _Clique) -> int:
    """The bound for heads on both sides, where each head receives from all heads on the other side."""
    return sum(
        min(network.capacity.get((u, head), 0) for u in heads if (u in side) != (head in side)) for head in heads
    )
