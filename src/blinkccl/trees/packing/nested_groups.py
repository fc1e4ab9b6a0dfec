"""In-trees that reduce in one given order, packed together with out-trees, and the search for a fast order.

A :class:`NestedGroup` defines the order of a reduction: its members and the results of the groups below it become one
operand. An in-tree in this order has a *head* in every group. The other members and the heads of the groups below send
to the head; the head of the top group is the root. So stars at any member are the same group, and a chain is a group in
a group in a group. Every in-tree defines its groups, one per inner vertex. The cheapest heads under given prices are
computed exactly, from the lowest groups up. So column generation finds the best packing of a group, and prices prove
it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.errors import PackingError
from blinkccl.trees.packing.columns import Column, ExactPacking, Oracle, Prices, pack_columns
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hops, followed, hops_along, turned
from blinkccl.trees.packing.oracles import cheapest_hops, cheapest_tree, cheapest_ways, column_of, loads_of

#: Cost of the cheapest hop between two terminals; None without one.
_Costs = Sequence[Sequence[Any]]
_Array = NDArray[np.float64]
#: Relative difference of floats up to which rates count as equal.
ROUNDING = 1e-9
#: Number of latest packings whose prices are kept.
LIMITS = 8
#: With fewer tries, the search makes only steps to higher rates.
FEW = 100
#: Most neighbours examined in all, and per batch before a packing; one costs a hundredth of a packing.
LOOKS, BATCH = 12_000, 200
#: Destination of the result: all terminals (None), or one of them.
Target = int | None


@dataclass(frozen=True, slots=True, order=True)
class NestedGroup:
    """At least two operands: terminals ``members`` (one or more, ascending), and groups ``below``."""

    members: tuple[int, ...]
    below: tuple[NestedGroup, ...] = ()

    def heads(self, cost: _Costs) -> dict[int, tuple[Any, tuple[Arc, ...]]]:
        """For every possible head, the least cost of an in-tree to it, and the tree's arcs between terminals."""
        done: dict[int, dict[int, tuple[Any, tuple[Arc, ...]]]] = {}
        for group in self.upward():
            done[id(group)] = {
                head: tree
                for head in group.members
                if (tree := _collected(group, head, [done[id(each)] for each in group.below], cost)) is not None
            }
        return done[id(self)]

    def in_trees(self, cost: _Costs) -> int:
        """The number of in-trees."""
        done: dict[int, dict[int, int]] = {}
        for group in self.upward():
            done[id(group)] = ways = {}
            for head in group.members:
                if all(member == head or cost[member][head] is not None for member in group.members):
                    under = [done[id(each)] for each in group.below]
                    ways[head] = prod(
                        sum(count for v, count in heads.items() if cost[v][head] is not None) for heads in under
                    )
        return sum(done[id(self)].values())

    def upward(self) -> list[NestedGroup]:
        """All groups, lower ones first. Not recursive, because chains are deep."""
        order = [self]
        for group in order:
            order += group.below
        return order[::-1]


def _collected(
    group: NestedGroup, head: int, below: Sequence[Mapping[int, tuple[Any, tuple[Arc, ...]]]], cost: _Costs
) -> tuple[Any, tuple[Arc, ...]] | None:
    """Cost and arcs of the cheapest in-tree of ``group`` to ``head``; None if a sender has no hop to it."""
    total: Any = 0
    arcs: list[Arc] = []
    for member in group.members:
        if member != head:
            if cost[member][head] is None:
                return None
            total += cost[member][head]
            arcs.append((member, head))
    for heads in below:
        ways = [(spent + cost[v][head], v, tree) for v, (spent, tree) in heads.items() if cost[v][head] is not None]
        if not ways:
            return None
        spent, v, tree = min(ways, key=lambda way: (way[0], way[1]))
        total += spent
        arcs += [*tree, (v, head)]
    return total, tuple(arcs)


def grouped_oracle(network: FlowNetwork, group: NestedGroup, targets: Sequence[Target]) -> Oracle:
    """A group of columns per target. A column is an in-tree of ``group`` and the hops from its root to the target.

    The payload is (root, hops of the in-tree, hops onward). PackingError if there is no in-tree.
    """

    def oracle(prices: Prices) -> list[Column]:
        cost, hop = cheapest_hops(network, prices)
        columns = []
        heads = group.heads(cost)
        if not heads:
            raise PackingError(f"no member of {group.members} can be the head: each lacks a path from some sender")
        for root, (_, arcs) in heads.items():
            up = tuple(hop(u, v) for u, v in arcs)
            parent = cheapest_ways(network, prices, root)[1] if any(t is not None for t in targets) else {}
            for number, target in enumerate(targets):
                onward = (
                    cheapest_tree(network, cost, hop, root)
                    if target is None
                    else hops_along(network, followed(parent, target, root)[::-1])
                )
                columns.append(column_of(number, loads_of(up + onward), (root, up, onward)))
        return columns

    return oracle


