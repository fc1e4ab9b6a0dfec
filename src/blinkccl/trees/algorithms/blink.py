"""The paper's Blink algorithm: TreeGen by multiplicative weights, few trees by an integer program (MLSys 2020, §3).

Broadcast and reduce pack arborescences of the directed graph. AllReduce packs undirected trees and uses each up and
down, all with one root (§3.3). Gather and scatter pack bundles of paths. AllGather is a gather and a broadcast through
one root, "AllReduce without a reduction function" (§4.1), and ReduceScatter is its mirror image. The single root costs
AllGather up to half of the possible rate; ``optimal`` shows the exact loss.

Differences from the paper: Eq 2 and 5 have "<", which no full link satisfies; this module uses "≤". Gather is *not* the
inverse of broadcast, since nothing is reduced on the way and loads grow toward the root. So its columns are paths
instead of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, log

from blinkccl.errors import InternalError, UnsupportedError, UsageError
from blinkccl.trees.algorithms.bounds import certificate_for, reverse_of, tree_packing
from blinkccl.trees.algorithms.forests import Draft, forest_of, tree_drafts
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.bottleneck import gather_rate
from blinkccl.trees.packing.columns import Column, Oracle, fits, pack_columns
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hops, breadth_first, hops_along, turned
from blinkccl.trees.packing.oracles import out_tree_oracle, paths_oracle, relay_oracle, up_and_down_oracle
from blinkccl.trees.packing.solver import Entries, Model, solve, whole
from blinkccl.trees.packing.undirected import most_central, strength, undirected_widths

#: Columns with their parts of the whole, which sum to 1.
Parts = list[tuple[Column, Fraction]]


def plan(request: Request) -> Forest:
    """The paper's forest for ``request``.

    Raises
    ------
    UnsupportedError
        For alltoall and sendrecv, for which the paper has no trees, and for AllReduce on one-way links.
    """
    name = request.collective.name
    if name not in DRAFTS:
        raise UnsupportedError(f"blink does not support {name}, only {', '.join(DRAFTS)}; use --algo optimal")
    view = rank_network_of(request.network, request.ranks)
    certificate = certificate_for(request.collective, request.ranks, view.topology)
    return forest_of(request, view, "blink", DRAFTS[name](request, view.network), certificate)


#: The multiplicative weights reach (1−ε) of the optimum; their rounds grow with ε⁻².
EPSILON = Fraction(1, 20)
#: The part of the optimal rate that may be lost for fewer trees (the paper's 5 %).
THRESHOLD = Fraction(1, 20)


def tree_gen(request: Request, network: FlowNetwork, oracle: Oracle, optimum: Fraction | None) -> Parts:
    """TreeGen: many columns by multiplicative weights, then few by the integer program if it reaches the threshold.

    ``optimum`` is the best rate of such columns; None if it is unknown, then the prices of the weights bound it.
    """
    packing = pack_multiplicative(network.capacity, oracle, EPSILON)
    candidates = [column for column, _ in sorted(packing.columns, key=lambda part: -part[1])]
    target = optimum if optimum is not None else Fraction(packing.bound).limit_denominator(10**6)
    few = minimize_trees(candidates, network.capacity, target, THRESHOLD)
    chosen = few if few is not None else list(packing.columns)
    total = sum((weight for _, weight in chosen), Fraction(0))
    return [(column, weight / total) for column, weight in chosen]


#: The most ranks for which the optimum of AllGather through one root is computed by column generation.
EXACT_UP_TO = 16


@lru_cache(maxsize=64)
def one_root_optimum(network: FlowNetwork, root: int) -> Fraction:
    """The optimal rate per rank of an AllGather through ``root``, an upper limit for ``blink``."""
    return pack_columns(network.capacity, [Fraction(1)], relay_oracle(network, root)).rate


def _root(request: Request) -> int:
    assert request.collective.root is not None
    return request.collective.root


def _broadcast(request: Request, network: FlowNetwork) -> list[Draft]:
    root = _root(request)
    optimum = broadcast_rate(network, root)[0] if network.switchless else tree_packing(network, (root,)).rate
    parts = tree_gen(request, network, out_tree_oracle(network, [root]), Fraction(optimum))
    return tree_drafts(request, ((root, part, breadth_first(root, column.payload)) for column, part in parts))


def _reduce(request: Request, network: FlowNetwork) -> list[Draft]:
    return _broadcast(request, reverse_of(network))


def _mirrored(draft: Draft) -> Draft:
    """The draft with time reversed: the down-tree becomes the up-tree."""
    up = None if draft.down is None else turned(draft.down)
    down = None if draft.up is None else turned(draft.up[::-1])
    return Draft(draft.block, draft.weight, draft.root, up, down)


def _allreduce(request: Request, network: FlowNetwork) -> list[Draft]:
    if not network.symmetric:
        raise UnsupportedError(
            "blink uses each tree up and down, so every link needs the same capacity in both "
            "directions; use --algo optimal"
        )
    root = most_central(network)
    optimum = strength(network.n, undirected_widths(network))[0] if network.switchless else None
    parts = tree_gen(request, network, up_and_down_oracle(network, root), optimum)
    return tree_drafts(request, ((root, part, breadth_first(root, column.payload)) for column, part in parts))


def _gather(request: Request, network: FlowNetwork) -> list[Draft]:
    root, size = _root(request), network.terminals
    parts = tree_gen(request, network, paths_oracle(network, root), gather_rate(network, root)[0])
    own = [Draft(root, Fraction(1, size), root, None, ())]
    paths = [
        Draft(v, part / size, v, None, hops_along(network, path))
        for column, part in parts
        for v, path in column.payload.items()
    ]
    return sorted([*own, *paths], key=_by_block)


def _scatter(request: Request, network: FlowNetwork) -> list[Draft]:
    root = _root(request)
    drafts = _gather(request, reverse_of(network))
    return [Draft(d.block, d.weight, root, None, turned(d.down[::-1] if d.down else ())) for d in drafts]


def _allgather(request: Request, network: FlowNetwork) -> list[Draft]:
    root, size = most_central(network), network.terminals
    optimum = one_root_optimum(network, root) if size <= EXACT_UP_TO else None
    parts = tree_gen(request, network, relay_oracle(network, root), optimum)
    drafts = []
    for column, part in parts:
        paths, tree = column.payload
        down = breadth_first(root, tree)
        for v in range(size):
            up: Hops | None = hops_along(network, paths[v]) if v != root else None
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


# Packing by multiplicative weights: Blink's TreeGen (§3.2), with a guarantee that is checked during the iterations.
#
# The method is that of Garg and Könemann (1998), as in the paper's reference. Every arc has a length, at first 1/c. The
# cheapest column is selected until its narrowest arc is full, and the lengths of its arcs grow by (1 + ε·used/c). The
# lengths are prices, so they bound the optimum. The columns selected so far, scaled to fit, are a packing. The
# iterations end when the packing is at least (1 − ε) of the bound. Theory guarantees this after O(m ln m / ε²)
# iterations; in practice it is much sooner. The paper states no ε for its "181 trees", whose number has no bound.
@dataclass(frozen=True, slots=True)
class ApproximatePacking:
    """Columns with weights that fit exactly; ``rate`` is their sum, ``bound`` the bound proved by prices (a float)."""

    rate: Fraction
    bound: float
    columns: tuple[tuple[Column, Fraction], ...]
    iterations: int


def pack_multiplicative(capacity: Mapping[Arc, int], oracle: Oracle, epsilon: Fraction) -> ApproximatePacking:
    """A packing of one group of columns with rate at least (1 − ε) of the optimum, 0 < ε < 1 (else UsageError).

    Each iteration selects the cheapest column of the oracle. It is an InternalError if the guarantee is not reached
    within twice the theoretical number of iterations.
    """
    if not 0 < epsilon < 1:
        raise UsageError(f"epsilon must lie between 0 and 1, got {epsilon}")
    step = float(epsilon) / 2
    scale = _fine_enough(capacity, oracle)
    capacity = {arc: c * scale for arc, c in capacity.items()}
    length = {arc: 1.0 / c for arc, c in capacity.items()}
    used = dict.fromkeys(capacity, 0)
    selected: dict[tuple[tuple[Arc, int], ...], tuple[Column, int]] = {}
    total, bound = 0, float("inf")
    arcs = len(capacity)
    limit = 1000 + int(16 * arcs * log(arcs + 2) / step**2)
    for iteration in range(1, limit + 1):
        column = min(oracle(length), key=lambda candidate: float(candidate.cost(length)))
        bound = min(bound, sum(capacity[arc] * x for arc, x in length.items()) / float(column.cost(length)))
        amount = max(1, min(capacity[arc] // load for arc, load in column.loads))
        previous = selected.get(column.loads, (column, 0))[1]
        selected[column.loads] = (column, previous + amount)
        total += amount
        for arc, load in column.loads:
            used[arc] += amount * load
            length[arc] *= 1 + step * amount * load / capacity[arc]
        crowding = max(Fraction(used[arc], capacity[arc]) for arc, _ in column.loads)
        if total >= (1 - float(epsilon)) * bound * float(crowding):
            crowding = max(Fraction(u, capacity[arc]) for arc, u in used.items())
            if total / crowding >= (1 - float(epsilon)) * bound:
                columns = tuple((c, Fraction(k, scale) / crowding) for c, k in selected.values())
                return ApproximatePacking(total / crowding / scale, bound / scale, columns, iteration)
        _rescale(length)
    raise InternalError(f"multiplicative weights did not reach 1 − {epsilon} in {limit} iterations")


def _fine_enough(capacity: Mapping[Arc, int], oracle: Oracle) -> int:
    """A scale at which a column that crosses an arc many times still fits in whole units; 1 for plain trees."""
    heaviest = max(load for column in oracle(dict.fromkeys(capacity, 1.0)) for _, load in column.loads)
    return 1 if heaviest <= 2 else 4 * heaviest


def _rescale(length: dict[Arc, float]) -> None:
    """Keep the lengths in the range of floats; a common factor has no effect."""
    top = max(length.values())
    if top > 1e200:
        for arc in length:
            length[arc] = max(length[arc] / top, 1e-250)


# Few trees instead of many: Blink's integer program (§3.2.1, Eq 4–7), relaxed until it is good enough. The candidates
# come from the multiplicative weights. They get weights in {0, 1} (a lane each) with the largest sum. While the sum is
# below (1 − threshold) of the optimum, halves, thirds, … are allowed (the paper: "iteratively relax"). At the resulting
# granularity, as few trees as the threshold allows are selected. The paper's strict "<" in Eq 5 would leave every cut
# unfilled, so this module uses "≤". The paper's "minimum of 6 trees" for a DGX-1V is the minimum for 0/1 weights; with
# larger weights 4 suffice (see :mod:`blinkccl.trees.packing.shallow`).
#: Granularities tried, as parts of a lane per unit of weight: whole lanes, halves, thirds, …
FINEST = 24
#: The most integer programs tried before the relaxation is rounded instead.
MOST_ATTEMPTS = 3
#: Denominators for rounding down the relaxation, if no integer program reaches the threshold.
ROUNDINGS = (24, 60, 120, 240, 960, 5040)
#: The most candidates of an integer program: those that the relaxation uses, then the first others.
MOST_CANDIDATES = 100


def minimize_trees(
    candidates: Sequence[Column],
    capacity: Mapping[Arc, int],
    optimum: Fraction,
    threshold: Fraction,
    node_limit: int = 60,
) -> list[tuple[Column, Fraction]] | None:
    """Few of ``candidates`` (most promising first) with weights that sum to at least (1 − threshold) · optimum.

    None if even the relaxation does not reach it. Integer programs are limited by branchings, not by time.
    """
    required = (1 - threshold) * optimum
    relaxed = _relaxed(candidates, capacity)
    if sum(relaxed) < float(required):
        return None
    shortlist = sorted(range(len(candidates)), key=lambda j: (relaxed[j] < 1e-9, j))[:MOST_CANDIDATES]
    short = [candidates[j] for j in sorted(shortlist)]
    grains = [g for g in range(1, FINEST + 1) if Fraction(int(optimum * g), g) >= required]
    for grain in grains[:MOST_ATTEMPTS]:
        units = _few(short, capacity, grain, ceil(required * grain), node_limit)
        if units is not None:
            return [(c, Fraction(k, grain)) for c, k in zip(short, units, strict=True) if k]
    for grain in ROUNDINGS:
        units = [int(x * grain + 1e-7) for x in relaxed]
        if Fraction(sum(units), grain) >= required and fits(zip(candidates, units, strict=True), capacity, grain):
            return [(c, Fraction(k, grain)) for c, k in zip(candidates, units, strict=True) if k]
    return None


def _few(
    candidates: Sequence[Column], capacity: Mapping[Arc, int], grain: int, required: int, node_limit: int
) -> list[int] | None:
    """The most units in total or, if a tree may have several units, fewer trees with at least ``required`` units."""
    most = _solve(candidates, capacity, grain, None, node_limit)
    if most is None or sum(most) < required:
        return None
    if grain == 1:
        return most
    fewer = _solve(candidates, capacity, grain, required, node_limit)
    return fewer if fewer is not None and sum(map(bool, fewer)) < sum(map(bool, most)) else most


def _relaxed(candidates: Sequence[Column], capacity: Mapping[Arc, int]) -> list[float]:
    """Weights without granularity, the limit of the paper's relaxation."""
    row = {arc: i for i, arc in enumerate(sorted(capacity))}
    columns: list[Entries] = [{row[arc]: load for arc, load in c.loads} for c in candidates]
    return solve(Model(columns, [None] * len(row), [capacity[arc] for arc in row], [-1.0] * len(columns))) or []


