"""Plans in which every element is summed in one order, whatever the message size, the chunks, the share and the engine.

Shares of a plan go up different trees, and a different tree rounds differently: with the size it changes which share an
element falls into, and so its bits. Here all shares combine the same ranks with the same
(:class:`~blinkccl.trees.packing.nested_groups.NestedGroup`), each with other heads; down trees are free. Where every
pair of ranks is joined alike that is a star at every rank, and costs nothing; elsewhere it costs what the bound is
above the rate, the *price*.

The order is looked for by the AllReduce's rate, and is that of Reduce and ReduceScatter on the same links too: their
sums go on from the root to where they belong. What one group of ranks allows is found exactly; that no other group has
a higher rate is not claimed, but where :func:`order_bound` is reached. Several servers whose
ranks are joined in pairs are taken one after another, with a tree for every place in a server, where that is within 2 %
of the bound, or among more than 16 ranks half of it.
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

#: Packings that the search solves; one takes milliseconds among 8 ranks, and seconds among 64.
TRIES, TRIES_OF_MANY = 400, 20
#: Up-trees of the free optimum whose groups it begins with; among more than 16 ranks one.
MOST_STARTS = 16
#: And in-trees over wide links.
MOST_WIDE = 4
#: What part of the bound is enough for trees that are all alike, and for more than 16 ranks.
ALIKE, ALIKE_AMONG_MANY = Fraction(49, 50), Fraction(1, 2)


def plan(request: Request) -> Forest:
    """The plan of ``request`` with one order, which the forest states; of what does not reduce, the free optimum.

    Raises
    ------
    UnsupportedError
        If another objective or ``max_trees`` is asked for too, or more than 64 ranks are no servers of such as are
        joined in pairs.
    """
    if request.objective != "shallow" or request.max_trees is not None:
        raise UnsupportedError("--deterministic order has trees of its own: leave the other objective out")
    free = replace(request, deterministic=None)
    if not request.collective.reduces:
        return replace(optimal.plan(free), order="")
    everybody = replace(free, collective=Collective("allreduce", len(request.ranks)))
    group, found = _group_for(everybody)
    if request.collective != everybody.collective:
        best = optimal.plan(free)
        fits = order_of(best) is not None and group == _group_of(best, best.shares[0])
        alike = best if fits else _one_after_another(request, group)
        found = alike if alike is not None and (fits or _enough(alike)) else None
    return stated(found or _packed(request, group))


def stated(forest: Forest) -> Forest:
    """The forest with its order; UnsupportedError, which names a share that departs, if it has not one."""
    if forest.combining:
        raise UnsupportedError("in which order a switch adds up nobody promises: leave --deterministic out")
    order = order_of(forest)
    if order is None:
        raise UnsupportedError(
            f"{forest.algorithm} sums elements in several orders: {departure(forest)}; --deterministic order is for "
            "--algo optimal, and for what has stars alone (one_hop, flat, one_shot)"
        )
    return replace(forest, order=order)


@lru_cache(maxsize=8)  # all collectives and roots of a job ask for the same one
def _group_for(request: Request) -> tuple[NestedGroup, Forest | None]:
    """The order of all that reduces on these links, and the plan of the AllReduce, ``request``, where that is known."""
    free = optimal.plan(request)
    if order_of(free) is not None:
        return _group_of(free, free.shares[0]), free
    place = free.position
    servers = [tuple(sorted(place[rank] for rank in each)) for each in by_server(request.topology, request.ranks)]
    chain = _chain([NestedGroup(server) for server in servers])
    alike = _one_after_another(request, chain)
    if alike is not None and _enough(alike):
        return chain, alike
    if len(request.ranks) > SOLVED:
        raise UnsupportedError(
            f"--deterministic order serves more than {SOLVED} ranks where the ranks of each server are one hop apart; "
            f"these {len(request.ranks)} are not"
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
    starts = [*starts, *wide] if few else [*wide, *starts]  # where tries are few the best come first
    starts += [_group_of(free, share) for share in free.shares[: MOST_STARTS if few else 1]]
    tries = TRIES if few else max(TRIES_OF_MANY, TRIES * SEARCHED**4 // count**4)
    proved = order_bound(view.network)
    bound = free.bound if proved is None else min(free.bound, Fraction(proved))
    return best_group(view.network, starts, bound, tries)[0], None


def _chain(groups: Sequence[NestedGroup]) -> NestedGroup:
    """Each group below the next one."""
    chain = groups[0]
    for group in groups[1:]:
        chain = replace(group, below=tuple(sorted([*group.below, chain])))
    return chain


def _enough(alike: Forest) -> bool:
    """Whether it is not worth to look for more."""
    many = len(alike.ranks) > SEARCHED
    return alike.rate >= (ALIKE_AMONG_MANY if many else ALIKE) * alike.bound


def _group_of(forest: Forest, share: Share) -> NestedGroup:
    """The groups that a share's up-tree makes, by positions."""
    place = forest.position
    edges = () if share.reduce is None else share.reduce.edges
    return group_of_tree(place[share.root], tuple((place[path[0]], place[path[-1]]) for path in edges))


