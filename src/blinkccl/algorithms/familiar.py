"""Broadcast trees worth trying before any search: shapes that are optimal on the machines people build.

Behind one switch: the star; N−1 two-hop stars (root → i → all others), which use every port fully at depth 2;
two complementary trees; a chain. On several servers: each share enters a server at one rank, spreads inside it
from there, and crosses between servers by a star, two complementary trees or a chain. A list of shapes is good
if whole multiples of them fill the minimum cut; that is for an integer program of a few columns to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from blinkccl.packing.columns import Column
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.oracles import Hops, cheapest_hops, loads_of
from blinkccl.packing.two_trees import two_trees

#: Up to this many terminals column generation takes seconds at most.
SEARCHED = 16
#: Ranks (terminals) by server.
Groups = tuple[tuple[int, ...], ...]


def familiar_trees(network: Network, root: int, groups: Groups, *, fewest: bool = False) -> Iterator[list[Column]]:
    """Lists of out-trees from ``root`` whose mix may fill the cut, shallow ones first (or single trees first).

    Shapes that need a hop which the links do not have are left out, and the chain where a search may well
    find something shallower.
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
            yield [_column(tuple(hop(u, v) for u, v in tree)) for tree in trees]


def _column(hops: Hops) -> Column:
    return Column(0, tuple(sorted(loads_of(hops).items())), hops)


def _star(order: Sequence[int]) -> tuple[Arc, ...]:
    return tuple((order[0], v) for v in order[1:])


def _two_hops(order: Sequence[int]) -> list[tuple[Arc, ...]]:
    return [((order[0], i), *((i, v) for v in order[1:] if v != i)) for i in order[1:]]


def _chain(order: Sequence[int]) -> tuple[Arc, ...]:
    return tuple(pairwise(order))


def _over_servers(network: Network, root: int, groups: Groups) -> list[list[tuple[Arc, ...]]]:
    """Per way of crossing between servers: one tree for every rank at which a share may enter."""
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


def _inside(network: Network, groups: Groups) -> Network:
    """The network without transit that leads from one server to another."""
    server = {v: i for i, group in enumerate(groups) for v in group}
    near: dict[int, set[int]] = {v: set() for v in range(network.n)}
    for u, v, _ in network.arcs:
        near[u].add(v)
        near[v].add(u)
    shared: set[int] = set()
    for start in range(network.terminals, network.n):
        component, queue = {start}, [start]
        for u in queue:
            fresh = sorted(v for v in near[u] if v >= network.terminals and v not in component)
            component.update(fresh)
            queue.extend(fresh)
        if len({server[v] for u in component for v in near[u] if v < network.terminals}) > 1:
            shared.add(start)
    kept = [arc for arc in network.arcs if not shared & set(arc[:2])]
    return Network(network.n, network.terminals, tuple(kept))


def _entering(
    cost: list[list[int | None]], root: int, order: Sequence[tuple[int, ...]], crossing: Sequence[Arc], entry: int
) -> list[tuple[Arc, ...]]:
    """Trees that enter the ``entry``-th rank of every server; several where that is the root itself."""
    doors = [group[entry % len(group)] for group in order]
    across = tuple((doors[a], doors[b]) for a, b in crossing)
    away: list[Arc] = []
    for group, door in zip(order[1:], doors[1:], strict=True):
        spread = _spread(cost, group, door)
        if spread is None:
            return []
        away += spread
    trees = []
    for middle in order[0] if doors[0] == root else [doors[0]]:
        spread = _spread(cost, order[0], middle)
        if spread is not None:
            trees.append((*_rooted(spread, root), *across, *away))
    return trees


def _spread(cost: list[list[int | None]], group: Sequence[int], door: int) -> list[Arc] | None:
    """A tree of shortest ways inside one server from ``door``; None where it does not reach everybody."""
    parent: dict[int, int] = {}
    reached = [door]
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
