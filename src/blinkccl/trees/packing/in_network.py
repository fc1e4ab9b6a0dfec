"""Trees through transit vertices that combine and multicast, by columns over orbits of a symmetry.

A *joint* is a terminal or a combining vertex. A tree is over all terminals and any of the other joints, its root is a
joint, and a hop from joint to joint crosses transit that only passes on (which joints may do too). A combining vertex
in a tree sends once to the vertex above it, or once to each below it, and keeps nothing: it is a Steiner vertex. An
AllReduce has an in-tree and an out-tree of one root; other collectives have one of the two, of roots that are given.

How much of the data goes which way is a linear program over trees. Which Steiner vertices make a tree cheap under given
prices is hard in general, and easy here: by :mod:`~blinkccl.trees.packing.symmetry` all arcs of an orbit have one
price, so it matters how many vertices of an orbit are in a tree, and tried are none, one and all. What a spanning tree
over them has for a leaf is taken off again. So these trees are a proposal: whether more could be had is for the proof
to say (:mod:`~blinkccl.trees.packing.in_network_proof`), which knows nothing of trees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, pairwise, product
from math import prod

from blinkccl.errors import PackingError
from blinkccl.trees.packing.columns import Column, ExactPacking, Oracle, Prices, pack_columns
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops, breadth_first, followed
from blinkccl.trees.packing.oracles import column_of, in_and_out_oracle, out_tree_oracle, undirected_oracle
from blinkccl.trees.packing.symmetry import Permutation, arc_orbits, symmetry_of

#: Choices of Steiner vertices that are tried for every price; of more, each orbit alone and all but each.
MOST_CHOICES = 100


@dataclass(frozen=True)
class TreeTask:
    """What trees are for: ``up`` and ``down`` say which there are; each of ``roots`` has the same part of the data.

    Without ``roots`` any joint may be one, for any part of it: an AllReduce, which has both stages.
    """

    network: FlowNetwork
    combining: tuple[int, ...]
    up: bool
    down: bool
    roots: tuple[int, ...] = ()

    @cached_property
    def joints(self) -> tuple[int, ...]:
        return (*range(self.network.terminals), *sorted(self.combining))

    @cached_property
    def moves(self) -> tuple[Permutation, ...]:
        """The symmetries of the network that keep the combining vertices and the roots among themselves."""
        kept = (frozenset(self.combining), frozenset(self.roots))
        moves = symmetry_of(self.network).moves
        return tuple(move for move in moves if all({move[v] for v in some} == some for some in kept))

    @cached_property
    def orbit(self) -> dict[Arc, Arc]:
        """The arc that stands for each."""
        return arc_orbits(self.network, self.moves)

    def orbits(self, vertices: Iterable[int]) -> list[tuple[int, ...]]:
        """Those of ``vertices``, which the moves keep among themselves."""
        return list(dict.fromkeys(tuple(sorted({move[v] for move in self.moves})) for v in vertices))

    @property
    def mirrored(self) -> bool:
        """Whether an in-tree may always be the out-tree of the same root, turned round."""
        return self.up and self.down and self.network.symmetric


@dataclass(frozen=True)
class InNetworkTree:
    """``weight`` of all data goes up to ``root`` and down from it this way, in the direction of the data."""

    weight: Fraction
    root: int
    up: Hops
    down: Hops


def in_network_trees(task: TreeTask, target: Fraction) -> tuple[Fraction, tuple[InNetworkTree, ...]]:
    """A rate, and trees that have it: at best ``target``, which has to be a proved bound.

    At least what trees over terminals alone have. PackingError where terminals are not joined. Cost: ten rounds or so
    of a spanning tree per choice of Steiner vertices, for each root where links are not alike both ways.
    """
    size = Counter(task.orbit.values())
    capacity = {arc: task.network.capacity[arc] * size[arc] for arc in size}
    groups = task.orbits(task.roots)
    parts = [part for some in _choices(task) if (part := _Part(task, some, [group[0] for group in groups])).is_joined()]
    if not parts:
        raise PackingError("some terminal cannot be reached")

    def oracle(prices: Prices) -> list[Column]:
        full = {arc: prices.get(of, 0) for arc, of in task.orbit.items()}
        found = [_column(task, *tree) for part in parts for tree in part.cheapest(full)]
        return sorted(found, key=_crossed)

    demand = [Fraction(len(group), len(task.roots)) for group in groups] or [Fraction(1)]
    packed = pack_columns(capacity, demand, oracle, target=target)
    weights: dict[tuple[int, Hops, Hops], Fraction] = defaultdict(Fraction)
    for column, weight in _one_alone(packed, capacity) or packed.columns:
        for image in _images(column, task.moves):
            weights[image] += weight / (packed.rate * len(task.moves))
    return packed.rate, tuple(InNetworkTree(weights[key], *key) for key in sorted(weights))


def _column(task: TreeTask, group: int, root: int, up: Hops, down: Hops) -> Column:
    loads = Counter(task.orbit[arc] for hop in (*up, *down) for arc in pairwise(hop))
    return column_of(group, loads, (root, up, down))


def _crossed(column: Column) -> int:
    return sum(load for _, load in column.loads)


def _one_alone(packed: ExactPacking, capacity: Mapping[Arc, int]) -> tuple[tuple[Column, Fraction], ...]:
    """The tree whose images have the rate without others, over the fewest links; () where there is none."""
    if len({column.group for column, _ in packed.columns}) > 1:
        return ()
    alone = (
        (column, packed.rate)
        for column in sorted(packed.pool, key=_crossed)
        if all(packed.rate * load <= capacity[arc] for arc, load in column.loads)
    )
    return tuple(islice(alone, 1))


def _images(column: Column, moves: Sequence[Permutation]) -> Iterator[tuple[int, Hops, Hops]]:
    root, up, down = column.payload
    for move in moves:
        ahead, back = ([tuple(move[v] for v in hop) for hop in hops] for hops in (down, turned(up)))
        yield move[root], turned(breadth_first(move[root], back)), breadth_first(move[root], ahead)


def _choices(task: TreeTask) -> list[tuple[int, ...]]:
    """Sets of combining vertices to span: of each orbit none, one or all, as far as these are few."""
    orbits = task.orbits(task.combining)
    options = [list(dict.fromkeys(((), orbit[:1], orbit))) for orbit in orbits]
    if prod(map(len, options)) <= MOST_CHOICES:
        return [tuple(chain(*some)) for some in product(*options)]
    all_but = (tuple(v for v in task.combining if v not in orbit) for orbit in orbits)
    return list(dict.fromkeys([(), *orbits, *all_but, task.combining]))


class _Part:
    """Trees over the terminals and some combining vertices, which are given the numbers behind the terminals'."""

    def __init__(self, task: TreeTask, steiner: Sequence[int], roots: Sequence[int]) -> None:
        self.task, self.terminals, self.roots = task, task.network.terminals, roots
        self.network, self.old = renumbered(task.network, steiner)
        self.new = {old: new for new, old in enumerate(self.old)}
        self.oracle = self._oracle()

    def _oracle(self) -> Oracle:
        if self.task.mirrored:
            return undirected_oracle(self.network)
        if not self.roots:
            return in_and_out_oracle(self.network)
        return out_tree_oracle(self.network.reversed() if self.task.up else self.network, self.roots)

    def is_joined(self) -> bool:
        try:
            self.oracle({})
        except PackingError:
            return False
        return True

    def cheapest(self, prices: Prices) -> Iterator[tuple[int, int, Hops, Hops]]:
        """(group, root, in-tree, out-tree) of the least price, without leaves that are no terminals."""
        priced = {(self.new[u], self.new[v]): price for (u, v), price in prices.items()}
        for group, root, up, down in self._spanning(priced):
            up, down = (tuple(tuple(self.old[v] for v in hop) for hop in hops) for hops in (up, down))
            yield group, self.old[root], up, down

    def _spanning(self, prices: Prices) -> Iterator[tuple[int, int, Hops, Hops]]:
        backwards = bool(self.roots) and self.task.up
        for column in self.oracle({(v, u): y for (u, v), y in prices.items()} if backwards else prices):
            if self.task.mirrored:
                hops = self._pruned(column.payload)
                root = _centre(hops)
                down = rooted_at(root, hops)
                yield 0, root, turned(down), down
            elif not self.roots:
                root, up, down = column.payload
                yield 0, root, turned(self._pruned(turned(up))), self._pruned(down)
            else:
                hops = self._pruned(column.payload)
                ways = (turned(hops), ()) if backwards else ((), hops)
                yield column.group, self.roots[column.group], *ways

    def _pruned(self, hops: Hops) -> Hops:
        """An out-tree without leaves that are no terminals."""
        while True:
            inner = {hop[0] for hop in hops}
            fewer = tuple(hop for hop in hops if hop[-1] < self.terminals or hop[-1] in inner)
            if len(fewer) == len(hops):
                return hops
            hops = fewer


