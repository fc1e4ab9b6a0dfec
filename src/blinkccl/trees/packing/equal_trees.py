"""Few trees of equal weight, near a rate that is known: what one would run where exact weights are long fractions.

k trees from a root, or k in all, each with 1/k of the data: weights divide without rest, and chunks are alike. They
are found by rerouting (native/packing/equal_trees.cpp): trees are grown one after the other under prices that grow with
the load of links, again and again; then hops that are not needed are taken out, and what is deep is hung nearer to the
root. How near to the rate they come is counted here, in whole numbers; nothing is proved by the search itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from blinkccl.errors import PackingError
from blinkccl.trees.packing import clock, native_flows
from blinkccl.trees.packing.network import Arc, FlowNetwork, OutTree, hops_deep

#: How much of the rate may be missing.
LOSS = Fraction(1, 100)
#: Levels above the fewest hops in which a root reaches all.
SPARE_LEVELS = 1
#: Numbers of trees that are tried for being few, and as many for the room that they leave.
MOST_TRIED = 8
#: Trees that are looked for at once, at most: 1,024 ranks have two each.
MOST_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class EqualTrees:
    """``rate`` is what the trees carry: per root, or in all; ``trees`` are (root, its part of the rate, hops)."""

    rate: Fraction
    trees: tuple[OutTree, ...]

    def near(self, rate: Fraction) -> bool:
        """Whether no more than :data:`LOSS` of ``rate`` is missing."""
        return self.rate >= rate * (1 - LOSS)

    @property
    def depth(self) -> int:
        """The most hops from a root to a terminal."""
        return max(hops_deep(root, hops) for root, _, hops in self.trees)


def from_roots(
    network: FlowNetwork, roots: Sequence[int], rate: Fraction, most: int, cut: Iterable[int] = ()
) -> EqualTrees:
    """The same number of out-trees, at most ``most``, from each root, near ``rate`` per root.

    The fewest that are near; where none are, those that come nearest. ``cut`` is a side that limits the rate.
    PackingError where a root does not reach all.
    """
    side = frozenset(cut)
    inside = sum(root in side for root in roots)
    prices = {(u, v): Fraction(1, inside) for u, v, _ in network.arcs if u in side and v not in side}
    most = max(1, min(most, MOST_AT_ONCE // len(roots)))
    return _best(
        rate,
        (
            weighed(network, [root for root in roots for _ in range(k)], k, rate)
            for k in divisible(network, rate, most, prices)
        ),
    )


def up_and_down(network: FlowNetwork, rate: Fraction, most: int, prices: Mapping[Arc, Fraction | int]) -> EqualTrees:
    """At most ``most`` trees in all, each used up to its root and down again, near ``rate``; raises as above.

    Links must be symmetric: a hop loads both directions alike. ``prices`` prove the rate, and are symmetric too.
    """
    return _best(
        rate,
        (
            weighed(network, spread(network, k), k, rate, both_ways=True)
            for k in divisible(network, rate, min(most, MOST_AT_ONCE), prices)
        ),
    )


def spread(network: FlowNetwork, count: int) -> list[int]:
    """So many terminals, at equal distances by number."""
    return [i * network.terminals // count for i in range(count)]


def divisible(network: FlowNetwork, rate: Fraction, most: int, prices: Mapping[Arc, Fraction | int]) -> list[int]:
    """The numbers of trees, up to ``most``, that links may share out near ``rate``; ``most`` where there are none.

    The least of them, and those that leave most room, the largest of such as leave the same.

    With prices y that prove the rate, k trees cost k·Σ c·y / rate at least, and whole trees on each link at most
    Σ ⌊k·c / near⌋·y.
    """
    price_of: dict[int, Fraction] = {}  # of all links of a capacity
    for arc, price in prices.items():
        price_of[network.capacity[arc]] = price_of.get(network.capacity[arc], Fraction(0)) + price
    cost = sum((c * price for c, price in price_of.items()), Fraction(0)) / rate
    near = rate * (1 - LOSS)
    room = {
        k: sum((int(k * c / near) * price for c, price in price_of.items()), Fraction(0)) - k * cost
        for k in range(1, most + 1)
    }
    fit = [k for k in room if room[k] >= 0]
    roomy = sorted(fit, key=lambda k: (-room[k] / k, -k))[:MOST_TRIED]
    return [*fit[:MOST_TRIED], *(k for k in sorted(roomy) if k not in fit[:MOST_TRIED])] or [most]


def _best(rate: Fraction, tried: Iterable[EqualTrees | None]) -> EqualTrees:
    best: EqualTrees | None = None
    for found in tried:
        if found is None:
            break
        clock.reached(found.rate / rate)
        clock.look()
        if best is None or found.rate > best.rate:
            best = found
        if found.near(rate):
            break
    if best is None:
        raise PackingError("some terminal cannot be reached")
    return best


def weighed(
    network: FlowNetwork, roots: Sequence[int], count: int, rate: Fraction, *, both_ways: bool = False
) -> EqualTrees | None:
    """A tree from each of ``roots``, each 1/``count`` of a rate that is hoped for; None where one does not reach all.

    With ``both_ways`` links, which must be symmetric, are loaded alike in both directions.
    """
    numbers = {(u, v): i for i, (u, v, _) in enumerate(network.arcs)}
    edges = [numbers[min((u, v), (v, u))] if both_ways else i for (u, v), i in numbers.items()]
    most = [float(count * c / rate) for _, _, c in network.arcs]
    depth = max(network.hop_eccentricity(root) for root in set(roots)) + SPARE_LEVELS
    trees = native_flows.equal_trees(network, roots, depth, edges, most, float(1 / (1 - LOSS)))
    if trees is None:
        return None
    load: Counter[int] = Counter()
    number = {(u, v): edge for (u, v, _), edge in zip(network.arcs, edges, strict=True)}
    for tree in trees:
        load.update(number[arc] for hop in tree for arc in pairwise(hop))
    reached = min(Fraction(network.arcs[edge][2] * count, units) for edge, units in load.items())
    equal = Counter(zip(roots, trees, strict=True))
    parts = tuple((root, Fraction(times, count), tree) for (root, tree), times in equal.items())
    return EqualTrees(reached, parts)
