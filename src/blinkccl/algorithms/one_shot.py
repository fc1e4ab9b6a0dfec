"""One-shot AllReduce: every rank gets all the data of all ranks and reduces it itself.

One step instead of two, for N times the traffic: the choice for small messages, where a step costs more than
the bytes. In tree form it is N shares of the *same* slice; each is an up-star whose only keeper is its root.
"""

from __future__ import annotations

from fractions import Fraction

from blinkccl.algorithms.paths import transit_paths
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.shapes import forest_on, require_adjacent, require_collective, star_up
from blinkccl.forest.model import Forest, Share


def plan(request: Request) -> Forest:
    """N up-stars over one slice: N shares of weight 1 with the same ``slice``, so the weight counts once.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, or two ranks are not one hop apart.

    Notes
    -----
    Cost: 1 step; each rank sends and receives (N−1)·S. Among N ranks on direct links of capacity 1 the rate
    is 1, against N/2 of :mod:`~blinkccl.algorithms.one_hop`; through a switch port of capacity c it is
    c/(N−1), against c·N/(2(N−1)). Every rank reduces in rank order, as lowering has it, so all get the same bits.
    """
    require_collective(request, "one_shot", ("allreduce",), "use --algo one_hop, whose stars serve the rest")
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    require_adjacent(paths, network, ranks, "one_shot")
    shares = [Share(Fraction(1), 0, None, root, star_up(paths, root, ranks), None) for root in ranks]
    return forest_on(request, "one_shot", network, shares)
