"""Stars: one-hop trees (Blink, MLSys 2020, §3.5, for DGX-2), and the algorithms "one-shot" and "flat" for AllReduce.

If every pair of ranks is one hop apart, through a switch or directly, no relay is needed. Each rank is the root of 1/N
of the data, and its tree is a star over the other ranks. The paper has AllReduce. Its two halves are ReduceScatter and
AllGather. Gather, Scatter, AllToAll and point-to-point use the same hops without fan-out. Broadcast and Reduce have one
root, so one star; more stars would need a second hop.

The bytes sent by the busiest rank, per S, are:

- allreduce: 2 (N−1)/N, in 2 steps; all others have 1 step;
- reduce_scatter, allgather, alltoall: (N−1)/N;
- broadcast: N−1, at the root (for latency, not bandwidth);
- reduce: 1, but the root receives N−1;
- gather: 1/N, but the root receives (N−1)/N;
- scatter: (N−1)/N, at the root.

Flat AllReduce (multi-path UCX, for Cedar) has the same loads as the AllReduce of one-hop trees: each GPU sends a
distinct N-th of its data to every other for reduction, then its reduced N-th to all. It is an *intra-node* algorithm,
so a hop may cross a switch or a host, but never a network. One-shot AllReduce sends all data to every rank, which
reduces it itself. It has the fewest steps, for small messages (as in MSCCL++).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from blinkccl.collectives.spec import Item
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    Paths,
    forest_on,
    require_adjacent,
    require_collective,
    require_one_server,
    star_down,
    star_up,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Share, Tree, to_ids


def one_hop(request: Request) -> Forest:
    """The N stars of §3.5, or the one-hop form of any other collective.

    For AllReduce, ReduceScatter, AllGather, Gather, Scatter and AllToAll on equal ports of one switch the rate is the
    optimum.

    Raises
    ------
    UnsupportedError
        If two ranks are not one hop apart; the message names the pair.

    Notes
    -----
    Difference from the paper, which counts hops through NVSwitch only: a direct link is a hop too. So a fully connected
    group (4 GPUs of a DGX-1, Cedar) has one-hop trees.
    """
    return _stars(request, "one_hop")


def nested_stars(request: Request, most_ends: int) -> Forest:
    """Trees of an all-to-all collective in which no rank has more than ``most_ends`` ends at once: stars of stars.

    Each rank is the root of 1/N of the data. The ranks after it are numbered 1 … N − 1, in digits of some radix, and a
    rank's parent has the number without the last digit that is not 0. The trees of all roots are one tree, rotated, so
    each rank sends and receives as much as with :func:`one_hop`, and through a switch the rate is the same. The depth
    is the number of digits. UnsupportedError if two ranks are not one hop apart.
    """
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, "nested stars")
    both = request.collective.reduces and len(next(iter(request.collective.items())).destinations) > 1
    parents = _parents(len(ranks), most_ends // (1 + both))
    shares: list[Share] = []
    for item in request.collective.items():
        block = to_ids(item.block, ranks)
        inward, outward = len(item.contributions) > 1, len(item.destinations) > 1
        own = item.destinations if inward else item.contributions
        roots = range(len(ranks)) if inward and outward else [own[0][0]]
        for at in roots:
            turned = [ranks[(at + offset) % len(ranks)] for offset in range(len(ranks))]
            edges = [(turned[offset], turned[parent]) for offset, parent in enumerate(parents) if offset]
            up = Tree(turned[0], tuple(paths[child, parent] for child, parent in edges)) if inward else None
            down = Tree(turned[0], tuple(paths[parent, child] for child, parent in edges)) if outward else None
            shares.append(Share(item.weight / len(roots), len(shares), block, turned[0], up, down))
    return forest_on(request, "nested stars", network, shares)


def _parents(count: int, most_children: int) -> list[int]:
    """The parent of each number below ``count`` (0 for the root), in the fewest digits with few enough children.

    With two numbers to a digit no rank has fewer, so that is the end.
    """
    digits = 1
    while _radix(count, digits) > 2 and digits * (_radix(count, digits) - 1) > most_children:
        digits += 1
    radix, parents = _radix(count, digits), [0]
    for number in range(1, count):
        place = 1
        while number // place % radix == 0:
            place *= radix
        parents.append(number - number // place % radix * place)
    return parents


def _radix(count: int, digits: int) -> int:
    """The smallest radix in which ``digits`` digits number ``count`` ranks."""
    return next(radix for radix in range(2, count + 2) if radix**digits >= count)


def flat(request: Request) -> Forest:
    """The forest of N shares of 1/N: a star up to each rank and the same star down.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, the ranks are on several servers, or two of them are not one hop
        apart.

    Notes
    -----
    Cost: 2 steps, 2(N−1)/N·S per rank; rate N/2 on direct links of capacity 1 (on 4 GPUs 2, the optimum). Difference
    from the article, which also sends part of each intra-socket hop through host memory: a hop is one path.
    """
    require_collective(request, "flat", ("allreduce",), "use --algo one_hop for other collectives")
    require_one_server(request, "flat")
    return _stars(request, "flat")


def one_shot(request: Request) -> Forest:
    """The forest of N up-stars over one slice: N shares of weight 1 with the same ``slice``, so it counts once.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, or two ranks are not one hop apart.

    Notes
    -----
    Cost: 1 step; each rank sends and receives (N−1)·S. For N ranks on direct links of capacity 1 the rate is 1,
    compared with N/2 of :func:`one_hop`; through a switch port of capacity c it is c/(N−1), compared with c·N/(2(N−1)).
    After lowering every rank reduces in rank order, so all get the same bits.
    """
    require_collective(request, "one_shot", ("allreduce",), "use --algo one_hop for other collectives")
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, "one_shot")
    shares = [Share(Fraction(1), 0, None, root, star_up(paths, root, ranks), None) for root in ranks]
    return forest_on(request, "one_shot", network, shares)


def _stars(request: Request, algorithm: str) -> Forest:
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, algorithm)
    shares = [share for item in request.collective.items() for share in _shares(request, item, paths)]
    return forest_on(request, algorithm, network, [replace(share, slice=i) for i, share in enumerate(shares)])


def _shares(request: Request, item: Item, paths: Paths) -> Iterator[Share]:
    ranks = request.ranks
    block = to_ids(item.block, ranks)
    sources = [ranks[position] for position, _ in item.contributions]
    targets = [ranks[position] for position, _ in item.destinations]
    if len(sources) > 1 and len(targets) > 1:
        for root in ranks:
            up, down = star_up(paths, root, ranks), star_down(paths, root, ranks)
            yield Share(item.weight / len(ranks), 0, block, root, up, down)
    elif len(sources) > 1:
        yield Share(item.weight, 0, block, targets[0], star_up(paths, targets[0], ranks), None)
    elif len(targets) > 1:
        yield Share(item.weight, 0, block, sources[0], None, star_down(paths, sources[0], ranks))
    else:
        # One block from one rank to one rank; a block that stays at its rank has no edges.
        hop = None if sources == targets else Tree(sources[0], (paths[sources[0], targets[0]],))
        yield Share(item.weight, 0, block, sources[0], None, hop)
