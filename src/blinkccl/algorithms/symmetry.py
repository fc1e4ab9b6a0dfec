"""Rotations: the symmetry of a cluster of equal servers that lets one rank's trees stand for everybody's.

With n servers of g ranks each, rank (i, j) may be moved to (i + a, j + b). Where that maps links to links for
every (a, b), a tree rooted at rank 0 and rotated over all ranks loads every link of a class equally, and the
AllGather of 128 ranks is a linear program with one row per class of links.
The rotations are guessed from the order of the ranks and then verified arc by arc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from blinkccl.algorithms.rank_network import RankNetwork
from blinkccl.packing.columns import Column, Oracle, Prices, pack_columns
from blinkccl.packing.network import Arc, FlowNetwork
from blinkccl.packing.oracles import Hops, cheapest_tree_from, column_of, loads_of

#: A permutation of the network's vertices.
Permutation = tuple[int, ...]


def rotations(view: RankNetwork) -> tuple[Permutation, ...] | None:
    """One automorphism per terminal r that maps terminal 0 to r, together a group; None where there are none."""
    servers = [view.topology.vertex[view.ids[v]].server for v in range(view.network.terminals)]
    sizes = [servers.count(s) for s in dict.fromkeys(servers)]
    if len(set(sizes)) != 1 or servers != sorted(servers):
        return None
    return _rotations(view.network, sizes[0])


@lru_cache(maxsize=64)
def _rotations(network: FlowNetwork, group: int) -> tuple[Permutation, ...] | None:
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


def _extended(network: FlowNetwork, image: list[int]) -> Permutation | None:
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


def _place(network: FlowNetwork, mapped: dict[int, int], v: int) -> bool:
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


def _near(network: FlowNetwork, v: int) -> list[int]:
    return sorted({u for u, w, _ in network.arcs if w == v} | {w for u, w, _ in network.arcs if u == v})


# AllGather on a network that looks the same from every terminal: one tree template, rotated. Given automorphisms that
# form a group with exactly one member per terminal, a template rooted at terminal 0 and rotated over the group loads
# all arcs of an orbit equally: hops in the orbit × N / size of the orbit. The packing problem shrinks to one row per
# orbit and one root, whatever the number of terminals.


def arc_orbits(network: FlowNetwork, group: Sequence[Sequence[int]]) -> dict[Arc, Arc]:
    """Each arc's orbit, named by its least member."""
    orbit: dict[Arc, Arc] = {}
    for u, v, _ in sorted(network.arcs):
        if (u, v) not in orbit:
            for move in group:
                orbit.setdefault((move[u], move[v]), (u, v))
    return orbit


@dataclass(frozen=True, slots=True)
class TemplatePacking:
    """``rate`` per root, templates whose weights sum to it, and prices that prove ``bound`` per root.

    Prices are per arc, equal within an orbit; there are none where ``rate`` is the target, proved beforehand.
    """

    rate: Fraction
    templates: tuple[tuple[Hops, Fraction], ...]
    prices: dict[Arc, Fraction]
    bound: Fraction


def pack_templates(network: FlowNetwork, group: Sequence[Sequence[int]], target: Fraction | None) -> TemplatePacking:
    """The best mix of templates rooted at terminal 0, as :func:`~blinkccl.packing.columns.pack_columns` finds it.

    The i-th of ``group``, automorphisms, moves terminal 0 to i. ``target`` is a proved upper bound per root.
    """
    orbit = arc_orbits(network, group)
    size = Counter(orbit.values())
    capacity = {name: network.capacity[name] * size[name] for name in size}
    count = network.terminals
    packing = pack_columns(
        capacity,
        [Fraction(1)],
        _template_oracle(network, orbit),
        target=None if target is None else target * count,
    )
    templates = tuple((column.payload, weight / count) for column, weight in packing.columns)
    prices = {arc: packing.prices[name] for arc, name in sorted(orbit.items()) if name in packing.prices}
    return TemplatePacking(packing.rate / count, templates, prices, packing.bound / count)


def _template_oracle(network: FlowNetwork, orbit: dict[Arc, Arc]) -> Oracle:
    def oracle(prices: Prices) -> list[Column]:
        tree = cheapest_tree_from(network, {arc: prices.get(name, 0) for arc, name in orbit.items()}, 0)
        loads: Counter[Arc] = Counter()
        for arc, times in loads_of(tree).items():
            loads[orbit[arc]] += times
        return [column_of(0, loads, tree)]

    return oracle


def rotated(hops: Hops, move: Sequence[int]) -> Hops:
    """The template moved by one automorphism."""
    return tuple(tuple(move[v] for v in hop) for hop in hops)
