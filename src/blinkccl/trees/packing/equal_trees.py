"""Few trees of equal weight, near a known rate: an alternative to exact weights with large denominators.

There are k trees from a root, or k in all, and each has 1/k of the data, so all chunks have equal size. The search is
rerouting (native/packing/equal_trees.cpp). Repeatedly, it grows one tree after the other under prices that rise with
the load of links. Then it removes unneeded hops, and moves deep vertices nearer to the root. This module computes the
attained rate in integers; the search itself proves nothing.
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

#: The fraction of the rate that may be lost.
LOSS = Fraction(1, 100)
#: Allowed depth beyond the fewest hops from a root to all terminals.
SPARE_LEVELS = 1
#: Numbers of trees to try: the smallest ones, and as many that leave the most room on links.
MOST_TRIED = 8
#: Most trees in one search: 1,024 ranks have two each.
MOST_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class EqualTrees:
    """The ``rate`` of the trees, per root or in all; ``trees`` are (root, fraction of the rate, hops)."""

    rate: Fraction
    trees: tuple[OutTree, ...]

    def near(self, rate: Fraction) -> bool:
        """True if at most :data:`LOSS` of ``rate`` is lost."""
        return self.rate >= rate * (1 - LOSS)

    @property
    def depth(self) -> int:
        """The most hops from a root to a terminal."""
        return max(hops_deep(root, hops) for root, _, hops in self.trees)


def from_roots(
    network: FlowNetwork, roots: Sequence[int], rate: Fraction, most: int, cut: Iterable[int] = ()
) -> EqualTrees:
    """The same number of out-trees, at most ``most``, from each root, near ``rate`` per root.

    The result is the fewest trees near the rate, or else the fastest trees found. ``cut`` is the side of a cut that
    limits the rate. PackingError if a root cannot reach every terminal.
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
    """At most ``most`` trees in all, each used up to its root and down again, near ``rate``.

    Links must be symmetric, because a hop loads both directions equally. ``prices`` prove the rate; they must be
    symmetric too. PackingError as in :func:`from_roots`.
    """
    return _best(
        rate,
        (
            weighed(network, spread(network, k), k, rate, both_ways=True)
            for k in divisible(network, rate, min(most, MOST_AT_ONCE), prices)
        ),
    )


def spread(network: FlowNetwork, count: int) -> list[int]:
    """``count`` terminals, evenly spaced by number."""
    return [i * network.terminals // count for i in range(count)]


def divisible(network: FlowNetwork, rate: Fraction, most: int, prices: Mapping[Arc, Fraction | int]) -> list[int]:
    """Numbers of trees, up to ``most``, for which whole trees per link may come near ``rate``; else ``most`` alone.

    The result has the smallest such numbers, and those that leave the most room (the largest ones among equals).

    Under prices y that prove the rate, k trees cost at least k·Σ c·y / rate, and whole trees on each link cost at most
    Σ ⌊k·c / near⌋·y.
    """
    price_of: dict[int, Fraction] = {}  # total price of all links of a capacity
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
    for trees in tried:
        if trees is None:
            break
        clock.reached(trees.rate / rate)
        clock.look()
        if best is None or trees.rate > best.rate:
            best = trees
        if trees.near(rate):
            break
    if best is None:
        raise PackingError("some terminal cannot be reached")
    return best


def weighed(
    network: FlowNetwork, roots: Sequence[int], count: int, rate: Fraction, *, both_ways: bool = False
) -> EqualTrees | None:
    """A tree from each of ``roots``, each with 1/``count`` of the target ``rate``; None if a root cannot reach all.

    With ``both_ways``, a hop loads both directions of its links equally; links must be symmetric.
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
