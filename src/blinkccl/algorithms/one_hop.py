"""One-hop trees: N stars, one per rank, each for 1/N of the data (Blink, MLSys 2020, §3.5, for DGX-2).

Where every pair of ranks is one hop apart, through a switch or directly, no relay is needed: each rank is the
root of 1/N of the data and its tree is a star over the rest. The paper gives AllReduce. Its two halves are
ReduceScatter and AllGather. Gather, Scatter, AllToAll and point-to-point are the same hops without fan-out.
Broadcast and Reduce have one root, hence one star; more stars would need a second hop.

=================  ======================  ===========================================
collective         steps                   bytes out of the busiest rank, per S
=================  ======================  ===========================================
allreduce          2                       2 (N−1)/N
reduce_scatter     1                       (N−1)/N
allgather          1                       (N−1)/N
broadcast          1                       N−1, at the root (latency, not bandwidth)
reduce             1                       1, but N−1 into the root
gather, scatter    1                       1/N, but (N−1)/N into (out of) the root
alltoall           1                       (N−1)/N
=================  ======================  ===========================================
"""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.algorithms.paths import transit_paths
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.shapes import Paths, forest_on, require_adjacent, star_down, star_up
from blinkccl.collectives.spec import Block, Item
from blinkccl.forest.model import Forest, Share, Tree, to_ids


def plan(request: Request) -> Forest:
    """The N stars of §3.5, or the one-hop form of any other collective.

    For AllReduce, ReduceScatter, AllGather, Gather, Scatter and AllToAll among equal ports of one switch the rate is
    the optimum.

    Raises
    ------
    UnsupportedError
        If any two ranks are not one hop apart; the pair is named.

    Notes
    -----
    Where we differ: the paper counts a hop through NVSwitch only; a direct link counts here as well, so a
    fully connected group (4 GPUs of a DGX-1, Cedar) has one-hop trees too.
    """
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, "one_hop")
    shares = [share for item in request.collective.items() for share in _shares(request, item, paths)]
    return forest_on(request, "one_hop", network, _numbered(shares))


def _shares(request: Request, item: Item, paths: Paths) -> Iterator[Share]:
    ranks = request.ranks
    block = to_ids(item.block, ranks)
    sources = [ranks[position] for position, _ in item.contributions]
    targets = [ranks[position] for position, _ in item.destinations]
    if len(sources) > 1 and len(targets) > 1:
        for root in ranks:
            yield Share(
                item.weight / len(ranks),
                0,
                block,
                root,
                star_up(paths, root, ranks),
                star_down(paths, root, ranks),
            )
    elif len(sources) > 1:
        yield Share(item.weight, 0, block, targets[0], star_up(paths, targets[0], ranks), None)
    elif len(targets) > 1:
        yield Share(item.weight, 0, block, sources[0], None, star_down(paths, sources[0], ranks))
    else:
        yield _carried(item, block, sources[0], targets[0], paths)


def _carried(item: Item, block: Block, source: int, target: int, paths: Paths) -> Share:
    """One block from one rank to one rank; a block that stays where it is has no edges."""
    hop = None if source == target else Tree(source, (paths[source, target],))
    return Share(item.weight, 0, block, source, None, hop)


def _numbered(shares: list[Share]) -> list[Share]:
    return [Share(s.weight, i, s.block, s.root, s.reduce, s.broadcast) for i, s in enumerate(shares)]
