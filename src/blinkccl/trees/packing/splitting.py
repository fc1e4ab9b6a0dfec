"""Removal of switches from a network, so that trees can be packed among the terminals alone, in integers.

An arc u → w into a switch and an arc w → t out of it are *split off*: some of their capacity becomes an arc u → t. If
every switch has equal capacity in and out, all of it can be split off. Every terminal then still receives the data of
all roots (Bang-Jensen, Frank and Jackson 1995; for AllGather arXiv 2402.06787). So arborescences of these roots
exist (:mod:`~blinkccl.trees.packing.integral`). Splitting a pair reduces every cut with u and t on one side and w on
the other. The slack of these cuts limits the units of the pair.

The order of pairs is free, and it determines the depth of trees. First, two plans for the whole switch are tried, each
with one test of all cuts. In the first plan each end sends equal parts to the ends with the same index in all other
groups that the switch joins (rails). In the second it sends to all ends of other groups. If both fail, pairs are split
one by one, pairs of the rails first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blinkccl.trees.packing import clock
from blinkccl.trees.packing.bottleneck import short_cuts
from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.native_flows import INFINITE, admissible
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops

#: Most maximum flows for pairs that are split one by one: a minute or two.
MOST_FLOWS = 1_000_000


@dataclass(frozen=True)
class Direct:
    """The ``network`` of the terminals alone. ``ways`` are the hops of each arc, with their units."""

    network: FlowNetwork
    ways: Mapping[Arc, tuple[tuple[Hop, int], ...]]

    def unfolded(self, trees: Sequence[Arborescence]) -> list[tuple[int, int, Hops]]:
        """(root, units, hops) of trees in the network with its switches, from trees that fit into the arcs.

        A tree may become several trees if its arcs stand for several hops.
        """
        left = {arc: list(ways) for arc, ways in self.ways.items()}
        unfolded = []
        for tree in sorted(trees, key=lambda tree: -tree.multiplicity):
            missing = tree.multiplicity
            while missing:
                best = [min(left[arc], key=lambda way: (way[1] < missing, abs(way[1] - missing))) for arc in tree.arcs]
                units = min([missing, *(width for _, width in best)])
                for arc, (hop, width) in zip(tree.arcs, best, strict=True):
                    left[arc].remove((hop, width))
                    left[arc] += [(hop, width - units)] * (width > units)
                unfolded.append((tree.root, units, tuple(hop for hop, _ in best)))
                missing -= units
        return unfolded


def without_transit(network: FlowNetwork, demand: Mapping[int, int]) -> Direct | None:
    """The network without its switches, in which ``demand[r]`` units from every root r still reach every terminal.

    They must reach every terminal in ``network``. None in two cases: unequal capacities in and out of a switch keep
    some units from a terminal, or there are too many pairs to test.
    """
    for trusting in (True, False):
        splitting = _Splitting(network, demand, trusting=trusting)
        direct = splitting.run()
        if direct is not None and all_reach(direct.network, splitting.demand):
            return direct
    return None


class _Splitting:
    """One pass over all switches. ``trusting`` uses rails untested; usually one final test accepts them all."""

    def __init__(self, network: FlowNetwork, demand: Mapping[int, int], *, trusting: bool) -> None:
        self.trusting = trusting
        self.n, self.terminals = network.n, network.terminals
        self.demand = [demand.get(v, 0) for v in range(network.terminals)]
        self.capacity = dict(network.capacity)
        self.ways: dict[Arc, list[tuple[Hop, int]]] = {arc: [(arc, c)] for arc, c in network.capacity.items()}
        self.left = set(range(network.terminals, network.n))  # remaining transit

    def run(self) -> Direct | None:
        while self.left:
            clock.look()
            w = min(self.left, key=lambda v: (len(self._into(v)) + len(self._out_of(v)), v))
            if not self._taken_out(w):
                return None
        arcs = tuple((u, v, c) for (u, v), c in sorted(self.capacity.items()))
        ways = {(u, v): tuple(self.ways[u, v]) for u, v, _ in arcs}
        return Direct(FlowNetwork(self.terminals, self.terminals, arcs), ways)

    def _into(self, w: int) -> dict[int, int]:
        return {u: c for (u, v), c in self.capacity.items() if v == w}

    def _out_of(self, w: int) -> dict[int, int]:
        return {v: c for (u, v), c in self.capacity.items() if u == w}

    def _taken_out(self, w: int) -> bool:
        into, out = self._into(w), self._out_of(w)
        group = self._groups(w, sorted({*into, *out}))
        plans = [dict(_shared(into, out, partners)) for partners in (_rails(group), _all_others(group))]
        plan = plans[0] if self.trusting else next((plan for plan in plans if self._may_be(w, plan)), None)
        if plan is None:
            if len(into) * len(out) * self.terminals > MOST_FLOWS:
                return False
            plan = self._one_by_one(w, into, out, plans[0])
        for (u, t), units in plan.items():
            self._split(u, w, t, units)
        for arc in [arc for arc in self.capacity if w in arc]:  # capacity that no tree needs
            del self.capacity[arc]
        self.left.remove(w)
        return True

    def _groups(self, w: int, ends: Sequence[int]) -> list[list[int]]:
        """The ends of w, grouped by connection without switches; each end is its own group if all are connected."""
        near: dict[int, list[int]] = {}
        for u, v in self.capacity:
            if u not in self.left and v not in self.left:
                near.setdefault(u, []).append(v)
                near.setdefault(v, []).append(u)
        home: dict[int, int] = {}
        for start in ends:
            stack = [start]
            while stack:
                v = stack.pop()
                if v not in home:
                    home[v] = start
                    stack += near.get(v, ())
        groups: dict[int, list[int]] = {}
        for v in ends:
            groups.setdefault(home[v], []).append(v)
        return list(groups.values()) if len(groups) > 1 else [[v] for v in ends]

    def _may_be(self, w: int, plan: Mapping[Arc, int]) -> bool:
        """True if all demands still fit with ``plan`` in place of the switch."""
        capacity = {arc: c for arc, c in self.capacity.items() if w not in arc}
        for (u, t), units in plan.items():
            capacity[u, t] = capacity.get((u, t), 0) + units
        arcs = tuple((u, v, c) for (u, v), c in capacity.items())
        return all_reach(FlowNetwork(self.n, self.terminals, arcs), self.demand)

    def _one_by_one(
        self, w: int, into: Mapping[int, int], out: Mapping[int, int], first: Mapping[Arc, int]
    ) -> dict[Arc, int]:
        """Units per pair that may be split off: first up to those of ``first``, then the rest in any pairs."""
        capacity, split, order = dict(self.capacity), dict.fromkeys(first, 0), list(range(self.terminals))
        others = sorted(
            ((u, t) for u in into for t in out), key=lambda pair: (pair not in first, pair[0] == pair[1], pair)
        )
        for (u, t), most in [*first.items(), *((pair, INFINITE) for pair in others)]:
            limit = min(most, capacity.get((u, w), 0), capacity.get((w, t), 0))
            if limit:
                arcs = tuple((a, b, c) for (a, b), c in capacity.items() if c)
                units = admissible(FlowNetwork(self.n, self.terminals, arcs), self.demand, (u, w, t), limit, order)
                split[u, t] = split.get((u, t), 0) + units
                capacity[u, w] -= units
                capacity[w, t] -= units
                if u != t:
                    capacity[u, t] = capacity.get((u, t), 0) + units
        return {pair: units for pair, units in split.items() if units and pair[0] != pair[1]}

    def _split(self, u: int, w: int, t: int, units: int) -> None:
        into, out, ways = self.ways[u, w], self.ways[w, t], self.ways.setdefault((u, t), [])
        self.capacity[u, t] = self.capacity.get((u, t), 0) + units
        while units:
            (before, some), (after, more) = into.pop(), out.pop()
            part = min(units, some, more)
            ways.append((_straight(before + after[1:]), part))
            into += [(before, some - part)] * (some > part)
            out += [(after, more - part)] * (more > part)
            units -= part


def _straight(hop: Hop) -> Hop:
    """The hop without cycles. A switch removed earlier may be twice on a path through a later one."""
    way: list[int] = []
    for v in hop:
        if v in way:
            del way[way.index(v) + 1 :]
        else:
            way.append(v)
    return tuple(way)


def _rails(groups: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """For each end, the ends with the same index in all other groups."""
    return {
        v: [other[place % len(other)] for other in groups if other is not group]
        for group in groups
        for place, v in enumerate(group)
    }


def _all_others(groups: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    return {v: [t for other in groups if other is not group for t in other] for group in groups for v in group}


def _shared(
    into: Mapping[int, int], out: Mapping[int, int], partners: Mapping[int, Sequence[int]]
) -> Iterator[tuple[Arc, int]]:
    """Units per pair of partners: equal parts of the capacity of both ends, then the rest in the order of pairs."""
    pairs = [(u, t) for u in into for t in partners[u] if t in out]
    leaving, entering = dict(into), dict(out)
    from_each, to_each = Counter(u for u, _ in pairs), Counter(t for _, t in pairs)
    units = {(u, t): min(into[u] // from_each[u], out[t] // to_each[t]) for u, t in pairs}
    for (u, t), part in units.items():
        leaving[u] -= part
        entering[t] -= part
    for u, t in pairs:
        more = min(leaving[u], entering[t])
        leaving[u] -= more
        entering[t] -= more
        if units[u, t] + more:
            yield (u, t), units[u, t] + more


def all_reach(network: FlowNetwork, demand: Sequence[int]) -> bool:
    """True if every terminal can receive ``demand[r]`` units from all terminals r at once."""
    return next(short_cuts(network, demand), None) is None
