"""Two binary trees in which no vertex but a root has children in both (Sanders, Speck, Träff 2009).

Each tree carries half of the data, so every port is used at most once in either direction. Behind a switch this is a
broadcast (or reduction) at full rate in logarithmic depth.

Let ``bit`` be the lowest set bit of r among 0 … n−1. The parent of r is (r ^ bit) | (bit << 1), or r ^ bit if that is n
or more; 0 is the root (NCCL's numbering). So the inner vertices are even, and moving every vertex to one of the other
parity gives the second tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.trees.packing.network import Arc


def binary_tree(n: int) -> dict[int, int]:
    """Parents of 1 … n−1 in NCCL's first tree over 0 … n−1, whose root is 0."""
    parents = {}
    for r in range(1, n):
        bit = r & -r
        up = (r ^ bit) | (bit << 1)
        parents[r] = up if up < n else r ^ bit
    return parents


def second_tree(n: int) -> dict[int, int]:
    """The complementary tree: the first one mirrored for even n, shifted by one for odd n."""

    def moved(r: int) -> int:
        return n - 1 - r if n % 2 == 0 else (r + 1) % n

    return {moved(child): moved(parent) for child, parent in binary_tree(n).items()}


def rooted_second_tree(n: int) -> dict[int, int]:
    """A complementary tree with the same root 0: the n−1 others mirrored for odd n, shifted for even n."""

    def moved(r: int) -> int:
        if r == 0:
            return 0
        return n - r if n % 2 else r % (n - 1) + 1

    return {moved(child): moved(parent) for child, parent in binary_tree(n).items()}


def two_trees(order: Sequence[int]) -> tuple[tuple[Arc, ...], tuple[Arc, ...]]:
    """Arcs of two complementary out-trees from ``order[0]`` over all of ``order``."""
    first, second = binary_tree(len(order)), rooted_second_tree(len(order))
    return (
        tuple((order[parent], order[child]) for child, parent in first.items()),
        tuple((order[parent], order[child]) for child, parent in second.items()),
    )
