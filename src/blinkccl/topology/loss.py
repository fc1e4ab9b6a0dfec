"""Topologies after a failure or a slowdown of links or vertices."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology.model import Link, Topology
from blinkccl.topology.select import ids_text

#: Two vertex ids; a link is lost in both directions.
Pair = tuple[int, int]
_PAIR = re.compile(r"\s*(?:GPU)?([0-9]{1,9})\s*-\s*(?:GPU)?([0-9]{1,9})\s*", re.IGNORECASE)


def parse_pairs(text: str, option: str) -> tuple[Pair, ...]:
    """``0-3,16-4`` or ``GPU0-GPU3`` as pairs of vertex ids; a TopologyError quotes an invalid pair."""
    pairs = []
    for piece in text.split(","):
        match = _PAIR.fullmatch(piece)
        if match is None:
            raise TopologyError(f"{option} {text}: {piece.strip()!r} is no link; expected two vertices like 0-3")
        pairs.append((int(match[1]), int(match[2])))
    return tuple(pairs)


def without(topology: Topology, pairs: Collection[Pair] = (), vertices: Collection[int] = ()) -> Topology:
    """``topology`` without these links and vertices; TopologyError if one does not exist."""
    _check(topology, pairs)
    for vertex in vertices:
        if vertex not in topology.vertex:
            raise TopologyError(f"{topology.name} has no vertex {vertex}")
    lost = {end for a, b in pairs for end in ((a, b), (b, a))}
    remaining = [x for x in topology.links if (x.src, x.dst) not in lost and not {x.src, x.dst} & {*vertices}]
    words = [*(f"{a}-{b}" for a, b in pairs), *map(str, vertices)]
    return replace(
        topology,
        name=f"{topology.name} without {','.join(words)}" if words else topology.name,
        vertices=tuple(v for v in topology.vertices if v.id not in vertices),
        links=tuple(remaining),
    )


def slowed(topology: Topology, pairs: Collection[Pair], part: Fraction) -> Topology:
    """``topology`` with these links at ``part`` of their rates, in a unit divided by the denominator of ``part``."""
    _check(topology, pairs)
    slow = {end for a, b in pairs for end in ((a, b), (b, a))}

    def changed(link: Link) -> Link:
        if (link.src, link.dst) not in slow:
            return replace(link, capacity=link.capacity * part.denominator)
        return replace(link, capacity=link.capacity * part.numerator, gb_per_s=link.gb_per_s * float(part))

    return replace(
        topology,
        name=f"{topology.name} with {','.join(f'{a}-{b}' for a, b in pairs)} at {part}",
        unit_gb_per_s=topology.unit_gb_per_s / part.denominator,
        links=tuple(map(changed, topology.links)),
    )


def _check(topology: Topology, pairs: Collection[Pair]) -> None:
    for a, b in pairs:
        if (a, b) not in topology.link and (b, a) not in topology.link:
            near: Sequence[int] = sorted({x.dst for x in topology.links if x.src == a})
            has = f"; {a} has links to {ids_text(near)}" if near else ""
            raise TopologyError(f"{topology.name} has no link {a}-{b}{has}")
