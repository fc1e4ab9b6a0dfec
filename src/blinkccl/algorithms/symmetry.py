"""Rotations: the symmetry of a cluster of equal servers that lets one rank's trees stand for everybody's.

With n servers of g ranks each, rank (i, j) may be moved to (i + a, j + b). Where that maps links to links for
every (a, b), a tree rooted at rank 0 and rotated over all ranks loads every link of a class equally, and the
AllGather of 128 ranks is a linear program with one row per class of links (theory: "symmetry is a hop budget").
The rotations are guessed from the order of the ranks and then verified arc by arc.
"""

from __future__ import annotations

from functools import lru_cache

from blinkccl.algorithms.lanes import Lanes
from blinkccl.packing.network import Network

#: A permutation of the network's vertices.
Permutation = tuple[int, ...]


def rotations(lanes: Lanes) -> tuple[Permutation, ...] | None:
    """One automorphism per terminal r that maps terminal 0 to r, together a group; None where there are none."""
    servers = [lanes.topology.vertex[lanes.ids[v]].server for v in range(lanes.network.terminals)]
    sizes = [servers.count(s) for s in dict.fromkeys(servers)]
    if len(set(sizes)) != 1 or servers != sorted(servers):
        return None
    return _rotations(lanes.network, sizes[0])


@lru_cache(maxsize=64)
def _rotations(network: Network, group: int) -> tuple[Permutation, ...] | None:
    count = network.terminals // group
    generators = []
    for step, along in ((1, 0), (0, 1)):
        image = [((i + step) % count) * group + (j + along) % group for i in range(count) for j in range(group)]
        generator = _extended(network, image)
        if generator is None:
            return None
        generators.append(generator)
    by_server = _powers(generators[0], count)
    within = _powers(generators[1], group)
    found = tuple(tuple(first[second[v]] for v in range(network.n)) for first in by_server for second in within)
    return found if [p[0] for p in found] == list(range(network.terminals)) else None


def _powers(generator: Permutation, count: int) -> list[Permutation]:
    powers: list[Permutation] = [tuple(range(len(generator)))]
    for _ in range(count - 1):
        powers.append(tuple(generator[v] for v in powers[-1]))
    return powers


def _extended(network: Network, image: list[int]) -> Permutation | None:
    """The automorphism that moves the terminals so, transit following its neighbours; None if there is none."""
    mapped: dict[int, int] = dict(enumerate(image))
    waiting = list(range(network.terminals, network.n))
    while waiting:
        placed = [v for v in waiting if _place(network, mapped, v)]
        if not placed:
            return None
        waiting = [v for v in waiting if v not in mapped]
    permutation = tuple(mapped[v] for v in range(network.n))
    same = all(network.capacity.get((permutation[u], permutation[v])) == c for u, v, c in network.arcs)
    return permutation if same and sorted(permutation) == list(range(network.n)) else None


def _place(network: Network, mapped: dict[int, int], v: int) -> bool:
    """Map transit vertex ``v`` to the one free vertex that has the images of its mapped neighbours."""
    wanted = [
        (mapped[u], network.capacity.get((u, v)), network.capacity.get((v, u)))
        for u in _near(network, v)
        if u in mapped
    ]
    taken = frozenset(mapped.values())
    fits = [
        w
        for w in range(network.terminals, network.n)
        if w not in taken
        and wanted
        and all(network.capacity.get((u, w)) == c and network.capacity.get((w, u)) == d for u, c, d in wanted)
    ]
    if len(fits) == 1:
        mapped[v] = fits[0]
    return len(fits) == 1


def _near(network: Network, v: int) -> list[int]:
    return sorted({u for u, w, _ in network.arcs if w == v} | {w for u, w, _ in network.arcs if u == v})
