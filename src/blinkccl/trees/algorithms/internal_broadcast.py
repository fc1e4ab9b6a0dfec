"""Internal broadcast and cross-group forwarding: the protocols of the Blink poster (§3).

The ranks are divided into fully connected groups. Inside a group, members exchange one chunk each, all to all. Between
groups, partners that share a link exchange their chunk and forward it to their group.

- AllReduce: member j of a group reduces chunk j of all members. Partners exchange and add the two sums. Member j sends
  the result to its group. As trees this is a star up to member j and a link to the partner and its star, then the same
  path back. The load on each link is the same.
- Broadcast: the root sends a different chunk to each member of its group. The member sends it to the others and to its
  partner, and the partner to its own group ("from A to B, then broadcast to C and D": three trees among four GPUs,
  rate 3).
- AllGather: each rank sends its block to its group and to its partner, which sends it to its own group.
- Gather: the paths of AllGather that lead to the root.

The poster describes AllReduce on two groups of equal size. This module also plans groups of unequal size and more than
two groups, as a tree of groups. Each group then cuts the data into one chunk per member, and links between groups cut
it into one chunk per partner link. The cuts are laid over each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from blinkccl.collectives.spec import Block
from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    Paths,
    cyclic,
    flipped,
    forest_on,
    require_collective,
    stays_inside,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, attained_rate

SERVED = ("broadcast", "gather", "allgather", "allreduce")

#: The members of each group (by index) that are the centre of a chunk's star; the group's data is cut among them.
Centres = dict[int, tuple[int, ...]]
#: (weight, block, root, up, down)
Part = tuple[Fraction, Block, int, Tree | None, Tree | None]


def plan(request: Request) -> Forest:
    """The poster's protocol for one of its four primitives.

    There may be several partitions into the fewest groups, or several forms for a single link between groups. The plan
    with the highest rate is selected, of equal ones the plan with the fewest shares.

    Raises
    ------
    UnsupportedError
        For other collectives, and if no hop joins the groups.

    Notes
    -----
    On a DGX-1P AllReduce runs at 2, 3/2 and 2 among 4, 6 and 8 GPUs; the optimum is 2, 9/5 and 16/7. Cost: AllReduce
    on two groups of m: 4 steps in tree form (the poster's exchange: 3), and each rank sends 2(m−1)/m + 1/m of S.
    """
    require_collective(request, "internal_broadcast", SERVED, "use --algo optimal")
    network = request.network
    paths = transit_paths(network, request.ranks)
    candidates = [
        _merged(parts)
        for grouping in groupings(network, paths, request.ranks)
        for parts in _variants(request, grouping, paths)
    ]
    if not candidates:
        raise UnsupportedError(
            f"internal_broadcast: on {network.name} no hop joins the fully connected "
            f"groups of {','.join(map(str, request.ranks))}; use --algo optimal"
        )
    best = max(candidates, key=lambda shares: (attained_rate(network, shares), -len(shares)))
    return forest_on(request, "internal_broadcast", network, best)


def _variants(request: Request, grouping: Grouping, paths: Paths) -> Iterator[list[Part]]:
    """The forms of the protocol; :func:`plan` selects the one with the highest rate."""
    collective, ranks = request.collective, request.ranks
    if collective.name == "allreduce":
        yield list(_allreduce(grouping, paths))
        return
    root = None if collective.root is None else ranks[collective.root]
    for spread in (False, True):
        if collective.name == "broadcast" and root is not None:
            for own_link in (False, True):
                yield list(_broadcast(grouping, paths, root, own_link, spread))
        else:
            parts = [part for rank in ranks for part in _from_rank(grouping, paths, rank, len(ranks), spread)]
            yield parts if root is None else [_towards(part, root) for part in parts]


def _allreduce(grouping: Grouping, paths: Paths) -> Iterator[Part]:
    """Shares with all members of every group as centres, and the roots in group 0."""
    centres = {group: grouping.partners_first(group) for group in range(len(grouping.groups))}
    for weight, centre, link in _overlaid(centres, grouping.links_away(0)):
        down = _grown(grouping, paths, centre[0], centre, link)
        yield weight, None, down.root, flipped(paths, down), down


def _broadcast(grouping: Grouping, paths: Paths, root: int, own_link: bool, spread: bool) -> Iterator[Part]:
    """Shares with the other members of the root's group as centres; if ``own_link``, the root also sends across.

    If ``spread``, a group with a single link to it is cut among its other members, as the root's group is.
    """
    home = grouping.home(root)
    links = grouping.links_away(home)
    if not own_link:
        links = {key: tuple(p for p in pairs if p[0] != root) or pairs for key, pairs in links.items()}
    first = tuple(v for v in grouping.partners_first(home) if v != root) or (root,)
    yield from (
        (w, None, root, None, tree) for w, tree in _cut_trees(grouping, paths, root, {home: first}, links, spread)
    )


def _from_rank(grouping: Grouping, paths: Paths, rank: int, world_size: int, spread: bool) -> Iterator[Part]:
    """Shares of one rank's block: a star in its group, then its own partner links or, without one, all of the group."""
    home = grouping.home(rank)
    links = {
        (g, h): tuple(p for p in pairs if g == home and p[0] == rank) or pairs
        for (g, h), pairs in grouping.links_away(home).items()
    }
    for weight, tree in _cut_trees(grouping, paths, rank, {home: (rank,)}, links, spread):
        yield weight / world_size, rank, rank, None, tree


def _cut_trees(
    grouping: Grouping, paths: Paths, start: int, centres: Centres, links: Links, spread: bool
) -> Iterator[tuple[Fraction, Tree]]:
    """Weighted trees from ``start``, one per piece of the overlaid cuts."""
    centres = dict(centres)
    for (_, h), pairs in links.items():
        if spread and len(pairs) == 1 and len(grouping.groups[h]) > 1:
            entry = pairs[0][1]
            centres[h] = tuple(v for v in cyclic(grouping.groups[h], entry) if v != entry)
    for weight, centre, link in _overlaid(centres, links):
        yield weight, _grown(grouping, paths, start, centre, link)


def _overlaid(centres: Centres, links: Links) -> Iterator[tuple[Fraction, dict[int, int], dict[tuple[int, int], Pair]]]:
    """The pieces of [0, 1] from even cuts for every choice, laid over each other: (length, centres, links)."""
    counts = {1, *map(len, centres.values()), *map(len, links.values())}
    points = sorted({Fraction(i, count) for count in counts for i in range(count + 1)})
    for low, high in pairwise(points):
        yield (
            high - low,
            {group: some[int(low * len(some))] for group, some in centres.items()},
            {key: some[int(low * len(some))] for key, some in links.items()},
        )


def _grown(
    grouping: Grouping,
    paths: Paths,
    start: int,
    centres: Mapping[int, int],
    links: Mapping[tuple[int, int], Pair],
) -> Tree:
    """The down-tree from ``start``: each group is a star around its centre or entry; edges between groups are first."""
    edges: list[Path] = []
    queue: list[tuple[int, int]] = [(grouping.home(start), start)]
    for group, entry in queue:
        centre = centres.get(group, entry)
        across: dict[int, list[Path]] = {}
        for (g, h), (near, far) in links.items():
            if g == group:
                across.setdefault(near, []).append(paths[near, far])
                queue.append((h, far))
        edges.extend(across.pop(entry, ()))
        if centre != entry:
            edges.append(paths[entry, centre])
            edges.extend(across.pop(centre, ()))
        edges.extend(paths[centre, v] for v in cyclic(grouping.groups[group], centre)[1:] if v != entry)
        for more in across.values():
            edges.extend(more)
    return Tree(start, tuple(edges))


def _towards(part: Part, keeper: int) -> Part:
    """The part reduced to the path that leads to ``keeper``, without a tree if ``keeper`` is the source."""
    weight, block, root, up, down = part
    if down is None or root == keeper:
        return weight, block, root, up, None
    into = {path[-1]: path for path in down.edges}
    hops: list[Path] = []
    at = keeper
    while at != root:
        hops.append(into[at])
        at = into[at][0]
    return weight, block, root, up, Tree(root, tuple(reversed(hops)))


def _merged(parts: Sequence[Part]) -> tuple[Share, ...]:
    """Shares, with parts of equal trees merged."""
    weights: dict[tuple[Block, int, Tree | None, Tree | None], Fraction] = {}
    for weight, block, root, up, down in parts:
        weights[block, root, up, down] = weights.get((block, root, up, down), Fraction(0)) + weight
    return tuple(Share(weight, i, *trees) for i, (trees, weight) in enumerate(weights.items()))


# Fully connected groups of ranks and the tree that joins them, for internal broadcast (the Blink poster, §3): "groups
# within which all nodes are fully connected", as few as possible, and partner links between neighbours.
Group = tuple[int, ...]
#: A partner link: a rank of one group and a rank of the other, one hop apart.
Pair = tuple[int, int]
#: Partner links by (group, neighbour).
Links = dict[tuple[int, int], tuple[Pair, ...]]

#: The most minimum partitions that are tried, and the most steps of the search for fewer groups.
PARTITION_LIMIT, STEP_LIMIT = 16, 20_000


@dataclass(frozen=True)
class Grouping:
    """Groups (vertex ids) and the tree that joins them.

    ``crossings[g, h]`` and ``[h, g]`` are the partner links of neighbours (indexes), no rank in two pairs of an entry.
    """

    groups: tuple[Group, ...]
    crossings: Links

    def home(self, rank: int) -> int:
        """The index of the group of ``rank``."""
        return next(i for i, group in enumerate(self.groups) if rank in group)

    def beyond(self, group: int, came_from: int | None) -> list[int]:
        """Neighbours of ``group`` in the tree of groups, except ``came_from``, the source of the data."""
        return [h for g, h in sorted(self.crossings) if g == group and h != came_from]

    def partners_first(self, group: int) -> Group:
        """Members, first those with a partner, in the order of the links to the first neighbour."""
        beyond = self.beyond(group, None)
        linked = [near for near, _ in self.crossings[group, beyond[0]]] if beyond else []
        return (*linked, *(v for v in self.groups[group] if v not in linked))

    def links_away(self, start: int) -> Links:
        """Partner links in the direction away from group ``start``, nearest groups first."""
        links: Links = {}
        queue: list[tuple[int, int | None]] = [(start, None)]
        for group, came_from in queue:
            for other in self.beyond(group, came_from):
                links[group, other] = self.crossings[group, other]
                queue.append((other, group))
        return links


def groupings(network: Topology, paths: Paths, ranks: Sequence[int]) -> list[Grouping]:
    """At most :data:`PARTITION_LIMIT` partitions of the ranks into the fewest fully connected groups, first fit first.

    In such a group every pair is joined directly or through switches of one server. Partitions whose groups no hop
    joins are left out.
    """

    def adjacent(u: int, v: int) -> bool:
        return all(
            pair in paths
            and stays_inside(network, paths[pair])
            and all(network.vertex[x].kind == "switch" for x in paths[pair][1:-1])
            for pair in ((u, v), (v, u))
        )

    connected = []
    for groups in fewest_cliques(ranks, adjacent):
        crossings = _tree_of_groups(paths, groups)
        if crossings is not None:
            connected.append(Grouping(groups, crossings))
    return connected


def fewest_cliques(ranks: Sequence[int], adjacent: Callable[[int, int], bool]) -> list[tuple[Group, ...]]:
    """Partitions of ``ranks`` into the fewest cliques, first fit first.

    The search is by backtracking, since minimum clique cover is NP-hard; after :data:`STEP_LIMIT` steps the result is
    the best so far.
    """
    joined = {(u, v) for i, u in enumerate(ranks) for v in ranks[:i] if adjacent(u, v)}
    best: list[tuple[Group, ...]] = []
    steps = 0
    stack: list[tuple[int, tuple[Group, ...]]] = [(0, ())]
    while stack and steps < STEP_LIMIT + len(ranks):
        placed, groups = stack.pop()
        steps += 1
        if best and (len(groups) > len(best[0]) or (len(groups) == len(best[0]) and len(best) == PARTITION_LIMIT)):
            continue
        if placed == len(ranks):
            best = [groups] if not best or len(groups) < len(best[0]) else [*best, groups]
            continue
        rank = ranks[placed]
        # The last item pushed is tried first: the first group that fits, then the next, and a new group last.
        stack.append((placed + 1, (*groups, (rank,))))
        for i in range(len(groups) - 1, -1, -1):
            if all((rank, member) in joined for member in groups[i]):
                stack.append((placed + 1, (*groups[:i], (*groups[i], rank), *groups[i + 1 :])))
    return best


def _tree_of_groups(paths: Paths, groups: tuple[Group, ...]) -> Links | None:
    """A tree grown from group 0: by fewest links to cross, most partner links, fewest neighbours so far; None if apart.

    The last criterion gives a line for groups on one network switch, since a star would fill the NICs of its centre.
    """
    crossings: Links = {}
    inside, outside = [0], list(range(1, len(groups)))
    offers = {
        (g, h): _partners(paths, groups[g], groups[h]) for g in range(len(groups)) for h in range(len(groups)) if g < h
    }
    while outside:
        ranked = []
        for g in inside:
            for h in outside:
                links, pairs = offers[min(g, h), max(g, h)]
                if pairs:
                    neighbours = sum(1 for key in crossings if key[0] == g)
                    ranked.append((links, -len(pairs), neighbours, g, h))
        if not ranked:
            return None
        *_, g, h = min(ranked)
        low, high = min(g, h), max(g, h)
        crossings[low, high] = offers[low, high][1]
        crossings[high, low] = tuple((v, u) for u, v in crossings[low, high])
        inside.append(h)
        outside.remove(h)
    return crossings


def _partners(paths: Paths, group: Group, other: Group) -> tuple[int, tuple[Pair, ...]]:
    """The number of links of a shortest hop between the groups, and a largest set of disjoint such hops."""
    lengths = {
        (u, v): max(len(paths[u, v]), len(paths[v, u]))
        for u in group
        for v in other
        if (u, v) in paths and (v, u) in paths
    }
    if not lengths:
        return 0, ()
    shortest = min(lengths.values())
    options = {u: [v for v in other if lengths.get((u, v)) == shortest] for u in group}
    partner: dict[int, int] = {}
    for u in group:
        _augment(u, options, partner, set())
    return shortest - 1, tuple(sorted(((u, v) for v, u in partner.items()), key=lambda p: group.index(p[0])))


def _augment(u: int, options: dict[int, list[int]], partner: dict[int, int], tried: set[int]) -> bool:
    """Add ``u`` to the bipartite matching ``partner`` (other → group) by an augmenting path; False if none exists."""
    for v in options[u]:
        if v not in tried:
            tried.add(v)
            if v not in partner or _augment(partner[v], options, partner, tried):
                partner[v] = u
                return True
    return False
