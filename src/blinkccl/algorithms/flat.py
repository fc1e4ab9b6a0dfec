"""Flat AllReduce: segmented reduction on all links, then broadcast (multi-path UCX, for Cedar).

Each of N fully connected GPUs sends a distinct N-th of its data to every other GPU to be reduced; then each
sends its reduced N-th to all. Load for load this is the AllReduce of Blink's one-hop trees
(:mod:`~blinkccl.algorithms.one_hop`), from which it differs in what it asks for: it is an *intra-node*
algorithm, so a hop may cross a switch or a host, but never a network.
"""

from __future__ import annotations

from fractions import Fraction

from blinkccl.algorithms.paths import transit_paths
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.servers import require_one_server
from blinkccl.algorithms.shapes import forest_on, require_adjacent, require_collective, star_down, star_up
from blinkccl.forest.model import Forest, Share


def plan(request: Request) -> Forest:
    """N shares of 1/N: a star up to each rank and the same star down.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, the ranks are on several servers, or two of them are not one hop
        apart.

    Notes
    -----
    Cost: 2 steps, 2(N−1)/N·S per rank; rate N/2 on direct links of capacity 1 (on 4 GPUs 2, the optimum). Where we
    differ: the article also sends part of each intra-socket hop through host memory. Here a hop is one path.
    """
    require_collective(request, "flat", ("allreduce",), "use --algo one_hop, whose stars serve the rest")
    require_one_server(request, "flat")
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, "flat")
    weight = Fraction(1, len(ranks))
    shares = [
        Share(weight, i, None, root, star_up(paths, root, ranks), star_down(paths, root, ranks))
        for i, root in enumerate(ranks)
    ]
    return forest_on(request, "flat", network, shares)
