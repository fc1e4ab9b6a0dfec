"""Taking a flow apart into paths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from blinkccl.errors import InternalError
from blinkccl.packing.network import Arc

#: Vertices from the first to the last, and how many units take this way.
UnitPath = tuple[tuple[int, ...], int]


def decompose(flow: Mapping[Arc, int], supply: Mapping[int, int], sink: int) -> dict[int, list[UnitPath]]:
    """Paths that carry ``supply[v]`` units from each ``v`` to ``sink`` and use no arc more than ``flow`` does.

    Each path is a shortest one in what is left, so no path has a cycle and cycles in ``flow`` are ignored.

    Raises
    ------
    InternalError
        If ``flow`` does not conserve the supplies.
    """
    left = {arc: units for arc, units in flow.items() if units > 0}
    successors: dict[int, list[int]] = {}
    for u, v in sorted(left):
        successors.setdefault(u, []).append(v)
    return {source: _paths_from(source, units, sink, left, successors) for source, units in sorted(supply.items())}


def _paths_from(
    source: int, units: int, sink: int, left: dict[Arc, int], successors: dict[int, list[int]]
) -> list[UnitPath]:
    paths: list[UnitPath] = []
    while units > 0:
        path = _shortest(source, sink, left, successors)
        width = min([units, *(left[arc] for arc in itertools.pairwise(path))])
        for arc in itertools.pairwise(path):
            left[arc] -= width
        units -= width
        paths.append((path, width))
    return paths


def _shortest(source: int, sink: int, left: Mapping[Arc, int], successors: Mapping[int, list[int]]) -> tuple[int, ...]:
    parent: dict[int, int | None] = {source: None}
    queue = [source]
    for u in queue:
        if u == sink:
            break
        for v in successors.get(u, ()):
            if v not in parent and left[u, v] > 0:
                parent[v] = u
                queue.append(v)
    if sink not in parent:
        raise InternalError(f"the flow from {source} to {sink} is not conserved")
    path = [sink]
    while (before := parent[path[-1]]) is not None:
        path.append(before)
    return tuple(reversed(path))
