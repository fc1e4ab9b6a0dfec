"""Blink as the paper has it: TreeGen by multiplicative weights, few trees by an integer program (MLSys 2020, §3).

Broadcast and reduce pack arborescences of the directed graph. AllReduce packs undirected trees and uses each
up and down, all with one root (§3.3). Gather and scatter pack bundles of paths; AllGather is a gather and a
broadcast through one root, "AllReduce without a reduction function" (§4.1), and ReduceScatter its mirror image.
The one root costs AllGather up to half of what is possible; ``optimal`` shows by how much.

Where we differ: Eq 2 and 5 have "<", which no full link satisfies; it is "≤" here. Gather is *not* the inverse of
broadcast (nothing combines on the way, so loads grow toward the root): its columns are paths, not trees.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms.bounds import certificate_for, reverse_of, tree_packing
from blinkccl.trees.algorithms.forests import Draft, backward, forest_of
from blinkccl.trees.algorithms.optimal_flows import hops_of
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.columns import Column, Oracle, pack_columns
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.mwu import minimize_trees, pack_multiplicative
from blinkccl.trees.packing.network import FlowNetwork, Hops, breadth_first
from blinkccl.trees.packing.oracles import out_tree_oracle, paths_oracle, relay_oracle, up_and_down_oracle
from blinkccl.trees.packing.undirected import most_central, strength, undirected_widths

#: Columns with their parts of the whole, which sum to 1.
Parts = list[tuple[Column, Fraction]]


def plan(request: Request) -> Forest:
    """The paper's forest for ``request``.

    Raises
    ------
    UnsupportedError
        For alltoall and sendrecv, which the paper gives no trees for, and for AllReduce on one-way links.
    """
    name = request.collective.name
    if name not in DRAFTS:
        raise UnsupportedError(
            f"blink has no trees for {name}: the paper treats collectives with one root; use --algo optimal"
        )
    view = rank_network_of(request.network, request.ranks)
    certificate = certificate_for(request.collective, request.ranks, view.topology)
    return forest_of(request, view, "blink", DRAFTS[name](request, view.network), certificate)


#: The multiplicative weights reach (1−ε) of the optimum; their rounds grow with ε⁻².
EPSILON = Fraction(1, 20)
#: What part of the optimal rate may be given up for fewer trees (the paper's 5 %).
THRESHOLD = Fraction(1, 20)


def tree_gen(request: Request, network: FlowNetwork, oracle: Oracle, optimum: Fraction | None) -> Parts:
    """TreeGen: many columns by multiplicative weights, then few by the integer program where it gets there.

    ``optimum`` is what these columns can reach at most, where that is known; else the weights' own prices bound it.
    """
    packing = pack_multiplicative(network.capacity, oracle, EPSILON)
    candidates = [column for column, _ in sorted(packing.columns, key=lambda part: -part[1])]
    target = optimum if optimum is not None else Fraction(packing.bound).limit_denominator(10**6)
    few = minimize_trees(candidates, network.capacity, target, THRESHOLD)
    chosen = few if few is not None else list(packing.columns)
    total = sum((weight for _, weight in chosen), Fraction(0))
    return [(column, weight / total) for column, weight in chosen]


#: Up to this many ranks the exact optimum of AllGather through one root is worth its column generation.
EXACT_UP_TO = 16


@lru_cache(maxsize=64)
def one_root_optimum(network: FlowNetwork, root: int) -> Fraction:
    """The rate per rank of an AllGather that goes through ``root``: what ``blink`` can reach at most."""
    return pack_columns(network.capacity, [Fraction(1)], relay_oracle(network, root)).rate


def _root(request: Request) -> int:
    assert request.collective.root is not None
    return request.collective.root


def _broadcast(request: Request, network: FlowNetwork) -> list[Draft]:
    root = _root(request)
    optimum = broadcast_rate(network, root)[0] if network.switchless else tree_packing(network, (root,)).rate
    parts = tree_gen(request, network, out_tree_oracle(network, [root]), Fraction(optimum))
    return [Draft(None, part, root, None, breadth_first(root, column.payload)) for column, part in parts]


def _reduce(request: Request, network: FlowNetwork) -> list[Draft]:
    return [_mirrored(draft) for draft in _broadcast(request, reverse_of(network))]


def _mirrored(draft: Draft) -> Draft:
    """The draft with time reversed: what went down comes up."""
    up = None if draft.down is None else backward(draft.down)
    down = None if draft.up is None else backward(draft.up[::-1])
    return Draft(draft.block, draft.weight, draft.root, up, down)


def _allreduce(request: Request, network: FlowNetwork) -> list[Draft]:
    if not network.symmetric:
        raise UnsupportedError(
            "blink uses each tree up and down, so every link needs its reverse with the same "
            "capacity; use --algo optimal"
        )
    root = most_central(network)
    optimum = strength(network.n, undirected_widths(network))[0] if network.switchless else None
    parts = tree_gen(request, network, up_and_down_oracle(network, root), optimum)
    drafts = []
    for column, part in parts:
        down = breadth_first(root, column.payload)
        drafts.append(Draft(None, part, root, backward(down), down))
    return drafts


def _gather(request: Request, network: FlowNetwork) -> list[Draft]:
    root, size = _root(request), network.terminals
    parts = tree_gen(request, network, paths_oracle(network, root), gather_rate(network, root)[0])
    own = [Draft(root, Fraction(1, size), root, None, ())]
    paths = [
        Draft(v, part / size, v, None, hops_of(network, path))
        for column, part in parts
        for v, path in column.payload.items()
    ]
    return sorted([*own, *paths], key=_by_block)


def _scatter(request: Request, network: FlowNetwork) -> list[Draft]:
    root = _root(request)
    drafts = _gather(request, reverse_of(network))
    return [Draft(d.block, d.weight, root, None, backward(d.down[::-1] if d.down else ())) for d in drafts]


def _allgather(request: Request, network: FlowNetwork) -> list[Draft]:
    root, size = most_central(network), network.terminals
    optimum = one_root_optimum(network, root) if size <= EXACT_UP_TO else None
    parts = tree_gen(request, network, relay_oracle(network, root), optimum)
    drafts = []
    for column, part in parts:
        paths, tree = column.payload
        down = breadth_first(root, tree)
        for v in range(size):
            up: Hops | None = hops_of(network, paths[v]) if v != root else None
            drafts.append(Draft(v, part / size, root, up, down))
    return sorted(drafts, key=_by_block)


def _reduce_scatter(request: Request, network: FlowNetwork) -> list[Draft]:
    return [_mirrored(draft) for draft in _allgather(request, reverse_of(network))]


def _by_block(draft: Draft) -> tuple[int, Fraction]:
    assert isinstance(draft.block, int)
    return draft.block, -draft.weight


DRAFTS: dict[str, Callable[[Request, FlowNetwork], list[Draft]]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "allreduce": _allreduce,
    "gather": _gather,
    "scatter": _scatter,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
}
