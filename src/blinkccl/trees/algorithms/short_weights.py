"""Short weights: parts of a block that are multiples of 1/q, q at most 64, for at most a hundredth of the rate.

The optimum of a linear program has weights like 47/91, or of dozens of digits, and chunks want few. Here the trees of a
plan stay, and for each q every tree gets a whole number of the q units of its block: what is nearest to its weight, and
then units go from a tree that crosses the fullest link to another tree of the same block, for as long as that helps.
Blocks that are cut alike, as those of ranks that are alike, are dealt alike, so that what is symmetric stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkccl.trees.forest.model import Forest, attained_rate, crossings
from blinkccl.trees.packing.equal_trees import LOSS

#: The largest denominator that a weight may have, as a part of a block.
LONGEST_WEIGHT = 64
#: So many q, the best as they are, are looked at for moves of units, with so many looks at loads in all.
FEW_IMPROVED, MOST_LOOKS = 8, 1_000_000

Arc = tuple[int, int]


def least_rate(forest: Forest) -> Fraction:
    """What must be left of its rate: all but a hundredth, of the bound where it is as near to that."""
    near = forest.bound * (1 - LOSS)
    return max(forest.rate * (1 - LOSS), near) if forest.rate >= near else forest.rate * (1 - LOSS)


def shortened(forest: Forest) -> Forest:
    """The same trees with short weights, the fastest found; ``forest`` itself where its are, or too much is lost."""
    if forest.longest_weight <= LONGEST_WEIGHT:
        return forest
    weights = _Dealing(forest).best()
    shares = tuple(
        replace(share, weight=weight) for share, weight in zip(forest.shares, weights, strict=True) if weight
    )
    shares = tuple(replace(share, slice=number) for number, share in enumerate(shares))
    rate = attained_rate(forest.topology, shares)
    return replace(forest, shares=shares, rate=rate) if rate >= least_rate(forest) else forest


@dataclass(frozen=True, slots=True)
class _Class:
    """Shares that get as many units: one of each group that is cut alike. ``part`` is of a group, ``load`` of all."""

    group: int
    part: Fraction
    load: dict[Arc, int]
    shares: tuple[int, ...]


class _Dealing:
    """Units for the shares of a forest."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._blocks = 1 if forest.collective.root is not None else len(forest.ranks)
        self._classes, self._blocks_of_group = _classes(forest, self._blocks)
        self._looks = 0
        self._capacity = {arc: forest.topology.link[arc].capacity for arc in crossings(forest.shares)}

    def best(self) -> list[Fraction]:
        """The weights that are the fastest; of such the shortest."""
        dealt = {q: self._nearest(q) for q in range(1, LONGEST_WEIGHT + 1)}
        fullest = {q: max(self._full(units).values()) / q for q, units in dealt.items()}
        for q in sorted(dealt, key=lambda q: fullest[q])[:FEW_IMPROVED]:
            fullest[q] = self._improved(dealt[q]) / q
        limit = min(fullest.values()) * (1 + 1e-9)
        best = min(q for q in dealt if fullest[q] <= limit)
        weights = [Fraction(0)] * len(self._forest.shares)
        for kind, units in zip(self._classes, dealt[best], strict=True):
            for share in kind.shares:
                weights[share] = Fraction(units, best * self._blocks)
        return weights

    def _nearest(self, q: int) -> list[int]:
        """Whole units by the largest remainders: q for each block of a group."""
        exact = [kind.part * q * self._blocks_of_group[kind.group] for kind in self._classes]
        units = [int(x) for x in exact]
        for group, blocks in enumerate(self._blocks_of_group):
            mine = [i for i, kind in enumerate(self._classes) if kind.group == group]
            mine.sort(key=lambda i: units[i] - exact[i])
            for i in mine[: q * blocks - sum(units[i] for i in mine)]:
                units[i] += 1
        return units

    def _full(self, units: Sequence[int]) -> dict[Arc, float]:
        """How full each link is."""
        load: Counter[Arc] = Counter()
        for kind, count in zip(self._classes, units, strict=True):
            if count:
                for arc, times in kind.load.items():
                    load[arc] += count * times
        return {arc: load[arc] / capacity for arc, capacity in self._capacity.items()}

    def _improved(self, units: list[int]) -> float:
        """Moves units, and says how full that leaves the fullest link."""
        full = self._full(units)
        while (move := self._move(units, full, max(full, key=lambda arc: full[arc]))) is not None:
            source, target = move
            units[source] -= 1
            units[target] += 1
            for arc, change in _changes(self._classes[source], self._classes[target]).items():
                full[arc] += change / self._capacity[arc]
        return max(full.values())

    def _move(self, units: Sequence[int], full: dict[Arc, float], fullest: Arc) -> tuple[int, int] | None:
        """A unit less of a tree on the fullest link, one more of another, so that nothing it loads becomes as full."""
        best, limit = None, full[fullest] * (1 - 1e-9)
        for i, source in enumerate(self._classes):
            if not units[i] or fullest not in source.load:
                continue
            for j, target in enumerate(self._classes):
                if target.group != source.group or target.load.get(fullest, 0) >= source.load[fullest]:
                    continue
                self._looks += len(source.load) + len(target.load)
                if self._looks > MOST_LOOKS:
                    return None
                changes = _changes(source, target)
                worst = max(full[arc] + change / self._capacity[arc] for arc, change in changes.items())
                if worst < limit:
                    best, limit = (i, j), worst
        return best


def _changes(source: _Class, target: _Class) -> dict[Arc, int]:
    """By how much the load of arcs changes when a unit goes from one to the other."""
    changes = {arc: -times for arc, times in source.load.items()}
    for arc, times in target.load.items():
        changes[arc] = changes.get(arc, 0) + times
    return {arc: change for arc, change in changes.items() if change}


def _classes(forest: Forest, blocks: int) -> tuple[list[_Class], list[int]]:
    """The classes of a forest's shares, and for each group of them how many blocks it has.

    Of an AllReduce all of S is one group of N blocks, unless every root has a block's worth: then each has a group.
    """
    by_block: dict[object, list[int]] = {}
    for i, share in enumerate(forest.shares):
        by_block.setdefault(share.block, []).append(i)
    if blocks > 1 and set(by_block) == {None}:
        by_root: dict[object, list[int]] = {}
        for i, share in enumerate(forest.shares):
            by_root.setdefault(share.root, []).append(i)
        totals = {sum((forest.shares[i].weight for i in mine), Fraction(0)) for mine in by_root.values()}
        by_block = by_root if totals == {Fraction(1, blocks)} else by_block
    alike: dict[tuple[Fraction, ...], list[list[int]]] = {}
    for mine in by_block.values():
        ordered = sorted(mine, key=lambda i: -forest.shares[i].weight)
        alike.setdefault(tuple(forest.shares[i].weight for i in ordered), []).append(ordered)
    classes = []
    blocks_of_group = []
    for group, (weights, members) in enumerate(alike.items()):
        total = sum(weights)
        blocks_of_group.append(int(total * blocks))
        for place, weight in enumerate(weights):
            shares = tuple(mine[place] for mine in members)
            load = dict(crossings(forest.shares[i] for i in shares))
            classes.append(_Class(group, weight / total, load, shares))
    return classes, blocks_of_group
