"""Forests small enough to check by eye."""

from __future__ import annotations

import itertools
from fractions import Fraction

from blinkccl.collectives.spec import Collective
from blinkccl.forest.model import Cut, Forest, Path, Share, Tree, attained_rate
from blinkccl.topology.model import Link, Topology, Vertex


def clique(size: int, lanes: int = 1) -> Topology:
    """Every pair of ``size`` GPUs joined by ``lanes``."""
    links = tuple(
        Link(a, b, lanes, "nvlink", 25.0 * lanes, "synthetic") for a in range(size) for b in range(size) if a != b
    )
    return Topology(f"clique:{size}", 25.0, tuple(Vertex(i, "gpu") for i in range(size)), links)


def forest(
    collective: Collective, topology: Topology, shares: list[Share], ranks: tuple[int, ...] | None = None
) -> Forest:
    """A forest at the rate its links allow; the certificate is of no interest to schedules."""
    ranks = ranks or topology.ranks
    return Forest(
        collective,
        ranks,
        "by hand",
        topology,
        tuple(shares),
        attained_rate(topology, shares),
        Cut((ranks[0],), Fraction(1), Fraction(1)),
    )


def up(root: int, *edges: Path) -> Tree:
    return Tree(root, edges)


def chain_allreduce() -> Forest:
    """0 → 1 → 2 and back, one share."""
    share = Share(Fraction(1), 0, None, 2, up(2, (0, 1), (1, 2)), up(2, (2, 1), (1, 0)))
    return forest(Collective("allreduce", 3), clique(3), [share])


def one_shot_allreduce(size: int = 3) -> Forest:
    """Everybody sends all to everybody."""
    shares = [
        Share(Fraction(1), 0, None, r, up(r, *((s, r) for s in range(size) if s != r)), None) for r in range(size)
    ]
    return forest(Collective("allreduce", size), clique(size), shares)


def ring_allreduce(size: int = 4) -> Forest:
    """One ring: share r is reduced into rank r and spread from there."""
    shares = []
    for r in range(size):
        walk = [(r + 1 + i) % size for i in range(size)]
        back = [(r + i) % size for i in range(size)]
        shares.append(
            Share(
                Fraction(1, size),
                r,
                None,
                r,
                Tree(r, tuple(itertools.pairwise(walk))),
                Tree(r, tuple(itertools.pairwise(back))),
            )
        )
    return forest(Collective("allreduce", size), clique(size), shares)


def two_slices_broadcast() -> Forest:
    """Two thirds over a chain, one third over the other chain."""
    shares = [
        Share(Fraction(2, 3), 0, None, 0, None, Tree(0, ((0, 1), (1, 2)))),
        Share(Fraction(1, 3), 4, None, 0, None, Tree(0, ((0, 2), (2, 1)))),
    ]
    return forest(Collective("broadcast", 3, root=0), clique(3, 3), shares)
