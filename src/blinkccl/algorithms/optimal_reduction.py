"""AllReduce at the optimum: up a tree and down again, the two phases sharing the links.

Symmetric links without transit: undirected spanning trees, each rooted at its centre, as many as a partition
allows (theory: "AllReduce"). Anything else: pairs of an in-tree and an out-tree with one root, priced together,
which is exact for one-way links, for transit, and where several roots beat one (a one-way ring of six: 3/5).
On symmetric links with transit the AllGather's trees, used up and down, often reach the same bound at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from blinkccl.algorithms.bounds import (
    half_of_allgather,
    halves_proof,
    partition_certificate,
    price_certificate,
    reduce_broadcast_packing,
)
from blinkccl.algorithms.forests import Draft, backward, forest_of, normalised, ordered
from blinkccl.algorithms.lanes import Lanes
from blinkccl.algorithms.optimal_trees import depth_of, every_root, hops_deep, refuse_unproved
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.symmetry import Permutation, rotations
from blinkccl.forest.model import Forest
from blinkccl.packing.flatten import flatten
from blinkccl.packing.integral import Arborescence
from blinkccl.packing.multiplicities import rounded
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.shallow import choose, undirected_columns
from blinkccl.packing.undirected import TreePacking, merge_equal, pack_trees, recentred, undirected_widths

#: Columns that the default objective is willing to hand to an integer program.
FEW_COLUMNS = 700


def allreduce(request: Request, lanes: Lanes) -> Forest:
    """Shares that go up a tree to its root and down a tree from it."""
    network = lanes.network
    if network.switchless and network.symmetric:
        packing = undirected_packing(network, request.objective)
        total = sum(tree.multiplicity for tree in packing.trees)
        drafts = [
            Draft(None, weight, root, backward(hops), hops) for root, weight, hops in normalised(packing.trees, total)
        ]
        return forest_of(request, lanes, "optimal", drafts, partition_certificate(lanes, packing.blocks))
    drafts, prices, bound = _through_transit(network, rotations(lanes))
    deep = max(hops_deep(draft.root, draft.down or ()) for draft in drafts)
    refuse_unproved(request.objective, 2 * len(drafts) if request.objective == "fewest-trees" else 2 * deep)
    return forest_of(request, lanes, "optimal", drafts, price_certificate(lanes, prices, bound))


def _through_transit(
    network: Network, group: tuple[Permutation, ...] | None
) -> tuple[list[Draft], Mapping[Arc, Fraction | int], Fraction]:
    """Drafts, prices, and the bound that these prove."""
    proof = halves_proof(network)
    if proof is not None:
        return _two_halves(network, group), proof.prices, proof.bound
    pairs = reduce_broadcast_packing(network)
    if network.symmetric and pairs.bound == half_of_allgather(network):
        return _two_halves(network, group), pairs.prices, pairs.bound
    drafts = []
    for column, weight in rounded(pairs, network.capacity, [Fraction(1)]):
        root, up, down = column.payload
        up_tree = backward(ordered(root, backward(up)))
        drafts.append(Draft(None, weight / pairs.rate, root, up_tree, ordered(root, down)))
    return drafts, pairs.prices, pairs.bound


def _two_halves(network: Network, group: tuple[Permutation, ...] | None) -> list[Draft]:
    """The AllGather's trees, each used up and down: half of the AllGather's rate on symmetric links."""
    packed = every_root(network, "shallow", group)
    return [Draft(None, weight / network.terminals, root, backward(hops), hops) for root, weight, hops in packed.trees]


@lru_cache(maxsize=64)
def undirected_packing(network: Network, objective: str) -> TreePacking:
    """A maximum packing of undirected trees: shallow, shallowest or fewest."""
    if objective == "fewest-trees":
        return pack_trees(network, few=True)
    packing = pack_trees(network)
    capacity = {edge: width * packing.scale for edge, width in undirected_widths(network).items()}
    trees = merge_equal(map(recentred, flatten(capacity, packing.trees, undirected=True)))
    trees = _shallower(network, capacity, trees, thorough=objective == "least-depth")
    return TreePacking(packing.rate, packing.scale, packing.blocks, tuple(trees))


def _shallower(
    network: Network, capacity: Mapping[Arc, int], trees: list[Arborescence], *, thorough: bool
) -> list[Arborescence]:
    radius = min(map(network.eccentricity, range(network.n)))
    demand = {0: sum(tree.multiplicity for tree in trees)}
    for levels in range(radius, max(depth_of(tree) for tree in trees)):
        columns = undirected_columns(network, levels)
        if columns is None or (len(columns) > FEW_COLUMNS and not thorough):
            break
        found = choose(columns, capacity, demand, undirected=True, node_limit=2000 if thorough else 20)
        if found is not None:
            return merge_equal(found)
    return trees
