"""Parts of hand-made algorithms: hops between ranks, stars and chains of hops, lines of ranks, and the forest.

A hop of a tree is a :data:`~blinkccl.trees.forest.model.Path`. Its ends are ranks of the job. Its interior vertices are
switches, NICs, host bridges, and GPUs that are relays. A rank is never interior, since a rank that forwards data is a
vertex of the tree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import TypeVar

from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.cycles import hamiltonian_path
from blinkccl.trees.algorithms.rank_network import ByIdentity
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, attained_rate

T = TypeVar("T")
#: Paths between ranks, as from :func:`transit_paths`.
Paths = Mapping[tuple[int, int], Path]


class TransitPaths(Mapping[tuple[int, int], Path]):
    """``(u, v) → (u, …, v)`` for every ordered pair of ranks joined by links and transit vertices (all other vertices).

    The path has the fewest links; of these the widest narrowest link; then the order of vertex ids decides. Pairs are
    ordered by u as in ``ranks``, then by hops and id of v. The paths from one rank are computed together, breadth
    first, at the first request for one of them.
    """

    def __init__(self, network: Topology, ranks: Sequence[int]) -> None:
        self._ranks = dict.fromkeys(ranks)
        self._following: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for link in sorted(network.links, key=lambda x: (x.src, x.dst)):
            self._following[link.src].append((link.dst, link.capacity))
        self._found: dict[int, dict[int, Path]] = {}

    def onward(self, source: int) -> Mapping[int, Path]:
        """The paths from ``source``, by their last vertex."""
        if source not in self._found:
            is_rank = source in self._ranks
            self._found[source] = dict(_paths_from(source, self._following, self._ranks)) if is_rank else {}
        return self._found[source]

    def __getitem__(self, pair: tuple[int, int]) -> Path:
        return self.onward(pair[0])[pair[1]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((u, v) for u in self._ranks for v in self.onward(u))

    def __len__(self) -> int:
        return sum(len(self.onward(u)) for u in self._ranks)


def transit_paths(network: Topology, ranks: Sequence[int]) -> TransitPaths:
    """The paths between ``ranks``; the results for the last networks are cached."""
    return _transit_paths(ByIdentity(network), tuple(ranks))


@lru_cache(maxsize=8)
def _transit_paths(network: ByIdentity, ranks: tuple[int, ...]) -> TransitPaths:
    return TransitPaths(network.topology, ranks)


def _paths_from(
    source: int, following: Mapping[int, list[tuple[int, int]]], is_rank: Container[int]
) -> list[tuple[int, Path]]:
    """The best paths from ``source``, computed layer by layer: (target, path) by hops, then target."""
    paths: list[tuple[int, Path]] = []
    reached = {source}
    layer: dict[int, tuple[float, Path]] = {source: (float("inf"), (source,))}
    while layer:
        beyond: dict[int, tuple[float, Path]] = {}
        for vertex, (width, path) in layer.items():
            if vertex in is_rank and vertex != source:
                continue
            for target, capacity in following.get(vertex, ()):
                if target in reached:
                    continue
                candidate = (min(width, capacity), (*path, target))
                best = beyond.get(target)
                if best is None or (-candidate[0], candidate[1]) < (-best[0], best[1]):
                    beyond[target] = candidate
        layer = dict(sorted(beyond.items()))
        reached.update(layer)
        paths.extend((vertex, path) for vertex, (_, path) in layer.items() if vertex in is_rank)
    return paths


def missing_pairs(paths: Mapping[tuple[int, int], Path], ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ordered pairs of ranks that ``paths`` does not join, in the order of ``ranks``."""
    return [(u, v) for u in ranks for v in ranks if u != v and (u, v) not in paths]


def cyclic(order: Sequence[T], start: T) -> tuple[T, ...]:
    """``order`` rotated so that it begins with ``start``."""
    at = order.index(start)
    return (*order[at:], *order[:at])


def star_up(paths: Paths, root: int, ranks: Sequence[int]) -> Tree:
    """Every other rank sends to ``root``, the one after it first: of N stars no two start with one receiver."""
    return Tree(root, tuple(paths[leaf, root] for leaf in cyclic(ranks, root)[1:]))


def star_down(paths: Paths, root: int, ranks: Sequence[int]) -> Tree:
    """The star in which ``root`` sends to every other rank."""
    return Tree(root, tuple(paths[root, leaf] for leaf in cyclic(ranks, root)[1:]))


