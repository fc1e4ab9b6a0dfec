"""Which ranks form fully connected groups, and how do groups hang together?

The ground of internal broadcast (the Blink poster, §3): "groups within which all nodes are fully connected",
as few as possible, and a tree of groups with partner links between neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blinkccl.algorithms.servers import stays_inside
from blinkccl.algorithms.shapes import Paths
from blinkccl.topology.model import Topology

Group = tuple[int, ...]
#: A partner link: a rank of one group and a rank of the other, which are a hop apart.
Pair = tuple[int, int]
#: Partner links by (group, neighbour).
Links = dict[tuple[int, int], tuple[Pair, ...]]

#: How many minimum partitions are looked at, and after how many steps the search for fewer groups stops.
PARTITION_LIMIT, STEP_LIMIT = 16, 20_000


@dataclass(frozen=True)
class Grouping:
    """Groups (vertex ids) and the tree that joins them.

    ``crossings[g, h]`` are the partner links from group ``g`` to its neighbour ``h`` (indexes); both
    orientations are there, and no rank is in two pairs of one entry.
    """

    groups: tuple[Group, ...]
    crossings: Links

    def home(self, rank: int) -> int:
        """The index of the group of ``rank``."""
        return next(i for i, group in enumerate(self.groups) if rank in group)

    def beyond(self, group: int, came_from: int | None) -> list[int]:
        """Neighbours of ``group`` in the tree of groups, except the one that data came from."""
        return [h for g, h in sorted(self.crossings) if g == group and h != came_from]

    def partners_first(self, group: int) -> Group:
        """Members, those with a partner first and in the order of the links to the first neighbour."""
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
    """Every partition of the ranks into the fewest fully connected groups, with its tree of groups.

    Fully connected means: every pair joined by a direct link or through switches of the same server, not
    through a host or NIC.

    Returns
    -------
    list
        At most :data:`PARTITION_LIMIT`, first fit first; without those whose groups no hop joins.
    """

    def adjacent(u: int, v: int) -> bool:
        return all(
            pair in paths
            and stays_inside(network, paths[pair])
            and all(network.vertex[x].kind == "switch" for x in paths[pair][1:-1])
            for pair in ((u, v), (v, u))
        )

    found = []
    for groups in fewest_cliques(ranks, adjacent):
        crossings = _tree_of_groups(paths, groups)
        if crossings is not None:
            found.append(Grouping(groups, crossings))
    return found


def fewest_cliques(ranks: Sequence[int], adjacent: Callable[[int, int], bool]) -> list[tuple[Group, ...]]:
    """Partitions of ``ranks`` into the fewest cliques, first fit first.

    Notes
    -----
    Exact by backtracking (minimum clique cover is NP-hard); after :data:`STEP_LIMIT` steps the fewest found
    so far counts. First fit alone is exact on servers whose switches or meshes form disjoint groups.
    """
    joined = {(u, v) for i, u in enumerate(ranks) for v in ranks[:i] if adjacent(u, v)}
    found: list[tuple[Group, ...]] = []
    steps = 0
    stack: list[tuple[int, tuple[Group, ...]]] = [(0, ())]
    while stack and steps < STEP_LIMIT + len(ranks):
        placed, groups = stack.pop()
        steps += 1
        if found and (len(groups) > len(found[0]) or (len(groups) == len(found[0]) and len(found) == PARTITION_LIMIT)):
            continue
        if placed == len(ranks):
            found = [groups] if not found or len(groups) < len(found[0]) else [*found, groups]
            continue
        rank = ranks[placed]
        # The last pushed is tried first: the first group that fits, then the next, a new one last.
        stack.append((placed + 1, (*groups, (rank,))))
        for i in range(len(groups) - 1, -1, -1):
            if all((rank, member) in joined for member in groups[i]):
                stack.append((placed + 1, (*groups[:i], (*groups[i], rank), *groups[i + 1 :])))
    return found


def _tree_of_groups(paths: Paths, groups: tuple[Group, ...]) -> Links | None:
    """Grow a tree from group 0: by fewest links to cross, most partner links, fewest neighbours so far.

    The last keeps groups on one network switch in a line, where a star would fill the NICs of its centre.
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
    """(links crossed by a shortest hop between the groups, a largest set of disjoint such hops)."""
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
    """One augmenting path of the bipartite matching ``partner`` (other → group)."""
    for v in options[u]:
        if v not in tried:
            tried.add(v)
            if v not in partner or _augment(partner[v], options, partner, tried):
                partner[v] = u
                return True
    return False
