"""Plans made shallower: trees of fewer hops within a hundredth of the best rate, of every collective that has trees.

Trees that fill a cut exactly are grown for their rate, and may be deep, while a hop costs as much as thousands of
bytes. Where a plan is deeper than it need be, trees of at most so many hops are looked for, by halving the depths that
there are.
"""

from __future__ import annotations

from fractions import Fraction

from blinkccl.trees.algorithms.bounds import reverse_of
from blinkccl.trees.algorithms.forests import Draft, backward, forest_of
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.short_weights import LONGEST_WEIGHT, shortened
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing import hop_limited
from blinkccl.trees.packing.equal_trees import LOSS
from blinkccl.trees.packing.hop_limited import Part
from blinkccl.trees.packing.network import FlowNetwork, Hops
from blinkccl.trees.packing.symmetry import arc_orbits, symmetry_of

#: Roots with trees of their own, times pairs of ranks, at most; and links with loads of their own, four times as many
#: where the least depth is asked for.
MOST_PRICED, MOST_LINKS = 1 << 20, 192
#: How much of the rate trees may lose: the other half of a hundredth is for shorter weights.
TREES_LOSS = LOSS / 2


def is_deep(request: Request, view: RankNetwork, known: Forest) -> bool:
    """True if ``known`` is deeper than is asked, and a search for fewer hops takes seconds."""
    network = _packed_in(request, view)
    return not _is_fair(request, _fewest_hops(request, network), known.depth) and _served(request, network)


def shallower(request: Request, view: RankNetwork, known: Forest) -> Forest:
    """A forest of fewer hops than ``known``, as few as are found, near its bound; ``known`` where there is none."""
    network = _packed_in(request, view)
    low, high = _fewest_hops(request, network), known.depth
    best = known
    while low < high:
        levels = (low + high) // 2
        found = _within(request, view, network, levels, known)
        if found is None:
            low = levels + 1
        else:
            best, high = found, found.depth
    return best


def _within(request: Request, view: RankNetwork, network: FlowNetwork, levels: int, known: Forest) -> Forest | None:
    """A forest of at most so many hops, near the bound of ``known``, with weights that chunks can have."""
    parts = _trees(request, network, levels, known.bound)
    if parts is None:
        return None
    drafts = [_draft(request, *part) for part in parts]
    found = shortened(forest_of(request, view, "optimal", drafts, known.certificate))
    return found if found.longest_weight <= LONGEST_WEIGHT else None


def _packed_in(request: Request, view: RankNetwork) -> FlowNetwork:
    """The links as trees from their roots see them."""
    return reverse_of(view.network) if _only_up(request) else view.network


def _only_up(request: Request) -> bool:
    return request.collective.name in ("reduce", "reduce_scatter")


def _fewest_hops(request: Request, network: FlowNetwork) -> int:
    """Hops without which some rank is not reached; AllReduce may have the roots that reach all soonest."""
    if request.collective.root is not None:
        return network.hop_eccentricity(request.collective.root)
    hops = [network.hop_eccentricity(root) for root in symmetry_of(network).roots]
    return min(hops) if request.collective.name == "allreduce" else max(hops)


def _is_fair(request: Request, least: int, depth: int) -> bool:
    """Whether a plan is as shallow as is asked, where no rank is reached in fewer than ``least`` hops.

    By default two thirds more are, and a hop. So are all trees from one root: those of fewer hops are many, and take a
    linear program to find where a plan needs none.
    """
    if request.objective == "least-depth":
        return depth <= least
    return request.collective.root is not None or depth <= least + max(1, 2 * least // 3)


def _served(request: Request, network: FlowNetwork) -> bool:
    """Whether the search takes seconds: of links both ways alike, where both ways are used, and of not too many."""
    if request.collective.name == "allreduce" and not network.symmetric:
        return False
    symmetry = symmetry_of(network)
    roots = 1 if request.collective.root is not None else len(symmetry.roots)
    links = len(set(arc_orbits(network, symmetry.moves).values()))
    most = MOST_LINKS * (4 if request.objective == "least-depth" else 1)
    return links <= most and roots * network.terminals**2 <= MOST_PRICED


def _trees(request: Request, network: FlowNetwork, levels: int, bound: Fraction) -> list[Part] | None:
    near, size = bound * (1 - TREES_LOSS), network.terminals
    if request.collective.root is not None:
        return hop_limited.from_root(network, request.collective.root, levels, bound, near)
    if request.collective.name == "allreduce":
        return hop_limited.up_and_down(network, symmetry_of(network), levels, bound, near)
    return hop_limited.from_roots(network, symmetry_of(network), levels, bound / size, near / size)


def _draft(request: Request, root: int, part: Fraction, down: Hops) -> Draft:
    if request.collective.name == "allreduce":
        return Draft(None, part, root, backward(down), down)
    whole = request.collective.root is not None
    block, weight = (None, part) if whole else (root, part / request.collective.world_size)
    return Draft(
        block, weight, root, backward(down) if _only_up(request) else None, None if _only_up(request) else down
    )