def _one_after_another(request: Request, group: NestedGroup) -> Forest | None:
    """The chain of servers ``group`` with the i-th member of each as head, for every i; None where hops lack."""
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
    """The place in its server of the rank that a block belongs to."""
    return next(i for server in servers for i, rank in enumerate(server) if rank == target)


def _inward(servers: Sequence[Sequence[int]], heads: Sequence[int]) -> list[tuple[int, int]]:
    """Who sends to whom: members to their head, each head to the next."""
    pairs: list[tuple[int, int]] = []
    for number, (server, head) in enumerate(zip(servers, heads, strict=True)):
        pairs += [(rank, head) for rank in server if rank != head]
        pairs += [(heads[number - 1], head)] if number else []
    return pairs


def _joined(paths: Paths, pairs: Sequence[tuple[int, int]]) -> tuple[Path, ...] | None:
    """Their paths; None if one has none."""
    return tuple(paths[pair] for pair in pairs) if all(pair in paths for pair in pairs) else None


def _packed(request: Request, group: NestedGroup) -> Forest:
    """The most that trees of ``group`` carry."""
    view = rank_network_of(request.network, request.ranks)
    items = request.collective.items()
    targets = [item.destinations[0][0] if len(item.destinations) == 1 else None for item in items]
    certificate = certificate_for(request.collective, request.ranks, request.network)
    found = pack_group(view.network, group, targets, certificate.bound)
    if found is None:
        raise InternalError(f"{group} has no tree on {request.network.name}")
    drafts = []
    for column, weight in rounded(found, view.network.capacity, [Fraction(1, len(targets))] * len(targets)):
        root, up, onward = column.payload
        down = breadth_first(root, onward) if onward else None
        drafts.append(Draft(items[column.group].block, weight / found.rate, root, up, down))
    return shortened(forest_of(request, view, "order", drafts, certificate))


# What no order of summation exceeds, where links join all terminals directly: a bound by cuts.
#
# Take any terminals A and any order, and of its groups (:mod:`~blinkccl.trees.packing.nested_groups`) the lowest with
# operands on both sides. Whoever is the head of a group in some tree is sent to by all its other members, so the
# heads of a group are a *clique*, linked both ways. Either all members of that group are on one side: then an operand
# of the other one is a group below, and everything goes from the clique of its heads to the clique of this group's.
# Or they are on both: then a head is sent to by every member of the other side, heads or not. So the widest way
# across A between two cliques bounds the rate, whatever the order is, and the narrowest such A counts.
#: Networks with more are left without a bound.
MOST_CLIQUES = 500

_Clique = frozenset[int]


def order_bound(network: FlowNetwork) -> int | None:
    """An upper bound of the rate of every group; None where there are transit vertices, or too many cliques.

    Looked at are single terminals, and what links of some width join. Cost: pairs of cliques per set.
    """
    cliques = _cliques(network)
    if network.n != network.terminals or cliques is None:
        return None
    return min((_across(network, side, cliques) for side in _sides(network)), default=None)


def _cliques(network: FlowNetwork) -> list[_Clique] | None:
    near = [{v for v in network.successors[u] if (v, u) in network.capacity} for u in range(network.n)]
    found = [frozenset({v}) for v in range(network.n)]
    for clique in found:
        for v in range(max(clique) + 1, network.n):
            if clique <= near[v]:
                found.append(clique | {v})
        if len(found) > MOST_CLIQUES:
            return None
    return found


def _sides(network: FlowNetwork) -> Iterator[_Clique]:
    """Single terminals, and the components of the links that are at least so wide."""
    everybody = frozenset(range(network.n))
    seen = {everybody}
    for width in [None, *sorted(set(network.capacity.values()))]:
        left = dict.fromkeys(range(network.n))
        while left:
            side = [next(iter(left))]
            del left[side[0]]
            for u in side:
                fresh = [v for v in left if width is not None and _widest(network, u, v) >= width]
                side += fresh
                for v in fresh:
                    del left[v]
            if frozenset(side) not in seen:
                seen.add(frozenset(side))
                yield frozenset(side)


def _widest(network: FlowNetwork, u: int, v: int) -> int:
    return max(network.capacity.get((u, v), 0), network.capacity.get((v, u), 0))


def _across(network: FlowNetwork, side: _Clique, cliques: Sequence[_Clique]) -> int:
    """The widest way across between two cliques, or among the heads of a group that is on both sides."""
    inside = [clique for clique in cliques if clique <= side]
    outside = [clique for clique in cliques if not clique & side]
    ways = [max(_between(network, a, b), _between(network, b, a)) for a in inside for b in outside]
    mixed = [clique for clique in cliques if clique & side and not clique <= side]
    return max([*ways, *(_among(network, clique, side) for clique in mixed)], default=0)


def _between(network: FlowNetwork, senders: _Clique, receivers: _Clique) -> int:
    return sum(network.capacity.get((u, v), 0) for u in senders for v in receivers)


def _among(network: FlowNetwork, heads: _Clique, side: _Clique) -> int:
    """Each is sent to by all on the other side."""
    return sum(
        min(network.capacity.get((u, head), 0) for u in heads if (u in side) != (head in side)) for head in heads
    )
