"""Construction of a Forest from packed trees and paths: numbers of shares, directions, rate and proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.collectives.spec import Block
from blinkccl.errors import InternalError
from blinkccl.trees.algorithms.rank_network import RankNetwork
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Certificate, Forest, Share, Tree, attained_rate, to_ids
from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.network import Hops, OutTree, turned


@dataclass(frozen=True, slots=True)
class Draft:
    """A share without a slice number: ``block`` in positions, hops in network vertices in the data's direction."""

    block: Block
    weight: Fraction
    root: int
    up: Hops | None
    down: Hops | None


def forest_of(
    request: Request, view: RankNetwork, algorithm: str, drafts: Iterable[Draft], certificate: Certificate
) -> Forest:
    """The forest of these shares, one slice each, on the links of ``view``, at the highest rate for their loads."""
    shares = tuple(_share(view, request.ranks, number, draft) for number, draft in enumerate(drafts))
    rate = attained_rate(view.topology, shares)
    if rate > certificate.bound:
        raise InternalError(f"{algorithm} reaches {rate}, more than the proved bound {certificate.bound}")
    return Forest(request.collective, request.ranks, algorithm, view.topology, shares, rate, certificate)


def _share(view: RankNetwork, ranks: tuple[int, ...], number: int, draft: Draft) -> Share:
    root = ranks[draft.root]
    up = None if draft.up is None else Tree(root, tuple(view.path(hop) for hop in draft.up))
    down = None if draft.down is None else Tree(root, tuple(view.path(hop) for hop in draft.down))
    return Share(draft.weight, number, to_ids(draft.block, ranks), root, up, down)


def tree_drafts(request: Request, trees: Iterable[OutTree]) -> list[Draft]:
    """One share per tree: of all data if the collective has a root or is an AllReduce, else of the root's block.

    Trees are used up, down, or both, as the collective requires. ``trees`` are out-trees, also for a reduction.
    """
    collective = request.collective
    whole = collective.root is not None or collective.name == "allreduce"
    return [
        Draft(
            None if whole else root,
            part if whole else part / collective.world_size,
            root,
            turned(hops) if collective.reduces else None,
            None if collective.only_reduces else hops,
        )
        for root, part, hops in trees
    ]


def normalised(trees: Iterable[Arborescence], total: int) -> list[OutTree]:
    """Arborescences with their multiplicities as parts of ``total``."""
    return [(tree.root, Fraction(tree.multiplicity, total), tree.arcs) for tree in trees]