def pack_group(
    network: FlowNetwork, group: NestedGroup, targets: Sequence[Target] = (None,), bound: Fraction | None = None
) -> ExactPacking | None:
    """The best packing of in-trees of ``group``, with an equal part per target; None if there is no in-tree.

    ``bound`` is a proved upper bound on the rate.
    """
    if not group.heads(cheapest_hops(network, dict.fromkeys(network.capacity, 1))[0]):
        return None
    demand = [Fraction(1, len(targets))] * len(targets)
    return pack_columns(network.capacity, demand, grouped_oracle(network, group, targets), target=bound)


def best_group(
    network: FlowNetwork, starts: Sequence[NestedGroup], bound: Fraction, tries: int
) -> tuple[NestedGroup, Fraction]:
    """The group with the highest rate found in ``tries`` packings, by hill climbing from ``starts``.

    A step moves one terminal, merges a group with the group above it, or exchanges the two. If no step
    raises the rate, a step to a group with more in-trees is made, unless tries are few. A neighbour is not packed if
    :class:`Limits` show that its rate is no higher. The search ends at ``bound``, or after :data:`LOOKS` neighbours.
    PackingError if no start has an in-tree.
    """
    search = _GroupSearch(network, bound, tries)
    ranked = sorted(search.worthwhile(starts), key=search.rate, reverse=True)
    best = ranked[0]
    for start in ranked:
        top = search.climbed(start)
        if search.rate(top) > search.rate(best):
            best = top
        if search.ended(best):
            break
    if not search.rate(best):
        raise PackingError("no group of the search can reduce all contributions: some path is missing")
    return best, search.rate(best)


class _GroupSearch:
    """Hill climbing with a limited number of packings; it remembers all computed rates."""

    def __init__(self, network: FlowNetwork, bound: Fraction, tries: int) -> None:
        self._network, self._bound, self._tries = network, bound, tries
        self._ones = cheapest_hops(network, dict.fromkeys(network.capacity, 1))[0]
        self._rates: dict[NestedGroup, Fraction] = {}
        self._limits, self._looks, self._few = Limits(network), 0, tries < FEW

    def rate(self, group: NestedGroup) -> Fraction:
        """The rate of a group. It is 0 without an in-tree, which needs no packing."""
        if group not in self._rates:
            if not group.in_trees(self._ones):
                return Fraction(0)
            packing = pack_group(self._network, group, bound=self._bound)
            self._rates[group] = Fraction(0) if packing is None else packing.rate
            if packing is not None and packing.prices:
                self._limits.add(packing.prices)
        return self._rates[group]

    def worthwhile(self, starts: Sequence[NestedGroup]) -> list[NestedGroup]:
        """Different starts; with few tries, only those that can have a higher rate than all before them."""
        selected, best = list[NestedGroup](), 0.0
        for start in dict.fromkeys(starts):
            if not self._few or self._limits.of(start) > best * (1 + ROUNDING):
                selected.append(start)
                best = max(best, float(self.rate(start)))
        return selected

    def ended(self, group: NestedGroup) -> bool:
        """True if the bound or a limit of work is reached."""
        return self.rate(group) == self._bound or len(self._rates) >= self._tries or self._looks >= LOOKS

    def climbed(self, start: NestedGroup) -> NestedGroup:
        """The local optimum reached from ``start``."""
        best: NestedGroup | None = start
        while best is not None:
            start = best
            best = None if self.ended(start) else self._step(start)
        return start

    def _step(self, group: NestedGroup) -> NestedGroup | None:
        """A neighbour with a higher rate, most promising first in each batch; else one of equal rate, or None."""
        rate, left = float(self.rate(group)), list[NestedGroup]()
        every = neighbours(group)
        while not self.ended(group) and (batch := list(itertools.islice(every, BATCH))):
            self._looks += len(batch)
            limits = [(self._limits.of(each), each) for each in batch]
            left += [each for limit, each in limits if limit >= rate * (1 - ROUNDING)]
            limits.sort(key=lambda pair: -pair[0])
            for limit, each in limits:
                if limit <= rate * (1 + ROUNDING) or self.ended(group):
                    break
                if self._limits.of(each) > rate * (1 + ROUNDING) and self.rate(each) > self.rate(group):
                    return each
        return None if self._few else self._beside(group, left)

    def _beside(self, group: NestedGroup, left: Sequence[NestedGroup]) -> NestedGroup | None:
        """The neighbour of equal rate with the most in-trees, if it has more than ``group``."""
        most = group.in_trees(self._ones)
        counts = sorted(((each.in_trees(self._ones), i) for i, each in enumerate(left)), key=lambda pair: -pair[0])
        for count, i in counts:
            if count <= most or self.ended(group):
                break
            if self.rate(left[i]) == self.rate(group):
                return left[i]
        return None


