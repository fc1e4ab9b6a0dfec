"""What hand-made algorithms draw: hops between ranks, stars and chains of them, lines of ranks, and a forest.

A hop of a tree is a :data:`~blinkccl.trees.forest.model.Path`. Its ends are ranks of the job; its interior is
everything else: switches, NICs, host bridges, and GPUs that are relays. A rank is never interior, because a
rank that passes data on is a vertex of the tree.
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
#: Paths between ranks, as :func:`transit_paths` gives them.
Paths = Mapping[tuple[int, int], Path]


class TransitPaths(Mapping[tuple[int, int], Path]):
    """``(u, v) → (u, …, v)`` for every ordered pair of ranks that links and transit vertices (all others) join.

    The path has the fewest links; among those, its narrowest link is widest; then by the order of vertex ids. Pairs
    come with u in the order of ``ranks`` and v by hops, then id. Those from one rank are looked for together, breadth
    first, when the first of them is asked for.
    """

    def __init__(self, network: Topology, ranks: Sequence[int]) -> None:
        self._ranks = dict.fromkeys(ranks)
        self._following: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for link in sorted(network.links, key=lambda x: (x.src, x.dst)):
            self._following[link.src].append((link.dst, link.capacity))
        self._found: dict[int, dict[int, Path]] = {}

    def onward(self, source: int) -> Mapping[int, Path]:
        """The paths from ``source``, by where they end."""
        if source not in self._found:
            known = source in self._ranks
            self._found[source] = dict(_paths_from(source, self._following, self._ranks)) if known else {}
        return self._found[source]

    def __getitem__(self, pair: tuple[int, int]) -> Path:
        return self.onward(pair[0])[pair[1]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((u, v) for u in self._ranks for v in self.onward(u))

    def __len__(self) -> int:
        return sum(len(self.onward(u)) for u in self._ranks)


def transit_paths(network: Topology, ranks: Sequence[int]) -> TransitPaths:
    """The paths between ``ranks``; remembered for the last networks asked for."""
    return _transit_paths(ByIdentity(network), tuple(ranks))


@lru_cache(maxsize=8)
def _transit_paths(network: ByIdentity, ranks: tuple[int, ...]) -> TransitPaths:
    return TransitPaths(network.topology, ranks)


def _paths_from(
    source: int, following: Mapping[int, list[tuple[int, int]]], is_rank: Container[int]
) -> list[tuple[int, Path]]:
    """The best paths from ``source``, found layer by layer: (target, path) by hops, then target."""
    found: list[tuple[int, Path]] = []
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
        found.extend((vertex, path) for vertex, (_, path) in layer.items() if vertex in is_rank)
    return found


def missing_pairs(paths: Mapping[tuple[int, int], Path], ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ordered pairs of ranks that ``paths`` does not join, in the order of ``ranks``."""
    return [(u, v) for u in ranks for v in ranks if u != v and (u, v) not in paths]


def cyclic(order: Sequence[T], start: T) -> tuple[T, ...]:
    """``order`` turned so that it begins with ``start``."""
    at = order.index(start)
    return (*order[at:], *order[:at])


def star_up(paths: Paths, root: int, ranks: Sequence[int]) -> Tree:
    """Every other rank sends to ``root``, the one after it first: of N stars no two start with one receiver."""
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


def laid_over(rows: Sequence[Sequence[T]], weight: Callable[[T], Fraction]) -> Iterator[tuple[Fraction, list[T]]]:
    """One entry of every row for each piece of the data, as large as can be, where all rows cut the same whole.

    They cut it at the prefix sums of their weights; equal weights are cut no further.
    """
    ends = [list(accumulate(map(weight, row))) for row in rows]
    for low, high in pairwise(sorted({Fraction(0), *chain(*ends)})):
        yield high - low, [row[bisect_right(cuts, low)] for row, cuts in zip(rows, ends, strict=True)]


def by_server(topology: Topology, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each server, both in the order in which they are given."""
    servers: dict[int, list[int]] = {}
    for rank in ranks:
        servers.setdefault(topology.vertex[rank].server, []).append(rank)
    return tuple(map(tuple, servers.values()))


def require_one_server(request: Request, algorithm: str) -> None:
    """Refuse ranks on several servers, with their names."""
    servers = sorted({request.topology.vertex[rank].server for rank in request.ranks})
    if len(servers) > 1:
        raise UnsupportedError(
            f"{algorithm} works inside one server, but the ranks are on servers "
            f"{', '.join(map(str, servers))}; use --algo optimal"
        )


def stays_inside(network: Topology, path: Path) -> bool:
    """Whether ``path`` keeps to the server of its first vertex and crosses no NIC."""
    server = network.vertex[path[0]].server
    return all(network.vertex[v].server == server and network.vertex[v].kind != "nic" for v in path)


def line_up(
    network: Topology, paths: Paths, members: Sequence[int], start: int | None = None
) -> tuple[int, ...] | None:
    """The ranks of one server, from ``start`` if given, in an order in which each hop stays inside it; None if none."""
    arcs = {
        (u, v): min(network.link[arc].capacity for arc in pairwise(path))
        for (u, v), path in ((pair, paths[pair]) for pair in _pairs(paths, members))
        if stays_inside(network, path)
    }
    return hamiltonian_path(arcs, members, start)


def _pairs(paths: Paths, members: Sequence[int]) -> list[tuple[int, int]]:
    return [(u, v) for u in members for v in members if (u, v) in paths]


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
