"""What the trees of a plan may cost in rate: fewer, shallower, or of shorter weights.

Each option of ``blink plan`` that chooses among trees is a *point*: rate, depth, trees that share a block, and the
largest denominator of a weight. Of points none of which is better in all four, people take the one that is the fastest
for their sizes (:mod:`blinkccl.choice.trade_off`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from blinkccl.algorithms.bounds import SEARCHED
from blinkccl.algorithms.optimal import FLOWS, plan
from blinkccl.algorithms.rank_network import rank_network_of
from blinkccl.algorithms.registry import Request
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest, forest_hash
from blinkccl.packing.network import FlowNetwork
from blinkccl.packing.symmetry import symmetry_of

#: The most trees for each block that are tried, fewest last.
MOST_TREES = (32, 16, 8, 4, 2, 1)
#: Trees of all blocks that are looked for at once: more take minutes.
MOST_IN_ALL = 1024
#: What the point is called whose plan is the default.
DEFAULT = "default"


@dataclass(frozen=True)
class Point:
    """A plan, and the ``option`` of ``blink plan`` that makes it."""

    option: str
    forest: Forest

    @property
    def costs(self) -> tuple[float, int, int, int]:
        """What one would have less of: the missing part of the bound, depth, trees, the largest denominator."""
        forest = self.forest
        gap = 1 - forest.rate / forest.bound
        return float(gap), forest.depth, forest.trees_per_block, forest.longest_weight


def points(request: Request) -> Iterator[Point]:
    """The default's plan, and those of other options that are other plans; UnsupportedError without a default."""
    first = Point(DEFAULT, plan(request))
    yield first
    seen = {forest_hash(first.forest)}
    for option, wanted in _others(request, first.forest):
        try:
            found = Point(option, plan(wanted))
        except UnsupportedError:
            continue
        if forest_hash(found.forest) not in seen:
            seen.add(forest_hash(found.forest))
            yield found


def fewer_trees(request: Request, forest: Forest, largest: int = MOST_TREES[0]) -> Iterator[tuple[str, Request]]:
    """The options that ask for fewer trees than a plan has, ``largest`` at most."""
    if request.collective.name not in FLOWS:
        for most in MOST_TREES:
            trees = most * len({share.block for share in forest.shares})
            if most < forest.trees_per_block and most <= largest and trees <= MOST_IN_ALL:
                yield f"--max-trees {most}", replace(request, max_trees=most)


def whole_rate(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    """The option that asks for what a default lacks of the rate, where that is a matter of seconds."""
    if not default.optimal and request.collective.name not in FLOWS and _is_soon_solved(_network(request)):
        yield "--exact", replace(request, objective="exact")


def _network(request: Request) -> FlowNetwork:
    return rank_network_of(request.network, request.ranks).network


def _is_soon_solved(network: FlowNetwork) -> bool:
    """Whether columns of all trees take seconds and not hours: of few ranks, or of ranks that are alike."""
    return network.terminals <= SEARCHED or len(symmetry_of(network).moves) > 1


def _others(request: Request, default: Forest) -> Iterator[tuple[str, Request]]:
    if request.collective.name in FLOWS:
        return
    yield from whole_rate(request, default)
    yield "--least-depth", replace(request, objective="least-depth")
    if _network(request).switchless or _is_soon_solved(_network(request)):
        yield "--fewest-trees", replace(request, objective="fewest-trees")
    yield from fewer_trees(request, default)