class Limits:
    """Upper bounds on rates of groups, by the prices of earlier packings, so that most groups need no packing."""

    def __init__(self, network: FlowNetwork) -> None:
        self._network = network
        self._kept: deque[tuple[_Array, _Array, float]] = deque(maxlen=LIMITS)
        self._cost, self._down, self._worth = np.zeros((0, 0, 0)), np.zeros((0, 0)), np.zeros(0)
        self._heads: dict[NestedGroup, _Array] = {}

    def add(self, prices: Prices) -> None:
        """Add the prices of a packing; only the last :data:`LIMITS` are kept."""
        network, floats = self._network, {arc: float(price) for arc, price in prices.items()}
        cost, hop = cheapest_hops(network, floats)
        trees = [cheapest_tree(network, cost, hop, root) for root in range(network.terminals)]
        down = np.array([column_of(0, loads_of(tree), None).cost(floats) for tree in trees])
        hops = np.array([[inf if each is None else each for each in row] for row in cost], float)
        np.fill_diagonal(hops, 0.0)
        self._kept.appendleft((hops, down, sum(network.capacity[arc] * price for arc, price in floats.items())))
        self._cost = np.stack([hops for hops, _, _ in self._kept])
        self._down = np.stack([down for _, down, _ in self._kept])
        self._worth = np.array([worth for _, _, worth in self._kept])
        self._heads.clear()

    def of(self, group: NestedGroup) -> float:
        """Upper bound on the rate of ``group``: 0 without an in-tree, infinity before any packing."""
        if not self._kept:
            return inf
        least = (self._spent(group) + self._down[:, group.members]).min(axis=1)
        return float(min(worth / spent if spent > 0 else inf for worth, spent in zip(self._worth, least, strict=True)))

    def _spent(self, group: NestedGroup) -> _Array:
        """Least cost of an in-tree by kept prices (rows) and head (columns)."""
        if group not in self._heads:
            members = np.array(group.members)
            total = self._cost[:, members[:, None], members].sum(axis=1)
            for each in group.below:
                senders = np.array(each.members)
                total += (self._spent(each)[:, :, None] + self._cost[:, senders[:, None], members]).min(axis=1)
            self._heads[group] = total
        return self._heads[group]


# Neighbours. A raw group is (members, below) in any order and possibly without members; _tidied makes it a group.
_Raw = tuple[tuple[int, ...], tuple[Any, ...]]
_Place = tuple[int, ...]


def neighbours(group: NestedGroup) -> Iterator[NestedGroup]:
    """Groups that differ by one step, without duplicates."""
    yielded = {group}
    for raw in _steps(_raw(group)):
        tidy = _tidied(raw)
        if tidy is not None and tidy not in yielded:
            yielded.add(tidy)
            yield tidy


def _steps(group: _Raw) -> Iterator[_Raw]:
    for place in _places(group):
        if place:
            yield from _with_the_one_above(group, place)
    for terminal in sorted(terminal for place in _places(group) for terminal in _at(group, place)[0]):
        rest = _without(group, terminal)
        for place in _places(rest):
            members, below = _at(rest, place)
            yield _put(rest, place, ((*members, terminal), below))
            yield _put(rest, place, ((terminal,), ((members, below),)))
            for other in members:
                others = tuple(v for v in members if v != other)
                yield _put(rest, place, (others, (*below, ((terminal, other), ()))))


def _with_the_one_above(group: _Raw, place: _Place) -> Iterator[_Raw]:
    """The group at ``place`` merged with the one above it, then exchanged with it."""
    above, at = place[:-1], place[-1]
    members, below = _at(group, above)
    lower, under = below[at]
    others = below[:at] + below[at + 1 :]
    yield _put(group, above, (members + lower, others + under))
    yield _put(group, above, (lower, (*under, (members, others))))


def _places(group: _Raw) -> Iterator[_Place]:
    stack: list[tuple[_Place, _Raw]] = [((), group)]
    while stack:
        place, (_, below) = stack.pop()
        yield place
        stack += [((*place, i), each) for i, each in enumerate(below)][::-1]


def _at(group: _Raw, place: _Place) -> _Raw:
    for i in place:
        group = group[1][i]
    return group


def _put(group: _Raw, place: _Place, new: _Raw) -> _Raw:
    if not place:
        return new
    members, below = group
    at = place[0]
    return members, (*below[:at], _put(below[at], place[1:], new), *below[at + 1 :])


def _without(group: _Raw, terminal: int) -> _Raw:
    members, below = group
    return tuple(v for v in members if v != terminal), tuple(_without(each, terminal) for each in below)


