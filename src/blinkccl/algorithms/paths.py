"""How does data get from one rank to the next: by a direct link, or through vertices that only pass on.

A hop of a tree is a :data:`~blinkccl.forest.model.Path`. Its ends are ranks of the job; its interior is
everything else: switches, NICs, host bridges, and GPUs that are relays. A rank is never interior, because a
rank that passes data on is a vertex of the tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from blinkccl.forest.model import Path
from blinkccl.topology.model import Topology


def transit_paths(network: Topology, ranks: Sequence[int]) -> dict[tuple[int, int], Path]:
    """``(u, v) → (u, …, v)`` for every ordered pair of ranks that links and transit vertices join.

    Among the paths whose interior holds no rank, the one with the fewest links; among those, one whose
    narrowest link is widest; then by the order of vertex ids. A direct link is therefore always preferred.
    Every vertex outside ``ranks`` is transit. Pairs come with u in the order of ``ranks`` and v by hops, then id.
    Cost: one breadth-first search per rank over the transit vertices, O(N · links of the network).
    """
    is_rank = frozenset(ranks)
    following: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for link in sorted(network.links, key=lambda x: (x.src, x.dst)):
        following[link.src].append((link.dst, link.capacity))
    paths: dict[tuple[int, int], Path] = {}
    for source in ranks:
        for target, path in _paths_from(source, following, is_rank):
            paths[source, target] = path
    return paths


def _paths_from(
    source: int, following: dict[int, list[tuple[int, int]]], is_rank: frozenset[int]
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