def chain_down(paths: Paths, order: Sequence[int]) -> Tree:
    """The chain that forwards data from ``order[0]`` along ``order``."""
    return Tree(order[0], tuple(paths[u, v] for u, v in pairwise(order)))


def chain_up(paths: Paths, order: Sequence[int]) -> Tree:
    """The chain that reduces data from ``order[0]`` along ``order`` to ``order[-1]``."""
    return Tree(order[-1], tuple(paths[u, v] for u, v in pairwise(order)))


def flipped(paths: Paths, tree: Tree) -> Tree:
    """The same tree in the other direction, over the paths of that direction."""
    return Tree(tree.root, tuple(paths[path[-1], path[0]] for path in tree.edges))


def laid_over(rows: Sequence[Sequence[T]], weight: Callable[[T], Fraction]) -> Iterator[tuple[Fraction, list[T]]]:
    """The largest pieces of the data with a single entry of every row; the weights of all rows have the same sum.

    Rows are cut at the prefix sums of their weights; rows of equal weights need no further cuts.
    """
    ends = [list(accumulate(map(weight, row))) for row in rows]
    for low, high in pairwise(sorted({Fraction(0), *chain(*ends)})):
        yield high - low, [row[bisect_right(cuts, low)] for row, cuts in zip(rows, ends, strict=True)]


def by_server(topology: Topology, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each server; servers and ranks are in the order of ``ranks``."""
    servers: dict[int, list[int]] = {}
    for rank in ranks:
        servers.setdefault(topology.vertex[rank].server, []).append(rank)
    return tuple(map(tuple, servers.values()))


def require_one_server(request: Request, algorithm: str) -> None:
    """Refuse ranks on several servers; the message lists the servers."""
    servers = sorted({request.topology.vertex[rank].server for rank in request.ranks})
    if len(servers) > 1:
        raise UnsupportedError(
            f"{algorithm} works inside one server, but the ranks are on servers "
            f"{', '.join(map(str, servers))}; use --algo optimal"
        )


def stays_inside(network: Topology, path: Path) -> bool:
    """True if ``path`` stays in the server of its first vertex and crosses no NIC."""
    server = network.vertex[path[0]].server
    return all(network.vertex[v].server == server and network.vertex[v].kind != "nic" for v in path)


def line_up(
    network: Topology, paths: Paths, members: Sequence[int], start: int | None = None
) -> tuple[int, ...] | None:
    """The ranks of one server, from ``start`` if set, in an order with hops inside the server only; None if none."""
    arcs = {
        (u, v): min(network.link[arc].capacity for arc in pairwise(path))
        for (u, v), path in ((pair, paths[pair]) for pair in _pairs(paths, members))
        if stays_inside(network, path)
    }
    return hamiltonian_path(arcs, members, start)


def _pairs(paths: Paths, members: Sequence[int]) -> list[tuple[int, int]]:
    return [(u, v) for u in members for v in members if (u, v) in paths]


def require_collective(request: Request, algorithm: str, served: Sequence[str], instead: str) -> None:
    """Refuse a collective that ``algorithm`` does not support; ``instead`` is the advice in the message."""
    name = request.collective.name
    if name not in served:
        raise UnsupportedError(f"{algorithm} does not support {name}, only {', '.join(served)}; {instead}")


def require_adjacent(paths: Paths, network: Topology, ranks: Sequence[int], algorithm: str) -> None:
    """Refuse ranks with pairs more than one hop apart; the message has the first such pair and their number."""
    missing = missing_pairs(paths, ranks)
    if missing:
        u, v = missing[0]
        raise UnsupportedError(
            f"{algorithm} needs every pair of ranks one hop apart, directly or through switches, but on "
            f"{network.name} no link or switch leads from {u} to {v} ({len(missing)} such ordered pairs); "
            "use --links pcie, or --algo optimal"
        )


def forest_on(request: Request, algorithm: str, network: Topology, shares: Sequence[Share]) -> Forest:
    """The forest of ``shares`` on ``network``, with its rate and with the proof of the best rate."""
    return Forest(
        request.collective,
        request.ranks,
        algorithm,
        network,
        tuple(shares),
        attained_rate(network, shares),
        certificate_for(request.collective, request.ranks, network),
    )
