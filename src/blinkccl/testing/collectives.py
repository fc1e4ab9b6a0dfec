"""Every collective with every root and every pair of ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from blinkccl.collectives.spec import COLLECTIVES, Collective


def every_collective(world_size: int) -> Iterator[Collective]:
    """All nine collectives with every root and every ordered pair of ends."""
    for name, definition in COLLECTIVES.items():
        if definition.parameters == ("root",):
            yield from (Collective(name, world_size, root=root) for root in range(world_size))
        elif definition.parameters:
            yield from (Collective(name, world_size, src=s, dst=d) for s, d in permutations(range(world_size), 2))
        else:
            yield Collective(name, world_size)