def renumbered(network: FlowNetwork, more: Sequence[int]) -> tuple[FlowNetwork, tuple[int, ...]]:
    """The network with ``more`` of its vertices as terminals, and the old number of each."""
    others = [v for v in range(network.terminals, network.n) if v not in more]
    old = (*range(network.terminals), *more, *others)
    new = {v: number for number, v in enumerate(old)}
    arcs = tuple(sorted((new[u], new[v], c) for u, v, c in network.arcs))
    return FlowNetwork(network.n, network.terminals + len(more), arcs), old


def turned(hops: Iterable[Hop]) -> Hops:
    """Every hop the other way: an out-tree becomes an in-tree."""
    return tuple(hop[::-1] for hop in hops)


def rooted_at(root: int, hops: Sequence[Hop]) -> Hops:
    """A tree, whichever way its hops point, as an out-tree of ``root``, level by level."""
    near: dict[int, list[Hop]] = defaultdict(list)
    for hop in hops:
        near[hop[0]].append(hop)
        near[hop[-1]].append(hop[::-1])
    found: list[Hop] = []
    seen, queue = {root}, [root]
    for u in queue:
        for hop in sorted(near[u], key=lambda hop: hop[-1]):
            if hop[-1] not in seen:
                seen.add(hop[-1])
                found.append(hop)
                queue.append(hop[-1])
    return tuple(found)


def _centre(hops: Sequence[Hop]) -> int:
    """The middle of a longest way in a tree, of two the higher: a root there halves the depth."""
    end = rooted_at(hops[0][0], hops)[-1][-1]
    above = {hop[-1]: hop[0] for hop in rooted_at(end, hops)}
    way = followed(above, list(above)[-1], end)
    return max(way[(len(way) - 1) // 2], way[len(way) // 2])
