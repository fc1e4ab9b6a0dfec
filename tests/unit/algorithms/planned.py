"""Plans for the tests of hand-made algorithms, looked through before they are returned."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.forest.check import check_plan
from blinkccl.forest.document import to_document
from blinkccl.forest.model import Forest, Tree
from blinkccl.topology.spec import load


def request(
    spec: str, gpus: str | None, collective: str, *, root: int = 0, links: str = "fast", relays: bool = False
) -> Request:
    """A request; ``root`` is a position, and sendrecv goes from it to the next rank."""
    topology, ranks = load(spec, gpus)
    given = {"root": root, "src": root, "dst": (root + 1) % len(ranks)}
    wanted = {key: given[key] for key in COLLECTIVES[collective].parameters}
    return Request(topology, Collective(collective, len(ranks), **wanted), ranks, links, relays)


def plan(algorithm: str, spec: str, gpus: str | None, collective: str, **choices: object) -> Forest:
    """The forest, after :func:`assert_sound`."""
    forest = ALGORITHMS[algorithm].plan(request(spec, gpus, collective, **choices))
    assert forest.algorithm == algorithm
    assert_sound(forest)
    return forest


def assert_sound(forest: Forest) -> None:
    """Weights sum to each item's, trees span the right ranks, and the independent checker agrees."""
    weights: dict[object, dict[int, Fraction]] = defaultdict(dict)
    for share in forest.shares:
        item = forest.item(share)
        assert weights[share.block].setdefault(share.slice, share.weight) == share.weight
        contributors = {forest.ranks[r] for r, _ in item.contributions}
        keepers = {forest.ranks[r] for r, _ in item.destinations}
        if share.reduce is not None:
            assert _spanned(share.reduce, up=True) >= contributors
        if share.broadcast is not None:
            assert _spanned(share.broadcast, up=False) >= keepers
    for block, slices in weights.items():
        shares = [s for s in forest.shares if s.block == block]
        assert sum(slices.values()) == forest.item(shares[0]).weight
    assert forest.rate <= forest.bound
    assert check_plan(to_document(forest)).violations == []


def _spanned(tree: Tree, *, up: bool) -> set[int]:
    """The ranks of the tree; fails unless its edges form one tree that leads to (from) its root."""
    parent = {}
    for path in tree.edges:
        child, above = (path[0], path[-1]) if up else (path[-1], path[0])
        assert child not in parent, f"{child} has two parents"
        parent[child] = above
    for child in parent:
        at, hops = child, 0
        while at != tree.root:
            at, hops = parent[at], hops + 1
            assert hops <= len(parent), f"{child} is on a cycle"
    return {tree.root, *parent}
