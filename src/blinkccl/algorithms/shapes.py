"""Which shapes do the hand-made algorithms draw: stars, chains, single hops, and a forest out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from blinkccl.algorithms.bounds import certificate_for
from blinkccl.algorithms.paths import missing_pairs
from blinkccl.algorithms.registry import Request
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest, Path, Share, Tree, attained_rate
from blinkccl.topology.model import Topology

#: Paths between ranks, as :func:`blinkccl.algorithms.paths.transit_paths` gives them.
Paths = Mapping[tuple[int, int], Path]


def cyclic(order: Sequence[int], start: int) -> tuple[int, ...]:
    """``order`` turned so that it begins with ``start``."""
    at = order.index(start)
    return (*order[at:], *order[:at])


def star_up(paths: Paths, root: int, ranks: Sequence[int]) -> Tree:
    """Every other rank sends to ``root``.

    The leaves begin with the one after the root: in N stars with N roots, no two ranks then start with the
    same receiver.
    """
    return Tree(root, tuple(paths[leaf, root] for leaf in cyclic(ranks, root)[1:]))


def star_down(paths: Paths, root: int, ranks: Sequence[int]) -> Tree:
    """``root`` sends to every other rank."""
    return Tree(root, tuple(paths[root, leaf] for leaf in cyclic(ranks, root)[1:]))


def chain_down(paths: Paths, order: Sequence[int]) -> Tree:
    """Data starts at ``order[0]`` and is handed on along ``order``."""
    return Tree(order[0], tuple(paths[u, v] for u, v in pairwise(order)))


def chain_up(paths: Paths, order: Sequence[int]) -> Tree:
    """Data starts at ``order[0]``, is combined along ``order``, and ends at ``order[-1]``."""
    return Tree(order[-1], tuple(paths[u, v] for u, v in pairwise(order)))


def flipped(paths: Paths, tree: Tree) -> Tree:
    """The same tree run the other way, over the paths that lead that way."""
    return Tree(tree.root, tuple(paths[path[-1], path[0]] for path in tree.edges))


def require_collective(request: Request, algorithm: str, served: Sequence[str], instead: str) -> None:
    """Refuse a collective that ``algorithm`` does not serve; ``instead`` says what to do."""
    name = request.collective.name
    if name not in served:
        raise UnsupportedError(f"{algorithm} does not serve {name}, only {', '.join(served)}; {instead}")


def require_adjacent(paths: Paths, network: Topology, ranks: Sequence[int], algorithm: str) -> None:
    """Refuse ranks of which two are more than one hop apart, naming the first such pair and how many there are."""
    missing = missing_pairs(paths, ranks)
    if missing:
        u, v = missing[0]
        raise UnsupportedError(
            f"{algorithm} needs every pair of ranks one hop apart, directly or through switches, but on "
            f"{network.name} no link or switch leads from {u} to {v} ({len(missing)} such ordered pairs); "
            "use --links pcie, or --algo optimal"
        )


def forest_on(request: Request, algorithm: str, network: Topology, shares: Sequence[Share]) -> Forest:
    """The forest of ``shares`` on ``network``, at the rate it attains and with the proof of the best rate."""
    return Forest(
        request.collective,
        request.ranks,
        algorithm,
        network,
        tuple(shares),
        attained_rate(network, shares),
        certificate_for(request.collective, request.ranks, network),
    )