def _raw(group: NestedGroup) -> _Raw:
    return group.members, tuple(map(_raw, group.below))


def _tidied(raw: _Raw) -> NestedGroup | None:
    """The group of ``raw``; single operands move up. None if some group has no member as head."""
    members, below = list(raw[0]), []
    for each in raw[1]:
        if not each[0] and not each[1]:
            continue
        tidy = _tidied(each)
        if tidy is None:
            return None
        if len(tidy.members) + len(tidy.below) < 2:
            members += tidy.members
        else:
            below.append(tidy)
    if not members:
        return below[0] if len(below) == 1 else None
    return NestedGroup(tuple(sorted(members)), tuple(sorted(below)))


def group_of_tree(root: int, hops: Hops) -> NestedGroup:
    """The groups of an in-tree: an inner vertex, its leaf senders, and the groups of its other senders."""
    senders: dict[int, list[int]] = {}
    for hop in hops:
        senders.setdefault(hop[-1], []).append(hop[0])
    order = [root]
    for vertex in order:
        order += senders.get(vertex, ())
    groups: dict[int, NestedGroup] = {}
    for vertex in reversed(order):
        if vertex in senders or vertex == root:
            leaves = [v for v in senders.get(vertex, ()) if v not in senders]
            below = sorted(groups[v] for v in senders.get(vertex, ()) if v in senders)
            groups[vertex] = NestedGroup(tuple(sorted([vertex, *leaves])), tuple(below))
    return groups[root]


def wide_groups(network: FlowNetwork, most: int) -> list[NestedGroup]:
    """The groups of in-trees over wide links, to each of the ``most`` terminals with the largest total link width.

    An order with a single in-tree is as fast as its narrowest link, so a link costs 1 / width².
    """
    backward = network.reversed()
    cost = {(v, u): Fraction(1, width**2) for (u, v), width in network.capacity.items()}
    hops = cheapest_hops(backward, cost)
    width = [sum(c for arc, c in network.capacity.items() if v in arc) for v in range(network.terminals)]
    roots = sorted(range(network.terminals), key=lambda v: (-width[v], v))[:most]
    trees = {root: cheapest_tree(backward, *hops, root) for root in roots}
    return [group_of_tree(root, turned(tree)) for root, tree in trees.items()]


def clique_groups(network: FlowNetwork, most: int, among: Sequence[int] | None = None) -> NestedGroup:
    """A tree of groups of up to ``most`` terminals that are near each other; ``among`` are the terminals (None: all).

    Two terminals are near if hops in both directions have the fewest links of all hops. A clique starts at the terminal
    with the fewest near ones left. It grows by terminals near all members, that with the most near ones in common with
    the first member first.
    """
    cost, hop = cheapest_hops(network, dict.fromkeys(network.capacity, 1))
    every = range(network.terminals) if among is None else among
    pairs = [(u, v) for u in every for v in every if u != v and None not in (cost[u][v], cost[v][u])]
    links = min((len(hop(u, v)) for u, v in pairs), default=0)
    near: dict[int, set[int]] = {u: set() for u in every}
    for u, v in pairs:
        if len(hop(u, v)) == links:
            near[u].add(v)
    left = dict.fromkeys(every)
    cliques: list[list[int]] = []
    while left:
        clique = [min(left, key=lambda v: (len(near[v] & left.keys()), v))]
        del left[clique[0]]
        while len(clique) < most:
            fits = [v for v in left if all(v in near[u] for u in clique)]
            if not fits:
                break
            clique.append(max(fits, key=lambda v: (len(near[v] & near[clique[0]]), -v)))
            del left[clique[-1]]
        cliques.append(clique)
    return _as_tree(cliques, near)


def _as_tree(cliques: Sequence[Sequence[int]], near: Mapping[int, set[int]]) -> NestedGroup:
    """A tree of the cliques. It starts at the clique with most hops, and grows by the one with most hops to it."""

    def hops(a: int, b: int) -> int:
        """Members of one clique near a member of the other, in the worse direction: the possible heads to send to."""
        return min(sum(any(v in near[u] for u in cliques[x]) for v in cliques[y]) for x, y in ((a, b), (b, a)))

    every = range(len(cliques))
    root = max(every, key=lambda a: (sum(hops(a, b) for b in every if a != b), -a))
    below: dict[int, list[int]] = {root: []}
    while len(below) < len(cliques):
        pairs = [(a, b) for a in below for b in every if b not in below]
        above, added = max(pairs, key=lambda pair: (hops(*pair), -len(below[pair[0]]), -pair[1]))
        below[above].append(added)
        below[added] = []
    raws: dict[int, _Raw] = {}
    for each in reversed(below):
        raws[each] = (tuple(cliques[each]), tuple(raws[b] for b in below[each]))
    tidy = _tidied(raws[root])
    assert tidy is not None
    return tidy
