"""Two trees in which no vertex but the root has children in both (Sanders, Speck, Träff 2009).

Each carries half of the data, so every port is used at most once in either direction: behind a switch that is
a broadcast (or reduction) at full rate in logarithmic depth. The shape is NCCL's double binary tree.
"""

from __future__ import annotations

from blinkccl.packing.network import Arc


def two_trees(order: list[int]) -> tuple[tuple[Arc, ...], tuple[Arc, ...]]:
    """Arcs of both out-trees from ``order[0]`` over all of ``order``.

    In the first tree position i > 0 hangs below (i ^ b) | 2b, b its lowest set bit, or below i ^ b where that
    is outside; so inner positions are even. The second tree is the first on the other vertices mirrored (odd
    number of vertices) or shifted by one (even number), which makes inner positions odd.
    """
    count = len(order)
    mirrored = [order[0]] + [order[count - i] if count % 2 else order[i % (count - 1) + 1] for i in range(1, count)]
    return tuple(_arcs(order)), tuple(_arcs(mirrored))


def _arcs(order: list[int]) -> list[Arc]:
    count = len(order)
    arcs = []
    for i in range(1, count):
        bit = i & -i
        above = (i ^ bit) | (bit << 1)
        arcs.append((order[above if above < count else i ^ bit], order[i]))
    return arcs
