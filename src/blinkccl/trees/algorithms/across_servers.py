"""A broadcast among several servers, composed of trees over the servers and trees inside each server.

Data that enters a server reaches all its ranks by links inside the server, and may leave from any of these ranks. So
three small packings replace a large one. One has trees over servers, with each server as a vertex. In the root's server
trees lead from the root, and in every other server from the ranks that receive data, each up to its capacity. Their
prefix sums are laid over one another, which gives trees over all ranks. Each tree crosses between servers on a path
with enough capacity, preferably from the rank that received the data. The final rate is computed exactly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain, pairwise
from math import gcd, lcm
from operator import itemgetter

from blinkccl.topology.connectivity import beside, reachable
from blinkccl.trees.algorithms.shapes import laid_over
from blinkccl.trees.packing import clock, equal_trees
from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.integral import flatten, merged, pack_arborescences
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops, breadth_first, followed
from blinkccl.trees.packing.oracles import loads_of
from blinkccl.trees.packing.splitting import without_transit
from blinkccl.trees.packing.two_trees import two_trees

#: Ranks (terminals) by server.
Groups = tuple[tuple[int, ...], ...]
#: Trees with their parts of the data.
Parts = list[tuple[Fraction, Hops]]
#: A part of the data, the rank that receives it from another server, and the hops of its tree in the server.
Spread = tuple[Fraction, int, Hops]
#: Trees over servers (pairs of their positions) with their parts.
Crossing = list[tuple[Fraction, Sequence[Arc]]]
#: The most equal trees inside one server that are tried.
MOST_INSIDE = 32
#: The largest load of a link as a part of its capacity, with room for rounding of floats.
ENOUGH = 1 + 1e-9


def owners(network: FlowNetwork, groups: Groups) -> dict[int, int]:
    """The server of each vertex, as a position in ``groups``; a transit vertex has one if it joins only its ranks."""
    owner = {v: i for i, group in enumerate(groups) for v in group}
    near = beside(network.capacity)
    through = {u: [v for v in ends if v >= network.terminals] for u, ends in near.items()}
    for start in range(network.terminals, network.n):
        ends = {v for u in reachable(start, through) for v in near.get(u, ()) if v < network.terminals}
        served = {owner[v] for v in ends}
        if len(served) == 1:
            owner[start] = served.pop()
    return owner


def across_servers(network: FlowNetwork, root: int, groups: Groups, rate: int, most: int) -> EqualTrees | None:
    """At most ``most`` weighted trees from ``root``, with the highest rate found up to ``rate``.

    None for a single server, if data must enter a server more than once, or if more than ``most`` trees are needed.
    """
    home = [group for group in groups if root in group]
    cluster = _Cluster(network, (*home, *(group for group in groups if root not in group)))
    rate = min(rate, cluster.servers[0].takes({root: rate}))
    spreads = cluster.spreads(root, rate) if len(groups) > 1 and rate else []
    pieces = list(laid_over(spreads, itemgetter(0))) if all(spreads) else []
    best: EqualTrees | None = None
    for crossing in _crossings(len(groups)) if pieces else ():
        if len(crossing) * len(pieces) > most:
            continue
        clock.look()
        trees = cluster.joined(crossing, pieces, rate)
        reached = _carried(network, trees)
        if reached and (best is None or reached > best.rate):
            best = EqualTrees(reached, tuple((root, part, breadth_first(root, hops)) for part, hops in trees))
        if reached >= rate:
            break
    return best


def _carried(network: FlowNetwork, trees: Parts) -> Fraction:
    load: defaultdict[Arc, Fraction] = defaultdict(Fraction)
    for part, hops in trees:
        for arc, times in loads_of(hops).items():
            load[arc] += part * times
    return min((network.capacity[arc] / units for arc, units in load.items()), default=Fraction(0))


def _crossings(count: int) -> Iterator[Crossing]:
    """Trees over ``count`` servers: a star; two-hop stars, one through each; two complementary trees; a chain."""
    servers = range(count)
    yield [(Fraction(1), [(0, v) for v in servers[1:]])]
    part = Fraction(1, len(servers) - 1)
    yield [(part, [(0, i), *((i, v) for v in servers[1:] if v != i)]) for i in servers[1:]]
    yield [(Fraction(1, 2), tree) for tree in two_trees(servers)]
    yield [(Fraction(1), list(pairwise(servers)))]


class _Cluster:
    """The network divided into servers, by their positions in ``groups``; the root's is the first."""

    def __init__(self, network: FlowNetwork, groups: Groups) -> None:
        self.terminals, self.groups = network.terminals, groups
        owner = owners(network, groups)
        arcs: list[list[tuple[int, int, int]]] = [[] for _ in groups]
        self.into: dict[int, list[tuple[int, int]]] = {v: [] for v in range(network.n)}  # reversed arcs across servers
        for u, v, c in network.arcs:
            if u in owner and owner[u] == owner.get(v):
                arcs[owner[u]].append((u, v, c))
            else:
                self.into[v].append((u, c))
        members = [(*group, *(v for v in owner if owner[v] == i and v not in group)) for i, group in enumerate(groups)]
        self.servers = [_LocalServer(*of) for of in zip(members, groups, arcs, strict=True)]

    def spreads(self, root: int, rate: int) -> list[list[Spread]]:
        """The trees of ``rate`` units in every server; an empty list for a server that cannot carry them."""
        inside = []
        for place, server in enumerate(self.servers[1:], start=1):
            demand = self._entries(place, rate)
            inside.append(server.spreads(demand) if demand else [])
        first = self.servers[0].spreads({root: rate}, max(map(len, inside)))
        return [first, *inside]

    def _entries(self, place: int, rate: int) -> dict[int, int]:
        """Units that each rank of a server receives from other servers, ``rate`` in all; {} if that is not possible.

        Each rank receives only the units that the other ranks cannot carry at their limits (a contra-polymatroid),
        those with the fewest counterparts on other servers first.
        """
        group = self.groups[place]
        most = [[sum(c for _, c in self.into[v]) for v in group] for group in self.groups]
        have = Counter(at for one in most for at, units in enumerate(one) if units)
        entries = dict(zip(group, most[place], strict=True))
        for at in sorted(range(len(group)), key=lambda at: (have[at], -at)):
            full = entries[group[at]]
            entries[group[at]] = 0
            entries[group[at]] = min(full, max(0, rate - self.servers[place].takes(entries)))
        return {v: units for v, units in entries.items() if units} if sum(entries.values()) == rate else {}

    def joined(self, crossing: Crossing, pieces: Sequence[tuple[Fraction, list[Spread]]], rate: int) -> Parts:
        """A tree for each piece of each tree over servers; no tree at all if a server has no path to another."""
        load: defaultdict[Arc, float] = defaultdict(float)
        trees: Parts = []
        for weight, arcs in crossing:
            for part, spread in pieces:
                units = float(part * weight * rate)
                hops = [hop for _, _, inside in spread for hop in inside]
                for s, t in arcs:
                    goal = spread[t][1]
                    way = self._way(load, units, s, spread[s][1] if s else self._beside(goal, t), goal)
                    if way is None:
                        return []
                    for arc in pairwise(way):
                        load[arc] += units
                    hops.append(way)
                trees.append((part * weight, tuple(hops)))
        return trees

    def _beside(self, goal: int, server: int) -> int:
        """The rank of the root's server at the position of ``goal`` in its own server, or the last rank."""
        return self.groups[0][min(self.groups[server].index(goal), len(self.groups[0]) - 1)]

    def _way(self, load: Mapping[Arc, float], units: float, server: int, entry: int, goal: int) -> Hop | None:
        """The path to ``goal`` from a rank of ``server``, preferably ``entry``, with the least overload of links."""
        ranks = set(self.groups[server])
        after: dict[int, int] = {}
        heap = [(ENOUGH, 0, False, goal, goal)]
        while heap:
            full, links, _, v, before = heappop(heap)
            if v in after:
                continue
            after[v] = before
            if v in ranks:
                return tuple(followed(after, v, goal))
            for u, c in self.into[v]:
                if u not in after and (u >= self.terminals or u in ranks):
                    fuller = max(full, (load.get((u, v), 0.0) + units) / c)
                    heappush(heap, (fuller, links + 1, u in ranks and u != entry, u, v))
        return None