def _solve(
    candidates: Sequence[Column],
    capacity: Mapping[Arc, int],
    grain: int,
    at_least: int | None,
    node_limit: int,
) -> list[int] | None:
    """Units per candidate: the most in total or, given ``at_least`` units, the fewest different trees."""
    arcs = sorted(capacity)
    row = {arc: i for i, arc in enumerate(arcs)}
    columns: list[Entries] = [{row[arc]: load for arc, load in c.loads} for c in candidates]
    count, upper = len(columns), [capacity[arc] * grain for arc in arcs]
    if at_least is None:
        model = Model(columns, [None] * len(arcs), upper, [-1.0] * count, [grain] * count, integer=True)
    else:
        total, link = len(arcs), len(arcs) + 1
        columns = [{**column, total: 1, link + j: 1} for j, column in enumerate(columns)]
        columns += [{link + j: -grain} for j in range(count)]
        lower: list[int | None] = [*(None for _ in arcs), at_least, *(None for _ in range(count))]
        model = Model(
            columns,
            lower,
            [*upper, None, *(0 for _ in range(count))],
            [0.0] * count + [1.0] * count,
            [grain] * count + [1] * count,
            integer=True,
        )
    values = solve(model, node_limit)
    units = None if values is None else whole(values[:count])
    return units if units is not None and fits(zip(candidates, units, strict=True), capacity, grain) else None
