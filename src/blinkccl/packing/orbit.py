"""AllGather on a network that looks the same from every terminal: one tree template, rotated.

Given automorphisms that form a group with exactly one member per terminal, a template rooted at terminal 0
and rotated over the group loads all arcs of an orbit equally: hops in the orbit × N / size of the orbit. The
packing problem shrinks to one row per orbit and one root, whatever the number of terminals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.packing.columns import Column, Oracle, Prices, pack_columns
from blinkccl.packing.network import Arc, Network
from blinkccl.packing.oracles import Hops, cheapest_tree_from, loads_of


def arc_orbits(network: Network, group: Sequence[Sequence[int]]) -> dict[Arc, Arc]:
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


def pack_templates(network: Network, group: Sequence[Sequence[int]], target: Fraction | None) -> TemplatePacking:
    """The best mix of templates rooted at terminal 0.

    Parameters
    ----------
    group
        Automorphisms as vertex permutations, a group under composition, the i-th moving terminal 0 to i.
    target
        A proved upper bound per root: the search stops on reaching it.

    Raises
    ------
    InternalError
        As :func:`~blinkccl.packing.columns.pack_columns`.
    """
    orbit = arc_orbits(network, group)
    size: dict[Arc, int] = {}
    for name in orbit.values():
        size[name] = size.get(name, 0) + 1
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


def _template_oracle(network: Network, orbit: dict[Arc, Arc]) -> Oracle:
    def oracle(prices: Prices) -> list[Column]:
        tree = cheapest_tree_from(network, {arc: prices.get(name, 0) for arc, name in orbit.items()}, 0)
        loads: dict[Arc, int] = {}
        for arc, times in loads_of(tree).items():
            loads[orbit[arc]] = loads.get(orbit[arc], 0) + times
        return [Column(0, tuple(sorted(loads.items())), tree)]

    return oracle


def rotated(hops: Hops, move: Sequence[int]) -> Hops:
    """The template moved by one automorphism."""
    return tuple(tuple(move[v] for v in hop) for hop in hops)