class _LocalServer:
    """One server: its ranks, then its transit vertices, renumbered; ``ids`` are the network's numbers."""

    def __init__(self, ids: Sequence[int], ranks: Sequence[int], arcs: Sequence[tuple[int, int, int]]) -> None:
        self.ids, self.local = ids, {v: i for i, v in enumerate(ids)}
        self.network = FlowNetwork(len(ids), len(ranks), tuple((self.local[u], self.local[v], c) for u, v, c in arcs))

    def takes(self, entries: Mapping[int, int]) -> int:
        """Units that every rank can receive if ``entries`` units enter at each."""
        return _received(self.network, {self.local[v]: units for v, units in entries.items()})

    def spreads(self, demand: Mapping[int, int], others: int = 1) -> list[Spread]:
        """Few trees that carry ``demand``; [] if the switches of the server cannot be replaced by links.

        Equal trees of few hops are preferred, then trees with whole numbers of equal parts, as coarse as possible. Both
        first try numbers of trees with a small least common multiple with ``others``, the number in other servers.
        """
        unit = gcd(*demand.values())
        times = {self.local[v]: units // unit for v, units in demand.items()}
        total = sum(times.values())
        fine = sorted(range(1, MOST_INSIDE // total + 1), key=lambda k: (lcm(k * total, others), k))
        equal = (self._equal(times, k, unit) for k in fine)
        whole = (self._whole({g: k * units for g, units in times.items()}, Fraction(unit, k)) for k in (*fine, unit))
        local: list[Spread] = next(filter(None, chain(equal, whole)), [])
        named = ((part, self.ids[g], tuple(tuple(self.ids[v] for v in hop) for hop in hops)) for part, g, hops in local)
        return sorted(named, key=itemgetter(1))

    def _equal(self, times: Mapping[int, int], k: int, unit: int) -> list[Spread]:
        if self.network.terminals == 1:
            return []
        roots = [g for g, units in times.items() for _ in range(units * k)]
        packing = equal_trees.weighed(self.network, roots, k, Fraction(unit))
        if packing is None or packing.rate < unit:
            return []
        return [(part * k / len(roots), g, hops) for g, part, hops in packing.trees]

    def _whole(self, demand: Mapping[int, int], part: Fraction) -> list[Spread]:
        whole = ((u, v, int(c / part)) for u, v, c in self.network.arcs)
        network = FlowNetwork(self.network.n, self.network.terminals, tuple(arc for arc in whole if arc[2]))
        total = sum(demand.values())
        direct = without_transit(network, demand) if _received(network, demand) >= total else None
        if direct is None:
            return []
        flat = merged(flatten(direct.network.capacity, pack_arborescences(direct.network, demand)))
        return [(Fraction(units, total), g, hops) for g, units, hops in direct.unfolded(flat)]


def _received(network: FlowNetwork, entries: Mapping[int, int]) -> int:
    """Units that every terminal can receive if ``entries`` units enter at each."""
    entering = tuple((network.n, v, units) for v, units in entries.items() if units)
    return broadcast_rate(FlowNetwork(network.n + 1, network.terminals, network.arcs + entering), network.n)[0]
