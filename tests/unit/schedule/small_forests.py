"""Forests small enough to check by eye."""

import itertools
from fractions import Fraction

from blinkccl.collectives.spec import Collective
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.planned import by_hand


def clique(size: int) -> Topology:
    """``size`` GPUs with a lane between every two."""
    return parse_spec(f"clique:{size}")


def chain_allreduce() -> Forest:
    """One share, 0 → 1 → 2 and back."""
    share = Share(Fraction(1), 0, None, 2, Tree(2, ((0, 1), (1, 2))), Tree(2, ((2, 1), (1, 0))))
    return by_hand(Collective("allreduce", 3), clique(3), [share])


def one_shot_allreduce(size: int = 3) -> Forest:
    """Every rank sends all its data to every other rank."""
    shares = [
        Share(Fraction(1), 0, None, r, Tree(r, tuple((s, r) for s in range(size) if s != r)), None) for r in range(size)
    ]
    return by_hand(Collective("allreduce", size), clique(size), shares)


def ring_allreduce(size: int = 4) -> Forest:
    """One ring: share r is reduced at rank r and broadcast from it."""
    shares = []
    for r in range(size):
        up = Tree(r, tuple(itertools.pairwise((r + 1 + i) % size for i in range(size))))
        down = Tree(r, tuple(itertools.pairwise((r + i) % size for i in range(size))))
        shares.append(Share(Fraction(1, size), r, None, r, up, down))
    return by_hand(Collective("allreduce", size), clique(size), shares)


def two_slices_broadcast() -> Forest:
    """Two thirds over one chain, one third over another."""
    shares = [
        Share(Fraction(2, 3), 0, None, 0, None, Tree(0, ((0, 1), (1, 2)))),
        Share(Fraction(1, 3), 4, None, 0, None, Tree(0, ((0, 2), (2, 1)))),
    ]
    return by_hand(Collective("broadcast", 3, root=0), clique(3), shares)
